//! Model names to directories, against a hub on 127.0.0.1 that also fails in the ways that hubs fail.

#[path = "common/hub_server.rs"]
mod hub_server;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hub_server::{COMMIT, Model, Reply, Request, Server};
use tempfile::TempDir;
use wnw_model::hub::{HubError, HubOptions, RetryPolicy, resolve};

const NAME: &str = "org/model";
const SIZE: usize = 3_000_000;

fn options(server: &Server, cache: &TempDir) -> HubOptions {
    let retry =
        RetryPolicy { attempts: 4, first_wait: Duration::from_millis(5), max_wait: Duration::from_secs(2) };
    let mut options = HubOptions::new(cache.path());
    options.endpoint = server.endpoint.clone();
    options.timeout = Duration::from_secs(20);
    options.retry = retry;
    options
}

fn quiet(name: &str, options: &HubOptions) -> Result<PathBuf, HubError> {
    resolve(name, options, &mut |_, _, _| ())
}

fn no_fault(_: &Request, _: usize) -> Option<Reply> {
    None
}

fn cache() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn check(dir: &Path, model: &Model) {
    for name in ["config.json", "params.json", "tekken.json", "model.safetensors"] {
        assert!(fs::read(dir.join(name)).unwrap() == model.bytes(name), "{name} differs");
    }
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "params.json", "tekken.json"], "nothing else");
}

fn repo(cache: &TempDir) -> PathBuf {
    cache.path().join("models--org--model")
}

fn incomplete(cache: &TempDir, model: &Model) -> PathBuf {
    repo(cache).join("blobs").join(model.blob("model.safetensors") + ".incomplete")
}

#[test]
fn fetches_what_a_checkpoint_needs_into_the_cache_of_huggingface_hub() {
    let model = Model::new(SIZE);
    let (server, cache) = (Server::start(&model, no_fault), cache());
    let mut options = options(&server, &cache);
    options.token = Some("secret".into());
    let mut seen: Vec<(String, u64, u64)> = Vec::new();
    let dir =
        resolve(NAME, &options, &mut |file, done, total| seen.push((file.into(), done, total))).unwrap();
    check(&dir, &model);
    assert_eq!(dir, repo(&cache).join("snapshots").join(COMMIT));
    assert_eq!(fs::read_to_string(repo(&cache).join("refs/main")).unwrap(), COMMIT);
    for name in ["config.json", "model.safetensors"] {
        assert!(repo(&cache).join("blobs").join(model.blob(name)).is_file());
        #[cfg(unix)]
        assert_eq!(fs::read_link(dir.join(name)).unwrap(), Path::new("../../blobs").join(model.blob(name)));
    }
    assert!(server.requests().iter().all(|r| r.header("authorization") == Some("Bearer secret")));
    assert_eq!(server.requests().len(), 5, "a listing and four files");

    assert!(seen.windows(2).all(|w| w[0].1 <= w[1].1), "progress goes forward");
    let (file, done, total) = seen.last().unwrap();
    assert_eq!((file.as_str(), done), ("model.safetensors", total));
    assert!(*total > SIZE as u64);

    // Again: one question whether there is something new.
    quiet(NAME, &options).unwrap();
    assert_eq!(server.requests().len(), 6);
}

#[test]
fn a_transfer_that_breaks_off_is_continued() {
    let model = Model::new(SIZE);
    let whole = model.clone();
    let server = Server::start(&model, move |request, earlier| {
        let is_weights = request.path.ends_with("/model.safetensors");
        (is_weights && earlier < 2).then(|| Reply { cut: Some(1_000_000), ..whole.file(request) })
    });
    let cache = cache();
    check(&quiet(NAME, &options(&server, &cache)).unwrap(), &model);
    let starts: Vec<usize> = server.requests_of("model.safetensors").iter().map(Request::start).collect();
    assert_eq!(starts, [0, 1_000_000, 2_000_000]);
    assert!(!incomplete(&cache, &model).exists());
}

#[test]
fn a_transfer_that_stalls_is_continued() {
    let model = Model::new(SIZE);
    let whole = model.clone();
    let server = Server::start(&model, move |request, earlier| {
        let is_weights = request.path.ends_with("/model.safetensors");
        let stall = Duration::from_secs(30);
        (is_weights && earlier == 0).then(|| Reply { cut: Some(1_000_000), stall, ..whole.file(request) })
    });
    let cache = cache();
    let mut options = options(&server, &cache);
    options.timeout = Duration::from_secs(1);
    let start = Instant::now();
    check(&quiet(NAME, &options).unwrap(), &model);
    assert!(start.elapsed() < Duration::from_secs(15));
    assert_eq!(server.requests_of("model.safetensors")[1].start(), 1_000_000);
}

#[test]
fn an_earlier_run_is_continued() {
    let model = Model::new(SIZE);
    let (server, cache) = (Server::start(&model, no_fault), cache());
    fs::create_dir_all(repo(&cache).join("blobs")).unwrap();
    fs::write(incomplete(&cache, &model), &model.bytes("model.safetensors")[..1234]).unwrap();
    check(&quiet(NAME, &options(&server, &cache)).unwrap(), &model);
    assert_eq!(server.requests_of("model.safetensors")[0].start(), 1234);
}

#[test]
fn what_an_earlier_run_left_damaged_is_fetched_anew() {
    let model = Model::new(SIZE);
    for left in [vec![0; 1234], vec![0; SIZE], vec![0; SIZE + 1]] {
        let (server, cache) = (Server::start(&model, no_fault), cache());
        fs::create_dir_all(repo(&cache).join("blobs")).unwrap();
        fs::write(incomplete(&cache, &model), left).unwrap();
        check(&quiet(NAME, &options(&server, &cache)).unwrap(), &model);
        assert_eq!(server.requests_of("model.safetensors").last().unwrap().start(), 0);
    }
}

#[test]
fn a_server_that_ignores_ranges_does_not_double_the_file() {
    let model = Model::new(SIZE);
    let whole = model.clone();
    let server = Server::start(&model, move |request, earlier| {
        let all = Reply { status: 200, body: whole.bytes("model.safetensors").to_vec(), ..Reply::default() };
        let cut = (earlier == 0).then_some(1_000_000);
        request.path.ends_with("/model.safetensors").then_some(Reply { cut, ..all })
    });
    let cache = cache();
    check(&quiet(NAME, &options(&server, &cache)).unwrap(), &model);
}

#[test]
fn a_transfer_that_always_breaks_off_is_an_error_and_keeps_what_came() {
    let model = Model::new(SIZE);
    let whole = model.clone();
    let server = Server::start(&model, move |request, _| {
        let is_weights = request.path.ends_with("/model.safetensors");
        is_weights.then(|| Reply { cut: Some(1000), ..whole.file(request) })
    });
    let cache = cache();
    let error = quiet(NAME, &options(&server, &cache)).unwrap_err();
    let HubError::BrokenOff { file, done, total, .. } = &error else { panic!("{error}") };
    assert_eq!((file.as_str(), *done, *total), ("model.safetensors", 4000, SIZE as u64));
    assert_eq!(fs::metadata(incomplete(&cache, &model)).unwrap().len(), 4000);
    assert!(error.to_string().contains("the next run continues"), "{error}");
}

#[test]
fn damaged_contents_are_not_kept() {
    let model = Model::new(SIZE);
    let whole = model.clone();
    let server = Server::start(&model, move |request, _| {
        request.path.ends_with("/model.safetensors").then(|| {
            let mut reply = whole.file(request);
            reply.body[17] ^= 1;
            reply
        })
    });
    let cache = cache();
    let error = quiet(NAME, &options(&server, &cache)).unwrap_err();
    assert!(matches!(&error, HubError::Damaged { file, .. } if file == "model.safetensors"), "{error}");
    assert!(!incomplete(&cache, &model).exists());
    assert!(!repo(&cache).join("blobs").join(model.blob("model.safetensors")).exists());
}

#[test]
fn denials_say_what_to_do() {
    let model = Model::new(100);
    let answer = |status: u16, code: &str| {
        let code = code.to_owned();
        let server =
            Server::start(&model, move |_, _| Some(Reply::status(status).with("X-Error-Code", &code)));
        let error = quiet(NAME, &options(&server, &cache())).unwrap_err();
        assert_eq!(server.requests().len(), 1, "a denial is final");
        error
    };
    let error = answer(401, "RepoNotFound");
    assert!(
        matches!(error, HubError::Unauthorized { .. }) && error.to_string().contains("HF_TOKEN"),
        "{error}"
    );
    for (status, code) in [(401, "GatedRepo"), (403, "GatedRepo"), (403, "")] {
        let error = answer(status, code);
        assert!(matches!(error, HubError::Forbidden { .. }), "{error}");
        assert!(error.to_string().contains("accept the model's conditions at http://127.0.0.1"), "{error}");
    }
    let error = answer(404, "RevisionNotFound");
    assert!(matches!(&error, HubError::NotFound { revision, .. } if revision == "main"), "{error}");
    assert!(matches!(answer(400, ""), HubError::Status { status: 400, .. }));
}

#[test]
fn a_listed_model_may_still_be_restricted() {
    let model = Model::new(100);
    let server = Server::start(&model, |request, _| {
        request.path.contains("/resolve/").then(|| Reply::status(401).with("X-Error-Code", "GatedRepo"))
    });
    let error = quiet(NAME, &options(&server, &cache())).unwrap_err();
    assert!(matches!(error, HubError::Forbidden { .. }), "{error}");
}

#[test]
fn too_many_requests_are_answered_by_waiting_as_asked() {
    let model = Model::new(100);
    let server = Server::start(&model, |request, earlier| {
        let put_off = earlier == 0;
        put_off.then(|| {
            Reply::status(429).with("Retry-After", if request.path.contains("/api/") { "1" } else { "0" })
        })
    });
    let cache = cache();
    let start = Instant::now();
    check(&quiet(NAME, &options(&server, &cache)).unwrap(), &model);
    assert!(start.elapsed() >= Duration::from_secs(1));
    assert_eq!(server.requests_of("model.safetensors").len(), 2);
    assert_eq!(server.requests_of("blobs=true").len(), 2);
}

#[test]
fn too_many_requests_for_ever_is_an_error() {
    let model = Model::new(100);
    let server = Server::start(&model, |_, _| Some(Reply::status(429)));
    let error = quiet(NAME, &options(&server, &cache())).unwrap_err();
    assert!(matches!(error, HubError::RateLimited { retry_after: None, .. }), "{error}");
    assert_eq!(server.requests().len(), 4);

    let server = Server::start(&model, |_, _| Some(Reply::status(429).with("Retry-After", "3600")));
    let error = quiet(NAME, &options(&server, &cache())).unwrap_err();
    assert!(error.to_string().contains("3600 s"), "{error}");
    assert_eq!(server.requests().len(), 1, "an hour is not waited for");
}

#[test]
fn a_server_that_stumbles_is_asked_again() {
    let model = Model::new(SIZE);
    let server = Server::start(&model, |_, earlier| match earlier {
        0 => Some(Reply::status(503)),
        1 => Some(Reply::status(0)),
        _ => None,
    });
    check(&quiet(NAME, &options(&server, &cache())).unwrap(), &model);
    let server = Server::start(&model, |_, _| Some(Reply::status(500)));
    let error = quiet(NAME, &options(&server, &cache())).unwrap_err();
    assert!(matches!(error, HubError::Status { status: 500, .. }), "{error}");
}

#[test]
fn offline_the_cache_decides() {
    let model = Model::new(SIZE);
    let (server, cache) = (Server::start(&model, no_fault), cache());
    let online = options(&server, &cache);
    let mut offline = online.clone();
    offline.offline = true;

    let error = quiet(NAME, &offline).unwrap_err();
    assert!(matches!(error, HubError::Offline { partial: false, .. }), "{error}");
    assert!(server.requests().is_empty());
    let dir = quiet(NAME, &online).unwrap();
    let asked = server.requests().len();
    assert_eq!(quiet(NAME, &offline).unwrap(), dir);
    assert_eq!(quiet(&format!("{NAME}@{COMMIT}"), &offline).unwrap(), dir);
    assert!(matches!(quiet("org/model@other", &offline), Err(HubError::Offline { .. })));
    assert!(matches!(quiet("org/other", &offline), Err(HubError::Offline { .. })));
    assert_eq!(server.requests().len(), asked);

    // Python links files one by one: a snapshot may be there and yet not whole.
    fs::remove_file(dir.join("model.safetensors")).unwrap();
    let error = quiet(NAME, &offline).unwrap_err();
    assert!(matches!(error, HubError::Offline { partial: true, .. }), "{error}");
    assert!(error.to_string().contains("only part of it"), "{error}");
    // Online, the contents that are still there are linked again and not fetched.
    quiet(NAME, &online).unwrap();
    assert_eq!(server.requests_of("model.safetensors").len(), 1);
}

#[test]
fn shards_are_all_needed() {
    let mut model = Model::new(100);
    let index =
        br#"{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#;
    model.files.retain(|(name, _)| name != "model.safetensors");
    model.files.push(("model-00001-of-00002.safetensors".into(), vec![1; 10]));
    model.files.push(("model-00002-of-00002.safetensors".into(), vec![2; 10]));
    model.files.push(("model.safetensors.index.json".into(), index.to_vec()));
    let (server, cache) = (Server::start(&model, no_fault), cache());
    let mut options = options(&server, &cache);
    let dir = quiet(NAME, &options).unwrap();
    assert!(!dir.join("consolidated.safetensors").exists());
    options.offline = true;
    quiet(NAME, &options).unwrap();
    fs::remove_file(dir.join("model-00001-of-00002.safetensors")).unwrap();
    assert!(matches!(quiet(NAME, &options), Err(HubError::Offline { partial: true, .. })));
}

#[test]
fn without_a_connection_the_cache_is_used() {
    let model = Model::new(100);
    let (server, cache) = (Server::start(&model, no_fault), cache());
    let mut options = options(&server, &cache);
    let dir = quiet(NAME, &options).unwrap();
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    options.endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    assert_eq!(quiet(NAME, &options).unwrap(), dir);
    let error = quiet("org/other", &options).unwrap_err();
    assert!(matches!(error, HubError::Connection { .. }), "{error}");
}

#[test]
fn a_new_commit_shares_what_has_not_changed() {
    let old = Model::new(SIZE);
    let mut new = old.clone();
    new.commit = "f".repeat(40);
    new.files.iter_mut().find(|(name, _)| name == "config.json").unwrap().1 = b"{\"new\":true}".to_vec();
    let cache = cache();
    let server = Server::start(&old, no_fault);
    let first = quiet(NAME, &options(&server, &cache)).unwrap();
    let server = Server::start(&new, no_fault);
    let second = quiet(NAME, &options(&server, &cache)).unwrap();
    check(&first, &old);
    check(&second, &new);
    assert_eq!(server.requests().len(), 2, "the listing and one file");
    assert_eq!(fs::read_to_string(repo(&cache).join("refs/main")).unwrap(), new.commit);
}

#[test]
fn revisions() {
    let model = Model::new(100);
    let (server, cache) = (Server::start(&model, no_fault), cache());
    let options = options(&server, &cache);
    quiet("org/model@refs/pr/1", &options).unwrap();
    assert_eq!(server.requests()[0].path, "/api/models/org/model/revision/refs%2Fpr%2F1?blobs=true");
    assert_eq!(fs::read_to_string(repo(&cache).join("refs/refs/pr/1")).unwrap(), COMMIT);
    // A commit that is in the cache needs no question.
    let asked = server.requests().len();
    quiet(&format!("org/model@{COMMIT}"), &options).unwrap();
    assert_eq!(server.requests().len(), asked);
}

#[test]
fn storage_on_another_host_does_not_see_the_token() {
    let model = Model::new(SIZE);
    let whole = model.clone();
    let storage = Server::start(&model, move |request, earlier| {
        let is_weights = request.path.ends_with("/model.safetensors");
        (is_weights && earlier == 0).then(|| Reply { cut: Some(1_000_000), ..whole.file(request) })
    });
    let address = storage.endpoint.replace("127.0.0.1", "localhost");
    let server = Server::start(&model, move |request, _| {
        let is_file = request.path.contains("/resolve/");
        is_file.then(|| Reply::status(302).with("Location", &format!("{address}{}", request.path)))
    });
    let cache = cache();
    let mut options = options(&server, &cache);
    options.token = Some("secret".into());
    check(&quiet(NAME, &options).unwrap(), &model);
    let weights = storage.requests_of("model.safetensors");
    assert_eq!(weights[1].start(), 1_000_000, "the range goes along");
    assert!(storage.requests().iter().all(|r| r.header("authorization").is_none()));
}

#[test]
fn two_processes_fetch_once() {
    let model = Model::new(SIZE);
    let whole = model.clone();
    let server = Server::start(&model, move |request, _| {
        let stall = Duration::from_millis(300);
        request.path.ends_with("/model.safetensors").then(|| Reply { stall, ..whole.file(request) })
    });
    let cache = cache();
    let options = options(&server, &cache);
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..3).map(|_| scope.spawn(|| quiet(NAME, &options).unwrap())).collect();
        for run in runs {
            check(&run.join().unwrap(), &model);
        }
    });
    assert_eq!(server.requests_of("model.safetensors").len(), 1);
}

#[test]
fn answers_that_are_not_the_hubs() {
    let model = Model::new(100);
    let answer = |body: &str| {
        let body = body.as_bytes().to_vec();
        let reply = move |_: &Request, _| Some(Reply { status: 200, body: body.clone(), ..Reply::default() });
        quiet(NAME, &options(&Server::start(&model, reply), &cache())).unwrap_err()
    };
    for body in ["<html>log in</html>", "", "{}", r#"{"sha":"../../x","siblings":[]}"#] {
        let error = answer(body);
        assert!(matches!(error, HubError::BadResponse { .. }), "{body}: {error}");
    }
    let empty = answer(&format!(r#"{{"sha":"{COMMIT}","siblings":[]}}"#));
    assert!(matches!(empty, HubError::NotAModel { .. }), "{empty}");
    // Names that would leave the cache are not among those that are needed.
    let outside = format!(
        r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"config.json"}},{{"rfilename":"tekken.json"}},{{"rfilename":"model/../../x.safetensors"}}]}}"#
    );
    assert!(matches!(answer(&outside), HubError::NotAModel { .. }));
}

#[test]
fn a_mirror_without_hashes_and_sizes() {
    let model = Model::new(SIZE);
    let body = format!(
        r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"config.json"}},{{"rfilename":"tekken.json"}},{{"rfilename":"params.json"}},{{"rfilename":"model.safetensors"}}]}}"#
    );
    let whole = model.clone();
    let server = Server::start(&model, move |request, earlier| {
        if request.path.starts_with("/api/") {
            return Some(Reply { status: 200, body: body.clone().into_bytes(), ..Reply::default() });
        }
        let is_weights = request.path.ends_with("/model.safetensors");
        (is_weights && earlier == 0).then(|| Reply { cut: Some(1_000_000), ..whole.file(request) })
    });
    let cache = cache();
    let mut last = (0, 0);
    let dir = resolve(NAME, &options(&server, &cache), &mut |_, done, total| last = (done, total)).unwrap();
    check(&dir, &model);
    assert_eq!(server.requests_of("model.safetensors")[1].start(), 1_000_000);
    assert!(last.0 == last.1 && last.0 > SIZE as u64, "{last:?}");
}

#[test]
fn names_and_options_that_cannot_be_used() {
    let model = Model::new(100);
    let (server, cache) = (Server::start(&model, no_fault), cache());
    let options = options(&server, &cache);
    for name in ["", "..", "../../etc", "org/../model", "a/b/c", "org/model@", "org/model@../x"] {
        assert!(matches!(quiet(name, &options), Err(HubError::Name { .. })), "{name}");
    }
    let mut other = options.clone();
    other.endpoint = "huggingface.co".into();
    assert!(matches!(quiet(NAME, &other), Err(HubError::Option { option: "HF_ENDPOINT", .. })));
    let mut other = options.clone();
    other.token = Some("two\r\nlines".into());
    assert!(matches!(quiet(NAME, &other), Err(HubError::Option { option: "HF_TOKEN", .. })));
    assert!(server.requests().is_empty());

    let file = cache.path().join("file");
    fs::write(&file, "").unwrap();
    let mut other = options;
    other.cache_dir = file;
    let error = quiet(NAME, &other).unwrap_err();
    assert!(matches!(&error, HubError::Io { .. }) && error.to_string().contains("file"), "{error}");
}

#[test]
fn the_token_file_is_read() {
    let model = Model::new(100);
    let (server, cache) = (Server::start(&model, no_fault), cache());
    let mut options = options(&server, &cache);
    options.token_file = Some(cache.path().join("token"));
    quiet(NAME, &options).unwrap();
    assert_eq!(server.requests()[0].header("authorization"), None);
    fs::write(cache.path().join("token"), "from-file\n").unwrap();
    quiet(NAME, &options).unwrap();
    assert_eq!(server.requests().last().unwrap().header("authorization"), Some("Bearer from-file"));
}
