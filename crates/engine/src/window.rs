//! Cutting a recording into stretches that the model takes in one pass.

/// Rate of all samples.
const RATE: usize = wnw_audio::SAMPLE_RATE as usize;
/// Length of the stretch whose loudness decides where to cut: as long as a pause between sentences.
const PAUSE_SECONDS: f64 = 0.3;
/// Step of the search.
const STEP: usize = RATE / 100;
/// A recording's window is searched for a pause in at most this much of its end …
const SEARCH_SECONDS: f64 = 30.0;
/// … and at most this share of it.
const SEARCH_SHARE: f64 = 0.25;

/// Collects samples and gives back windows of at most `limit` samples, cut at the quietest point near the limit.
///
/// Windows are disjoint and together are the recording, so times hold and no word is heard twice.
#[derive(Debug)]
pub struct Windower {
    limit: usize,
    /// Limit of the next window alone, if it is to be shorter.
    next_limit: Option<usize>,
    buffer: Vec<f32>,
}

impl Windower {
    /// Windows of at most `seconds`.
    pub fn new(seconds: f64) -> Self {
        Self { limit: samples(seconds), next_limit: None, buffer: Vec::new() }
    }

    /// Adds samples at 16 kHz.
    pub fn push(&mut self, samples: &[f32]) {
        self.buffer.extend_from_slice(samples);
    }

    /// Puts samples of the last window back, to be the beginning of the next one, which is at most `seconds` long if
    /// that is given.
    pub fn put_back(&mut self, samples: &[f32], seconds: Option<f64>) {
        self.buffer.splice(..0, samples.iter().copied());
        self.next_limit = seconds.map(self::samples);
    }

    /// The next window, once more samples than one window holds are there.
    pub fn next_full(&mut self) -> Option<Vec<f32>> {
        let limit = self.next_limit.map_or(self.limit, |next| next.min(self.limit));
        if self.buffer.len() <= limit {
            return None;
        }
        self.next_limit = None;
        let cut = quietest(&self.buffer[..limit]);
        let rest = self.buffer.split_off(cut);
        Some(std::mem::replace(&mut self.buffer, rest))
    }

    /// The next window at the end of the recording; none once everything was given.
    pub fn next_at_end(&mut self) -> Option<Vec<f32>> {
        let full = self.next_full();
        full.or_else(|| (!self.buffer.is_empty()).then(|| std::mem::take(&mut self.buffer)))
    }
}

fn samples(seconds: f64) -> usize {
    ((seconds * RATE as f64) as usize).max(1)
}

/// Index at which to cut `samples`: the middle of the quietest pause in the searched end of it; the last of equals.
fn quietest(samples: &[f32]) -> usize {
    let n = samples.len();
    let pause = ((PAUSE_SECONDS * RATE as f64) as usize).min(n);
    let search =
        ((SEARCH_SECONDS * RATE as f64) as usize).min((n as f64 * SEARCH_SHARE) as usize).max(pause).min(n);
    let first = n - search;
    let mut best = (f64::INFINITY, n);
    for start in (first..=n - pause).step_by(STEP) {
        let energy: f64 = samples[start..start + pause].iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        if energy <= best.0 {
            best = (energy, start + pause / 2);
        }
    }
    best.1.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(seconds: f64) -> Vec<f32> {
        (0..(seconds * RATE as f64) as usize).map(|i| (i as f32 * 0.3).sin() * 0.5).collect()
    }

    fn windows(samples: &[f32], seconds: f64, block: usize) -> Vec<Vec<f32>> {
        let mut windower = Windower::new(seconds);
        let mut out = Vec::new();
        for block in samples.chunks(block) {
            windower.push(block);
            while let Some(window) = windower.next_full() {
                out.push(window);
            }
        }
        out.extend(windower.next_at_end());
        out
    }

    #[test]
    fn cuts_fall_into_pauses_and_nothing_is_lost() {
        let mut samples = tone(9.0);
        for pause in [3.1f64, 5.6, 8.0] {
            let start = (pause * RATE as f64) as usize;
            samples[start..start + 6400].fill(0.001);
        }
        let cut = windows(&samples, 4.0, 1000);
        assert_eq!(cut.concat(), samples);
        let seconds: Vec<f64> = cut.iter().map(|w| w.len() as f64 / RATE as f64).collect();
        assert!((3.1..3.5).contains(&seconds[0]), "{seconds:?}");
        assert!(seconds.iter().all(|s| *s <= 4.0));
        assert_eq!(cut, windows(&samples, 4.0, 77_777), "the size of the blocks does not matter");
    }

    #[test]
    fn what_is_put_back_comes_first() {
        let samples: Vec<f32> = (0..5 * RATE).map(|i| i as f32).collect();
        let mut windower = Windower::new(3.0);
        windower.push(&samples);
        let first = windower.next_full().unwrap();
        windower.put_back(&first[RATE..], Some(1.0));
        let second = windower.next_full().unwrap();
        assert!(second.len() <= RATE && second[0] == RATE as f32);
        let third = windower.next_at_end().unwrap();
        assert!(third.len() > RATE, "only one window is short");
        let mut all = [&first[..RATE], &second, &third].concat();
        while let Some(window) = windower.next_at_end() {
            all.extend(window);
        }
        assert_eq!(all, samples);
        windower.put_back(&samples[..10], Some(1.0));
        assert_eq!(windower.next_at_end().unwrap(), samples[..10]);
        assert_eq!(windower.next_at_end(), None);
    }

    #[test]
    fn short_recordings_are_not_cut() {
        assert!(windows(&[], 1.0, 500).is_empty());
        for n in [1, 159, 16_000] {
            assert_eq!(windows(&tone(1.0)[..n], 1.0, 500), [tone(1.0)[..n].to_vec()]);
        }
        assert_eq!(windows(&tone(1.0), 0.00001, 3).concat(), tone(1.0), "an absurd limit still ends");
    }
}
