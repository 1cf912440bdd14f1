//! wnw engine (crate docs to follow).
