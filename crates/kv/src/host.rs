//! The host tier: rows that left the device and can come back, written once.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use memmap2::Mmap;
use thiserror::Error;
use wnw_kernels::KvRow;

use crate::arena::{Arena, ArenaError};

/// Where the host tier lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostPlace {
    /// In memory.
    #[default]
    Ram,
    /// In a temporary file in this directory. The file has no name (or loses it at once), so it is gone however the
    /// process ends.
    File(PathBuf),
}

/// What the host tier refused.
#[derive(Debug, Error)]
pub enum HostError {
    /// Too little memory.
    #[error("host tier: {0}")]
    Memory(#[from] ArenaError),
    /// The temporary file.
    #[error("host tier in {path}: {source}")]
    File {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// The host copies of one KV head, all its recallable rows in one run.
#[derive(Clone, Debug)]
pub struct HostRun<T> {
    memory: HostMemory<T>,
    len: usize, // storage units
}

#[derive(Clone, Debug)]
enum HostMemory<T> {
    Ram(Arc<Vec<T>>),
    /// From an offset in bytes; the map is there once the prefill is complete.
    File(Arc<std::sync::OnceLock<Mmap>>, usize),
}

impl<T: KvRow> HostRun<T> {
    /// Storage units `range` of the run.
    ///
    /// # Panics
    /// Before [`HostTier::seal`], or past the run's end.
    pub fn get(&self, range: Range<usize>) -> &[T] {
        assert!(range.end <= self.len, "host tier: {range:?} of {}", self.len);
        match &self.memory {
            HostMemory::Ram(run) => &run[range],
            HostMemory::File(map, start) => {
                let map = map.get().expect("the host tier is sealed before anything is recalled");
                let bytes = start + range.start * size_of::<T>()..start + range.end * size_of::<T>();
                bytemuck::cast_slice(&map[bytes])
            }
        }
    }

    /// Storage units of the run.
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Takes runs of rows during the prefill and keeps them to the end of the session, unchanged.
#[derive(Debug)]
pub struct HostTier {
    place: HostPlace,
    arena: Arc<Arena>,
    file: Option<File>,
    map: Arc<std::sync::OnceLock<Mmap>>,
    bytes: u64,
}

impl HostTier {
    /// An empty tier. A file is made when the first run comes.
    pub fn new(place: HostPlace, arena: Arc<Arena>) -> Self {
        Self { place, arena, file: None, map: Arc::default(), bytes: 0 }
    }

    /// Takes over one head's run; it can be read after [`HostTier::seal`].
    pub fn put<T: KvRow>(&mut self, run: Vec<T>) -> Result<HostRun<T>, HostError> {
        let (len, bytes) = (run.len(), size_of_val(&run[..]) as u64);
        let memory = match &self.place {
            HostPlace::Ram => {
                self.arena.charge(bytes)?;
                HostMemory::Ram(Arc::new(run))
            }
            HostPlace::File(dir) => {
                let failed = |source| HostError::File { path: dir.clone(), source };
                if self.file.is_none() {
                    self.file = Some(tempfile::tempfile_in(dir).map_err(failed)?);
                }
                let start = self.bytes as usize;
                if let Some(file) = &mut self.file {
                    file.write_all(bytemuck::cast_slice(&run)).map_err(failed)?;
                }
                HostMemory::File(Arc::clone(&self.map), start)
            }
        };
        self.bytes += bytes;
        Ok(HostRun { memory, len })
    }

    /// Makes the runs readable; nothing can be put afterwards.
    pub fn seal(&mut self) -> Result<(), HostError> {
        let (Some(file), HostPlace::File(dir)) = (&self.file, &self.place) else { return Ok(()) };
        // SAFETY: the file has no name and its only handle is ours, which is not written to after this; so nobody
        // changes or shortens it while it is mapped. (A disk that fails to read it back ends the process with SIGBUS, as
        // with any mapped file.)
        let map = unsafe { Mmap::map(file) };
        let map = map.map_err(|source| HostError::File { path: dir.clone(), source })?;
        // Set once, here; a second seal would map the same bytes again.
        let _ = self.map.set(map);
        Ok(())
    }

    /// Bytes held, in memory or in the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for HostTier {
    fn drop(&mut self) {
        if self.place == HostPlace::Ram {
            self.arena.credit(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn runs_come_back_bit_for_bit_from_both_places() {
        let dir = tempfile::tempdir().unwrap();
        for place in [HostPlace::Ram, HostPlace::File(dir.path().into())] {
            let arena = Arena::new(None);
            let mut tier = HostTier::new(place, Arc::clone(&arena));
            let runs: Vec<Vec<bf16>> =
                (1..5u16).map(|n| (0..n * 7).map(|i| bf16::from_bits(i * 2311 + n)).collect()).collect();
            let kept: Vec<_> = runs.iter().map(|run| tier.put(run.clone()).unwrap()).collect();
            tier.seal().unwrap();
            for (run, kept) in runs.iter().zip(&kept) {
                let bits = |x: &[bf16]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(kept.get(0..run.len())), bits(run));
                assert_eq!(bits(kept.get(3..7)), bits(&run[3..7]));
            }
            assert_eq!(tier.bytes(), 2 * 70);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
            drop((tier, kept));
            assert_eq!(arena.used(), 0);
        }
    }

    #[test]
    fn a_full_tier_and_a_missing_directory_are_errors() {
        let mut tier = HostTier::new(HostPlace::Ram, Arena::new(Some(8)));
        assert!(matches!(tier.put(vec![1f32; 3]), Err(HostError::Memory(_))));
        tier.put(vec![1f32; 2]).unwrap();
        let mut tier = HostTier::new(HostPlace::File("/nonexistent/dir".into()), Arena::new(None));
        let error = tier.put(vec![1f32; 3]).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/dir"), "{error}");
    }
}
