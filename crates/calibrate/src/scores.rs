//! Scores of a model's heads from those of its samples.

use wnw_kv::KvShape;

use crate::CalibrateError;
use crate::journal::SampleScores;
use crate::voice::VoiceCount;

/// VS and HS of every KV head, `(n_layers, n_kv_heads)`, head `layer · n_kv_heads + kv_head`.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadScores {
    /// Voice score, 0 to 1: every counted token of every sample weighs the same.
    pub voice: Vec<f64>,
    /// Voice score of every query head, `(n_layers, n_q_heads)`.
    pub voice_of_queries: Vec<f64>,
    /// Head sensitivity: every sample weighs the same.
    pub sensitivity: Vec<f64>,
    /// Answer tokens that the voice score counted.
    pub tokens: u64,
}

impl HeadScores {
    /// The mean over samples, which were measured with K = `top_k`. [`CalibrateError::NoTimes`] if not one token counted
    /// for the voice score: all of them would be 0, and no head better than another.
    pub fn mean(samples: &[SampleScores], shape: KvShape, top_k: usize) -> Result<Self, CalibrateError> {
        let mut count = VoiceCount::new(shape, top_k);
        let mut sensitivity = vec![0.0; shape.n_layers * shape.n_kv_heads];
        for sample in samples {
            if sample.hits.len() != count.hits.len() || sample.sensitivity.len() != sensitivity.len() {
                let reason = format!("sample '{}' is of a model with other heads", sample.id);
                return Err(CalibrateError::Input(reason));
            }
            let hits = sample.hits.clone();
            count.add(&VoiceCount { hits, tokens: sample.voice_tokens, top_k });
            for (sum, s) in sensitivity.iter_mut().zip(&sample.sensitivity) {
                *sum += s / samples.len() as f64;
            }
        }
        if count.tokens == 0 {
            return Err(CalibrateError::NoTimes);
        }
        Ok(Self {
            voice: count.per_kv_head(shape.group()),
            voice_of_queries: count.per_query_head(),
            sensitivity,
            tokens: count.tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_weigh_alike_in_vs_and_samples_in_hs() {
        let shape = KvShape { n_layers: 1, n_q_heads: 4, n_kv_heads: 2, head_dim: 8 };
        let sample = |tokens, hits: [u64; 4], sensitivity: [f64; 2]| SampleScores {
            id: "s".into(),
            answer_tokens: 10,
            voice_tokens: tokens,
            hits: hits.to_vec(),
            sensitivity: sensitivity.to_vec(),
            loss: 0.0,
        };
        let samples = [sample(1, [4, 0, 2, 2], [1.0, 0.0]), sample(3, [0, 12, 0, 0], [2.0, 0.5])];
        let scores = HeadScores::mean(&samples, shape, 4).unwrap();
        assert_eq!(scores.voice, [0.5, 0.125]);
        assert_eq!(scores.voice_of_queries, [0.25, 0.75, 0.125, 0.125]);
        assert_eq!((&scores.sensitivity[..], scores.tokens), (&[1.5, 0.25][..], 4));
        assert!(HeadScores::mean(&samples, KvShape { n_layers: 2, ..shape }, 4).is_err());
        let timeless = HeadScores::mean(&[sample(0, [0; 4], [1.0, 1.0])], shape, 4);
        assert!(matches!(timeless, Err(CalibrateError::NoTimes)));
    }
}
