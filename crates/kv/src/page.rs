//! Fixed-size pages of KV rows and the pool they come from.

use wnw_kernels::KvElement;

/// Rows of one page. Large enough that attention runs over long contiguous pieces, small enough that the last, partly
/// filled page of each head costs little.
pub const PAGE_ROWS: usize = 64;

/// Pages of keys and values: a page is `(2, PAGE_ROWS, head_dim)`, keys first.
///
/// Pages are allocated one at a time and never move, so appending a row never copies the cache. Rows that were never
/// written are NaN, so that a stale read shows.
#[derive(Debug)]
pub struct PagePool<T> {
    head_dim: usize,
    pages: Vec<Box<[T]>>,
}

impl<T: KvElement> PagePool<T> {
    /// An empty pool for rows of `head_dim` elements.
    pub fn new(head_dim: usize) -> Self {
        Self { head_dim, pages: Vec::new() }
    }

    /// Takes a page; `None` when the allocator has no memory.
    pub fn take(&mut self) -> Option<u32> {
        let len = 2 * PAGE_ROWS * self.head_dim;
        let mut page = Vec::new();
        page.try_reserve_exact(len).ok()?;
        page.resize(len, T::NAN);
        let id = u32::try_from(self.pages.len()).ok()?;
        self.pages.push(page.into_boxed_slice());
        Some(id)
    }

    /// Writes row `slot` of `page`.
    pub fn write(&mut self, page: u32, slot: usize, k: &[f32], v: &[f32]) {
        let hd = self.head_dim;
        let page = &mut self.pages[page as usize];
        wnw_kernels::vector::narrow(k, &mut page[slot * hd..(slot + 1) * hd]);
        let v_start = (PAGE_ROWS + slot) * hd;
        wnw_kernels::vector::narrow(v, &mut page[v_start..v_start + hd]);
    }

    /// The first `rows` key rows and value rows of `page`, each `(rows, head_dim)`.
    pub fn rows(&self, page: u32, rows: usize) -> (&[T], &[T]) {
        let page = &self.pages[page as usize];
        let (k, v) = page.split_at(PAGE_ROWS * self.head_dim);
        (&k[..rows * self.head_dim], &v[..rows * self.head_dim])
    }

    /// Pages allocated; every one belongs to a head.
    pub fn allocated(&self) -> usize {
        self.pages.len()
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> usize {
        2 * PAGE_ROWS * self.head_dim * size_of::<T>()
    }
}
