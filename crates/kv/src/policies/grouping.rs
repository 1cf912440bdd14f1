//! Which neighbours are alike: the groups of AffPool, and the threshold that leaves a given number of them.

use std::ops::Range;

/// Cosines of rows with those shortly before them, in stretches that are grouped apart.
#[derive(Clone, Debug)]
pub struct Neighbours {
    /// Rows looked back at, ω.
    window: usize,
    /// Ranges of rows, ascending and disjoint.
    stretches: Vec<Range<usize>>,
    /// For each row of each stretch, cosines with the row 1, 2, … ω before it; −∞ where there is none. `(rows, ω)`.
    cosines: Vec<f64>,
}

impl Neighbours {
    /// Of states `x`, `(rows, width)`, inside `stretches`. A row of zeros is like nothing (cosine 0).
    pub fn new(x: &[f32], width: usize, stretches: Vec<Range<usize>>, window: usize) -> Self {
        // No row looks back further than to its stretch's start.
        let longest = stretches.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let window = window.clamp(1, longest.max(1));
        let rows: usize = stretches.iter().map(ExactSizeIterator::len).sum();
        let mut cosines = Vec::with_capacity(rows * window);
        let dot = |a: usize, b: usize| -> f64 {
            let (a, b) = (&x[a * width..(a + 1) * width], &x[b * width..(b + 1) * width]);
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        for stretch in &stretches {
            let norms: Vec<f64> = stretch.clone().map(|row| dot(row, row).sqrt()).collect();
            for i in 0..stretch.len() {
                for back in 1..=window {
                    cosines.push(match i.checked_sub(back) {
                        None => f64::NEG_INFINITY,
                        Some(j) => {
                            let cosine = dot(stretch.start + i, stretch.start + j) / (norms[i] * norms[j]);
                            if cosine.is_nan() { 0.0 } else { cosine }
                        }
                    });
                }
            }
        }
        Self { window, stretches, cosines }
    }

    /// Whether each row joins the one before it under the threshold τ; `(rows of all stretches)`.
    ///
    /// One pass: a row joins the current group if its largest cosine with the group's last ω rows is at least τ, and
    /// begins a new one otherwise.
    pub fn joins(&self, tau: f64) -> Vec<bool> {
        let mut out = Vec::with_capacity(self.cosines.len() / self.window);
        let mut cosines = self.cosines.chunks_exact(self.window);
        for stretch in &self.stretches {
            let mut members = 0;
            for cosines in cosines.by_ref().take(stretch.len()) {
                let joins = cosines.iter().take(members).any(|cosine| *cosine >= tau);
                members = if joins { members + 1 } else { 1 };
                out.push(joins);
            }
        }
        out
    }

    /// Groups under the threshold τ. They never become fewer as τ grows: a group that begins under τ also does under
    /// any larger one, since the group that a row is compared with then is no longer.
    pub fn groups(&self, tau: f64) -> usize {
        self.joins(tau).iter().filter(|joins| !**joins).count()
    }

    /// The largest threshold that leaves at most `most` groups, by bisection over the cosines that there are: every
    /// number of groups that any threshold gives is given by one of them, or by ∞ (all rows apart). Where no threshold
    /// leaves so few, the one that leaves the fewest, a group for each stretch.
    pub fn threshold(&self, most: usize) -> f64 {
        let mut taus: Vec<f64> = self.cosines.iter().copied().filter(|c| c.is_finite()).collect();
        taus.push(f64::INFINITY);
        taus.sort_unstable_by(f64::total_cmp);
        taus.dedup();
        let fitting = taus.partition_point(|tau| self.groups(*tau) <= most);
        taus[fitting.saturating_sub(1)]
    }
}
