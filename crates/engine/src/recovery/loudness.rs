//! Where a window has sound that may be speech.

/// Rate of all samples.
const RATE: f64 = wnw_audio::SAMPLE_RATE as f64;
/// Length of a frame in samples: 20 ms.
const FRAME: usize = wnw_audio::SAMPLE_RATE as usize / 50;
const FRAME_SECONDS: f64 = FRAME as f64 / RATE;
/// Share of frames below the noise floor.
const FLOOR: f64 = 0.10;
/// Share of frames below the level of speech.
const SPEECH: f64 = 0.95;
/// A loud frame lies above this share of the way from floor to speech, in decibels …
const LOUD_SHARE: f64 = 0.4;
/// … and at least this far above the floor: without it the ripple of a steady sound were speech.
const LEAST_DECIBELS: f64 = 6.0;
/// Length of a pause at which a window may end, in seconds.
const PAUSE: f64 = 0.2;

/// Loud and quiet frames of a window.
#[derive(Clone, Debug)]
pub(crate) struct Loudness {
    /// Level of each frame in decibels.
    levels: Vec<f64>,
    /// Loud frames before each frame, `(n_frames + 1)`.
    loud: Vec<usize>,
}

impl Loudness {
    /// Of a window's samples at 16 kHz.
    pub fn new(samples: &[f32]) -> Self {
        let level = |frame: &[f32]| {
            let energy: f64 = frame.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            10.0 * (energy / frame.len() as f64 + 1e-10).log10()
        };
        let levels: Vec<f64> = samples.chunks(FRAME).map(level).collect();
        let mut sorted = levels.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| sorted.get((share * levels.len() as f64) as usize).copied().unwrap_or(0.0);
        let (floor, speech) = (at(FLOOR), at(SPEECH));
        let threshold = floor + (LOUD_SHARE * (speech - floor)).max(LEAST_DECIBELS);
        let mut loud = Vec::with_capacity(levels.len() + 1);
        loud.push(0);
        for (i, level) in levels.iter().enumerate() {
            loud.push(loud[i] + usize::from(*level > threshold));
        }
        Self { levels, loud }
    }

    fn frame(&self, seconds: f64) -> usize {
        ((seconds.max(0.0) / FRAME_SECONDS).round() as usize).min(self.levels.len())
    }

    /// Length of the window in seconds.
    pub fn seconds(&self) -> f64 {
        self.levels.len() as f64 * FRAME_SECONDS
    }

    /// Seconds of loud sound between two times.
    pub fn between(&self, from: f64, to: f64) -> f64 {
        let (from, to) = (self.frame(from), self.frame(to));
        self.loud[to.max(from)].saturating_sub(self.loud[from]) as f64 * FRAME_SECONDS
    }

    /// The middle of the quietest 0.2 s whose middle lies between two times, and its level in decibels; the last of
    /// equals.
    pub fn pause(&self, from: f64, to: f64) -> (f64, f64) {
        let half = (PAUSE / FRAME_SECONDS / 2.0) as usize;
        let (first, last) = (self.frame(from), self.frame(to.max(from)));
        let mut best = (from.max(0.0), f64::INFINITY);
        for middle in first..=last {
            let frames = &self.levels[middle.saturating_sub(half)..(middle + half).min(self.levels.len())];
            let loudest = frames.iter().fold(f64::NEG_INFINITY, |l, x| l.max(*x));
            if !frames.is_empty() && loudest <= best.1 {
                best = (middle as f64 * FRAME_SECONDS, loudest);
            }
        }
        best
    }

    /// The first pause between two times, or else the quietest place.
    pub fn first_pause(&self, from: f64, to: f64) -> f64 {
        let frames = self.frame(from)..=self.frame(to);
        let mut times = frames.map(|frame| frame as f64 * FRAME_SECONDS);
        times.find(|at| self.is_pause(*at)).unwrap_or_else(|| self.pause(from, to).0)
    }

    /// Whether there is nothing loud in the 0.2 s around a time.
    pub fn is_pause(&self, at: f64) -> bool {
        self.between(at - PAUSE / 2.0, at + PAUSE / 2.0) == 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tone of an amplitude for some seconds, in turn.
    fn sound(parts: &[(f64, f32)]) -> Vec<f32> {
        let samples = |(seconds, amplitude): &(f64, f32)| {
            let amplitude = *amplitude;
            (0..(seconds * RATE) as usize).map(move |i| amplitude * (i as f32 * 0.3).sin())
        };
        parts.iter().flat_map(samples).collect()
    }

    #[test]
    fn speech_is_told_from_pauses_and_noise() {
        let loudness = Loudness::new(&sound(&[(2.0, 0.3), (1.0, 0.003), (2.0, 0.2), (3.0, 0.003)]));
        assert!((loudness.between(0.0, 8.0) - 4.0).abs() < 0.1);
        assert_eq!(loudness.between(2.1, 2.9), 0.0);
        assert_eq!(loudness.between(5.1, 8.0), 0.0);
        assert!((loudness.between(1.0, 4.0) - 2.0).abs() < 0.1);
        let (at, _) = loudness.pause(1.0, 4.0);
        assert!((2.1..2.95).contains(&at) && loudness.is_pause(at), "{at}");
        assert!(!loudness.is_pause(1.0));
    }

    #[test]
    fn a_steady_sound_is_not_speech() {
        for amplitude in [0.0, 0.001, 0.5] {
            assert_eq!(Loudness::new(&sound(&[(5.0, amplitude)])).between(0.0, 5.0), 0.0);
        }
        let empty = Loudness::new(&[]);
        assert_eq!((empty.seconds(), empty.between(0.0, 9.0), empty.pause(0.0, 3.0).0), (0.0, 0.0, 0.0));
    }
}
