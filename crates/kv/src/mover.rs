//! Copies from host to device, at once or on a thread beside the computation.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use serde::Serialize;
use wnw_kernels::KvRow;

use crate::host::HostRun;
use crate::page::Page;

/// When recalled rows are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SwapMode {
    /// On a copy thread while the output layer, sampling and the next step's layers run; a layer's attention waits only
    /// for its own rows. The same rows are resident as with [`SwapMode::Sync`].
    #[default]
    Overlap,
    /// When the plan is given; for comparison.
    Sync,
}

impl fmt::Display for SwapMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overlap => "overlap",
            Self::Sync => "sync",
        })
    }
}

impl FromStr for SwapMode {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "overlap" => Ok(Self::Overlap),
            "sync" => Ok(Self::Sync),
            _ => Err(format!("'{s}' is no swap mode; use overlap or sync")),
        }
    }
}

/// One segment of one head on its way to the device.
#[derive(Debug)]
pub struct Move<T> {
    /// Index of the head over all layers.
    pub head: usize,
    /// The segment.
    pub segment: u32,
    /// Where the rows come from: keys, then values.
    pub host: HostRun<T>,
    /// Storage units of the run.
    pub range: Range<usize>,
    /// Where they go.
    pub page: Page<T>,
}

impl<T: KvRow> Move<T> {
    /// Copies the rows.
    pub fn carry_out(&mut self) {
        let rows = self.host.get(self.range.clone());
        let (k, v) = rows.split_at(rows.len() / 2);
        let half = self.page.len() / 2;
        self.page[..k.len()].copy_from_slice(k);
        self.page[half..half + v.len()].copy_from_slice(v);
    }
}

/// A thread that carries out moves in the order given.
#[derive(Debug)]
pub struct Mover<T> {
    jobs: Option<Sender<Move<T>>>,
    done: Receiver<Move<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: KvRow> Mover<T> {
    /// Starts the thread; fails when the system has none to give.
    pub fn start() -> std::io::Result<Self> {
        let (jobs, todo) = channel::<Move<T>>();
        let (report, done) = channel();
        let work = move || {
            for mut job in todo {
                job.carry_out();
                if report.send(job).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("kv-recall".into()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Hands over a move; gives it back if the thread is gone.
    pub fn send(&self, job: Move<T>) -> Result<(), Box<Move<T>>> {
        match &self.jobs {
            Some(jobs) => jobs.send(job).map_err(|e| Box::new(e.0)),
            None => Err(Box::new(job)),
        }
    }

    /// A finished move if there is one.
    pub fn ready(&self) -> Option<Move<T>> {
        self.done.try_recv().ok()
    }

    /// Waits for a finished move; `None` if the thread is gone.
    pub fn wait(&self) -> Option<Move<T>> {
        self.done.recv().ok()
    }
}

impl<T> Drop for Mover<T> {
    fn drop(&mut self) {
        // Without a sender the thread ends after the moves that it has.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
