//! Fixed-size pages of KV rows and the pool they come from.

use wnw_kernels::KvElement;

/// Rows of one page. Large enough that attention runs over long contiguous pieces, small enough that the last, partly
/// filled page of each head costs little.
pub const PAGE_ROWS: usize = 64;

/// Pages of keys and values: a page is `(2, PAGE_ROWS, head_dim)`, keys first.
///
/// Pages are allocated one at a time and never move, so appending a row never copies the cache. Freed pages are reused
/// before new ones are allocated; in debug builds they are filled with NaN, so that a stale read shows.
#[derive(Debug)]
pub struct PagePool<T> {
    head_dim: usize,
    pages: Vec<Box<[T]>>,
    free: Vec<u32>,
    high_water: usize,
}

impl<T: KvElement> PagePool<T> {
    /// An empty pool for rows of `head_dim` elements.
    pub fn new(head_dim: usize) -> Self {
        Self { head_dim, pages: Vec::new(), free: Vec::new(), high_water: 0 }
    }

    /// Takes a page; `None` when the allocator has no memory.
    pub fn take(&mut self) -> Option<u32> {
        if let Some(page) = self.free.pop() {
            self.high_water = self.high_water.max(self.in_use());
            return Some(page);
        }
        let len = 2 * PAGE_ROWS * self.head_dim;
        let mut page = Vec::new();
        page.try_reserve_exact(len).ok()?;
        page.resize(len, T::NAN);
        let id = u32::try_from(self.pages.len()).ok()?;
        self.pages.push(page.into_boxed_slice());
        self.high_water = self.high_water.max(self.in_use());
        Some(id)
    }

    /// Gives pages back for reuse.
    pub fn release(&mut self, pages: &[u32]) {
        if cfg!(debug_assertions) {
            for page in pages {
                self.pages[*page as usize].fill(T::NAN);
            }
        }
        self.free.extend_from_slice(pages);
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

    /// Pages handed out and not released.
    pub fn in_use(&self) -> usize {
        self.pages.len() - self.free.len()
    }

    /// Pages allocated, in use or free.
    pub fn allocated(&self) -> usize {
        self.pages.len()
    }

    /// The most pages that were ever in use at once.
    pub fn high_water(&self) -> usize {
        self.high_water
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> usize {
        2 * PAGE_ROWS * self.head_dim * size_of::<T>()
    }

    /// Ids of the free pages.
    pub fn free_pages(&self) -> &[u32] {
        &self.free
    }
}
