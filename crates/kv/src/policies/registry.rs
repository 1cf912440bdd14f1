//! Methods by name: what each is called, what it needs, and how it is made from a budget, scores and options.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use thiserror::Error;

use super::budget::{Budget, BudgetError};
use super::window::WindowScore;
use crate::profile::{Profile, ProfileError};
use crate::{KvShape, Policy, PromptLayout};

/// A method that can be had by name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name that users type and [`Policy::name`] gives.
    pub name: &'static str,
    /// One line about it, for lists.
    pub about: &'static str,
    /// How much it keeps of what it may.
    pub keeps: Keeps,
    /// Whether it needs a model's calibrated scores.
    pub needs_profile: bool,
    /// Whether it ranks rows by attention.
    pub by_attention: bool,
    /// Names of its options, each with a line about it. What they are by default, [`Policy::parameters`] tells.
    pub options: &'static [(&'static str, &'static str)],
    /// Makes a policy for one prompt; [`Entry::policy`] checks the inputs first.
    pub(super) build: fn(&Inputs<'_>) -> Result<Box<dyn Policy>, BuildError>,
}

/// How many audio rows a method leaves on the device after prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// All: a budget says at most what attention reads of it.
    Everything,
    /// Exactly the budget's.
    Budget,
    /// At most the budget's, and what is recalled comes on top.
    AtMost,
    /// None; its pager then brings the budget's, rounded to whole pages.
    Pages,
    /// At most the budget's, but a row of each recording: neighbours are merged before a layer sees them
    /// ([`Policy::before_layer`]).
    Merged,
}

/// What a policy is made from.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// Head counts and sizes.
    pub shape: KvShape,
    /// Positions of the prompt.
    pub layout: &'a PromptLayout,
    /// What it may keep.
    pub budget: Budget,
    /// The model's calibrated scores, checked with [`Profile::check`].
    pub profile: Option<&'a Profile>,
    /// Options by name, as text.
    pub options: &'a BTreeMap<String, String>,
}

/// Why a policy cannot be made.
#[derive(Debug, Error, PartialEq)]
pub enum BuildError {
    /// No such method.
    #[error("there is no KV method {0}; there are {1}")]
    UnknownMethod(String, String),
    /// No such option.
    #[error("{method} has no option {option}; it has {has}")]
    UnknownOption {
        /// The method.
        method: &'static str,
        /// The option given.
        option: String,
        /// Those that exist.
        has: String,
    },
    /// A value that cannot be.
    #[error("{option} cannot be {value}: {reason}")]
    Value {
        /// The option.
        option: &'static str,
        /// The value given.
        value: String,
        /// What it should be.
        reason: String,
    },
    /// A method that needs scores got none.
    #[error("{0} needs the model's head scores; make a profile with `wnw calibrate`")]
    NeedsProfile(&'static str),
    /// Scores for another number of heads, or none at all.
    #[error("{scores} head scores for {heads} KV heads; each must be a number of 0 or more")]
    Scores {
        /// Scores given.
        scores: usize,
        /// KV heads of the model.
        heads: usize,
    },
    /// A budget that is none.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The profile does not allow it.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

impl Entry {
    /// Whether it is the full cache, which has no use for a budget at all.
    pub fn is_full(&self) -> bool {
        self.name == super::full::ENTRY.name
    }

    /// A policy for one prompt.
    pub fn policy(&self, inputs: &Inputs<'_>) -> Result<Box<dyn Policy>, BuildError> {
        inputs.budget.check()?;
        let known = |name: &String| self.options.iter().any(|(option, _)| option == name);
        if let Some(option) = inputs.options.keys().find(|name| !known(name)) {
            let names: Vec<&str> = self.options.iter().map(|(name, _)| *name).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(BuildError::UnknownOption { method: self.name, option: option.clone(), has });
        }
        if self.needs_profile && inputs.profile.is_none() {
            return Err(BuildError::NeedsProfile(self.name));
        }
        (self.build)(inputs)
    }

    /// Finds wrong options, and scores that are missing, before there is a prompt: makes the policy for one that does not
    /// matter and drops it.
    pub fn check(
        &self,
        shape: KvShape,
        share: f64,
        profile: Option<&Profile>,
        options: &BTreeMap<String, String>,
    ) -> Result<(), BuildError> {
        // Half a minute of audio between a few tokens of text.
        let layout = PromptLayout::around(TRIAL_TEXT, TRIAL_ROWS);
        let budget = Budget::Ratio(share);
        self.policy(&Inputs { shape, layout: &layout, budget, profile, options }).map(drop)
    }
}

const TRIAL_TEXT: usize = 4;
const TRIAL_ROWS: usize = 375;

/// The method of this name.
pub fn find(name: &str) -> Result<&'static Entry, BuildError> {
    super::METHODS.iter().find(|entry| entry.name == name).ok_or_else(|| {
        let names: Vec<&str> = super::METHODS.iter().map(|entry| entry.name).collect();
        BuildError::UnknownMethod(name.to_owned(), names.join(", "))
    })
}

impl Inputs<'_> {
    /// The option's value, or `default` where it is not given.
    pub fn option<T: FromStr>(&self, option: &'static str, default: T) -> Result<T, BuildError>
    where
        T::Err: Display,
    {
        match self.options.get(option) {
            None => Ok(default),
            Some(value) => value.parse().map_err(|e: T::Err| BuildError::Value {
                option,
                value: value.clone(),
                reason: e.to_string(),
            }),
        }
    }

    /// One of the names that `T` has in JSON; `names` lists them for the error.
    pub fn choice<T: DeserializeOwned>(
        &self,
        option: &'static str,
        default: T,
        names: &str,
    ) -> Result<T, BuildError> {
        let Some(value) = self.options.get(option) else { return Ok(default) };
        serde_json::from_value(value.clone().into()).map_err(|_| self.refuse(option, &format!("use {names}")))
    }

    /// A number of at least 1, or `all` for the largest.
    pub fn count(&self, option: &'static str, default: usize) -> Result<usize, BuildError> {
        match self.options.get(option).map(String::as_str) {
            Some("all") => Ok(usize::MAX),
            Some("0") => Err(self.refuse(option, "it must be at least 1, or all")),
            _ => self.option(option, default),
        }
    }

    /// A share from 0 to 1.
    pub fn share(&self, option: &'static str, default: f64) -> Result<f64, BuildError> {
        let value = self.option(option, default)?;
        match (0.0..=1.0).contains(&value) {
            true => Ok(value),
            false => Err(self.refuse(option, "it must be between 0 and 1")),
        }
    }

    /// The options of a [`WindowScore`].
    pub fn window_score(&self, default: WindowScore) -> Result<WindowScore, BuildError> {
        let score = WindowScore {
            window: self.option("window", default.window)?,
            keep_window: self.option("keep_window", default.keep_window)?,
            reduce: self.option("reduce", default.reduce)?,
            kernel: self.option("kernel", default.kernel)?,
            pooling: self.option("pooling", default.pooling)?,
        };
        match (score.window, score.kernel % 2) {
            (0, _) => Err(self.refuse("window", "at least one position must be observed")),
            (_, 0) => Err(self.refuse("kernel", "it must be odd")),
            _ => Ok(score),
        }
    }

    /// An error about the value given for `option`.
    pub fn refuse(&self, option: &'static str, reason: &str) -> BuildError {
        let value = self.options.get(option).cloned().unwrap_or_default();
        BuildError::Value { option, value, reason: reason.to_owned() }
    }

    /// Scores of the model's KV heads that a profile must have, by option `scores`: `voice` (VS, the default),
    /// `sensitivity` (HS) or `product`; `(n_layers, n_kv_heads)`.
    pub fn head_scores(&self, method: &'static str) -> Result<Vec<f64>, BuildError> {
        let profile = self.profile.ok_or(BuildError::NeedsProfile(method))?;
        let scores = match self.option("scores", "voice".to_owned())?.as_str() {
            "voice" => profile.voice_score.clone(),
            "sensitivity" => profile.head_sensitivity.clone(),
            "product" => profile.importance(),
            _ => return Err(self.refuse("scores", "use voice, sensitivity or product")),
        };
        let heads = self.shape.n_layers * self.shape.n_kv_heads;
        match scores.len() == heads && scores.iter().all(|s| s.is_finite() && *s >= 0.0) {
            true => Ok(scores),
            false => Err(BuildError::Scores { scores: scores.len(), heads }),
        }
    }
}

/// The options of [`Inputs::window_score`], to be named in an [`Entry`].
pub(super) const WINDOW: (&str, &str) = ("window", "last prompt positions whose attention ranks rows");
/// See [`WINDOW`].
pub(super) const KEEP_WINDOW: (&str, &str) =
    ("keep_window", "whether audio inside the window is kept before all else");
/// See [`WINDOW`].
pub(super) const REDUCE: (&str, &str) = ("reduce", "how a group's query heads become one: mean or max");
/// See [`WINDOW`].
pub(super) const KERNEL: (&str, &str) = ("kernel", "length of pooling, odd; 1 for none");
/// See [`WINDOW`].
pub(super) const POOLING: (&str, &str) = ("pooling", "average or max");
/// See [`Inputs::head_scores`].
pub(super) const SCORES: (&str, &str) = ("scores", "head scores: voice, sensitivity or product");

#[cfg(test)]
mod tests {
    use super::super::METHODS;

    #[test]
    fn every_method_and_option_is_documented() {
        let text = include_str!("../../../../docs/methods.md");
        let options = &text[text.find("## Options").unwrap()..];
        for entry in METHODS {
            let row = format!("| `{}` |", entry.name);
            assert!(text[..text.find("## Options").unwrap()].contains(&row), "{}", entry.name);
            let line = options.lines().find(|line| line.starts_with(&row)).expect(entry.name);
            for (option, about) in entry.options {
                assert!(line.contains(&format!("`{option}`: {about}")), "{}: {option}", entry.name);
            }
        }
    }
}
