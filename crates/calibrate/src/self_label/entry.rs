//! What a calibration without labels keeps of a recording.

use serde::{Deserialize, Serialize};

/// What came of one step with one recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Entry {
    /// The transcript and what follows from it alone.
    Heard(Heard),
    /// It cannot be used.
    LeftOut {
        /// [`crate::journal::sample_id`] of the recording.
        id: String,
        /// Why.
        reason: String,
    },
    /// Voice score with times from some heads.
    Counted(Counted),
}

/// A transcript and what follows from it alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heard {
    /// [`crate::journal::sample_id`] of the recording.
    pub id: String,
    /// The transcript's tokens.
    pub answer: Vec<u32>,
    /// Monotone score, `(n_layers, n_kv_heads)`.
    pub monotone: Vec<f64>,
    /// Head sensitivity, `(n_layers, n_kv_heads)`.
    pub sensitivity: Vec<f64>,
    /// Mean cross-entropy of the answer in nats.
    pub loss: f64,
}

/// Hits of the voice score with times from some heads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// [`crate::journal::sample_id`] of the recording.
    pub id: String,
    /// The heads, layer-major indices, ascending.
    pub heads: Vec<usize>,
    /// K.
    pub top_k: usize,
    /// Least confidence.
    pub min_confidence: f32,
    /// Tokens that counted.
    pub tokens: u64,
    /// Hits over these, `(n_layers, n_q_heads)`.
    pub hits: Vec<u64>,
}

impl crate::journal::Entry for Entry {
    const FORMAT: &'static str = "wnw-calibration-samples";
}

impl Entry {
    /// Whether it says what came of hearing the recording of this id.
    pub(super) fn is_of(&self, id: &str) -> bool {
        match self {
            Self::Heard(heard) => heard.id == id,
            Self::LeftOut { id: of, .. } => of == id,
            Self::Counted(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_journal() {
        let heard = Heard {
            id: "a".into(),
            answer: vec![1],
            monotone: vec![0.1],
            sensitivity: vec![1e-9],
            loss: 0.5,
        };
        let counted = Counted {
            id: "a".into(),
            heads: vec![3],
            top_k: 4,
            min_confidence: 0.3,
            tokens: 1,
            hits: vec![4],
        };
        let left_out = Entry::LeftOut { id: "b".into(), reason: "silent".into() };
        for entry in [Entry::Heard(heard), Entry::Counted(counted), left_out] {
            let line = serde_json::to_string(&entry).unwrap();
            assert_eq!(serde_json::from_str::<Entry>(&line).unwrap(), entry, "{line}");
        }
    }
}
