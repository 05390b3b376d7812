//! Servers, trees, clocks and the seeded network that tests run against.

pub mod sftp_model;
