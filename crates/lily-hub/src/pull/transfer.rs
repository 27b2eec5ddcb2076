//! One file from the hub into the cache.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use ureq::Body;
use ureq::http::{Response, header};

use super::client::{self, Client, Failure, Refusal, Silence};
use super::listing::RemoteFile;
use super::settings::PullOptions;
use super::store::{Hasher, Store, disk};
use crate::error::HubError;
use crate::id::ModelId;

/// Bytes that are read at once.
const PIECE: usize = 1 << 18;
/// Pieces that may wait for the disk.
const QUEUE: usize = 16;
/// A try that brings this much shows that the server works: the count of tries starts anew.
const A_LOT: u64 = 1 << 20;

/// What a transfer needs to know.
pub(super) struct Transfer<'a> {
    pub(super) id: &'a ModelId,
    pub(super) client: &'a Client,
    pub(super) url: String,
    pub(super) file: &'a RemoteFile,
    pub(super) store: &'a Store<'a>,
    pub(super) options: &'a PullOptions,
    pub(super) cancel: &'a AtomicBool,
}

/// Bytes of a finished transfer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Got {
    /// Received now.
    pub(super) received: u64,
    /// Found in the cache.
    pub(super) resumed: u64,
}

/// What the thread that reads the connection says.
enum Message {
    /// The server agreed; bytes from here on follow.
    Starts(u64),
    Bytes(Vec<u8>),
    /// The end of the answer.
    Ends,
    Refused(Refusal),
    Failed(Failure),
    /// The server has so many bytes.
    Differs(u64),
}

/// The file on disk, as far as it is.
struct Partial {
    file: File,
    hasher: Hasher,
    bytes: u64,
}

/// How a try ended, other than well.
enum Trouble {
    /// Worth another try.
    Passing(String),
    Final(HubError),
}

impl From<HubError> for Trouble {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

impl Transfer<'_> {
    /// Downloads the file, continues it, or finds it. `report` gets the bytes that are there.
    pub(super) fn run(&self, report: &mut dyn FnMut(u64)) -> Result<Got, HubError> {
        let _lock = self.store.lock(self.file)?;
        // Another program may have finished it meanwhile.
        if self.store.holds(self.file)? {
            return Ok(Got::default());
        }
        let path = self.store.partial(self.file);
        let mut partial = self.open(&path)?;
        let mut got = Got { received: 0, resumed: partial.bytes };
        report(partial.bytes);
        let mut tries = 0;
        // Not what was received: a server that always starts anew would be asked for ever.
        let mut furthest = partial.bytes;
        while partial.bytes < self.file.size {
            match self.attempt(&mut partial, &mut got, report) {
                Ok(()) => {}
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Passing(problem)) => {
                    if partial.bytes >= furthest + A_LOT {
                        tries = 0;
                        furthest = partial.bytes;
                    }
                    if tries == self.options.retries {
                        return Err(self.broke_off(&partial, problem));
                    }
                    let wait = self.options.retry_wait * 2u32.saturating_pow(tries.min(5));
                    tries += 1;
                    if !client::pause(wait, self.cancel) {
                        return Err(self.interrupted(&partial));
                    }
                }
            }
        }
        self.finish(partial, &path)?;
        Ok(got)
    }

    /// Opens what an earlier transfer left. What is longer than the file was never a part of it.
    fn open(&self, path: &Path) -> Result<Partial, HubError> {
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(disk("open", path))?;
        let mut found = file.metadata().map_err(disk("look at", path))?.len();
        if found > self.file.size {
            file.set_len(0).map_err(disk("empty", path))?;
            found = 0;
        }
        let (hasher, bytes) = self.store.hash(&mut file, found, path, self.file)?;
        Ok(Partial { file, hasher, bytes })
    }

    /// One request for what is missing.
    fn attempt(
        &self,
        partial: &mut Partial,
        got: &mut Got,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), Trouble> {
        let messages = self.request(partial.bytes);
        loop {
            let message = match client::receive(&messages, self.cancel) {
                Ok(message) => message,
                Err(Silence::Cancelled) => return Err(self.interrupted(partial).into()),
                Err(Silence::Ended) => return Err(Trouble::Passing("no answer".into())),
            };
            match message {
                Message::Starts(from) if from == partial.bytes => {}
                // The server cannot continue: from the beginning, once more.
                Message::Starts(_) => {
                    self.restart(partial)?;
                    got.resumed = 0;
                }
                Message::Bytes(bytes) => {
                    self.write(partial, &bytes)?;
                    got.received += bytes.len() as u64;
                    report(partial.bytes);
                }
                Message::Ends if partial.bytes == self.file.size => return Ok(()),
                Message::Ends => {
                    return Err(Trouble::Passing("the server sent fewer bytes".into()));
                }
                Message::Differs(found) => {
                    return Err(HubError::Size {
                        id: self.id.clone(),
                        file: self.file.name.clone(),
                        host: self.client.host().into(),
                        found,
                        size: self.file.size,
                    }
                    .into());
                }
                Message::Refused(refusal) if refusal.passes() => {
                    return Err(Trouble::Passing(refusal.to_string()));
                }
                Message::Refused(refusal) => return Err(self.refused(&refusal).into()),
                Message::Failed(failure) if failure.passing => {
                    return Err(Trouble::Passing(failure.problem));
                }
                Message::Failed(failure) => {
                    return Err(failure.explain(self.client.host(), &self.file.name).into());
                }
            }
        }
    }

    /// Asks for the file from byte `from` on, on a thread of its own: the disk does not wait for
    /// the network, and Ctrl-C waits for neither.
    fn request(&self, from: u64) -> Receiver<Message> {
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let (client, url, size) = (self.client.clone(), self.url.clone(), self.file.size);
        thread::spawn(move || {
            // Sending fails when nobody listens any more.
            let mut send = |message| sender.send(message).is_ok();
            match client.get(&url, from) {
                Ok(response) => pass_on(response, from, size, &mut send),
                Err(failure) => {
                    send(Message::Failed(failure));
                }
            }
        });
        receiver
    }

    fn write(&self, partial: &mut Partial, bytes: &[u8]) -> Result<(), HubError> {
        match partial.file.write_all(bytes) {
            Ok(()) => {
                partial.hasher.update(bytes);
                partial.bytes += bytes.len() as u64;
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::StorageFull => Err(HubError::DiskFull {
                id: self.id.clone(),
                file: self.file.name.clone(),
                done: partial.bytes,
                size: self.file.size,
                folder: self.options.cache.folder().into(),
            }),
            Err(source) => Err(disk("write", &self.store.partial(self.file))(source)),
        }
    }

    fn restart(&self, partial: &mut Partial) -> Result<(), HubError> {
        let path = self.store.partial(self.file);
        partial.file.set_len(0).map_err(disk("empty", &path))?;
        partial.hasher = Hasher::new(self.file);
        partial.bytes = 0;
        Ok(())
    }

    /// Checks the hash and gives the file its name.
    fn finish(&self, partial: Partial, path: &Path) -> Result<(), HubError> {
        let found = partial.hasher.finish();
        let expected = self.file.hash.digits();
        if found != expected {
            fs::remove_file(path).map_err(disk("remove the damaged", path))?;
            return Err(HubError::Hash {
                id: self.id.clone(),
                file: self.file.name.clone(),
                found,
                expected: expected.into(),
            });
        }
        // A file with its final name is not hashed again: it must survive a loss of power.
        partial.file.sync_all().map_err(disk("write", path))?;
        let blob = self.store.blob(self.file);
        fs::rename(path, &blob).map_err(disk("name", &blob))
    }

    fn refused(&self, refusal: &Refusal) -> HubError {
        // The repository was there a moment ago: without a token, this is a licence.
        if refusal.status == 401 && self.options.token.is_none() {
            let name = self.id.name().into();
            return HubError::Gated { name, endpoint: self.client.endpoint().into() };
        }
        let token = self.options.token.is_some();
        match refusal.explain(self.id, self.client.endpoint(), token, &self.file.name) {
            HubError::MissingRepo { .. } => HubError::Status {
                host: self.client.host().into(),
                what: self.file.name.clone(),
                answer: refusal.to_string(),
            },
            error => error,
        }
    }

    fn broke_off(&self, partial: &Partial, problem: String) -> HubError {
        HubError::BrokeOff {
            id: self.id.clone(),
            file: self.file.name.clone(),
            host: self.client.host().into(),
            done: partial.bytes,
            size: self.file.size,
            problem,
        }
    }

    fn interrupted(&self, partial: &Partial) -> HubError {
        HubError::Interrupted { id: self.id.clone(), done: partial.bytes, total: self.file.size }
    }
}

/// Passes an answer on: from where it starts, and its bytes, as long as somebody listens.
fn pass_on(
    mut response: Response<Body>,
    from: u64,
    size: u64,
    send: &mut dyn FnMut(Message) -> bool,
) {
    if let Some(refusal) = Refusal::of(&mut response) {
        send(Message::Refused(refusal));
        return;
    }
    let value = |name| response.headers().get(name)?.to_str().ok();
    // 200 is the whole file, whatever was asked for.
    let (start, whole) = if response.status().as_u16() == 206 {
        match value(header::CONTENT_RANGE).and_then(parse_range) {
            Some(range) => range,
            None => {
                send(Message::Failed(Failure::answer("it names no range of bytes")));
                return;
            }
        }
    } else {
        (0, value(header::CONTENT_LENGTH).and_then(|length| length.parse().ok()))
    };
    if let Some(whole) = whole.filter(|whole| *whole != size) {
        send(Message::Differs(whole));
        return;
    }
    if start != 0 && start != from {
        let problem = format!("it sends bytes from {start}, expected {from}");
        send(Message::Failed(Failure::answer(problem)));
        return;
    }
    if !send(Message::Starts(start)) {
        return;
    }
    let mut body = response.into_body().into_reader().take(size - start);
    loop {
        let mut piece = vec![0; PIECE];
        match body.read(&mut piece) {
            Ok(0) => {
                send(Message::Ends);
                return;
            }
            Ok(n) => {
                piece.truncate(n);
                if !send(Message::Bytes(piece)) {
                    return;
                }
            }
            Err(error) => {
                send(Message::Failed(Failure::broken(error)));
                return;
            }
        }
    }
}

/// First byte and size of `bytes 5-9/10`; the size may be unknown.
fn parse_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    let size = if size == "*" { None } else { Some(size.parse().ok()?) };
    Some((start.parse().ok()?, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_answers_are_read() {
        assert_eq!(parse_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(parse_range("bytes 5-9/*"), Some((5, None)));
        for text in ["bytes */10", "5-9/10", "bytes 5/10", "bytes x-9/10", "bytes 5-9/x"] {
            assert_eq!(parse_range(text), None, "{text}");
        }
    }
}
