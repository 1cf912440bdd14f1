//! Requests to the hub: what to ask, what to send along, and what an answer means.

use std::fs;
use std::time::Duration;

use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, BodyReader, Proxy};

use super::name::{ModelName, is_commit};
use super::{HubError, HubOptions, RetryPolicy, select};

/// A listing has some kilobytes; a server that sends more is not the hub.
const MAX_LISTING: u64 = 16 << 20;

/// Asks the hub.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    retry: RetryPolicy,
    pub timeout: Duration,
}

/// A failed attempt.
pub(super) struct Failure {
    pub error: HubError,
    again: Again,
}

/// Whether another attempt makes sense.
enum Again {
    Never,
    /// After a growing wait.
    Later,
    /// After the wait that the server asks for.
    After(Duration),
}

impl Failure {
    pub fn passing(error: HubError) -> Self {
        Self { error, again: Again::Later }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self { error, again: Again::Never }
    }
}

/// Counts failures in a row, and waits between them.
pub(super) struct Patience {
    policy: RetryPolicy,
    failures: u32,
}

impl Patience {
    /// Waits until another attempt may be made, or gives the failure back as final.
    pub fn wait(&mut self, failure: Failure) -> Result<(), HubError> {
        self.failures += 1;
        let backoff = self.policy.first_wait.saturating_mul(1 << (self.failures - 1).min(16));
        let wait = match failure.again {
            Again::Later => backoff.min(self.policy.max_wait),
            Again::After(asked) if asked <= self.policy.max_wait => asked,
            Again::After(_) | Again::Never => return Err(failure.error),
        };
        if self.failures >= self.policy.attempts {
            return Err(failure.error);
        }
        std::thread::sleep(wait);
        Ok(())
    }

    /// Things are moving again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A file of a commit.
pub(super) struct RemoteFile {
    pub name: String,
    pub size: Option<u64>,
    /// The name of its contents in the cache.
    pub blob: String,
    /// Known for large files.
    pub sha256: Option<String>,
}

/// The files of a revision.
pub(super) struct Listing {
    pub commit: String,
    files: Vec<Sibling>,
}

#[derive(Deserialize)]
struct ListingJson {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Listing {
    /// The files that a checkpoint needs.
    pub fn needed(&self, model: &str) -> Result<Vec<RemoteFile>, HubError> {
        let names: Vec<&str> = self.files.iter().map(|f| f.rfilename.as_str()).collect();
        let missing = |missing| HubError::NotAModel { model: model.to_owned(), missing };
        let needed = select::needed(&names).map_err(missing)?;
        Ok(needed.into_iter().filter_map(|name| self.file(name)).collect())
    }

    fn file(&self, name: &str) -> Option<RemoteFile> {
        let file = self.files.iter().find(|f| f.rfilename == name)?;
        let sha256 = file.lfs.as_ref().map(|lfs| lfs.sha256.to_ascii_lowercase()).filter(|h| is_hash(h, 64));
        let git = file.blob_id.clone().filter(|h| is_hash(h, 40));
        // A mirror that leaves the hashes out: any name will do, so long as it is of this commit only.
        let blob = sha256.clone().or(git).unwrap_or_else(|| format!("{}-{name}", self.commit));
        let size = file.lfs.as_ref().map(|lfs| lfs.size).or(file.size);
        Some(RemoteFile { name: name.to_owned(), size, blob, sha256 })
    }
}

fn is_hash(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The body of a file, from some byte on.
pub(super) struct Opened {
    pub reader: BodyReader<'static>,
    /// Where it starts: a server may ignore what was asked for.
    pub start: u64,
    /// Size of the whole file, if the server says.
    pub total: Option<u64>,
}

impl Client {
    pub fn new(options: &HubOptions) -> Result<Self, HubError> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        let option = |option, reason: &str| HubError::Option { option, reason: reason.to_owned() };
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            return Err(option("HF_ENDPOINT", "must start with https:// or http://"));
        }
        let token = match (&options.token, &options.token_file) {
            (Some(token), _) => Some(token.clone()),
            // The file is optional, as it is for huggingface_hub.
            (None, Some(file)) => fs::read_to_string(file).ok().map(|t| t.trim().to_owned()),
            (None, None) => None,
        };
        let token = token.filter(|t| !t.is_empty());
        if token.as_ref().is_some_and(|t| !t.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(option("HF_TOKEN", "has characters that no token has"));
        }
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("wnw/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .proxy(proxy(options)?)
            .tls_config(TlsConfig::builder().root_certs(root_certificates(options)?).build())
            // Storage servers are other hosts; they must not see the token.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(options.timeout))
            .timeout_recv_response(Some(options.timeout))
            .timeout_per_read(Some(options.timeout))
            .build()
            .new_agent();
        Ok(Self { agent, endpoint, token, retry: options.retry, timeout: options.timeout })
    }

    pub fn patience(&self) -> Patience {
        Patience { policy: self.retry, failures: 0 }
    }

    /// The commit of a revision and its files.
    pub fn listing(&self, name: &ModelName, attempts: u32) -> Result<Listing, HubError> {
        let mut patience = self.patience();
        patience.policy.attempts = attempts;
        loop {
            match self.try_listing(name) {
                Ok(listing) => return Ok(listing),
                Err(failure) => patience.wait(failure)?,
            }
        }
    }

    fn try_listing(&self, name: &ModelName) -> Result<Listing, Failure> {
        let revision = name.encoded_revision();
        let url = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, name.repo);
        let mut response = self.get(&url, 0)?;
        if response.status() != StatusCode::OK {
            return Err(self.refusal(&response, &name.repo, Some(&name.revision), &url));
        }
        let body = response.body_mut().with_config().limit(MAX_LISTING).read_to_vec();
        let body = body.map_err(|e| connection(&url, &e))?;
        let bad = |reason: String| HubError::BadResponse { url: url.clone(), reason };
        let json: ListingJson = serde_json::from_slice(&body).map_err(|e| bad(e.to_string()))?;
        if !is_commit(&json.sha) {
            return Err(bad(format!("'{}' is no commit", json.sha)).into());
        }
        Ok(Listing { commit: json.sha, files: json.siblings })
    }

    /// Where a file of the hub is.
    pub fn file_url(&self, repo: &str, commit: &str, file: &str) -> String {
        format!("{}/{repo}/resolve/{commit}/{file}", self.endpoint)
    }

    /// Begins to read a file at byte `start`.
    pub fn open(&self, repo: &str, url: &str, start: u64) -> Result<Opened, Failure> {
        let response = self.get(url, start)?;
        let header = |name| response.headers().get(name).and_then(|v| v.to_str().ok());
        let (start, total) = match response.status() {
            StatusCode::OK => (0, header("content-length").and_then(|v| v.parse().ok())),
            StatusCode::PARTIAL_CONTENT => {
                let range = header("content-range").and_then(content_range);
                let bad =
                    |reason: &str| HubError::BadResponse { url: url.to_owned(), reason: reason.to_owned() };
                let (from, total) = range.ok_or_else(|| bad("content-range is missing or malformed"))?;
                if from != start {
                    return Err(bad("another part of the file than the one asked for").into());
                }
                (from, total)
            }
            _ => return Err(self.refusal(&response, repo, None, url)),
        };
        Ok(Opened { reader: response.into_body().into_reader(), start, total })
    }

    fn get(&self, url: &str, start: u64) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if start > 0 {
            request = request.header("range", format!("bytes={start}-"));
        }
        request.call().map_err(|e| connection(url, &e))
    }

    /// What an answer other than success means. `revision` is given where it could be what was not found.
    fn refusal(&self, response: &Response<Body>, repo: &str, revision: Option<&str>, url: &str) -> Failure {
        let header = |name| response.headers().get(name).and_then(|v| v.to_str().ok());
        let (model, url) = (repo.to_owned(), url.to_owned());
        let status = response.status().as_u16();
        let restricted = header("x-error-code") == Some("GatedRepo");
        let error = match (status, revision) {
            // Not the hub's: its codes for models mean nothing there.
            (400..429, _) if repo == url => HubError::Status { url, status },
            (401 | 403, _) if status == 403 || restricted => {
                HubError::Forbidden { page: format!("{}/{repo}", self.endpoint), model }
            }
            (401, _) => HubError::Unauthorized { model },
            (404, Some(revision)) => HubError::NotFound { model, revision: revision.to_owned() },
            (429, _) => {
                let retry_after =
                    header("retry-after").and_then(|v| v.trim().parse().ok()).map(Duration::from_secs);
                let again = retry_after.map_or(Again::Later, Again::After);
                return Failure { error: HubError::RateLimited { url, retry_after }, again };
            }
            _ => HubError::Status { url, status },
        };
        match status {
            408 | 500 | 502 | 503 | 504 => Failure::passing(error),
            _ => error.into(),
        }
    }
}

fn connection(url: &str, error: &ureq::Error) -> Failure {
    let failed = HubError::Connection { url: url.to_owned(), reason: error.to_string() };
    match error {
        ureq::Error::BadUri(_) | ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Http(_) => {
            failed.into()
        }
        ureq::Error::TooManyRedirects | ureq::Error::BodyExceedsLimit(_) => failed.into(),
        _ => Failure::passing(failed),
    }
}

/// `bytes 100-199/200`: first byte, and size if known.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let first = range.split_once('-')?.0.trim().parse().ok()?;
    Some((first, total.trim().parse().ok()))
}

fn proxy(options: &HubOptions) -> Result<Option<Proxy>, HubError> {
    let Some(address) = &options.proxy else { return Ok(None) };
    let invalid = |_| HubError::Option { option: "HTTPS_PROXY", reason: "not a proxy's address".into() };
    let plain = Proxy::new(address).map_err(invalid)?;
    let Some(no_proxy) = &options.no_proxy else { return Ok(Some(plain)) };
    let mut builder = Proxy::builder(plain.protocol()).host(plain.host()).port(plain.port());
    if let Some(user) = plain.username() {
        builder = builder.username(user);
    }
    if let Some(password) = plain.password() {
        builder = builder.password(password);
    }
    for host in no_proxy.split(',').map(str::trim).filter(|host| !host.is_empty()) {
        builder = builder.no_proxy(host);
    }
    builder.build().map(Some).map_err(invalid)
}

fn root_certificates(options: &HubOptions) -> Result<RootCerts, HubError> {
    let Some(path) = &options.ca_bundle else { return Ok(RootCerts::WebPki) };
    let invalid = |reason: String| HubError::Option {
        option: "SSL_CERT_FILE",
        reason: format!("{}: {reason}", path.display()),
    };
    let pem = fs::read(path).map_err(|e| invalid(e.to_string()))?;
    let mut certificates: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| invalid(e.to_string()))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(invalid("holds no certificate".into()));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(content_range("bytes 100-199/200"), Some((100, Some(200))));
        assert_eq!(content_range("bytes 0-0/*"), Some((0, None)));
        assert_eq!(content_range("bytes */200"), None);
        assert_eq!(content_range(""), None);
    }
}
