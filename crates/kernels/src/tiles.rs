//! Results of matrix products, cut into column tiles that tasks fill at the same time.

use rayon::prelude::*;

/// Columns of one tile: the unit in which products are handed to threads. Where the tiles lie does not depend on the
/// number of threads.
pub const TILE: usize = 64;

/// Columns `first .. first + len` of a row-major result `(m, n)`, which one task alone writes.
pub struct Tile<'a> {
    data: *mut f32,
    m: usize,
    n: usize,
    first: usize,
    len: usize,
    result: std::marker::PhantomData<&'a mut [f32]>,
}

impl Tile<'_> {
    /// Rows of the result, `m`.
    pub fn rows(&self) -> usize {
        self.m
    }

    /// The first column.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Number of columns, at most [`TILE`]; never 0.
    pub fn columns(&self) -> usize {
        self.len
    }

    /// Columns of the tile in row `i` of the result.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.m, "tile: row {i} of {}", self.m);
        // SAFETY: `for_each_tile` and `for_each_pair` make tiles inside an (m, n) result that they hold mutably, each with
        // columns of its own, and the borrow of `self` keeps two slices of one tile apart.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(i * self.n + self.first), self.len) }
    }
}

/// A result that tasks share, since each writes its own columns.
#[derive(Clone, Copy)]
struct Shared {
    data: *mut f32,
    m: usize,
    n: usize,
}

// SAFETY: only `tile` reads the pointer, and its callers give every tile to one task.
unsafe impl Sync for Shared {}

impl Shared {
    /// # Panics
    /// When `out` is not `(m, n)`.
    fn new(out: &mut [f32], m: usize, n: usize) -> Self {
        assert_eq!(out.len(), m * n, "tiles: the result is not ({m}, {n})");
        Self { data: out.as_mut_ptr(), m, n }
    }

    fn tiles(&self) -> usize {
        self.n.div_ceil(TILE)
    }

    fn tile<'a>(&self, index: usize) -> Tile<'a> {
        let first = index * TILE;
        let len = TILE.min(self.n - first);
        Tile { data: self.data, m: self.m, n: self.n, first, len, result: std::marker::PhantomData }
    }
}

/// Fills results `(m, n)` tile by tile: `fill(r, tile)` writes a tile of result `r`. On several threads when `parallel`.
/// Allocates nothing.
///
/// # Panics
/// When a result does not have `m` rows of the width given with it.
pub fn for_each_tile<const R: usize>(
    results: [(&mut [f32], usize); R],
    m: usize,
    parallel: bool,
    fill: impl Fn(usize, Tile<'_>) + Sync,
) {
    let results = results.map(|(out, n)| Shared::new(out, m, n));
    let total = results.iter().map(Shared::tiles).sum();
    let one = |mut index: usize| {
        for (r, result) in results.iter().enumerate() {
            if index < result.tiles() {
                return fill(r, result.tile(index));
            }
            index -= result.tiles();
        }
    };
    if parallel { (0..total).into_par_iter().for_each(one) } else { (0..total).for_each(one) }
}

/// Fills two results of the same size, `(m, n)`, at the same places: `fill(a, b)` writes the same columns of both.
/// Allocates nothing.
///
/// # Panics
/// When a result is not `(m, n)`.
pub fn for_each_pair(
    a: &mut [f32],
    b: &mut [f32],
    (m, n): (usize, usize),
    parallel: bool,
    fill: impl Fn(Tile<'_>, Tile<'_>) + Sync,
) {
    let (a, b) = (Shared::new(a, m, n), Shared::new(b, m, n));
    let one = |index: usize| fill(a.tile(index), b.tile(index));
    if parallel { (0..a.tiles()).into_par_iter().for_each(one) } else { (0..a.tiles()).for_each(one) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_written_once() {
        for parallel in [false, true] {
            for (m, na, nb) in [(1, 1, 64), (3, 65, 200), (2, 63, 0), (5, 128, 1)] {
                let (mut a, mut b) = (vec![0f32; m * na], vec![0f32; m * nb]);
                for_each_tile([(&mut a, na), (&mut b, nb)], m, parallel, |r, mut tile| {
                    assert_eq!(tile.rows(), m);
                    for i in 0..m {
                        let first = tile.first();
                        for (j, x) in tile.row(i).iter_mut().enumerate() {
                            *x += (r * 100_000 + i * 1000 + first + j + 1) as f32;
                        }
                    }
                });
                for (r, (x, n)) in [(a, na), (b, nb)].into_iter().enumerate() {
                    for (at, x) in x.iter().enumerate() {
                        assert_eq!(*x, (r * 100_000 + at / n * 1000 + at % n + 1) as f32);
                    }
                }
            }
            let (mut a, mut b) = (vec![1f32; 2 * 70], vec![2f32; 2 * 70]);
            for_each_pair(&mut a, &mut b, (2, 70), parallel, |mut a, mut b| {
                assert_eq!((a.first(), a.columns()), (b.first(), b.columns()));
                (0..2).for_each(|i| a.row(i).iter_mut().zip(b.row(i)).for_each(|(a, b)| *a += *b));
            });
            assert!(a.iter().all(|a| *a == 3.0));
        }
    }

    #[test]
    #[should_panic(expected = "tiles: the result is not")]
    fn a_result_of_another_size_is_refused() {
        for_each_tile([(&mut [0.0; 5], 2)], 3, false, |_, _| {});
    }
}
