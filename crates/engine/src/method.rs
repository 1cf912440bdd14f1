//! KV methods by name.

use std::fmt;
use std::str::FromStr;

use wnw_kv::Policy;
use wnw_kv::policies::Full;

/// A KV method with its parameters: makes a fresh policy for every window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Keep everything.
    #[default]
    Full,
}

impl Method {
    /// A policy for one window.
    pub fn policy(&self) -> Box<dyn Policy> {
        match self {
            Self::Full => Box::new(Full),
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.policy().name())
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "full" => Ok(Self::Full),
            _ => Err(format!("'{s}' is no KV method; use full")),
        }
    }
}
