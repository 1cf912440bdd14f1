//! The `wnw` command.
fn main() {}
