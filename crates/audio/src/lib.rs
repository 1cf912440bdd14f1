//! wnw audio (crate docs to follow).
