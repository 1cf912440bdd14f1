//! Choice of the next token.

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sampling {
    /// The most likely token; ties go to the lower id.
    #[default]
    Greedy,
    /// Nucleus sampling (Holtzman et al. 2019): from the smallest set of tokens whose probabilities at this temperature
    /// sum to at least `top_p`.
    TopP {
        /// Above 0.
        temperature: f64,
        /// Above 0, at most 1.
        top_p: f64,
        /// Same seed, same tokens.
        seed: u64,
    },
}

/// A sampling method with its state.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    state: u64,
}

impl Sampler {
    /// A fresh sampler.
    pub fn new(sampling: Sampling) -> Self {
        let state = if let Sampling::TopP { seed, .. } = sampling { seed } else { 0 };
        Self { sampling, state }
    }

    /// The next token, or `None` when a logit is not finite.
    pub fn pick(&mut self, logits: &[f32]) -> Option<u32> {
        let best = argmax(logits)?;
        let Sampling::TopP { temperature, top_p, .. } = self.sampling else { return Some(best as u32) };
        let top = f64::from(logits[best]);
        let mut candidates: Vec<(f64, usize)> = logits
            .iter()
            .enumerate()
            .map(|(i, l)| (((f64::from(*l) - top) / temperature).exp(), i))
            .filter(|(p, _)| *p > 0.0)
            .collect();
        candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let total: f64 = candidates.iter().map(|c| c.0).sum();
        let mut mass = 0.0;
        let kept = candidates.iter().take_while(|c| {
            let inside = mass < top_p * total;
            mass += c.0;
            inside
        });
        let kept: Vec<_> = kept.copied().collect();
        let mut target = self.uniform() * kept.iter().map(|c| c.0).sum::<f64>();
        for (p, i) in &kept {
            target -= p;
            if target <= 0.0 {
                return Some(*i as u32);
            }
        }
        kept.last().map(|c| c.1 as u32)
    }

    /// Uniform in [0, 1): SplitMix64 (Steele et al. 2014).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Index of the largest element, the first of equals; `None` when one is not finite.
fn argmax(x: &[f32]) -> Option<usize> {
    let mut best: Option<usize> = None;
    for (i, value) in x.iter().enumerate() {
        if !value.is_finite() {
            return None;
        }
        if best.is_none_or(|b| *value > x[b]) {
            best = Some(i);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_first_of_the_best_and_refuses_nonsense() {
        let mut sampler = Sampler::new(Sampling::Greedy);
        assert_eq!(sampler.pick(&[0.0, 3.0, 3.0, -1.0]), Some(1));
        assert_eq!(sampler.pick(&[0.0, f32::NAN, 1.0]), None);
        assert_eq!(sampler.pick(&[f32::INFINITY, 0.0]), None);
        assert_eq!(sampler.pick(&[]), None);
    }

    #[test]
    fn nucleus_frequencies_follow_the_distribution() {
        let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        let mut sampler = Sampler::new(Sampling::TopP { temperature: 1.0, top_p: 0.9, seed: 5 });
        let mut counts = [0; 4];
        for _ in 0..20_000 {
            counts[sampler.pick(&logits).unwrap() as usize] += 1;
        }
        assert_eq!(counts[3], 0, "outside the nucleus");
        for (count, p) in counts.iter().zip([0.5, 0.3, 0.15]) {
            let share = f64::from(*count) / 20_000.0;
            assert!((share - p / 0.95).abs() < 0.015, "{share} for {p}");
        }
        let tokens = |seed| {
            let mut s = Sampler::new(Sampling::TopP { temperature: 1.0, top_p: 1.0, seed });
            (0..50).map(|_| s.pick(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(tokens(1), tokens(1));
        assert_ne!(tokens(1), tokens(2));
    }
}
