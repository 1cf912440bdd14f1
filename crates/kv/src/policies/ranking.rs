//! Which rows have the best scores. Of equal scores the lower row comes first, so that results never depend on chance.

use std::cmp::Ordering;

/// Higher score first. Both zeros are equal.
fn better(a: f64, b: f64) -> Ordering {
    (b + 0.0).total_cmp(&(a + 0.0))
}

/// The `n` best rows, best first; of equals the lower.
pub fn best(scores: &[f64], n: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    let by_score = |a: &u32, b: &u32| better(scores[*a as usize], scores[*b as usize]).then(a.cmp(b));
    if n < order.len() {
        order.select_nth_unstable_by(n, by_score);
        order.truncate(n);
    }
    order.sort_unstable_by(by_score);
    order
}

/// The `n` best rows, ascending; of equals the lower are in.
pub fn top(scores: &[f64], n: usize) -> Vec<u32> {
    let mut rows = best(scores, n);
    rows.sort_unstable();
    rows
}

/// How many of the `n` best entries over several heads fall to each, `(heads)`.
///
/// `scores` is `(heads, rows)`. Of equals the lower row comes first, then the lower head.
pub fn counts_of_best(scores: &[Vec<f64>], n: usize) -> Vec<usize> {
    let heads = scores.iter().enumerate();
    let mut all: Vec<(f64, usize, usize)> =
        heads.flat_map(|(head, s)| s.iter().enumerate().map(move |(row, s)| (*s, row, head))).collect();
    let by_score =
        |a: &(f64, usize, usize), b: &(f64, usize, usize)| better(a.0, b.0).then((a.1, a.2).cmp(&(b.1, b.2)));
    if n < all.len() {
        all.select_nth_unstable_by(n, by_score);
        all.truncate(n);
    }
    let mut counts = vec![0; scores.len()];
    all.iter().for_each(|(_, _, head)| counts[*head] += 1);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equals_the_lower_comes_first() {
        let scores = [0.0, 2.0, -0.0, 2.0, 1.0, 0.0];
        assert_eq!(best(&scores, 9), [1, 3, 4, 0, 2, 5]);
        assert_eq!(best(&scores, 5), [1, 3, 4, 0, 2]);
        assert_eq!(top(&scores, 4), [0, 1, 3, 4]);
        assert_eq!(top(&scores, 0), [0u32; 0]);
        assert_eq!(top(&[], 3), [0u32; 0]);
        let heads = vec![vec![1.0, 1.0, 1.0], vec![1.0, 1.0, 1.0]];
        assert_eq!(counts_of_best(&heads, 3), [2, 1], "row 0 of both, then row 1 of the lower head");
        assert_eq!(counts_of_best(&heads, 99), [3, 3]);
        assert_eq!(counts_of_best(&[], 2), [0usize; 0]);
    }
}
