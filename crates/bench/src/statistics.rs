//! Figures of repeated measurements.

/// The middle value, the lower of two; 0 without any.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The value that a share `q` of the values does not exceed (nearest rank); 0 without any.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// The mean; 0 without any.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!((median(&values), quantile(&values, 0.99), quantile(&values, 1.0)), (50.0, 99.0, 100.0));
        assert_eq!((median(&[3.0]), quantile(&[3.0, 1.0], 0.99), median(&[])), (3.0, 3.0, 0.0));
        assert_eq!((mean(&values), mean(&[])), (50.5, 0.0));
    }
}
