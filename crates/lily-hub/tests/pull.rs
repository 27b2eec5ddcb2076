//! Downloads from a hub on this machine that misbehaves on demand.

#![allow(clippy::unwrap_used)]

mod hub;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hub::{Access, Fault, Hub, Repository, git, sha256};
use lily_hub::{Cache, HubError, ModelId, Progress, PullOptions, Pulled, Token, Watch, pull};

const ONE: &str = "model-00001-of-00002.safetensors";
const TWO: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SIZE: usize = 3_000_000;

/// Bytes that differ everywhere.
fn bytes(seed: u32, size: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}

fn index(names: &[&str]) -> Vec<u8> {
    let map: Vec<_> = names.iter().enumerate().map(|(i, n)| format!(r#""t{i}": "{n}""#)).collect();
    format!(r#"{{"weight_map": {{{}}}}}"#, map.join(",")).into_bytes()
}

/// Two weight files with their index, what lily reads, and what it does not.
fn model() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", b"{\"model_type\": \"x\"}".to_vec()),
        ("generation_config.json", b"{}".to_vec()),
        ("tokenizer.json", bytes(1, 5000)),
        ("tokenizer_config.json", b"{\"a\": 1}".to_vec()),
        ("chat_template.jinja", b"{{ messages }}".to_vec()),
        (INDEX, index(&[ONE, TWO])),
        (ONE, bytes(2, SIZE)),
        (TWO, bytes(3, 1000)),
        ("README.md", b"read".to_vec()),
        (".gitattributes", b"x".to_vec()),
        ("vocab.json", b"x".to_vec()),
        ("other.safetensors", bytes(4, 500)),
        ("model.gguf", bytes(5, 500)),
        ("original/consolidated.safetensors", bytes(6, 500)),
    ]
}

const READ: [&str; 8] = [
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    ONE,
    TWO,
    INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
];

/// A hub with one model, and a cache.
struct Place {
    hub: Hub,
    folder: tempfile::TempDir,
    options: PullOptions,
}

impl Place {
    fn new(repository: Repository) -> Self {
        let hub = Hub::start();
        hub.add("org/model", repository);
        Self::at(hub)
    }

    fn at(hub: Hub) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = PullOptions {
            endpoint: hub.url(),
            retries: 0,
            retry_wait: Duration::from_millis(1),
            ..PullOptions::new(Cache::at(folder.path()))
        };
        Self { hub, folder, options }
    }

    fn pull(&self) -> Result<Pulled, HubError> {
        self.pull_id("org/model")
    }

    fn pull_id(&self, id: &str) -> Result<Pulled, HubError> {
        pull(&id.parse().unwrap(), &self.options, &AtomicBool::new(false), &mut Silent)
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("models--org--model")
    }

    fn blob(&self, content: &[u8]) -> PathBuf {
        self.model().join("blobs").join(sha256(content))
    }

    fn partial(&self, content: &[u8]) -> PathBuf {
        self.model().join("blobs").join(format!("{}.incomplete", sha256(content)))
    }

    fn find(&self) -> Result<PathBuf, HubError> {
        self.options.cache.find(&id())
    }
}

struct Silent;

impl Watch for Silent {
    fn progress(&mut self, _: Progress<'_>) {}

    fn configuration(&mut self, _: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

fn id() -> ModelId {
    "org/model".parse().unwrap()
}

/// The folder holds the model, byte for byte.
fn assert_whole(folder: &Path) {
    for (name, content) in model().into_iter().filter(|(name, _)| READ.contains(name)) {
        assert_eq!(fs::read(folder.join(name)).unwrap(), content, "{name}");
    }
}

#[test]
fn what_lily_reads_is_downloaded_and_nothing_else() {
    let place = Place::new(Repository::new(model()));
    let pulled = place.pull().unwrap();
    let asked: Vec<_> = place.hub.asked();
    let mut wanted = READ.map(|name| (name.to_owned(), None)).to_vec();
    wanted.sort();
    assert_eq!(asked, wanted);
    let mut names: Vec<_> = pulled.files.iter().map(|file| file.name.as_str()).collect();
    names.sort();
    assert_eq!(names, wanted.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
    assert_eq!(pulled.bytes, pulled.files.iter().map(|file| file.bytes).sum::<u64>());
    assert_eq!((pulled.received, pulled.resumed), (pulled.bytes, 0));
    assert_whole(&pulled.folder);
    assert_eq!(place.find().unwrap(), pulled.folder);
}

#[test]
fn the_cache_has_the_layout_that_all_programs_of_the_hub_share() {
    let place = Place::new(Repository::new(model()));
    let pulled = place.pull().unwrap();
    let model = place.model();
    assert_eq!(fs::read_to_string(model.join("refs/main")).unwrap(), pulled.commit);
    assert_eq!(pulled.folder, model.join("snapshots").join(&pulled.commit));
    // Large files are known by SHA-256, small ones by git's hash; links are relative.
    let (config, weights) = (&self::model()[0].1, &self::model()[6].1);
    for (name, hash) in [("config.json", git(config)), (ONE, sha256(weights))] {
        let link = fs::read_link(pulled.folder.join(name)).unwrap();
        assert_eq!(link, Path::new("../../blobs").join(hash));
    }
    let cached = hf_hub::Cache::new(place.folder.path().into()).model("org/model".into());
    assert_eq!(cached.get(TWO).unwrap(), pulled.folder.join(TWO));
    let left: Vec<_> = fs::read_dir(model.join("blobs")).unwrap().collect();
    assert_eq!(left.len(), READ.len(), "no partial file stays: {left:?}");
}

#[test]
fn the_hub_of_these_tests_serves_the_client_of_the_real_one() {
    let storage = Hub::start();
    let hub = Hub::with_storage(&storage);
    for hub in [&hub, &storage] {
        hub.add("org/model", Repository::new(model()));
    }
    let place = Place::at(hub);
    let api =
        hf_hub::api::sync::ApiBuilder::from_cache(hf_hub::Cache::new(place.folder.path().into()))
            .with_endpoint(place.hub.url())
            .with_progress(false)
            .build()
            .unwrap();
    let repo = api.model("org/model".into());
    for (name, content) in model().into_iter().filter(|(name, _)| READ.contains(name)) {
        assert_eq!(fs::read(repo.download(name).unwrap()).unwrap(), content, "{name}");
    }
    place.hub.requests();
    // And what it downloaded is not downloaded again.
    let pulled = place.pull().unwrap();
    assert_eq!((pulled.received, place.hub.asked()), (0, vec![]));
    assert_whole(&pulled.folder);
}

#[test]
fn a_transfer_cut_in_the_middle_goes_on_where_it_broke_off() {
    let place = Place::new(Repository::new(model()));
    let weights = &model()[6].1;
    place.hub.fail(ONE, &[Fault::Cut(1_234_567)]);
    let error = place.pull().unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, HubError::BrokeOff { done: 1_234_567, .. }), "{message}");
    assert!(message.contains("1234567 of 3000000 bytes"), "{message}");
    assert!(message.contains("`lily pull org/model`"), "{message}");
    assert_eq!(fs::read(place.partial(weights)).unwrap(), weights[..1_234_567]);
    assert!(!place.blob(weights).exists());
    let error = place.find().unwrap_err();
    assert!(matches!(error, HubError::Incomplete { .. }), "a part of a model is none: {error}");
    let wanted =
        format!("org/model is not complete ({ONE} is missing); `lily pull org/model` cont");
    assert!(error.to_string().contains(&wanted), "{error}");

    place.hub.requests();
    let pulled = place.pull().unwrap();
    let rest = (ONE.to_owned(), Some("bytes=1234567-".to_owned()));
    assert_eq!(place.hub.asked(), [rest, (TWO.to_owned(), None)]);
    assert_eq!(pulled.resumed, 1_234_567);
    assert_eq!(pulled.received, (SIZE - 1_234_567 + 1000) as u64);
    assert_whole(&pulled.folder);
}

#[test]
fn a_transfer_that_breaks_off_often_goes_on_by_itself() {
    let place = Place::new(Repository::new(model()));
    let options = PullOptions { retries: 2, ..place.options.clone() };
    let place = Place { options, ..place };
    place.hub.fail(
        ONE,
        &[Fault::Cut(100_000), Fault::Status(503), Fault::Cut(1_500_000), Fault::Cut(5)],
    );
    let pulled = place.pull().unwrap();
    assert_eq!(pulled.received, pulled.bytes, "no byte came twice");
    let ranges: Vec<_> = place.hub.asked().into_iter().filter(|(name, _)| name == ONE).collect();
    let ranges: Vec<_> = ranges.into_iter().filter_map(|(_, range)| range).collect();
    for start in ["100000", "1600000", "1600005"] {
        assert!(ranges.contains(&format!("bytes={start}-")), "{ranges:?}");
    }
    assert_whole(&pulled.folder);

    // Nothing arrives: it gives up.
    let place = Place { options: place.options.clone(), ..Place::new(Repository::new(model())) };
    let options = PullOptions {
        endpoint: place.hub.url(),
        cache: Cache::at(place.folder.path()),
        ..place.options.clone()
    };
    let place = Place { options, ..place };
    place.hub.fail(ONE, &[Fault::Cut(0); 3]);
    assert!(matches!(place.pull(), Err(HubError::BrokeOff { done: 0, .. })));
}

#[test]
fn a_server_that_cannot_continue_sends_all_again() {
    let place = Place::new(Repository::new(model()));
    place.hub.fail(ONE, &[Fault::Cut(1_000_000), Fault::IgnoreRange]);
    assert!(place.pull().is_err());
    let pulled = place.pull().unwrap();
    assert_eq!((pulled.resumed, pulled.received), (0, SIZE as u64 + 1000));
    assert_whole(&pulled.folder);
}

/// Much arrives each time, but never more than before: it gives up all the same.
#[test]
fn a_server_that_always_starts_anew_is_not_asked_for_ever() {
    let place = Place::new(Repository::new(model()));
    let options = PullOptions { retries: 2, ..place.options.clone() };
    let place = Place { options, ..place };
    place.hub.fail(ONE, &[Fault::Restart(1_500_000); 9]);
    assert!(matches!(place.pull(), Err(HubError::BrokeOff { .. })));
    // The first time it comes further than before; then two more tries.
    assert_eq!(place.hub.asked().iter().filter(|(name, _)| name == ONE).count(), 3);
}

#[test]
fn a_file_with_a_wrong_hash_is_deleted_and_named() {
    for (name, content, large) in
        [(ONE, &model()[6].1, true), ("tokenizer.json", &model()[2].1, false)]
    {
        let place = Place::new(Repository::new(model()));
        place.hub.fail(name, &[Fault::Damage]);
        let message = place.pull().unwrap_err().to_string();
        let hash = if large { sha256(content) } else { git(content) };
        assert!(message.starts_with(&format!("{name} has the hash")), "{message}");
        assert!(message.contains(&format!("expected {hash}")), "{message}");
        assert!(message.contains("run `lily pull org/model` again"), "{message}");
        let blobs = place.model().join("blobs");
        assert!(!blobs.join(&hash).exists());
        assert!(!blobs.join(format!("{hash}.incomplete")).exists());
        assert!(place.find().is_err());
        assert_whole(&place.pull().unwrap().folder);
    }
}

#[test]
fn a_part_that_was_damaged_on_the_disk_is_found_out() {
    let place = Place::new(Repository::new(model()));
    place.hub.fail(ONE, &[Fault::Cut(1_000_000)]);
    assert!(place.pull().is_err());
    let partial = place.partial(&model()[6].1);
    let mut part = fs::read(&partial).unwrap();
    part[10] ^= 1;
    fs::write(&partial, part).unwrap();
    assert!(matches!(place.pull(), Err(HubError::Hash { .. })));
    assert!(!partial.exists());
    // Longer than the file: no part of it.
    fs::write(&partial, vec![0; SIZE + 1]).unwrap();
    let pulled = place.pull().unwrap();
    assert_eq!(pulled.resumed, 0);
    assert_whole(&pulled.folder);
}

#[test]
fn check_finds_a_file_that_was_damaged_after_its_download() {
    let place = Place::new(Repository::new(model()));
    let pulled = place.pull().unwrap();
    let blob = place.blob(&model()[6].1);
    let mut content = fs::read(&blob).unwrap();
    content[10] ^= 1;
    fs::write(&blob, content).unwrap();
    assert_eq!(place.pull().unwrap().received, 0, "without check the size is enough");
    let place = Place { options: PullOptions { check: true, ..place.options.clone() }, ..place };
    assert_eq!(place.pull().unwrap().received, SIZE as u64);
    assert_whole(&pulled.folder);
    // A wrong size is found without.
    fs::write(&blob, b"short").unwrap();
    let place = Place { options: PullOptions { check: false, ..place.options.clone() }, ..place };
    assert_eq!(place.pull().unwrap().received, SIZE as u64);
    assert_whole(&pulled.folder);
}

#[test]
fn a_disk_that_is_too_small_is_refused_before_the_weights() {
    let place = Place::new(Repository::new(model()));
    let options = PullOptions { free_space: |_| Ok(2_900_000), ..place.options.clone() };
    let place = Place { options, ..place };
    place.hub.fail(ONE, &[Fault::Cut(200_000)]);
    let message = place.pull().unwrap_err().to_string();
    assert!(message.contains("needs 3001000 more bytes"), "{message}");
    assert!(message.contains("has 2900000 free; free 101000 bytes"), "{message}");
    assert!(message.contains("HF_HOME"), "{message}");
    assert!(place.hub.asked().iter().all(|(name, _)| name != ONE && name != TWO));
    // What is there already need not fit again.
    fs::write(place.partial(&model()[6].1), &model()[6].1[..200_000]).unwrap();
    place.hub.fail(ONE, &[]);
    assert_eq!(place.pull().unwrap().resumed, 200_000);
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_becomes_full_is_named_with_what_to_free() {
    let place = Place::new(Repository::new(model()));
    let weights = &model()[6].1;
    fs::create_dir_all(place.model().join("blobs")).unwrap();
    std::os::unix::fs::symlink("/dev/full", place.partial(weights)).unwrap();
    let error = place.pull().unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, HubError::DiskFull { done: 0, .. }), "{message}");
    assert!(message.contains("is full after 0 of 3000000 bytes"), "{message}");
    assert!(
        message.contains("free 3000000 bytes and run `lily pull org/model` again"),
        "{message}"
    );
    fs::remove_file(place.partial(weights)).unwrap();
    assert_whole(&place.pull().unwrap().folder);
}

#[test]
fn missing_repositories_and_revisions_are_named() {
    let place = Place::new(Repository::new(model()));
    let url = place.hub.url();
    let message = place.pull_id("org/none").unwrap_err().to_string();
    assert!(message.contains(&format!("no repository org/none at {url}")), "{message}");
    assert!(message.contains("HF_TOKEN"), "{message}");
    let message = place.pull_id("org/model@v9").unwrap_err().to_string();
    assert!(message.contains("org/model has no revision `v9`"), "{message}");
    assert!(place.hub.asked().is_empty());
}

#[test]
fn a_commit_is_a_revision_and_gets_no_reference() {
    let repository = Repository::new(model());
    let id = format!("org/model@{}", repository.commit);
    let place = Place::new(repository);
    let pulled = place.pull_id(&id).unwrap();
    assert_eq!(place.options.cache.find(&id.parse().unwrap()).unwrap(), pulled.folder);
    assert!(place.find().is_err());
    assert!(!place.model().join("refs").exists());
}

#[test]
fn a_revision_that_the_cache_cannot_note_is_refused_before_the_download() {
    for (first, second) in [("a", "a/b"), ("a/b", "a"), ("a", "a/b/c")] {
        let place = Place::new(Repository::new(model()).with_branches(&["a", "a/b", "a/b/c"]));
        let pulled = place.pull_id(&format!("org/model@{first}")).unwrap();
        place.hub.requests();
        let error = place.pull_id(&format!("org/model@{second}")).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, HubError::Revisions { .. }), "{message}");
        assert!(
            message.contains(&format!("the revision of org/model@{second} beside")),
            "{message}"
        );
        let note = place.model().join("refs/a");
        assert!(message.contains(note.to_str().unwrap()), "{message}");
        let by_commit = format!("org/model@{}", pulled.commit);
        assert!(message.contains(&format!("`lily pull {by_commit}`")), "{message}");
        assert!(place.hub.asked().is_empty());
        assert_eq!(place.pull_id(&by_commit).unwrap().folder, pulled.folder);
        // The same revision again, and one beside it, are no clash.
        assert!(place.pull_id(&format!("org/model@{first}")).is_ok());
        assert!(place.pull().is_ok());
    }
}

#[test]
fn gated_and_private_repositories_need_the_right_token() {
    let with_token = |place: Place, token: &str| {
        let token = Some(Token::new(token).unwrap());
        Place { options: PullOptions { token, ..place.options.clone() }, ..place }
    };
    let gated = Place::new(Repository::new(model()).with_access(Access::Gated("hf_right")));
    let url = gated.hub.url();
    let message = gated.pull().unwrap_err().to_string();
    assert!(message.contains(&format!("accept its licence at {url}/org/model")), "{message}");
    assert!(message.contains("set HF_TOKEN"), "{message}");
    let gated = with_token(gated, "hf_wrong");
    let message = gated.pull().unwrap_err().to_string();
    assert!(message.contains("is gated") && !message.contains("hf_wrong"), "{message}");
    assert_whole(&with_token(gated, "hf_right").pull().unwrap().folder);

    let private = Place::new(Repository::new(model()).with_access(Access::Private("hf_right")));
    let message = private.pull().unwrap_err().to_string();
    assert!(message.contains("no repository org/model"), "{message}");
    assert_whole(&with_token(private, "hf_right").pull().unwrap().folder);
}

#[test]
fn the_token_goes_to_the_hub_and_to_no_other_host() {
    let storage = Hub::start();
    let hub = Hub::with_storage(&storage);
    let repository = Repository::new(model()).with_access(Access::Gated("hf_secret"));
    hub.add("org/model", repository.clone());
    storage.add("org/model", repository);
    let place = Place::at(hub);
    let token = Some(Token::new("hf_secret").unwrap());
    let place = Place { options: PullOptions { token, ..place.options.clone() }, ..place };
    // Continued too: a second request to the storage.
    let weights = sha256(&model()[6].1);
    storage.fail(&weights, &[Fault::Cut(1_000_000)]);
    assert!(place.pull().is_err());
    let pulled = place.pull().unwrap();
    assert_eq!(pulled.resumed, 1_000_000);
    assert_whole(&pulled.folder);

    let (asked, stored) = (place.hub.requests(), storage.requests());
    assert!(asked.iter().all(|r| r.authorization.as_deref() == Some("Bearer hf_secret")));
    assert_eq!(stored.len(), 3);
    assert!(stored.iter().all(|r| r.authorization.is_none()), "{stored:?}");
    assert_eq!(stored[1].range.as_deref(), Some("bytes=1000000-"));
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
    let outside = [
        "../../../evil.safetensors",
        "/tmp/evil.safetensors",
        "a/evil.safetensors",
        "evil.so",
        "..",
        ".safetensors",
    ];
    for name in outside {
        let mut files = model();
        files[5].1 = index(&[ONE, name]);
        files.push((name, b"evil".to_vec()));
        let place = Place::new(Repository::new(files));
        let message = place.pull().unwrap_err().to_string();
        assert!(message.contains(&format!("names a weight file `{name}`")), "{message}");
        assert!(place.hub.asked().iter().all(|(asked, _)| asked != ONE), "{name}");
        assert!(place.find().is_err());
    }
}

#[test]
fn a_repository_without_what_lily_reads_says_what_it_has() {
    let pull = |files: Vec<(&'static str, Vec<u8>)>| {
        let place = Place::new(Repository::new(files));
        let message = place.pull().unwrap_err().to_string();
        (message, place.hub.asked().len())
    };
    let config = || ("config.json", b"{}".to_vec());
    let gguf = vec![config(), ("a.Q4.gguf", vec![1]), ("b.gguf", vec![2])];
    let (message, asked) = pull(gguf);
    assert!(message.contains("holds no weights that lily reads"), "{message}");
    assert!(message.contains("found 2 .gguf file(s)") && asked == 0, "{message}");
    let (message, _) = pull(vec![config()]);
    assert!(message.contains("found none"), "{message}");
    let (message, _) = pull(vec![("model.safetensors", vec![1])]);
    assert!(message.contains("has no config.json"), "{message}");
    let (message, _) = pull(vec![config(), (INDEX, index(&[ONE, TWO])), (ONE, vec![1])]);
    assert!(message.contains(&format!("has no {TWO}")), "{message}");
    let (message, _) = pull(vec![config(), (INDEX, b"[]".to_vec())]);
    assert!(message.contains("is no index"), "{message}");
}

#[test]
fn a_model_in_one_file_needs_no_index() {
    let files = vec![("config.json", b"{}".to_vec()), ("model.safetensors", bytes(9, 4000))];
    let place = Place::new(Repository::new(files));
    let pulled = place.pull().unwrap();
    assert_eq!(fs::read(pulled.folder.join("model.safetensors")).unwrap(), bytes(9, 4000));
    assert_eq!(place.find().unwrap(), pulled.folder);
}

#[test]
fn a_size_that_differs_from_the_list_is_refused_at_once() {
    let place = Place::new(Repository::new(model()));
    place.hub.fail(ONE, &[Fault::Longer]);
    let message = place.pull().unwrap_err().to_string();
    assert!(
        message.contains("sends 3000001 bytes") && message.contains("expected 3000000"),
        "{message}"
    );
}

/// Asks to stop when enough is there.
struct Stop<'a> {
    cancel: &'a AtomicBool,
    at: u64,
}

impl Watch for Stop<'_> {
    fn progress(&mut self, progress: Progress<'_>) {
        if progress.done >= self.at {
            self.cancel.store(true, Ordering::Relaxed);
        }
    }

    fn configuration(&mut self, _: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}

#[test]
fn a_download_that_is_stopped_keeps_what_arrived() {
    let place = Place::new(Repository::new(model()));
    // The server goes silent: stopping must not wait for it.
    place.hub.fail(ONE, &[Fault::Stall(1_000_000)]);
    let cancel = AtomicBool::new(false);
    let small: usize = model()[..6].iter().map(|(_, content)| content.len()).sum();
    let start = Instant::now();
    let mut watch = Stop { cancel: &cancel, at: (small + 1_000_000) as u64 };
    let error = pull(&id(), &place.options, &cancel, &mut watch).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10));
    let message = error.to_string();
    let (done, total) = (small + 1_000_000, small + SIZE + 1000);
    assert!(message.contains(&format!("stopped, {done} of {total} bytes")), "{message}");
    assert!(message.contains("run `lily pull org/model` again"), "{message}");
    let pulled = place.pull().unwrap();
    assert_eq!(pulled.resumed, 1_000_000);
    assert_whole(&pulled.folder);
}

#[test]
fn a_check_of_the_hashes_stops_like_a_download() {
    struct StopAtOnce<'a>(&'a AtomicBool);
    impl Watch for StopAtOnce<'_> {
        fn progress(&mut self, _: Progress<'_>) {}
        fn configuration(&mut self, _: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
            self.0.store(true, Ordering::Relaxed);
            Ok(())
        }
    }
    let place = Place::new(Repository::new(model()));
    let pulled = place.pull().unwrap();
    let options = PullOptions { check: true, ..place.options.clone() };
    let cancel = AtomicBool::new(false);
    let error = pull(&id(), &options, &cancel, &mut StopAtOnce(&cancel)).unwrap_err();
    let wanted = format!("stopped, {} of {} bytes", pulled.bytes - 1000, pulled.bytes);
    assert!(error.to_string().starts_with(&wanted), "{error}");
    assert_whole(&pulled.folder);
}

#[test]
fn a_second_download_asks_for_no_file() {
    let place = Place::new(Repository::new(model()));
    let first = place.pull().unwrap();
    place.hub.requests();
    let second = place.pull().unwrap();
    assert_eq!(second.received, 0);
    assert_eq!((&second.folder, second.bytes), (&first.folder, first.bytes));
    assert!(place.hub.asked().is_empty());
    // A link that went missing is made again.
    fs::remove_file(first.folder.join(ONE)).unwrap();
    assert!(place.find().is_err());
    assert_eq!(place.pull().unwrap().received, 0);
    assert_whole(&first.folder);
}

#[test]
fn an_update_shares_what_did_not_change_and_counts_only_when_whole() {
    let place = Place::new(Repository::new(model()));
    let old = place.pull().unwrap();
    let mut files = model();
    files[7].1 = bytes(77, 2000);
    place.hub.add("org/model", Repository::new(files));
    place.hub.fail(TWO, &[Fault::Cut(10)]);
    assert!(place.pull().is_err());
    assert_eq!(place.find().unwrap(), old.folder, "the older one is still whole");
    let new = place.pull().unwrap();
    assert_eq!((new.received, new.resumed), (1990, 10));
    assert_ne!(new.folder, old.folder);
    assert_eq!(place.find().unwrap(), new.folder);
    assert_whole(&old.folder);
}

#[test]
fn two_downloads_of_one_file_do_not_write_over_each_other() {
    let place = Place::new(Repository::new(model()));
    let locks = place.folder.path().join(".locks/models--org--model");
    fs::create_dir_all(&locks).unwrap();
    let lock = fs::File::create(locks.join(format!("{}.lock", sha256(&model()[6].1)))).unwrap();
    lock.lock().unwrap();
    let message = place.pull().unwrap_err().to_string();
    assert!(message.contains(&format!("another download of {ONE} is running")), "{message}");
    drop(lock);
    assert_whole(&place.pull().unwrap().folder);
}

/// Does not want any model.
struct Picky;

impl Watch for Picky {
    fn progress(&mut self, _: Progress<'_>) {}

    fn configuration(&mut self, folder: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err(fs::read_to_string(folder.join("config.json"))?.into())
    }
}

#[test]
fn a_model_that_is_not_wanted_costs_no_weights() {
    let place = Place::new(Repository::new(model()));
    let error = pull(&id(), &place.options, &AtomicBool::new(false), &mut Picky).unwrap_err();
    assert_eq!(error.source().unwrap().to_string(), "{\"model_type\": \"x\"}");
    assert!(place.hub.asked().iter().all(|(name, _)| name != ONE && name != TWO));
}

#[test]
fn progress_never_goes_back_and_ends_at_the_total() {
    struct Steps(Vec<(u64, u64)>);
    impl Watch for Steps {
        fn progress(&mut self, progress: Progress<'_>) {
            self.0.push((progress.done, progress.total));
        }
        fn configuration(&mut self, _: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
            Ok(())
        }
    }
    let place = Place::new(Repository::new(model()));
    let mut steps = Steps(Vec::new());
    let pulled = pull(&id(), &place.options, &AtomicBool::new(false), &mut steps).unwrap();
    assert!(steps.0.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1), "{:?}", steps.0);
    assert_eq!(steps.0.last(), Some(&(pulled.bytes, pulled.bytes)));
    assert!(steps.0.len() > 10);
}

#[test]
fn what_a_server_answers_is_not_blamed_on_the_network() {
    let place = Place::new(Repository::new(model()));
    let refused = |status, body| {
        place.hub.answer_lists(status, body);
        let message = place.pull().unwrap_err().to_string();
        assert!(!message.contains("network") && message.starts_with("127.0.0.1 "), "{message}");
        message
    };
    let message = refused(503, r#"{"error": "Down for\n maintenance"}"#);
    assert!(message.contains("with status 503: Down for maintenance, expected"), "{message}");
    let message = refused(502, "");
    assert!(message.contains("with status 502, expected status 200"), "{message}");
    let message = refused(200, "<html>Please log in</html>");
    let wanted = "expected a list of files in JSON, found `<html>Please log in</html>`";
    assert!(message.contains(wanted), "{message}");

    let place = Place::new(Repository::new(model()));
    place.hub.fail("config.json", &[Fault::Status(503)]);
    let message = place.pull().unwrap_err().to_string();
    assert!(message.contains("(status 503: refused)"), "{message}");
    place.hub.fail("config.json", &[Fault::Status(410)]);
    let message = place.pull().unwrap_err().to_string();
    assert!(message.contains("with status 410: refused, expected status 200"), "{message}");

    // Something else than a web server.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut stream, b"220 mail.example ESMTP ready\r\n\r\n");
        }
    });
    let options = PullOptions { endpoint, ..place.options.clone() };
    let error = pull(&id(), &options, &AtomicBool::new(false), &mut Silent).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, HubError::Nonsense { .. }), "{message}");
    assert!(message.contains("HF_ENDPOINT") && !message.contains("network"), "{message}");
}

#[test]
fn without_a_network_the_host_is_named() {
    let place = Place::new(Repository::new(model()));
    for (endpoint, wanted) in [
        // Nobody listens there.
        ("http://127.0.0.1:1", "cannot reach 127.0.0.1"),
        ("huggingface.co", "HF_ENDPOINT is `huggingface.co`, expected a URL"),
        ("file:///tmp", "HF_ENDPOINT is `file:///tmp`"),
    ] {
        let options = PullOptions { endpoint: endpoint.into(), ..place.options.clone() };
        let error = pull(&id(), &options, &AtomicBool::new(false), &mut Silent).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(wanted), "{message}");
    }
    let options = PullOptions { offline: true, ..place.options.clone() };
    let error = pull(&id(), &options, &AtomicBool::new(false), &mut Silent).unwrap_err();
    assert!(error.to_string().contains("HF_HUB_OFFLINE is set"));
    assert!(place.hub.requests().is_empty());
}
