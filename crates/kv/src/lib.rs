//! wnw kv (crate docs to follow).
