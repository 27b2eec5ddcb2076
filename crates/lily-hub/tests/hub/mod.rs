//! A hub on this machine: the routes that a download uses, with faults on demand.
//!
//! `hf-hub`'s own client downloads from it in one of the tests, so that it speaks as the real one.

#![allow(clippy::unwrap_used, dead_code)]

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ring::digest;

/// What goes wrong with one answer for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// So many bytes, and then silence.
    Stall(usize),
    /// The first byte is another one.
    Damage,
    /// The whole file, whatever was asked for.
    IgnoreRange,
    /// So many bytes from the start, whatever was asked for.
    Restart(usize),
    /// Another status.
    Status(u16),
    /// One byte more than the list says.
    Longer,
}

/// Who may read a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Public,
    /// Listed for all, files only with this token.
    Gated(&'static str),
    /// Hidden without this token.
    Private(&'static str),
}

/// A file; large ones lie on the other host and are known by SHA-256.
#[derive(Clone)]
pub struct Entry {
    pub content: Vec<u8>,
    pub large: bool,
}

/// A repository with the branch `main`, and perhaps others at the same commit.
#[derive(Clone)]
pub struct Repository {
    pub commit: String,
    pub branches: Vec<&'static str>,
    pub access: Access,
    pub files: BTreeMap<String, Entry>,
}

/// A request as it came in.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

#[derive(Default)]
struct State {
    repositories: BTreeMap<String, Repository>,
    faults: BTreeMap<String, VecDeque<Fault>>,
    requests: Vec<Request>,
    /// What every list of files is instead.
    list: Option<(u16, &'static str)>,
    /// Where large files are; here, if nowhere else.
    storage: Option<String>,
}

/// The hub. Its threads end with the process.
#[derive(Clone)]
pub struct Hub {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Hub {
    /// Starts a hub on a free port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let hub = Self { address: listener.local_addr().unwrap(), state: Arc::default() };
        let serving = hub.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = serving.clone();
                // A client that leaves in the middle is part of the tests.
                thread::spawn(move || hub.answer(stream));
            }
        });
        hub
    }

    /// A hub whose large files lie on another host, as those of the real one do.
    pub fn with_storage(storage: &Hub) -> Self {
        let hub = Self::start();
        hub.state.lock().unwrap().storage = Some(storage.url());
        hub
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn add(&self, name: &str, repository: Repository) {
        self.state.lock().unwrap().repositories.insert(name.into(), repository);
    }

    /// The next answers for a file of this name go wrong, one after another.
    pub fn fail(&self, file: &str, faults: &[Fault]) {
        self.state.lock().unwrap().faults.insert(file.into(), faults.iter().copied().collect());
    }

    /// Answers every request for a list of files like this.
    pub fn answer_lists(&self, status: u16, body: &'static str) {
        self.state.lock().unwrap().list = Some((status, body));
    }

    /// Requests since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// Names and ranges of the files that were asked for since the last call, sorted by name.
    pub fn asked(&self) -> Vec<(String, Option<String>)> {
        let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
        let files =
            self.requests().into_iter().filter(|request| request.path.contains("/resolve/"));
        let mut asked: Vec<_> = files.map(|file| (name(&file.path), file.range)).collect();
        asked.sort();
        asked
    }

    fn answer(&self, mut stream: TcpStream) {
        let Some(request) = read(&stream) else { return };
        let target = request.path.clone();
        let (path, _query) = target.split_once('?').unwrap_or((&target, ""));
        let (head, body, fault) = {
            let mut state = self.state.lock().unwrap();
            state.requests.push(request.clone());
            state.respond(path, &request)
        };
        let _ = stream.write_all(head.as_bytes());
        if request.method == "HEAD" {
            return;
        }
        let _ = match fault {
            Some(Fault::Cut(at) | Fault::Restart(at)) => {
                stream.write_all(&body[..at.min(body.len())])
            }
            Some(Fault::Stall(at)) => {
                let sent = stream.write_all(&body[..at.min(body.len())]);
                thread::sleep(Duration::from_secs(600));
                sent
            }
            _ => stream.write_all(&body),
        };
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ');
    let mut request = Request {
        method: words.next()?.into(),
        path: words.next()?.into(),
        range: None,
        authorization: None,
    };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.trim().into()),
            "authorization" => request.authorization = Some(value.trim().into()),
            _ => {}
        }
    }
    Some(request)
}

type Answer = (String, Vec<u8>, Option<Fault>);

impl State {
    fn respond(&mut self, path: &str, request: &Request) -> Answer {
        if let Some(rest) = path.strip_prefix("/api/models/") {
            if let Some((name, revision)) = rest.split_once("/revision/") {
                return self.info(name, revision, request);
            }
            if let Some((name, revision)) = rest.split_once("/tree/") {
                return self.tree(name, revision, request);
            }
        }
        if let Some(hash) = path.strip_prefix("/storage/") {
            return self.stored(hash, request);
        }
        match path.trim_start_matches('/').split_once("/resolve/") {
            Some((name, rest)) => match rest.split_once('/') {
                Some((revision, file)) => self.file(name, revision, file, request),
                None => refuse(404, "EntryNotFound"),
            },
            None => refuse(404, ""),
        }
    }

    fn find(&self, name: &str, revision: &str, request: &Request) -> Result<&Repository, Answer> {
        let Some(repository) = self.repositories.get(name) else {
            return Err(refuse(
                if request.authorization.is_some() { 404 } else { 401 },
                "RepoNotFound",
            ));
        };
        if let Access::Private(token) = repository.access
            && request.authorization != Some(format!("Bearer {token}"))
        {
            return Err(refuse(401, "RepoNotFound"));
        }
        let revision = revision.replace("%2F", "/");
        if revision != repository.commit && !repository.branches.contains(&revision.as_str()) {
            return Err(refuse(404, "RevisionNotFound"));
        }
        Ok(repository)
    }

    fn info(&self, name: &str, revision: &str, request: &Request) -> Answer {
        if let Some((status, body)) = self.list {
            return whole(status, "", body.into());
        }
        let repository = match self.find(name, revision, request) {
            Ok(repository) => repository,
            Err(answer) => return answer,
        };
        let files: Vec<_> = repository.files.iter().map(|(name, file)| file.info(name)).collect();
        let commit = &repository.commit;
        let text = format!(
            r#"{{"id": "{name}", "sha": "{commit}", "gated": false, "siblings": [{}]}}"#,
            files.join(",")
        );
        whole(200, "Content-Type: application/json\r\n", text.into_bytes())
    }

    fn tree(&self, name: &str, revision: &str, request: &Request) -> Answer {
        let repository = match self.find(name, revision, request) {
            Ok(repository) => repository,
            Err(answer) => return answer,
        };
        let entry = |(name, file): (&String, &Entry)| {
            let (size, oid) = (file.content.len(), git(&file.content));
            format!(r#"{{"type": "file", "path": "{name}", "size": {size}, "oid": "{oid}"}}"#)
        };
        let files: Vec<_> = repository.files.iter().map(entry).collect();
        let text = format!("[{}]", files.join(","));
        whole(200, "Content-Type: application/json\r\n", text.into_bytes())
    }

    fn file(&mut self, name: &str, revision: &str, file: &str, request: &Request) -> Answer {
        let repository = match self.find(name, revision, request) {
            Ok(repository) => repository,
            Err(answer) => return answer,
        };
        if let Access::Gated(token) = repository.access {
            match &request.authorization {
                None => return refuse(401, "GatedRepo"),
                Some(found) if *found != format!("Bearer {token}") => {
                    return refuse(403, "GatedRepo");
                }
                Some(_) => {}
            }
        }
        let Some(entry) = repository.files.get(file).cloned() else {
            return refuse(404, "EntryNotFound");
        };
        let mut headers = format!("X-Repo-Commit: {}\r\n", repository.commit);
        if entry.large
            && let Some(storage) = &self.storage
        {
            let (hash, size) = (sha256(&entry.content), entry.content.len());
            let _ = write!(
                headers,
                "X-Linked-Etag: \"{hash}\"\r\nX-Linked-Size: {size}\r\nETag: \"{}\"\r\n\
                 Location: {storage}/storage/{hash}\r\n",
                git(&entry.content)
            );
            return whole(302, &headers, Vec::new());
        }
        let hash = if entry.large { sha256(&entry.content) } else { git(&entry.content) };
        let _ = write!(headers, "ETag: \"{hash}\"\r\n");
        let fault = self.faults.get_mut(file).and_then(VecDeque::pop_front);
        content(&entry.content, &headers, request, fault)
    }

    /// A large file on its own host, by hash: faults go by hash too.
    fn stored(&mut self, hash: &str, request: &Request) -> Answer {
        let fault = self.faults.get_mut(hash).and_then(VecDeque::pop_front);
        let mut files = self.repositories.values().flat_map(|repository| repository.files.values());
        match files.find(|file| sha256(&file.content) == hash) {
            Some(file) => content(&file.content, "", request, fault),
            None => refuse(404, ""),
        }
    }
}

/// A file or a part of it.
fn content(all: &[u8], headers: &str, request: &Request, fault: Option<Fault>) -> Answer {
    let mut all = all.to_vec();
    match fault {
        Some(Fault::Status(status)) => return refuse(status, ""),
        Some(Fault::Damage) => all[0] ^= 1,
        Some(Fault::Longer) => all.push(0),
        _ => {}
    }
    let range = request
        .range
        .as_deref()
        .filter(|_| !matches!(fault, Some(Fault::IgnoreRange | Fault::Restart(_))));
    let range = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((start, end)) = range else {
        let (head, body, _) = whole(200, headers, all);
        return (head, body, fault);
    };
    let (start, size) = (start.parse::<usize>().unwrap(), all.len());
    if start >= size {
        return refuse(416, "");
    }
    let end = end.parse().map_or(size, |last: usize| (last + 1).min(size));
    let range = format!("{headers}Content-Range: bytes {start}-{}/{size}\r\n", end - 1);
    let (head, body, _) = whole(206, &range, all[start..end].to_vec());
    (head, body, fault)
}

fn whole(status: u16, headers: &str, body: Vec<u8>) -> Answer {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Status\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    (head, body, None)
}

fn refuse(status: u16, code: &str) -> Answer {
    let header = if code.is_empty() { String::new() } else { format!("X-Error-Code: {code}\r\n") };
    whole(status, &header, b"{\"error\": \"refused\"}".to_vec())
}

impl Entry {
    fn info(&self, name: &str) -> String {
        let (size, blob) = (self.content.len(), git(&self.content));
        let large = if self.large {
            let hash = sha256(&self.content);
            format!(r#", "lfs": {{"sha256": "{hash}", "size": {size}, "pointerSize": 130}}"#)
        } else {
            String::new()
        };
        let name = name.replace('"', "\\\"");
        format!(r#"{{"rfilename": "{name}", "size": {size}, "blobId": "{blob}"{large}}}"#)
    }
}

impl Repository {
    /// A public repository with these files; those that hold weights are large.
    pub fn new<'a>(files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Self {
        let entry = |(name, content): (&str, Vec<u8>)| {
            let large = name.ends_with(".safetensors") || name.ends_with(".gguf");
            (name.to_owned(), Entry { content, large })
        };
        let files: BTreeMap<_, _> = files.into_iter().map(entry).collect();
        let mut commit = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
        for (name, file) in &files {
            commit.update(name.as_bytes());
            commit.update(&file.content);
        }
        let branches = vec!["main"];
        Self { commit: hex(commit.finish()), branches, access: Access::Public, files }
    }

    pub fn with_branches(mut self, branches: &[&'static str]) -> Self {
        self.branches.extend(branches);
        self
    }

    pub fn with_access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// The files of a folder.
    pub fn of_folder(folder: &std::path::Path) -> Self {
        let files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read(path).unwrap())
            })
            .collect();
        Self::new(files.iter().map(|(name, content)| (name.as_str(), content.clone())))
    }
}

fn hex(digest: digest::Digest) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a content.
pub fn sha256(content: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, content))
}

/// The hash by which git knows a content.
pub fn git(content: &[u8]) -> String {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(format!("blob {}\0", content.len()).as_bytes());
    context.update(content);
    hex(context.finish())
}
