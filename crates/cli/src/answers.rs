//! What the model says to each window of a recording, for analyses that look at both.

use std::ops::ControlFlow;

use wnw_audio::{AudioStream, DecodeOptions};
use wnw_calibrate::calibration::stream;
use wnw_engine::window::Windower;
use wnw_engine::{Engine, EngineError, Event, Request, Transcript};

use crate::analyze_command::engine_error;
use crate::error::CliError;
use crate::inputs::Input;
use crate::progress::Bar;
use crate::signals;
use crate::system::clock;

/// A window and the answer to it.
pub struct Answer<'a> {
    /// Seconds from the start of the recording.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// 16 kHz mono.
    pub samples: &'a [f32],
    /// What the model said; at least one token.
    pub transcript: Transcript,
}

/// Whether the user has broken off.
pub fn go_on() -> ControlFlow<()> {
    if signals::interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Transcribes a recording window by window and hands each on with its answer; a window without one is left out, with a
/// warning.
pub fn each_answer(
    engine: &Engine,
    request: &Request,
    input: &Input,
    bar: &Bar,
    take: &mut dyn FnMut(Answer<'_>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut audio =
        AudioStream::open(input.source.clone(), &DecodeOptions::default()).map_err(EngineError::from)?;
    let mut windower = Windower::new(request.window_seconds.unwrap_or(engine.model().max_audio_seconds()));
    let mut done = 0;
    while let Some(block) = audio.next_block().map_err(EngineError::from)? {
        windower.push(&block);
        while let Some(window) = windower.next_full() {
            answer(engine, request, input, bar, done, &window, take)?;
            done += window.len();
        }
    }
    while let Some(rest) = windower.next_at_end() {
        answer(engine, request, input, bar, done, &rest, take)?;
        done += rest.len();
    }
    for warning in audio.warnings() {
        bar.line(&format!("wnw: warning: {}: {warning}", input.name));
    }
    Ok(())
}

fn answer(
    engine: &Engine,
    request: &Request,
    input: &Input,
    bar: &Bar,
    done: usize,
    samples: &[f32],
    take: &mut dyn FnMut(Answer<'_>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let rate = f64::from(wnw_audio::SAMPLE_RATE);
    let (start, end) = (done as f64 / rate, (done + samples.len()) as f64 / rate);
    let name = if done == 0 { input.name.clone() } else { format!("{} from {}", input.name, clock(start)) };
    bar.restart();
    let mut hear = |event| {
        match event {
            Event::Progress(progress) => bar.show(&name, &progress, Some(end - start)),
            Event::Warning(warning) => bar.line(&format!("wnw: warning: {name}: {warning}")),
            _ => {}
        }
        go_on()
    };
    let transcript = signals::while_listening(|| engine.transcribe(stream(samples)?, request, &mut hear))
        .map_err(engine_error)?;
    if transcript.tokens.is_empty() {
        bar.line(&format!("wnw: warning: {name}: the model said nothing: left out"));
        return Ok(());
    }
    take(Answer { start, end, samples, transcript })
}
