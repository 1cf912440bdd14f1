//! Byte budgets of the two tiers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

/// An allocation that a tier refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ArenaError {
    /// The tier's capacity would be exceeded.
    #[error("{needed} more bytes of KV do not fit: {used} of {capacity} are in use")]
    Full {
        /// Bytes asked for.
        needed: u64,
        /// Bytes in use.
        used: u64,
        /// Capacity in bytes.
        capacity: u64,
    },
    /// The system has no memory.
    #[error("no memory for {needed} more bytes of KV ({used} in use)")]
    OutOfMemory {
        /// Bytes asked for.
        needed: u64,
        /// Bytes in use.
        used: u64,
    },
}

/// Counts the bytes that the stores of one session set hold in one tier, and refuses what exceeds its capacity.
///
/// Pages and blocks of the device are charged before they are allocated, a head's host run once it is gathered; all are
/// credited when they are freed. A pager's digests count as well; indices (which rows a head kept, where a
/// segment lies) are not KV and do not.
/// Stores share an arena by its `Arc`.
#[derive(Debug)]
pub struct Arena {
    capacity: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

impl Arena {
    /// An arena of `capacity` bytes; without one, only the system's memory limits it.
    pub fn new(capacity: Option<u64>) -> Arc<Self> {
        let capacity = capacity.unwrap_or(u64::MAX);
        Arc::new(Self { capacity, used: AtomicU64::new(0), peak: AtomicU64::new(0) })
    }

    /// Capacity in bytes, when there is one.
    pub fn capacity(&self) -> Option<u64> {
        (self.capacity != u64::MAX).then_some(self.capacity)
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were ever in use at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Charges `bytes`, or refuses.
    pub fn charge(&self, bytes: u64) -> Result<(), ArenaError> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.capacity);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(used) => Err(ArenaError::Full { needed: bytes, used, capacity: self.capacity }),
        }
    }

    /// Gives back `bytes` that were charged.
    pub fn credit(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts memory that holds KV for a while without being kept: one layer's full keys and values during prefill.
    /// It shows in [`Arena::peak`] and is not held against the capacity, which is for what stays.
    pub fn working(self: &Arc<Self>, bytes: u64) -> Working {
        let used = self.used.fetch_add(0, Ordering::Relaxed);
        self.peak.fetch_max(used + bytes, Ordering::Relaxed);
        Working { arena: Arc::clone(self), bytes }
    }
}

/// Working memory counted by [`Arena::working`] until it is dropped.
#[derive(Debug)]
pub struct Working {
    arena: Arc<Arena>,
    bytes: u64,
}

impl Working {
    /// Counts this memory beside what is in use by now.
    pub fn note(&self) {
        self.arena.peak.fetch_max(self.arena.used() + self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_refuses_what_does_not_fit_and_remembers_its_peak() {
        let arena = Arena::new(Some(100));
        arena.charge(60).unwrap();
        assert_eq!(arena.charge(41), Err(ArenaError::Full { needed: 41, used: 60, capacity: 100 }));
        arena.charge(40).unwrap();
        arena.credit(70);
        assert_eq!((arena.used(), arena.peak()), (30, 100));
        let working = arena.working(200);
        assert_eq!((arena.used(), arena.peak()), (30, 230));
        arena.charge(5).unwrap();
        working.note();
        assert_eq!(arena.peak(), 235);
        assert!(Arena::new(None).charge(u64::MAX / 2).is_ok());
    }
}
