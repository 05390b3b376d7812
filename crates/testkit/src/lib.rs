//! What tests need: the seeded network, models of servers, real servers, trees.

pub mod sim;
