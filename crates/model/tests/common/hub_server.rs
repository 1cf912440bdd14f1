//! A hub for tests: a few files behind HTTP on 127.0.0.1, and faults on demand.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring::digest::{SHA256, digest};
use serde_json::json;

/// The commit that `main` is at.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    /// Path and query.
    pub path: String,
    /// Headers, names in lower case.
    pub headers: HashMap<String, String>,
}

impl Request {
    /// A header, or nothing.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First byte asked for.
    pub fn start(&self) -> usize {
        let range = self.header("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-'));
        range.map_or(0, |first| first.parse().unwrap())
    }

    fn file(&self) -> Option<&str> {
        self.path.contains("/resolve/").then(|| self.path.rsplit('/').next().unwrap())
    }
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// Status; 0 closes the connection without an answer.
    pub status: u16,
    /// Headers besides content-length.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// Bytes of the body that are sent before the connection closes.
    pub cut: Option<usize>,
    /// Wait after those bytes.
    pub stall: Duration,
}

impl Reply {
    /// An answer without a body.
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// With a header.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// What a fault does with a request: another answer than the usual, or none.
pub type Fault = dyn Fn(&Request, usize) -> Option<Reply> + Send + Sync;

/// The files of the test model, and what the listing says of them.
#[derive(Clone)]
pub struct Model {
    /// Name and contents.
    pub files: Vec<(String, Vec<u8>)>,
    /// The commit.
    pub commit: String,
}

impl Model {
    /// A checkpoint in both layouts. `size` is that of `model.safetensors`.
    pub fn new(size: usize) -> Self {
        let mut state = 1u32;
        let weights = (0..size).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let file = |name: &str, bytes: &[u8]| (name.to_owned(), bytes.to_vec());
        Self {
            files: vec![
                file(".gitattributes", b"x"),
                file("README.md", b"# Model"),
                file("config.json", b"{\"model_type\":\"voxtral\"}"),
                file("consolidated.safetensors", &vec![7; size]),
                file("model.safetensors", &weights.collect::<Vec<u8>>()),
                file("params.json", b"{}"),
                file("tekken.json", b"{\"config\":{}}"),
            ],
            commit: COMMIT.into(),
        }
    }

    /// Contents of a file.
    pub fn bytes(&self, name: &str) -> &[u8] {
        &self.files.iter().find(|(n, _)| n == name).unwrap().1
    }

    /// The name of a file's contents in the cache.
    pub fn blob(&self, name: &str) -> String {
        let hash = hex(self.bytes(name));
        if name.ends_with(".safetensors") { hash } else { hash[..40].to_owned() }
    }

    /// The hub's answer to a listing.
    pub fn listing(&self) -> Reply {
        let siblings: Vec<_> = self
            .files
            .iter()
            .map(|(name, bytes)| {
                let mut file = json!({"rfilename": name, "size": bytes.len(), "blobId": &hex(bytes)[..40]});
                if name.ends_with(".safetensors") {
                    file["lfs"] = json!({"sha256": hex(bytes), "size": bytes.len(), "pointerSize": 134});
                }
                file
            })
            .collect();
        let body = json!({"id": "org/model", "sha": self.commit, "siblings": siblings});
        Reply { status: 200, body: body.to_string().into_bytes(), ..Reply::default() }
    }

    /// The hub's answer to a request for a file, from the byte asked for.
    pub fn file(&self, request: &Request) -> Reply {
        let Some((_, bytes)) = self.files.iter().find(|(name, _)| Some(name.as_str()) == request.file())
        else {
            return Reply::status(404);
        };
        let start = request.start();
        match request.header("range") {
            None => Reply { status: 200, body: bytes.clone(), ..Reply::default() },
            Some(_) if start >= bytes.len() => Reply::status(416),
            Some(_) => {
                let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
                let reply = Reply { status: 206, body: bytes[start..].to_vec(), ..Reply::default() };
                reply.with("Content-Range", &range)
            }
        }
    }
}

/// SHA-256 in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// A running server. It ends with the test process.
pub struct Server {
    /// Its address.
    pub endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Serves `model`; `fault` sees each request first, with the number of earlier requests of the same path.
    pub fn start(
        model: &Model,
        fault: impl Fn(&Request, usize) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::<Request>::new()));
        let (log, model, fault) = (requests.clone(), model.clone(), Arc::new(fault));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, model, fault) = (log.clone(), model.clone(), fault.clone());
                std::thread::spawn(move || serve(stream, &log, &model, &*fault));
            }
        });
        Self { endpoint, requests }
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Requests so far whose path ends in this.
    pub fn requests_of(&self, end: &str) -> Vec<Request> {
        self.requests().into_iter().filter(|r| r.path.ends_with(end)).collect()
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Request>>, model: &Model, fault: &Fault) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let request = Request { path, headers };
    let earlier = {
        let mut log = log.lock().unwrap();
        let earlier = log.iter().filter(|r| r.path == request.path).count();
        log.push(request.clone());
        earlier
    };
    let reply = fault(&request, earlier).unwrap_or_else(|| {
        if request.path.starts_with("/api/models/org/model/revision/") {
            model.listing()
        } else {
            model.file(&request)
        }
    });
    if reply.status == 0 {
        return None;
    }
    let mut head = format!(
        "HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n",
        reply.status,
        reply.body.len()
    );
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    stream.write_all(head.as_bytes()).ok()?;
    let cut = reply.cut.unwrap_or(reply.body.len());
    stream.write_all(&reply.body[..cut]).ok()?;
    stream.flush().ok()?;
    std::thread::sleep(reply.stall);
    Some(())
}
