//! What is compared: a KV method with its target, its options, and the type in which keys and values are stored.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use wnw_engine::Method;
use wnw_kv::policies::registry::{BuildError, Entry, find};
use wnw_kv::profile::Profile;
use wnw_kv::{KvDtype, KvShape};

use super::HarnessError;

/// A method as it is asked for: `NAME[@TYPE][:OPTION=VALUE]…`, such as `snapkv:window=64` or `wnw@int8:n_voice=9`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodSpec {
    /// Name in the registry.
    pub method: String,
    /// Type of keys and values, if not the run's.
    pub kv_dtype: Option<KvDtype>,
    /// Options by name, as text.
    pub options: BTreeMap<String, String>,
}

impl FromStr for MethodSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let head = parts.next().unwrap_or_default();
        let (name, kv_dtype) = match head.split_once('@') {
            Some((name, dtype)) => (name, Some(dtype.parse::<KvDtype>().map_err(|e| e.to_string())?)),
            None => (head, None),
        };
        let method = find(name).map_err(|e| e.to_string())?.name.to_owned();
        let mut options = BTreeMap::new();
        for part in parts {
            let (option, value) = part
                .split_once('=')
                .ok_or_else(|| format!("{part:?} is no option: write {name}:OPTION=VALUE"))?;
            if options.insert(option.to_owned(), value.to_owned()).is_some() {
                return Err(format!("{option} is given twice"));
            }
        }
        Ok(Self { method, kv_dtype, options })
    }
}

impl MethodSpec {
    /// One arm per target; one alone for the full cache.
    pub fn arms(&self, targets: &[f64], kv_dtype: KvDtype) -> Result<Vec<Arm>, BuildError> {
        let entry = find(&self.method)?;
        let arm = |target| Arm {
            entry,
            target,
            kv_dtype: self.kv_dtype.unwrap_or(kv_dtype),
            options: self.options.clone(),
        };
        Ok(match entry.is_full() {
            true => vec![arm(None)],
            false => targets.iter().map(|target| arm(Some(*target))).collect(),
        })
    }
}

/// One way to keep keys and values: a row of a table.
#[derive(Clone, Debug)]
pub struct Arm {
    /// The method.
    pub entry: &'static Entry,
    /// Share of audio rows to keep; none for the full cache.
    pub target: Option<f64>,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Options by name, as text.
    pub options: BTreeMap<String, String>,
}

impl Arm {
    /// The method with what is particular to it, without the target: a line in a plot. `usual` is the run's type of keys
    /// and values, which goes without saying.
    pub fn series(&self, usual: KvDtype) -> String {
        let mut name = self.entry.name.to_owned();
        if self.kv_dtype != usual {
            name += &format!("@{}", self.kv_dtype);
        }
        self.options.iter().for_each(|(option, value)| name += &format!(":{option}={value}"));
        name
    }

    /// The engine's method.
    pub fn method(&self, profile: Option<&Arc<Profile>>) -> Method {
        match self.entry.is_full() {
            true => Method::Full,
            false => Method::Named {
                entry: self.entry,
                r_gpu: self.target,
                profile: profile.cloned(),
                options: self.options.clone(),
            },
        }
    }

    /// Finds wrong options, and a profile that is missing, before any recording is run.
    pub fn check(&self, shape: KvShape, profile: Option<&Arc<Profile>>) -> Result<(), HarnessError> {
        let share = self.target.unwrap_or(1.0);
        self.entry
            .check(shape, share, profile.map(Arc::as_ref), &self.options)
            .map_err(|error| HarnessError::Method { method: self.series(self.kv_dtype), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_a_name_a_type_and_options() {
        let spec: MethodSpec = "snapkv@f32:window=64:kernel=7".parse().unwrap();
        assert_eq!((spec.method.as_str(), spec.kv_dtype), ("snapkv", Some(KvDtype::F32)));
        assert_eq!(spec.options.len(), 2);
        let arms = spec.arms(&[0.4, 0.2], KvDtype::Bf16).unwrap();
        assert_eq!(arms.iter().map(|a| a.target).collect::<Vec<_>>(), [Some(0.4), Some(0.2)]);
        assert_eq!(arms[0].series(KvDtype::Bf16), "snapkv@f32:kernel=7:window=64");
        assert_eq!(arms[0].series(KvDtype::F32), "snapkv:kernel=7:window=64");
        let full: MethodSpec = "full".parse().unwrap();
        let arms = full.arms(&[0.4, 0.2], KvDtype::Bf16).unwrap();
        assert_eq!((arms.len(), arms[0].target), (1, None));
        for (bad, says) in [
            ("nosuch", "no KV method nosuch"),
            ("snapkv@x", "x"),
            ("snapkv:window", "OPTION=VALUE"),
            ("snapkv:window=1:window=2", "twice"),
            ("", "no KV method"),
        ] {
            let error = bad.parse::<MethodSpec>().unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn wrong_options_are_found_before_a_run() {
        let shape = KvShape { n_layers: 2, n_q_heads: 4, n_kv_heads: 2, head_dim: 8 };
        let arm =
            |text: &str| text.parse::<MethodSpec>().unwrap().arms(&[0.5], KvDtype::Bf16).unwrap().remove(0);
        arm("snapkv:window=64").check(shape, None).unwrap();
        let error = arm("snapkv:colour=red").check(shape, None).unwrap_err().to_string();
        assert!(error.contains("snapkv") && error.contains("colour") && error.contains("window"), "{error}");
        let error = arm("wnw").check(shape, None).unwrap_err().to_string();
        assert!(error.contains("wnw calibrate"), "{error}");
    }
}
