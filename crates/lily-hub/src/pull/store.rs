//! Files in the cache: what is there, what fits, and links to it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use hf_hub::CacheRepo;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::listing::{Hash, RemoteFile};
use super::settings::PullOptions;
use crate::error::HubError;
use crate::id::ModelId;

/// Large enough for the disk, small enough for the cache of a processor.
const PIECE: usize = 1 << 18;

/// The place of one commit of a model in the cache.
pub(super) struct Store<'a> {
    id: &'a ModelId,
    commit: String,
    options: &'a PullOptions,
    cancel: &'a AtomicBool,
    repo: CacheRepo,
}

impl<'a> Store<'a> {
    /// Makes the folders, once it is sure that the revision can be noted when all is there.
    pub(super) fn open(
        id: &'a ModelId,
        commit: &str,
        options: &'a PullOptions,
        cancel: &'a AtomicBool,
    ) -> Result<Self, HubError> {
        let repo = options.cache.hub().repo(id.repo(id.revision()));
        let store = Self { id, commit: commit.into(), options, cancel, repo };
        store.check_reference()?;
        for folder in [store.blobs(), store.snapshot(), store.locks()] {
            fs::create_dir_all(&folder).map_err(disk("make the folder", &folder))?;
        }
        Ok(store)
    }

    /// The commit.
    pub(super) fn commit(&self) -> &str {
        &self.commit
    }

    /// The folder of the model's files.
    pub(super) fn snapshot(&self) -> PathBuf {
        self.repo.pointer_path(&self.commit)
    }

    /// The content of a file.
    pub(super) fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.repo.blob_path(file.hash.digits())
    }

    /// The content of a file, as far as it arrived.
    pub(super) fn partial(&self, file: &RemoteFile) -> PathBuf {
        self.blobs().join(format!("{}.incomplete", file.hash.digits()))
    }

    fn blobs(&self) -> PathBuf {
        self.repo.blob_path("")
    }

    fn locks(&self) -> PathBuf {
        let folder = self.id.repo(self.id.revision()).folder_name();
        self.options.cache.folder().join(".locks").join(folder)
    }

    /// Keeps other programs from writing the same file, as long as the result lives.
    pub(super) fn lock(&self, file: &RemoteFile) -> Result<File, HubError> {
        let path = self.locks().join(format!("{}.lock", file.hash.digits()));
        let lock = File::create(&path).map_err(disk("make the lock", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => {
                Err(HubError::Locked { file: file.name.clone(), lock: path })
            }
            Err(TryLockError::Error(source)) => Err(disk("lock", &path)(source)),
        }
    }

    /// Whether a file is there, whole; it is then linked. What has the wrong size, or with
    /// `check` the wrong hash, is removed.
    pub(super) fn holds(&self, file: &RemoteFile) -> Result<bool, HubError> {
        let (blob, link) = (self.blob(file), self.snapshot().join(&file.name));
        // Where links are not possible the file itself is in the folder.
        let moved = fs::symlink_metadata(&link).is_ok_and(|found| found.is_file());
        let path = if moved { link } else { blob };
        let whole = match fs::metadata(&path) {
            Ok(found) if found.is_file() && found.len() == file.size => {
                !self.options.check || self.hash_of(&path, file)? == file.hash.digits()
            }
            Ok(_) => false,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(source) => return Err(disk("look at", &path)(source)),
        };
        if !whole {
            fs::remove_file(&path).map_err(disk("remove the damaged", &path))?;
        } else if !moved {
            self.link(file)?;
        }
        Ok(whole)
    }

    fn hash_of(&self, path: &Path, file: &RemoteFile) -> Result<String, HubError> {
        let mut source = File::open(path).map_err(disk("open", path))?;
        Ok(self.hash(&mut source, file.size, path, file)?.0.finish())
    }

    /// Reads at most `bytes` of a file in the cache into its hash; gives how many there were. Large
    /// files take minutes, so this stops when somebody asks for it; all bytes are kept.
    pub(super) fn hash(
        &self,
        source: &mut File,
        bytes: u64,
        path: &Path,
        file: &RemoteFile,
    ) -> Result<(Hasher, u64), HubError> {
        let mut hasher = Hasher::new(file);
        match hasher.read(source, bytes, self.cancel).map_err(disk("read", path))? {
            Some(read) => Ok((hasher, read)),
            None => {
                Err(HubError::Interrupted { id: self.id.clone(), done: bytes, total: file.size })
            }
        }
    }

    /// Refuses a download that does not fit on the disk.
    pub(super) fn check_space(&self, absent: &[&RemoteFile]) -> Result<(), HubError> {
        let missing = |file: &&RemoteFile| {
            let there = fs::metadata(self.partial(file)).map_or(0, |found| found.len());
            file.size.saturating_sub(there)
        };
        let needed: u64 = absent.iter().map(missing).sum();
        let folder = self.options.cache.folder();
        let free =
            (self.options.free_space)(folder).map_err(disk("ask for the free space of", folder))?;
        if needed > free {
            let (id, folder) = (self.id.clone(), folder.into());
            return Err(HubError::NoSpace { id, needed, free, folder });
        }
        Ok(())
    }

    /// Links a file of the cache into the model's folder.
    pub(super) fn link(&self, file: &RemoteFile) -> Result<(), HubError> {
        let link = self.snapshot().join(&file.name);
        let target = Path::new("../../blobs").join(file.hash.digits());
        match fs::read_link(&link) {
            Ok(found) if found == target => return Ok(()),
            Ok(_) => fs::remove_file(&link).map_err(disk("replace the link", &link))?,
            Err(_) => {}
        }
        if std::os::unix::fs::symlink(&target, &link).is_ok() {
            return Ok(());
        }
        // A disk without links, such as one for several systems.
        fs::rename(self.blob(file), &link).map_err(disk("write", &link))
    }

    /// Notes which commit the revision is. A commit needs no note.
    pub(super) fn write_reference(&self) -> Result<(), HubError> {
        if self.id.commit().is_some() {
            return Ok(());
        }
        let refs = self.refs();
        self.repo.create_ref(&self.commit).map_err(disk("write the revision to", &refs))
    }

    /// Notes the commit of a revision that nobody downloaded before: should this download break off,
    /// the model is found and known to be incomplete. An older note stays, its model may be whole.
    pub(super) fn write_first_reference(&self) -> Result<(), HubError> {
        match self.refs().join(self.id.revision()).exists() {
            true => Ok(()),
            false => self.write_reference(),
        }
    }

    fn refs(&self) -> PathBuf {
        let folder = self.id.repo(self.id.revision()).folder_name();
        self.options.cache.folder().join(folder).join("refs")
    }

    /// Refuses a revision that the cache cannot note: notes are files, so there is none for `a/b`
    /// beside one for `a`.
    fn check_reference(&self) -> Result<(), HubError> {
        if self.id.commit().is_some() {
            return Ok(());
        }
        let clash = |path: PathBuf, other: String| HubError::Revisions {
            id: self.id.clone(),
            commit: self.commit.clone(),
            path,
            other,
        };
        let (revision, mut path) = (self.id.revision(), self.refs());
        let mut start = 0;
        for part in revision.split('/') {
            path.push(part);
            start += part.len() + 1;
            let last = start > revision.len();
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() != last => {}
                Ok(_) if last => return Err(clash(path, format!("{revision}/…"))),
                Ok(_) => return Err(clash(path, revision[..start - 1].into())),
                Err(_) => break,
            }
        }
        Ok(())
    }
}

/// Gives an error of the system its place.
pub(super) fn disk(action: &'static str, path: &Path) -> impl Fn(io::Error) -> HubError {
    move |source| HubError::Disk { action, path: path.into(), source }
}

/// Computes the hash of a file by which the hub knows it.
pub(super) struct Hasher(Context);

impl Hasher {
    pub(super) fn new(file: &RemoteFile) -> Self {
        Self(match &file.hash {
            Hash::Sha256(_) => Context::new(&SHA256),
            Hash::Git(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {}\0", file.size).as_bytes());
                context
            }
        })
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Reads at most `limit` bytes; returns how many there were, or `None` if `cancel` was set before
    /// the end.
    pub(super) fn read(
        &mut self,
        source: &mut impl Read,
        limit: u64,
        cancel: &AtomicBool,
    ) -> io::Result<Option<u64>> {
        let mut source = source.take(limit);
        let mut piece = vec![0; PIECE];
        let mut done = 0;
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match source.read(&mut piece)? {
                0 => return Ok(Some(done)),
                n => {
                    self.update(&piece[..n]);
                    done += n as u64;
                }
            }
        }
    }

    pub(super) fn finish(self) -> String {
        self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Zeros, and somebody who asks to stop while the third piece is read.
    struct Stopped<'a> {
        cancel: &'a AtomicBool,
        reads: usize,
    }

    impl Read for Stopped<'_> {
        fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            if self.reads == 3 {
                self.cancel.store(true, Ordering::Relaxed);
            }
            piece.fill(0);
            Ok(piece.len())
        }
    }

    #[test]
    fn hashing_a_file_stops_within_a_piece() {
        let cancel = AtomicBool::new(false);
        let mut source = Stopped { cancel: &cancel, reads: 0 };
        let hash = Hash::Sha256(String::new());
        let mut hasher = Hasher::new(&RemoteFile { name: "x".into(), size: 1 << 40, hash });
        let read = hasher.read(&mut source, 100 * PIECE as u64, &cancel).unwrap();
        assert_eq!((read, source.reads), (None, 3));
    }

    #[test]
    fn hashes_are_those_of_git_and_of_sha256sum() {
        let hash = |hash| {
            let mut hasher = Hasher::new(&RemoteFile { name: "x".into(), size: 6, hash });
            hasher.update(b"hel");
            hasher.update(b"lo\n");
            hasher.finish()
        };
        // `printf 'hello\n' | git hash-object --stdin`, and sha256sum.
        assert_eq!(hash(Hash::Git(String::new())), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(
            hash(Hash::Sha256(String::new())),
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
        );
    }
}
