//! KV methods with their parameters, and what they need of a budget.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;
use wnw_kv::policies::budget::Budget;
use wnw_kv::policies::registry::{BuildError, Entry, Inputs, Keeps};
use wnw_kv::policies::wnw::WnwParams;
use wnw_kv::policies::{Full, Wnw};
use wnw_kv::profile::{Profile, ProfileError, WnwOptions, uniform_params};
use wnw_kv::{HostPlace, KvDtype, KvShape, PAGE_ROWS, Policy, PromptLayout, Role, Segments, SwapMode};

/// A KV method with its parameters: makes a fresh policy for every window.
#[derive(Clone, Debug, Default)]
pub enum Method {
    /// Keep everything.
    #[default]
    Full,
    /// Waxing and waning.
    Wnw {
        /// Where the head roles come from.
        roles: Roles,
        /// Parameters; `r_gpu` counts unless a budget alone decides.
        options: WnwOptions,
        /// Whether `options.r_gpu` was asked for. If not, and there is a budget, each window gets the r_GPU that the
        /// budget allows.
        fixed_r_gpu: bool,
    },
    /// Any method of [`wnw_kv::policies::METHODS`], with its parameters by name.
    Named {
        /// The method.
        entry: &'static Entry,
        /// Share of audio rows to keep; without one, what the budget in bytes allows, or without that a fifth.
        r_gpu: Option<f64>,
        /// The model's head scores, for methods that need them.
        profile: Option<Arc<Profile>>,
        /// Options by name, as text.
        options: BTreeMap<String, String>,
    },
}

/// Where head roles come from.
#[derive(Clone, Debug)]
pub enum Roles {
    /// A calibrated profile.
    Profile(Arc<Profile>),
    /// No calibration: see [`uniform_params`].
    Uniform {
        /// Audio tokens per second.
        tokens_per_second: f64,
    },
}

/// How keys and values are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvOptions {
    /// Element type.
    pub dtype: KvDtype,
    /// Most bytes of KV on the device.
    pub budget: Option<u64>,
    /// Where the host tier lies.
    pub host: HostPlace,
    /// When recalled rows are copied.
    pub swap: SwapMode,
}

/// Why a method cannot work on a window.
#[derive(Debug, Error)]
pub enum MethodError {
    /// The profile or the options.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A method by name.
    #[error("--kv: {0}")]
    Named(#[from] BuildError),
    /// Too small a budget.
    #[error(
        "--kv-budget: {budget} bytes of KV are too few for this window with {method}: it needs at least {least} ({text} of them for text); raise the budget, use a shorter --window, lower --max-new-tokens (room is kept for an answer), or use another --kv method"
    )]
    Budget {
        /// Method.
        method: &'static str,
        /// Bytes given.
        budget: u64,
        /// The least that works.
        least: u64,
        /// Bytes of text KV in it.
        text: u64,
    },
}

/// A window for which a policy is wanted.
#[derive(Clone, Copy, Debug)]
pub struct WindowKv<'a> {
    /// Head counts and sizes.
    pub shape: KvShape,
    /// Positions of the prompt.
    pub layout: &'a PromptLayout,
    /// Answer tokens to keep room for.
    pub answer: usize,
    /// How KV is stored.
    pub kv: &'a KvOptions,
}

impl WindowKv<'_> {
    fn row_bytes(&self) -> u64 {
        (2 * self.kv.dtype.row_bytes(self.shape.head_dim)) as u64
    }

    fn heads(&self) -> u64 {
        (self.shape.n_layers * self.shape.n_kv_heads) as u64
    }

    fn text_rows(&self) -> u64 {
        (self.layout.len() - self.layout.n_audio() + self.answer) as u64
    }

    /// Bytes of one head that keeps `audio` audio rows, in whole pages.
    fn head_bytes(&self, audio: u64) -> u64 {
        (audio + self.text_rows()).next_multiple_of(PAGE_ROWS as u64) * self.row_bytes()
    }

    /// Bytes when everything is kept.
    pub fn full_bytes(&self) -> u64 {
        self.heads() * self.head_bytes(self.layout.n_audio() as u64)
    }

    /// Bytes of text rows alone.
    fn text_bytes(&self) -> u64 {
        self.heads() * self.head_bytes(0)
    }

    /// Bytes with what prefill keeps under these parameters and `recalled` segments in every tidal head.
    fn bytes(&self, params: &WnwParams, recalled: usize) -> u64 {
        let segments = Segments::new(self.layout, params.segment_rows);
        let block = segments.ranges().iter().map(|s| s.len()).max().unwrap_or(1) as u64 * self.row_bytes();
        let recalled = recalled.min(segments.len()) as u64;
        let head = |(role, retention): (&Role, &f64)| {
            if matches!(role, Role::Anchor | Role::Whole) || *retention >= 1.0 {
                return self.head_bytes(self.layout.n_audio() as u64);
            }
            let kept = self.head_bytes(WnwParams::kept_rows(*retention, &segments) as u64);
            kept + if *role == Role::Tidal { recalled * block } else { 0 }
        };
        params.roles.iter().zip(&params.retention).map(head).sum()
    }

    /// The least that works with these parameters: one segment at a time in every tidal head.
    fn least_bytes(&self, params: &WnwParams) -> u64 {
        self.bytes(params, 1)
    }

    /// Bytes with as many recalled segments as two selections in a row name.
    fn expected_bytes(&self, params: &WnwParams) -> u64 {
        self.bytes(params, params.top_chunks.saturating_mul(params.chunk_segments).saturating_mul(2))
    }
}

impl Method {
    /// The name that reports print.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Wnw { .. } => "wnw",
            Self::Named { entry, .. } => entry.name,
        }
    }

    /// WnW's parameters for a target r_GPU; `None` for other methods.
    fn params(roles: &Roles, options: &WnwOptions, shape: KvShape) -> Result<WnwParams, ProfileError> {
        match roles {
            Roles::Profile(profile) => profile.params(options),
            Roles::Uniform { tokens_per_second } => uniform_params(shape, *tokens_per_second, options),
        }
    }

    /// A policy for one window.
    pub fn policy(&self, window: &WindowKv<'_>) -> Result<Box<dyn Policy>, MethodError> {
        let budget = window.kv.budget;
        let too_small = |least: u64| MethodError::Budget {
            method: self.name(),
            budget: budget.unwrap_or(u64::MAX),
            least,
            text: window.text_bytes(),
        };
        if let Self::Named { entry, r_gpu, profile, options } = self {
            // Who keeps everything has no use for a limit, whatever attention reads of it.
            let whole = entry.keeps == Keeps::Everything;
            if budget.is_some_and(|budget| whole && budget < window.full_bytes()) {
                return Err(too_small(window.full_bytes()));
            }
            let budget = match (r_gpu, budget.filter(|_| !whole)) {
                (Some(share), _) => Budget::Ratio(*share),
                (None, None) => Budget::Ratio(WnwOptions::default().r_gpu),
                (None, Some(bytes)) => {
                    // Text, and a page of each head that is not full, come first.
                    let taken =
                        window.heads() * (window.text_rows() + PAGE_ROWS as u64 - 1) * window.row_bytes();
                    let bytes = bytes.checked_sub(taken).ok_or_else(|| too_small(taken))?;
                    Budget::Bytes { bytes, dtype: window.kv.dtype }
                }
            };
            let (shape, layout) = (window.shape, window.layout);
            return Ok(entry.policy(&Inputs {
                shape,
                layout,
                budget,
                profile: profile.as_deref(),
                options,
            })?);
        }
        let Self::Wnw { roles, options, fixed_r_gpu } = self else {
            return match budget {
                Some(budget) if budget < window.full_bytes() => Err(too_small(window.full_bytes())),
                _ => Ok(Box::new(Full)),
            };
        };
        let params = match budget {
            Some(budget) if !fixed_r_gpu => fit_budget(roles, options, window, budget)?.map_err(too_small)?,
            _ => {
                let params = Self::params(roles, options, window.shape)?;
                let least = window.least_bytes(&params);
                if budget.is_some_and(|budget| budget < least) {
                    return Err(too_small(least));
                }
                params
            }
        };
        Ok(Box::new(Wnw::new(Arc::new(params))))
    }
}

/// The parameters with the largest r_GPU that fits the budget, or the least bytes that work.
fn fit_budget(
    roles: &Roles,
    options: &WnwOptions,
    window: &WindowKv<'_>,
    budget: u64,
) -> Result<Result<WnwParams, u64>, ProfileError> {
    if budget >= window.full_bytes() {
        let whole = WnwOptions { r_gpu: 1.0, lambda: None, ..options.clone() };
        return Method::params(roles, &whole, window.shape).map(Ok);
    }
    // Retention grows with λ, and bytes with retention: bisect λ.
    let at = |lambda: f64| {
        let share = budget.saturating_sub(window.text_bytes()) as f64
            / window.full_bytes().saturating_sub(window.text_bytes()).max(1) as f64;
        let r_gpu = share.clamp(1e-6, 1.0 - 1e-9);
        Method::params(roles, &WnwOptions { r_gpu, lambda: Some(lambda), ..options.clone() }, window.shape)
    };
    let fits = |params: &WnwParams| window.expected_bytes(params).max(window.least_bytes(params)) <= budget;
    let mut best = at(0.0)?;
    if !fits(&best) {
        // Too little for a usual recall; with less recall, or with the fewest anchors, it may still work.
        if window.least_bytes(&best) <= budget {
            return Ok(Ok(best));
        }
        let frugal = WnwOptions { r_gpu: 1e-6, lambda: Some(0.0), ..options.clone() };
        let frugal = Method::params(roles, &frugal, window.shape)?;
        let least = window.least_bytes(&frugal);
        return Ok(if least <= budget { Ok(frugal) } else { Err(least) });
    }
    let (mut low, mut high) = (0f64, 1f64);
    while high < 1e9 && fits(&at(high)?) {
        (low, high) = (high, high * 2.0);
    }
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        let params = at(middle)?;
        if fits(&params) {
            (low, best) = (middle, params);
        } else {
            high = middle;
        }
    }
    Ok(Ok(best))
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
