//! The way from any recording to mono samples at 16 kHz, block by block.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::SAMPLE_RATE;
use crate::error::clock;
use crate::error::{AudioError, AudioWarning, Fault, Position};
use crate::input::{Input, Source};
use crate::probe;
use crate::reader::{AudioInfo, DecodeOptions, Event, Reader};
use crate::resample::Resampler;

/// Samples of a block, about: half a second.
const BLOCK: usize = 8_000;

/// Silence put in at once, in samples of the source.
const SILENCE_PIECE: u64 = 65_536;

/// Seconds of silence that damage and gaps may bring in all. Beyond it time stamps are not believed.
const MAX_SILENCE: f64 = 3_600.0;

/// Damaged places closer than this many seconds are one stretch.
const SAME_STRETCH: f64 = 0.5;

/// Warnings of a kind; later ones are added to the last.
const MAX_WARNINGS: usize = 16;

/// A recording being decoded to mono `f32` at 16 kHz. Memory does not depend on the recording's length.
///
/// ```no_run
/// # fn main() -> Result<(), wnw_audio::AudioError> {
/// use wnw_audio::{AudioStream, DecodeOptions, Source};
///
/// let mut stream = AudioStream::open(Source::Stdin, &DecodeOptions::default())?;
/// while let Some(samples) = stream.next_block()? {
///     println!("{} more samples", samples.len());
/// }
/// for warning in stream.warnings() {
///     eprintln!("{warning}");
/// }
/// # Ok(())
/// # }
/// ```
pub struct AudioStream {
    name: String,
    reader: Box<dyn Reader>,
    info: AudioInfo,
    options: DecodeOptions,
    resampler: Option<Resampler>,
    samples: Vec<f32>,
    /// Silence still to be put in, in samples of the source.
    silence: u64,
    /// Seconds of silence so far.
    silenced: f64,
    /// Seconds of the source that went into resamplers that are finished, and samples that went into the present one.
    before: f64,
    fed: u64,
    warnings: Vec<AudioWarning>,
    produced: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Running,
    Ended,
    Failed,
}

/// A whole recording.
#[derive(Debug, Clone)]
pub struct Decoded {
    /// Mono samples at 16 kHz, full scale ±1.
    pub samples: Vec<f32>,
    /// What the recording says about itself.
    pub info: AudioInfo,
    /// What a person should know of.
    pub warnings: Vec<AudioWarning>,
}

impl AudioStream {
    /// Opens a recording: recognises its content and reads its headers.
    ///
    /// # Errors
    /// Any [`AudioError`]; nothing is decoded yet, so damage inside is found later.
    pub fn open(source: impl Into<Source>, options: &DecodeOptions) -> Result<Self, AudioError> {
        let source = source.into();
        let name = source.name();
        let input = Input::open(&source)?;
        let reader = guarded(&name, Position::Header, || probe::open(input, options))?;
        Ok(Self::new(name, reader, options.clone()))
    }

    fn new(name: String, reader: Box<dyn Reader>, options: DecodeOptions) -> Self {
        Self {
            name,
            info: reader.info().clone(),
            reader,
            options,
            resampler: None,
            samples: Vec::new(),
            silence: 0,
            silenced: 0.0,
            before: 0.0,
            fed: 0,
            warnings: Vec::new(),
            produced: 0,
            state: State::Running,
        }
    }

    /// What the recording says about itself.
    pub fn info(&self) -> &AudioInfo {
        &self.info
    }

    /// What a person should know of, so far. Complete once [`next_block`](Self::next_block) has returned `None`.
    pub fn warnings(&self) -> &[AudioWarning] {
        &self.warnings
    }

    /// Seconds decoded so far.
    pub fn position(&self) -> f64 {
        self.produced as f64 / f64::from(SAMPLE_RATE)
    }

    /// The next mono samples at 16 kHz, full scale ±1: half a second to a few seconds, never an empty block; `None`
    /// at the end.
    ///
    /// # Errors
    /// Damage in `strict` mode, limits, reading errors, a decoder that broke. After an error the stream has ended.
    pub fn next_block(&mut self) -> Result<Option<Vec<f32>>, AudioError> {
        let mut out = Vec::new();
        while self.state == State::Running && out.len() < BLOCK {
            if let Err(error) = self.step(&mut out) {
                self.state = State::Failed;
                return Err(error);
            }
            let decoded = (self.produced + out.len() as u64) as f64 / f64::from(SAMPLE_RATE);
            if let Some(limit) = self.options.max_duration
                && decoded > limit.as_secs_f64()
            {
                self.state = State::Failed;
                return Err(AudioError::TooLong { name: self.name.clone(), limit });
            }
        }
        // What headers left open, the decoder knows by now.
        (self.info.sample_rate, self.info.channels) =
            (self.reader.info().sample_rate, self.reader.info().channels);
        self.produced += out.len() as u64;
        if self.state == State::Ended && self.produced == 0 {
            self.state = State::Failed;
            let detail = format!("holds no audio samples ({} without any)", self.info.container);
            return Err(AudioError::Empty { name: self.name.clone(), detail });
        }
        Ok(if out.is_empty() { None } else { Some(out) })
    }

    /// Decodes all that is left.
    ///
    /// # Errors
    /// As [`next_block`](Self::next_block).
    pub fn read_all(mut self) -> Result<Decoded, AudioError> {
        let mut samples = Vec::new();
        while let Some(block) = self.next_block()? {
            samples.extend_from_slice(&block);
        }
        Ok(Decoded { samples, info: self.info, warnings: self.warnings })
    }

    /// Seconds of the source that were taken in.
    fn taken(&self) -> f64 {
        self.before + self.fed as f64 / self.resampler.as_ref().map_or(1.0, |r| f64::from(r.rate()))
    }

    fn step(&mut self, out: &mut Vec<f32>) -> Result<(), AudioError> {
        if self.silence > 0 {
            let piece = self.silence.min(SILENCE_PIECE);
            self.silence -= piece;
            self.samples.clear();
            self.samples.resize(piece as usize, 0.0);
            return self.feed(out);
        }
        self.samples.clear();
        let at = Position::Seconds(self.taken());
        let (reader, samples) = (&mut self.reader, &mut self.samples);
        match guarded(&self.name, at, || reader.next(samples))? {
            Event::Samples => self.feed(out),
            Event::Lost { seconds, reason } => {
                let (start, seconds) = (self.taken(), self.put_silence(seconds));
                self.damaged(start, seconds, reason)
            }
            Event::Gap { seconds } => {
                let (at, length) = (self.taken(), self.put_silence(seconds));
                self.gap(at, length);
                Ok(())
            }
            Event::Note(warning) => {
                self.refuse_if_strict(&warning)?;
                self.warnings.push(warning);
                Ok(())
            }
            Event::End => self.end(out),
        }
    }

    /// Sends `self.samples`, of the reader's present rate, through the resampler.
    fn feed(&mut self, out: &mut Vec<f32>) -> Result<(), AudioError> {
        if self.samples.is_empty() {
            return Ok(());
        }
        let rate = self.reader.rate();
        if self.resampler.as_ref().is_some_and(|r| r.rate() != rate) {
            self.before = self.taken();
            self.fed = 0;
            if let Some(old) = self.resampler.take() {
                old.finish(out);
            }
        }
        if self.resampler.is_none() {
            self.resampler = Some(Resampler::new(rate).ok_or_else(|| {
                Fault::Unsupported(format!("a sampling rate of {rate} Hz"))
                    .named(&self.name, Position::Header)
            })?);
        }
        if let Some(resampler) = &mut self.resampler {
            resampler.push(&self.samples, out);
            self.fed += self.samples.len() as u64;
        }
        Ok(())
    }

    /// Puts silence in line, as far as it is believed, and returns its length in seconds.
    fn put_silence(&mut self, seconds: f64) -> f64 {
        let seconds = seconds.min(self.believable_silence()).max(0.0);
        self.silenced += seconds;
        self.silence += (seconds * f64::from(self.reader.rate())).round() as u64;
        seconds
    }

    fn believable_silence(&self) -> f64 {
        let stated = self.info.duration.map_or(f64::INFINITY, |d| d * 1.01 + 1.0 - self.taken());
        stated.min(MAX_SILENCE - self.silenced)
    }

    fn damaged(&mut self, at: f64, lost: f64, reason: String) -> Result<(), AudioError> {
        if self.options.strict {
            let (name, at) = (self.name.clone(), Position::Seconds(at));
            return Err(AudioError::Corrupt { name, at, reason });
        }
        let stretches = self.warnings.iter().filter(|w| matches!(w, AudioWarning::Corrupt { .. })).count();
        let last = self.warnings.iter_mut().rev().find_map(|w| match w {
            AudioWarning::Corrupt { at, lost, stretches, .. } => Some((at, lost, stretches)),
            _ => None,
        });
        if let Some((last_at, last_lost, last_stretches)) = last {
            let close = at - (*last_at + *last_lost) < SAME_STRETCH && *last_stretches == 1;
            if close || stretches >= MAX_WARNINGS {
                *last_lost += lost;
                *last_stretches += usize::from(!close);
                return Ok(());
            }
        }
        self.warnings.push(AudioWarning::Corrupt { at, lost, stretches: 1, reason });
        Ok(())
    }

    fn gap(&mut self, at: f64, length: f64) {
        let gaps = self.warnings.iter().filter(|w| matches!(w, AudioWarning::Gap { .. })).count();
        if gaps < MAX_WARNINGS {
            self.warnings.push(AudioWarning::Gap { at, length });
        } else if let Some(AudioWarning::Gap { length: last, .. }) =
            self.warnings.iter_mut().rev().find(|w| matches!(w, AudioWarning::Gap { .. }))
        {
            *last += length;
        }
    }

    fn end(&mut self, out: &mut Vec<f32>) -> Result<(), AudioError> {
        let decoded = self.taken();
        if let Some(resampler) = self.resampler.take() {
            resampler.finish(out);
        }
        // Without a resampler the rate is gone: what was fed is kept as seconds.
        (self.before, self.fed) = (decoded, 0);
        self.state = State::Ended;
        // The reader may know better by now: a second stream follows the first, or a length was only its own.
        self.info.duration = self.reader.info().duration;
        if let Some(declared) = self.info.duration
            && (decoded - declared).abs() > (declared * 0.01).max(0.05)
        {
            let warning = AudioWarning::Duration { decoded, declared };
            self.refuse_if_strict(&warning)?;
            self.warnings.push(warning);
        }
        Ok(())
    }

    /// In strict mode, damage is an error; remarks are not.
    fn refuse_if_strict(&self, warning: &AudioWarning) -> Result<(), AudioError> {
        let at = match warning {
            _ if !self.options.strict => return Ok(()),
            AudioWarning::SeveralTracks { .. } | AudioWarning::Gap { .. } => return Ok(()),
            AudioWarning::CoreOnly { profile, .. } => {
                return Err(AudioError::Unsupported { name: self.name.clone(), what: profile.clone() });
            }
            _ => self.taken(),
        };
        let (name, at, reason) = (self.name.clone(), Position::Seconds(at), warning.to_string());
        Err(AudioError::Corrupt { name, at, reason })
    }
}

impl std::fmt::Debug for AudioStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AudioStream({} at {})", self.name, clock(self.position()))
    }
}

/// Runs a decoder's code; a panic in it becomes an error of this recording.
fn guarded<T>(name: &str, at: Position, run: impl FnOnce() -> Result<T, Fault>) -> Result<T, AudioError> {
    // After a panic the reader is never used again, so what it left half done does not matter.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|fault| fault.named(name, at)),
        Err(panic) => {
            let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                (Some(text), _) => (*text).to_owned(),
                (_, Some(text)) => text.clone(),
                _ => "no reason given".to_owned(),
            };
            Err(AudioError::DecoderPanic { name: name.to_owned(), at, message })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives what a script says, at 16 kHz.
    struct Script(AudioInfo, std::vec::IntoIter<Event>);

    impl Reader for Script {
        fn info(&self) -> &AudioInfo {
            &self.0
        }

        fn rate(&self) -> u32 {
            SAMPLE_RATE
        }

        fn next(&mut self, out: &mut Vec<f32>) -> Result<Event, Fault> {
            let Some(event) = self.1.next() else { panic!("index out of bounds") };
            out.extend([0.5; 160]);
            Ok(event)
        }
    }

    fn script(duration: Option<f64>, events: Vec<Event>, strict: bool) -> AudioStream {
        let info = AudioInfo {
            container: "script".into(),
            codec: "script".into(),
            sample_rate: SAMPLE_RATE,
            channels: 1,
            duration,
        };
        let options = DecodeOptions { strict, ..DecodeOptions::default() };
        AudioStream::new("talk.mp3".into(), Box::new(Script(info, events.into_iter())), options)
    }

    fn lost(seconds: f64) -> Event {
        Event::Lost { seconds, reason: "broken".into() }
    }

    /// Row 32: decoders panic on some files (Symphonia#439, #112, #56).
    #[test]
    fn row_32_a_decoder_panic_is_an_error_of_that_file() {
        let mut stream = script(None, vec![Event::Samples], false);
        let error = stream.next_block().expect_err("panics").to_string();
        assert_eq!(
            error,
            "talk.mp3: the decoder failed at 0:00.0 (index out of bounds); please report this file, and convert it \
             meanwhile"
        );
        // The stream has ended; the decoder is not asked again.
        assert!(matches!(stream.next_block(), Ok(None)));
    }

    #[test]
    fn time_stamps_that_leap_are_not_believed() {
        let mut stream = script(None, vec![Event::Samples, lost(1e15), lost(1e15), Event::End], false);
        while stream.next_block().expect("decodes").is_some() {}
        assert!((stream.position() - MAX_SILENCE).abs() < 0.1);
        // Where the container states a duration, silence does not go beyond it.
        let stream = script(Some(10.0), vec![Event::Samples, lost(1e15), Event::End], false);
        assert!(stream.read_all().expect("decodes").samples.len() < 12 * 16_000);
    }

    #[test]
    fn stretches_of_damage_are_told_once_each() {
        let mut events = vec![Event::Samples];
        for _ in 0..3 {
            events.push(lost(0.1));
            events.push(Event::Samples);
        }
        events.extend((0..100).map(|_| Event::Samples));
        events.push(lost(0.25));
        events.push(Event::End);
        let warnings = script(None, events, false).read_all().expect("decodes").warnings;
        let text: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "damaged at 0:00.0: 0.30 s lost and replaced by silence (broken)",
                "damaged at 0:01.3: 0.25 s lost and replaced by silence (broken)",
            ]
        );
    }

    #[test]
    fn a_thousand_stretches_are_few_lines() {
        let mut events = Vec::new();
        for _ in 0..1_000 {
            events.extend((0..60).map(|_| Event::Samples));
            events.push(lost(0.01));
        }
        events.push(Event::End);
        let warnings = script(None, events, false).read_all().expect("decodes").warnings;
        assert_eq!(warnings.len(), MAX_WARNINGS);
        let lost: f64 = warnings
            .iter()
            .map(|w| if let AudioWarning::Corrupt { lost, .. } = w { *lost } else { 0.0 })
            .sum();
        assert!((lost - 10.0).abs() < 1e-6, "{lost}");
        let last = warnings.last().map(ToString::to_string).unwrap_or_default();
        assert!(last.contains("in 985 places"), "{last}");
    }

    #[test]
    fn a_duration_that_does_not_hold_is_reported_at_the_end_in_seconds() {
        let error = script(Some(9.0), vec![Event::Samples, Event::End], true)
            .read_all()
            .expect_err("strict")
            .to_string();
        assert!(error.starts_with("talk.mp3: damaged at 0:00.0: ") && error.contains("0:09.0"), "{error}");
    }

    #[test]
    fn strict_makes_damage_an_error() {
        let error =
            script(None, vec![Event::Samples, lost(0.1)], true).read_all().expect_err("strict").to_string();
        assert_eq!(error, "talk.mp3: damaged at 0:00.0: broken");
    }
}
