//! Audio embeddings of windows that will be asked for again.

use std::sync::{Mutex, PoisonError};

/// Windows with their audio embeddings, found again by the samples themselves.
#[derive(Debug, Default)]
pub struct Embeddings {
    kept: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    samples: Vec<f32>,
    /// `(audio_tokens, hidden_size)`.
    embeddings: Vec<f32>,
}

impl Embeddings {
    /// The embeddings of a window: those kept, or what `encode` makes.
    pub fn of<E>(
        &self,
        samples: &[f32],
        encode: impl FnOnce() -> Result<Vec<f32>, E>,
    ) -> Result<Vec<f32>, E> {
        // A panic elsewhere leaves whole entries behind: what is there can be used.
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = lock().iter().find(|kept| kept.samples == samples) {
            return Ok(kept.embeddings.clone());
        }
        let embeddings = encode()?;
        lock().push(Kept { samples: samples.to_vec(), embeddings: embeddings.clone() });
        Ok(embeddings)
    }

    /// Drops all.
    pub fn clear(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_encoded_once_until_all_is_dropped() {
        let (kept, mut encoded) = (Embeddings::default(), 0);
        let mut ask = |samples: &[f32]| {
            kept.of(samples, || {
                encoded += 1;
                Ok::<_, ()>(vec![samples[0]; 2])
            })
            .unwrap()
        };
        assert_eq!(ask(&[1.0, 2.0]), [1.0, 1.0]);
        assert_eq!(ask(&[1.0, 2.5]), [1.0, 1.0]);
        assert_eq!(ask(&[1.0, 2.0]), [1.0, 1.0]);
        assert_eq!(encoded, 2);
        kept.clear();
        kept.of(&[1.0, 2.0], || Err("again")).unwrap_err();
    }
}
