//! (doc)
