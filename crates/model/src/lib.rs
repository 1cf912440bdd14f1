//! wnw model (crate docs to follow).
