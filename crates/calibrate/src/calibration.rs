//! From scores of many samples to a profile, and λ by runs of the engine.

use std::ops::ControlFlow;
use std::sync::Arc;

use wnw_audio::{AudioStream, DecodeOptions, PcmFormat, Source};
use wnw_engine::{Engine, EngineError, Event, Method, Phase, Request, Roles};
use wnw_kv::profile::{Calibration, Fit, PROFILE_VERSION, Profile, WnwOptions, normalised};
use wnw_model::SpeechModel;

use crate::CalibrateError;
use crate::lambda::fit_lambda;
use crate::scores::HeadScores;

/// r_GPU is met when it is this close (half a point).
pub const TOLERANCE: f64 = 0.005;
/// Runs over the calibration set for one target, at most.
const MAX_RUNS: usize = 10;

/// A profile without fitted λ.
pub fn profile(
    model: &SpeechModel,
    scores: HeadScores,
    n_anchor: usize,
    calibration: Calibration,
) -> Profile {
    Profile {
        version: PROFILE_VERSION,
        fingerprint: model.fingerprint().to_owned(),
        model: model.name().to_owned(),
        shape: model.decoder().kv_shape(),
        tokens_per_second: model.audio_tokens_per_second(),
        calibration,
        voice_score: scores.voice,
        head_sensitivity: scores.sensitivity,
        n_anchor,
        lambda: Vec::new(),
        options: WnwOptions::default(),
    }
}

/// λ for `target` such that runs over `recordings` (16 kHz mono) have that r_GPU, recall counted, mean over their decode
/// steps. `request` says everything but the method. `progress` hears how many recordings were run, the current one in
/// part; when it breaks, [`CalibrateError::Cancelled`].
pub fn fit(
    engine: &Engine,
    profile: &Profile,
    target: f64,
    recordings: &[&[f32]],
    request: &Request,
    progress: &mut dyn FnMut(f64) -> ControlFlow<()>,
) -> Result<Fit, CalibrateError> {
    // Earlier fits say nothing here.
    let profile = &Profile { lambda: Vec::new(), ..profile.clone() };
    let options = WnwOptions { r_gpu: target, ..profile.options.clone() };
    // Roles and the λ that meets the target before recall.
    let start = profile.params(&options).map_err(|e| CalibrateError::Profile(e.to_string()))?;
    let count = |role| start.roles.iter().filter(|r| **r == role).count();
    let n_anchor = count(wnw_kv::Role::Anchor);
    let n_voice = n_anchor + count(wnw_kv::Role::Tidal);
    let scale = normalised(&profile.importance(), n_anchor, options.normalise);
    let guess = wnw_kv::profile::lambda_for_static(target, n_anchor, &scale);
    let with = |lambda: f64| WnwOptions {
        lambda: Some(lambda),
        n_anchor: Some(n_anchor),
        n_voice: Some(n_voice),
        ..options.clone()
    };
    let mut runs = 0.0;
    let fitted = fit_lambda(target, TOLERANCE, guess.max(1e-9), MAX_RUNS, |lambda| {
        let (mut sum, mut steps) = (0.0, 0);
        for samples in recordings {
            let method = Method::Wnw {
                roles: Roles::Profile(Arc::new(profile.clone())),
                options: with(lambda),
                fixed_r_gpu: true,
            };
            let request = Request { method, ..request.clone() };
            let mut hear = |event: Event| match event {
                Event::Progress(p) if p.phase == Phase::Decode => progress(runs + p.fraction),
                _ => progress(runs),
            };
            let transcript = engine.transcribe(stream(samples)?, &request, &mut hear);
            let transcript = transcript.map_err(CalibrateError::of_run)?;
            runs += 1.0;
            sum += transcript.statistics.kv.r_gpu * transcript.statistics.new_tokens as f64;
            steps += transcript.statistics.new_tokens;
        }
        Ok::<_, CalibrateError>(if steps == 0 { 1.0 } else { sum / steps as f64 })
    })?;
    let params = profile.params(&with(fitted.lambda)).map_err(|e| CalibrateError::Profile(e.to_string()))?;
    Ok(Fit {
        target,
        n_anchor,
        n_voice,
        normalise: options.normalise,
        lambda: fitted.lambda,
        static_retention: params.static_retention(),
        measured: fitted.r_gpu,
    })
}

/// Samples at 16 kHz as a recording.
pub fn stream(samples: &[f32]) -> Result<AudioStream, EngineError> {
    let bytes: Vec<u8> = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
    let pcm: PcmFormat = "f32le:16000:1".parse().map_err(|e| EngineError::Request(format!("{e}")))?;
    let options = DecodeOptions { pcm: Some(pcm), ..DecodeOptions::default() };
    Ok(AudioStream::open(Source::Bytes(bytes.into()), &options)?)
}
