//! Where the hub and its cache are, and how patient to be.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of the hub. [`HubOptions::from_lookup`] makes them of the variables that `huggingface_hub` uses.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// The cache, by default `~/.cache/huggingface/hub`.
    pub cache_dir: PathBuf,
    /// Access token.
    pub token: Option<String>,
    /// A file that holds the token, where `token` is none; it need not exist.
    pub token_file: Option<PathBuf>,
    /// Address of the hub, by default `https://huggingface.co`.
    pub endpoint: String,
    /// Use the cache alone.
    pub offline: bool,
    /// A proxy's address.
    pub proxy: Option<String>,
    /// Hosts that are reached without the proxy, separated by commas.
    pub no_proxy: Option<String>,
    /// Certificates (PEM) that are trusted instead of the built-in ones.
    pub ca_bundle: Option<PathBuf>,
    /// Longest wait for a connection, and for the next bytes of an answer.
    pub timeout: Duration,
    /// What to do about failures that may pass.
    pub retry: RetryPolicy,
}

/// How often and when to ask again.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Attempts in a row without getting on, the first included.
    pub attempts: u32,
    /// Wait before the second attempt; doubled each time. A server's `Retry-After` comes first.
    pub first_wait: Duration,
    /// Longest wait. A server that asks for more is not waited for.
    pub max_wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { attempts: 5, first_wait: Duration::from_secs(1), max_wait: Duration::from_secs(120) }
    }
}

impl HubOptions {
    /// Options for a cache directory, all else by default.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self {
            cache_dir: cache_dir.into(),
            token: None,
            token_file: None,
            endpoint: "https://huggingface.co".into(),
            offline: false,
            proxy: None,
            no_proxy: None,
            ca_bundle: None,
            timeout: Duration::from_secs(30),
            retry: RetryPolicy::default(),
        }
    }

    /// Options from environment variables, which the caller looks up: `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_HUB_DOWNLOAD_TIMEOUT` with the meaning that `huggingface_hub` gives
    /// them, and `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`. An empty value counts as none.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let get =
            |names: &[&str]| names.iter().find_map(|name| lookup(name).filter(|v| !v.trim().is_empty()));
        let is_on = |names: &[&str]| {
            let on = |v: String| matches!(v.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE");
            get(names).is_some_and(on)
        };
        let user = get(&["HOME", "USERPROFILE"]);
        // As a shell would: the variables are often set in files that no shell reads.
        let expand = |path: String| match (path.strip_prefix("~/"), &user) {
            (Some(rest), Some(user)) => PathBuf::from(user).join(rest),
            _ => PathBuf::from(path),
        };
        let home = get(&["HF_HOME"]).map(expand).unwrap_or_else(|| {
            let cache = get(&["XDG_CACHE_HOME"]).map(expand);
            cache.unwrap_or_else(|| expand("~/.cache".into())).join("huggingface")
        });
        let cache = get(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]).map(expand);
        let mut options = Self::new(cache.unwrap_or_else(|| home.join("hub")));
        options.token = get(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).map(|t| t.trim().to_owned());
        options.token_file = Some(get(&["HF_TOKEN_PATH"]).map(expand).unwrap_or_else(|| home.join("token")));
        if let Some(endpoint) = get(&["HF_ENDPOINT"]) {
            options.endpoint = endpoint.trim().to_owned();
        }
        options.offline = is_on(&["HF_HUB_OFFLINE"]) || is_on(&["TRANSFORMERS_OFFLINE"]);
        options.proxy = get(&["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]);
        options.no_proxy = get(&["NO_PROXY", "no_proxy"]);
        options.ca_bundle = get(&["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"]).map(PathBuf::from);
        let seconds =
            get(&["HF_HUB_DOWNLOAD_TIMEOUT"]).and_then(|t| t.trim().parse().ok()).filter(|&t: &u64| t > 0);
        if let Some(seconds) = seconds {
            options.timeout = Duration::from_secs(seconds);
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(variables: &[(&str, &str)]) -> HubOptions {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        HubOptions::from_lookup(find)
    }

    #[test]
    fn the_variables_of_huggingface_hub() {
        let o = options(&[("HOME", "/home/u")]);
        assert_eq!(o.cache_dir, PathBuf::from("/home/u/.cache/huggingface/hub"));
        assert_eq!(o.token_file, Some(PathBuf::from("/home/u/.cache/huggingface/token")));
        assert_eq!(o.endpoint, "https://huggingface.co");
        assert!(!o.offline && o.token.is_none());

        let o = options(&[("HOME", "/home/u"), ("XDG_CACHE_HOME", "/c")]);
        assert_eq!(o.cache_dir, PathBuf::from("/c/huggingface/hub"));
        let o = options(&[
            ("HF_HOME", "~/hf"),
            ("HOME", "/home/u"),
            ("HF_TOKEN", " t\n"),
            ("HF_HUB_OFFLINE", "1"),
        ]);
        assert_eq!(o.cache_dir, PathBuf::from("/home/u/hf/hub"));
        assert_eq!(o.token.as_deref(), Some("t"));
        assert!(o.offline);
        let o =
            options(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/x"), ("HF_HUB_OFFLINE", "0"), ("HF_TOKEN", "")]);
        assert_eq!(o.cache_dir, PathBuf::from("/x"));
        assert!(!o.offline && o.token.is_none());
    }
}
