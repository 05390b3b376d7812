//! Trees, walked as a stream.
