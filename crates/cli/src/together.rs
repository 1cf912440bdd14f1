//! `wnw transcribe --batch`: several recordings at once, with the outputs that they have one by one.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use wnw_audio::AudioStream;
use wnw_engine::{Engine, EngineError, Event, Progress, Transcript};

use crate::error::{CliError, guarded};
use crate::inputs::Input;
use crate::outputs::check_name;
use crate::signals;
use crate::transcribe::Batch;

/// What a thread tells of its recording.
enum Told {
    Opened(Option<f64>),
    Progress(Progress),
    Line(String),
    Text(String),
    Ended(Box<Result<Transcript, CliError>>),
}

/// What is known of a recording.
#[derive(Default)]
struct Heard {
    duration: Option<f64>,
    said: String,
    result: Option<Result<Transcript, CliError>>,
}

/// Transcribes the recordings, at most `--batch` at a time, and delivers their results in their order.
pub fn run(
    batch: &mut Batch<'_>,
    engine: &Engine,
    work: &[(&Input, Option<PathBuf>)],
    several: bool,
) -> Result<(), CliError> {
    let (request, decode) = (batch.request.clone(), batch.decode.clone());
    let group = engine.step_group();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (tell, told) = mpsc::channel::<(usize, Told)>();
    let transcribe = |number: usize, tell: &mpsc::Sender<(usize, Told)>| {
        let (input, target) = &work[number];
        // When nobody listens any more, the work ends too.
        let say =
            |what: Told| tell.send((number, what)).map_or(ControlFlow::Break(()), ControlFlow::Continue);
        target.as_deref().map_or(Ok(()), check_name)?;
        let audio = AudioStream::open(input.source.clone(), &decode).map_err(EngineError::from)?;
        let _ = say(Told::Opened(audio.info().duration));
        let mut hear = |event| {
            if signals::interrupted() || stop.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            match event {
                Event::Progress(progress) => say(Told::Progress(progress)),
                Event::Warning(warning) => say(Told::Line(warning.to_string())),
                Event::Text(text) => say(Told::Text(text)),
                Event::Started { .. } | Event::Finished(_) | Event::Step(_) => ControlFlow::Continue(()),
            }
        };
        Ok(engine.transcribe_in(&group, audio, &request, &mut hear)?)
    };
    let mut heard: Vec<Heard> = work.iter().map(|_| Heard::default()).collect();
    batch.bar.restart();
    signals::while_listening(|| {
        std::thread::scope(|scope| {
            for _ in 0..work.len().min(batch.args.batch.into()) {
                let (tell, transcribe, next, stop) = (tell.clone(), &transcribe, &next, &stop);
                let turns = move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= work.len() || stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let result = Box::new(guarded(|| transcribe(number, &tell)));
                        if tell.send((number, Told::Ended(result))).is_err() {
                            break;
                        }
                    }
                };
                scope.spawn(turns);
            }
            drop(tell);
            let result = deliver(batch, work, &mut heard, &told, several);
            stop.store(true, Ordering::Relaxed);
            result
        })
    })
}

/// Shows what comes, and delivers each result once those before it are delivered.
fn deliver(
    batch: &mut Batch<'_>,
    work: &[(&Input, Option<PathBuf>)],
    heard: &mut [Heard],
    told: &mpsc::Receiver<(usize, Told)>,
    several: bool,
) -> Result<(), CliError> {
    let mut delivered = 0;
    for (number, what) in told {
        let input = work[number].0;
        match what {
            Told::Opened(duration) => heard[number].duration = duration,
            Told::Progress(progress) => batch.bar.show(&input.name, &progress, heard[number].duration),
            Told::Line(warning) => batch.bar.line(&format!("wnw: warning: {}: {warning}", input.name)),
            Told::Text(text) => heard[number].said.push_str(&text),
            Told::Ended(result) => heard[number].result = Some(*result),
        }
        while let Some(result) = heard.get_mut(delivered).and_then(|h| h.result.take()) {
            let (input, target) = &work[delivered];
            batch.begin(input, several);
            let result = batch.collected(input, &heard[delivered].said, result, target.clone());
            batch.account(input, result, several)?;
            heard[delivered].said = String::new();
            delivered += 1;
        }
    }
    Ok(())
}
