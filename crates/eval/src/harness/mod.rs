//! Runs KV methods over data sets and makes tables of what came of it.
//!
//! An [`Arm`] is a method with a target and options. [`Plan::run`] takes every recording through every arm and writes a
//! [`Row`] for each into a [`Results`] file as soon as it is there, so that a run that was broken off goes on, and so
//! that it can be split over machines ([`Shard`]) and put together again ([`merge`]). Scores are made from rows alone
//! ([`score`]), never while the model runs, so that they can be made again under other rules.

mod arm;
mod error;
mod plan;
mod results;
mod row;
mod score;
mod table;

pub use arm::{Arm, MethodSpec};
pub use error::HarnessError;
pub use plan::{Happening, Plan, Shard, Tally, sample};
pub use results::{Results, merge, read_all};
pub use row::{Ran, Row, RowResult, Timing};
pub use score::{Metric, Scores, Scoring, score};
pub use table::{Line, csv, lines, markdown, overview};
