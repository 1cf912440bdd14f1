//! Rows of the edit matrix as bits, 64 cells at a time (Myers 1999, Hyyrö 2003).
//!
//! Neighbours in a row of the Levenshtein matrix differ by −1, 0 or 1, so a row is two bit sets: where the value rises
//! and where it falls along the reference. One hypothesis symbol turns a row into the next with a dozen operations per 64
//! cells. Of each row only those blocks are worked on that an alignment of at most `bound` edits can cross (Ukkonen
//! 1985). Cells at the border of that band may come out too large, never too small, and those on a best alignment come out
//! exact when its cost is within the bound; so do both bits that are read when it is walked back.

/// Where each symbol of the reference stands, as bits by block.
pub(crate) struct Pattern {
    /// Symbol, block, bits: ascending.
    entries: Vec<(usize, usize, u64)>,
    len: usize,
}

impl Pattern {
    /// The pattern of a reference.
    pub(crate) fn new(reference: impl ExactSizeIterator<Item = usize>) -> Self {
        let len = reference.len();
        let mut entries: Vec<_> =
            reference.enumerate().map(|(i, symbol)| (symbol, i / 64, 1u64 << (i % 64))).collect();
        entries.sort_unstable();
        entries.dedup_by(|later, kept| {
            let same = (later.0, later.1) == (kept.0, kept.1);
            if same {
                kept.2 |= later.2;
            }
            same
        });
        Self { entries, len }
    }

    fn of(&self, symbol: usize) -> &[(usize, usize, u64)] {
        let from = self.entries.partition_point(|e| e.0 < symbol);
        let len = self.entries[from..].partition_point(|e| e.0 == symbol);
        &self.entries[from..from + len]
    }
}

/// One row of the matrix, within the band.
pub(crate) struct Band<'a> {
    pattern: &'a Pattern,
    /// Hypothesis symbols seen.
    row: usize,
    /// Columns of interest in row r: from r + low to r + high.
    low: isize,
    high: isize,
    rises: Vec<u64>,
    falls: Vec<u64>,
    first: usize,
    last: usize,
    /// Value of the cell left of the first block.
    before: isize,
}

impl<'a> Band<'a> {
    /// The row before any of the `hypothesis_len` symbols, for alignments of at most `bound` edits. The reference must
    /// not be empty, and `bound` at least the difference of the lengths.
    pub(crate) fn new(pattern: &'a Pattern, hypothesis_len: usize, bound: usize) -> Self {
        let blocks = pattern.len.div_ceil(64);
        let longer = pattern.len as isize - hypothesis_len as isize;
        // Every edit that leads away from the straight way must be undone by another.
        let slack = (bound - longer.unsigned_abs()) as isize / 2;
        Self {
            pattern,
            row: 0,
            low: longer.min(0) - slack,
            high: longer.max(0) + slack,
            rises: vec![!0; blocks],
            falls: vec![0; blocks],
            first: 0,
            last: 0,
            before: 0,
        }
    }

    /// The row after one more symbol of the hypothesis.
    pub(crate) fn advance(&mut self, symbol: usize) {
        self.row += 1;
        let columns = self.pattern.len as isize;
        let from = (self.row as isize + self.low).clamp(1, columns) as usize;
        let to = (self.row as isize + self.high).clamp(1, columns) as usize;
        let first = (from - 1) / 64;
        for block in self.first..first {
            self.before += self.rises[block].count_ones() as isize - self.falls[block].count_ones() as isize;
        }
        (self.first, self.last) = (first, (to - 1) / 64);
        self.before += 1;

        let mut matches = self.pattern.of(symbol);
        matches = &matches[matches.partition_point(|e| e.1 < first)..];
        // The change from the row above at the cell left of the block: 1 at the border.
        let (mut rise, mut fall) = (1u64, 0u64);
        for block in first..=self.last {
            let mut equal = 0;
            if let Some((head, tail)) = matches.split_first()
                && head.1 == block
            {
                (equal, matches) = (head.2, tail);
            }
            let (up, down) = (self.rises[block], self.falls[block]);
            let x = equal | fall;
            // Cells that equal their upper left neighbour.
            let level = ((x & up).wrapping_add(up) ^ up) | x | down;
            let horizontal_up = down | !(level | up);
            let horizontal_down = level & up;
            let shifted_up = horizontal_up << 1 | rise;
            let shifted_down = horizontal_down << 1 | fall;
            (rise, fall) = (horizontal_up >> 63, horizontal_down >> 63);
            self.rises[block] = shifted_down | !(level | shifted_up);
            self.falls[block] = shifted_up & level;
        }
    }

    /// The columns that [`Band::values`] covers begin here.
    pub(crate) fn first_column(&self) -> usize {
        self.first * 64
    }

    /// The row's values from [`Band::first_column`] to the end of the band or of the reference.
    pub(crate) fn values(&self) -> impl Iterator<Item = usize> {
        let mut value = self.before;
        let columns = self.first_column()..self.pattern.len.min((self.last + 1) * 64);
        std::iter::once(value as usize).chain(columns.map(move |c| {
            let (block, bit) = (c / 64, c % 64);
            value += (self.rises[block] >> bit & 1) as isize - (self.falls[block] >> bit & 1) as isize;
            value as usize
        }))
    }
}

/// The bits of all rows, within the band.
pub(crate) struct Rows {
    /// First block of each row, and where its bits start.
    rows: Vec<(usize, usize)>,
    bits: Vec<(u64, u64)>,
}

impl Rows {
    /// All rows of a matrix.
    pub(crate) fn new(mut band: Band<'_>, hypothesis: &[usize]) -> Self {
        let mut rows = Vec::with_capacity(hypothesis.len());
        let mut bits = Vec::new();
        for symbol in hypothesis {
            band.advance(*symbol);
            rows.push((band.first, bits.len()));
            bits.extend((band.first..=band.last).map(|b| (band.rises[b], band.falls[b])));
        }
        Self { rows, bits }
    }

    /// Whether the value rises, and whether it falls, from column `column` of row `row` to the next; rows and columns
    /// counted from 0, row 0 being the one after the first symbol. Neither, outside the band.
    pub(crate) fn step(&self, row: usize, column: usize) -> (bool, bool) {
        let (first, start) = self.rows[row];
        let end = self.rows.get(row + 1).map_or(self.bits.len(), |r| r.1);
        let Some(block) = (column / 64).checked_sub(first).filter(|b| start + b < end) else {
            return (false, false);
        };
        let (rises, falls) = self.bits[start + block];
        (rises >> (column % 64) & 1 == 1, falls >> (column % 64) & 1 == 1)
    }
}
