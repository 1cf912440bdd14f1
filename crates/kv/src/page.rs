//! Fixed-size pages of KV rows and the pool they come from.

use std::sync::Arc;

use wnw_kernels::KvRow;
use wnw_kernels::vector::encode_row;

use crate::arena::{Arena, ArenaError};

/// Rows of a page of kept rows. Large enough that attention runs over long contiguous pieces, small enough that the
/// last, partly filled page of each head costs little.
pub const PAGE_ROWS: usize = 64;

/// Rows of keys and values: `(2, rows, row_len)`, keys first. Rows that were never written read as NaN, so that a stale
/// read shows.
pub type Page<T> = Box<[T]>;

/// Where pages of one size come from and go back to.
///
/// Pages are allocated one at a time and never move, so appending a row never copies the cache. A page belongs to
/// whoever took it; the pool charges the arena for pages in use and for those waiting to be used again.
#[derive(Debug)]
pub struct PagePool<T> {
    rows: usize,
    row_len: usize,
    arena: Arc<Arena>,
    free: Vec<Page<T>>,
    allocated: u64,
}

impl<T: KvRow> PagePool<T> {
    /// An empty pool of pages of `rows` rows of `row_len` storage units.
    pub fn new(rows: usize, row_len: usize, arena: Arc<Arena>) -> Self {
        Self { rows, row_len, arena, free: Vec::new(), allocated: 0 }
    }

    /// Takes a page.
    pub fn take(&mut self) -> Result<Page<T>, ArenaError> {
        if let Some(page) = self.free.pop() {
            return Ok(page);
        }
        let bytes = self.page_bytes();
        self.arena.charge(bytes)?;
        let len = 2 * self.rows * self.row_len;
        let mut page = Vec::new();
        if page.try_reserve_exact(len).is_err() {
            self.arena.credit(bytes);
            return Err(ArenaError::OutOfMemory { needed: bytes, used: self.arena.used() });
        }
        page.resize(len, T::STALE);
        self.allocated += 1;
        Ok(page.into_boxed_slice())
    }

    /// Takes a page back for later use. In debug builds it is poisoned, so that a read of it shows.
    pub fn give(&mut self, mut page: Page<T>) {
        if cfg!(debug_assertions) {
            page.fill(T::STALE);
        }
        self.free.push(page);
    }

    /// Frees the pages that wait to be used again; returns whether there were any.
    pub fn trim(&mut self) -> bool {
        let n = self.free.len() as u64;
        self.free.clear();
        self.allocated -= n;
        self.arena.credit(n * self.page_bytes());
        n > 0
    }

    /// Bytes allocated: pages in use and waiting.
    pub fn bytes(&self) -> u64 {
        self.allocated * self.page_bytes()
    }

    /// Pages that wait to be used again.
    pub fn waiting(&self) -> usize {
        self.free.len()
    }

    /// Pages allocated, in use or waiting.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> u64 {
        (2 * self.rows * self.row_len * size_of::<T>()) as u64
    }
}

impl<T> Drop for PagePool<T> {
    /// The pages' owner goes with the pool: all of its bytes are free again.
    fn drop(&mut self) {
        self.arena.credit(self.allocated * (2 * self.rows * self.row_len * size_of::<T>()) as u64);
    }
}

/// Writes row `slot` of a page.
pub fn write_row<T: KvRow>(page: &mut [T], slot: usize, k: &[f32], v: &[f32]) {
    let len = T::row_len(k.len());
    let half = page.len() / 2;
    encode_row(k, &mut page[slot * len..(slot + 1) * len]);
    encode_row(v, &mut page[half + slot * len..half + (slot + 1) * len]);
}

/// Key rows and value rows `start .. start + rows` of a page, each `(rows, row_len)`.
pub fn page_rows<T>(page: &[T], start: usize, rows: usize, row_len: usize) -> (&[T], &[T]) {
    let (k, v) = page.split_at(page.len() / 2);
    let range = start * row_len..(start + rows) * row_len;
    (&k[range.clone()], &v[range])
}
