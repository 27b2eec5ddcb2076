//! Compiled kernels in one file, for machines without NVRTC.
//!
//! The file begins with text: a first line with the version, the GPU generation, a line for each kernel with
//! the name of its file in the cache and its bytes, then an empty line. The machine code follows in the same order,
//! without gaps, and then the SHA-256 of all before it. Nothing of it depends on the driver.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use lily_kernels::gpu::Source;
use sha2::{Digest, Sha256};

use crate::compiler::{Architecture, Compiler, file_name, is_machine_code, store};
use crate::error::CudaError;

/// First line of a file.
const VERSION: &str = "lily compiled kernels 1";

/// What the first line of every version begins with.
const MAGIC: &[u8] = b"lily compiled kernels ";

/// Most bytes of a file: some hundred times those of a model's kernels.
const MOST_BYTES: u64 = 1 << 30;

/// Bytes of a SHA-256.
const HASH_BYTES: usize = 32;

/// Compiled kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    architecture: Architecture,
    /// Names of files in the cache, with their contents; each name once.
    kernels: Vec<(String, Vec<u8>)>,
}

impl Archive {
    /// Compiles functions by kernel for a GPU generation; `done` hears of each.
    ///
    /// # Errors
    /// A kernel does not compile, or NVRTC is not there.
    pub fn compile(
        compiler: &Compiler,
        wanted: &[(&str, &Source)],
        architecture: &Architecture,
        done: &(dyn Fn() + Sync),
    ) -> Result<Self, CudaError> {
        let images = compiler.compile_all(wanted, architecture, done)?;
        let named = wanted.iter().zip(images).map(|(&(kernel, source), cubin)| {
            Ok((file_name(kernel, source, architecture)?, cubin.image))
        });
        let mut kernels = named.collect::<Result<Vec<_>, CudaError>>()?;
        kernels.sort();
        kernels.dedup_by(|a, b| a.0 == b.0);
        Ok(Self { architecture: architecture.clone(), kernels })
    }

    /// The GPU generation that runs them.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Names of the files in the cache, with their contents.
    pub fn kernels(&self) -> &[(String, Vec<u8>)] {
        &self.kernels
    }

    /// Writes a file whole or not at all; what a link names, and not the link.
    ///
    /// # Errors
    /// The file cannot be written, or something else than a file is there: a file would take its place.
    pub fn write(&self, path: &Path) -> Result<(), CudaError> {
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(CudaError::File {
                action: "write",
                path: path.display().to_string(),
                reason: "it is there and no regular file; name another".into(),
            });
        }
        let path = &path.canonicalize().unwrap_or_else(|_| path.into());
        let mut head = format!("{VERSION}\n{}\n", self.architecture.name());
        for (name, image) in &self.kernels {
            let _ = writeln!(head, "{name} {}", image.len());
        }
        head.push('\n');
        let mut bytes = head.into_bytes();
        for (_, image) in &self.kernels {
            bytes.extend_from_slice(image);
        }
        let hash = Sha256::digest(&bytes);
        bytes.extend_from_slice(&hash);
        store(path, &bytes)
    }

    /// Reads a file and checks all of it.
    ///
    /// # Errors
    /// The file cannot be read, is no export, or a byte of it has changed.
    pub fn read(path: &Path) -> Result<Self, CudaError> {
        let failed = |error: io::Error| CudaError::File {
            action: "read",
            path: path.display().to_string(),
            reason: error.to_string(),
        };
        // A pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(io::Error::other("it is no regular file; name another")));
        }
        let bytes = read_some(path, MOST_BYTES).map_err(failed)?;
        let parsed = match bytes {
            Some(bytes) => Self::parse(&bytes),
            None => Err("is no export of compiled kernels".into()),
        };
        parsed.map_err(|found| CudaError::Archive { path: path.display().to_string(), found })
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let foreign = || "is no export of compiled kernels".to_string();
        if !bytes.starts_with(MAGIC) {
            return Err(foreign());
        }
        if !bytes.starts_with(VERSION.as_bytes()) || bytes.get(VERSION.len()) != Some(&b'\n') {
            return Err(format!("is of another version of lily, need \"{VERSION}\""));
        }
        let (bytes, _) = bytes
            .split_last_chunk::<HASH_BYTES>()
            .filter(|(before, hash)| Sha256::digest(before)[..] == hash[..])
            .ok_or("is damaged or cut off")?;
        let end = bytes.windows(2).position(|pair| pair == b"\n\n");
        let end = end.ok_or("has no end of its list of kernels")?;
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| foreign())?;
        let mut lines = head.lines().skip(1);
        let name = lines.next().ok_or("names no GPU generation")?;
        let architecture = Architecture::parse(name)?;
        let mut rest = &bytes[end + 2..];
        let (mut kernels, mut names) = (Vec::new(), BTreeSet::new());
        for line in lines {
            let kernel = Line::parse(line)
                .ok_or_else(|| format!("has \"{line}\" in its list, need NAME BYTES"))?;
            if !names.insert(kernel.name) {
                return Err(format!("lists {} twice", kernel.name));
            }
            let (image, behind) = rest.split_at_checked(kernel.bytes).ok_or_else(|| {
                format!("has {} bytes of {}, need {}", rest.len(), kernel.name, kernel.bytes)
            })?;
            if !is_machine_code(image) {
                return Err(format!("has no machine code for {}", kernel.name));
            }
            kernels.push((kernel.name.to_string(), image.to_vec()));
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(format!("has {} bytes behind its last kernel", rest.len()));
        }
        Ok(Self { architecture, kernels })
    }

    /// Writes the kernels into a cache folder; gives how many were not there before. If one cannot be written,
    /// those written before it are removed.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn install(&self, cache: &Path) -> Result<usize, CudaError> {
        let mut new: Vec<PathBuf> = Vec::new();
        for (name, image) in &self.kernels {
            let path = cache.join(name);
            if std::fs::read(&path).is_ok_and(|there| there == *image) {
                continue;
            }
            let was_there = path.exists();
            if let Err(error) = store(&path, image) {
                new.iter().for_each(|path| drop(std::fs::remove_file(path)));
                return Err(error);
            }
            if !was_there {
                new.push(path);
            }
        }
        Ok(new.len())
    }
}

/// A file; `None` if it does not begin as an export does, or has more than `most` bytes. Neither a wrong
/// file nor one without an end is read further than that.
fn read_some(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut bytes)?;
    if bytes != MAGIC {
        return Ok(None);
    }
    let left = most.saturating_sub(bytes.len() as u64);
    file.take(left.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// A kernel in the list.
struct Line<'a> {
    name: &'a str,
    bytes: usize,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        let (name, bytes) = (words.next()?, words.next()?.parse().ok()?);
        let is_whole = words.next().is_none() && is_file_name(name);
        is_whole.then_some(Self { name, bytes })
    }
}

/// Whether a name is one that the cache gives, and cannot lead out of its folder.
fn is_file_name(name: &str) -> bool {
    let Some((kernel, hash)) = name.strip_suffix(".cubin").and_then(|stem| stem.rsplit_once('-'))
    else {
        return false;
    };
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let hexadecimal = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    !kernel.is_empty()
        && kernel.chars().all(word)
        && hash.len() == 32
        && hash.chars().all(hexadecimal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Archive {
        let code = |byte: u8| [b"\x7fELF".as_slice(), &[byte; 9]].concat();
        let name = |kernel: &str| format!("{kernel}-{}.cubin", "0123456789abcdef".repeat(2));
        Archive {
            architecture: Architecture::of(9, 0),
            kernels: vec![(name("gdn_in"), code(1)), (name("topk"), code(2))],
        }
    }

    fn written(archive: &Archive) -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new").join("kernels");
        archive.write(&path).expect("it is written");
        assert_eq!(Archive::read(&path).expect("it is whole"), *archive);
        let bytes = std::fs::read(&path).expect("it is there");
        assert_eq!(std::fs::read_dir(path.parent().expect("new")).expect("new").count(), 1);
        bytes
    }

    #[test]
    fn only_files_are_written_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = archive().write(folder.path()).expect_err("a folder");
        assert!(error.to_string().contains("no regular file"), "{error}");
        #[cfg(unix)]
        {
            let (file, link) = (folder.path().join("file"), folder.path().join("link"));
            std::fs::write(&file, "old").expect("a file");
            std::os::unix::fs::symlink(&file, &link).expect("a link");
            archive().write(&link).expect("it is written");
            assert!(link.is_symlink());
            assert_eq!(Archive::read(&file).expect("it is whole"), archive());
            // A device of the system would be lost for all programs.
            archive().write(Path::new("/dev/null")).expect_err("a device");
        }
    }

    #[test]
    fn what_was_exported_lies_in_the_cache_after_the_import() {
        let archive = archive();
        written(&archive);
        let cache = tempfile::tempdir().expect("a folder");
        let cache = cache.path().join("lily");
        assert_eq!(archive.install(&cache).expect("it is written"), 2);
        for (name, image) in archive.kernels() {
            assert_eq!(std::fs::read(cache.join(name)).expect("it is there"), *image);
        }
        assert_eq!(archive.install(&cache).expect("it is there already"), 0);
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_refused() {
        let bytes = written(&archive());
        for cut in 0..bytes.len() {
            assert!(Archive::parse(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x20;
            assert!(Archive::parse(&changed).is_err(), "byte {at}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(Archive::parse(&longer).expect_err("a byte too many"), "is damaged or cut off");
    }

    #[test]
    fn foreign_files_and_names_that_leave_the_folder_are_refused() {
        let error = |bytes: &[u8]| Archive::parse(bytes).expect_err("it is none");
        assert_eq!(error(b""), "is no export of compiled kernels");
        assert_eq!(error(b"\x7fELF and so on"), "is no export of compiled kernels");
        let other = error(b"lily compiled kernels 2\nsm_90a\n\n");
        assert!(other.starts_with("is of another version of lily"), "{other}");
        let sealed = |list: &str, code: &[u8]| {
            let text = format!("{VERSION}\nsm_90a\n{list}\n");
            let bytes = [text.as_bytes(), code].concat();
            error(&[&bytes[..], &Sha256::digest(&bytes)].concat())
        };
        let good = "topk-0123456789abcdef0123456789abcdef.cubin";
        for name in [&format!("../{good}"), "topk.cubin", "/etc/passwd", &good.replace('0', "g")] {
            let found = sealed(&format!("{name} 4\n"), b"\x7fELF");
            assert!(found.ends_with("in its list, need NAME BYTES"), "{found}");
        }
        let line = format!("{good} 4\n");
        assert!(sealed(&line.repeat(2), b"\x7fELF\x7fELF").ends_with(".cubin twice"));
        assert_eq!(sealed(&line, b"\x7fELFx"), "has 1 bytes behind its last kernel");
        assert!(sealed(&line, b"\x7fEL").starts_with("has 3 bytes of topk-"));
        assert!(sealed(&line, b"text").starts_with("has no machine code for topk-"));
    }

    #[test]
    fn a_file_is_read_to_a_limit() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let mut with = |text: &str| {
            io::Write::write_all(&mut file, text.as_bytes()).expect("it is written");
            read_some(file.path(), 30).expect("it can be read")
        };
        assert_eq!(with("lily compiled kernels"), None, "its first line is cut off");
        let text = " 1234567";
        assert_eq!(with(text).map(|bytes| bytes.len()), Some(29));
        assert_eq!(with("8").map(|bytes| bytes.len()), Some(30));
        assert_eq!(with("9"), None);
    }

    #[test]
    fn an_import_that_fails_leaves_nothing_behind() {
        let archive = archive();
        let cache = tempfile::tempdir().expect("a folder");
        // In the way of the second kernel: a folder that is not empty.
        let taken = cache.path().join(&archive.kernels[1].0);
        std::fs::create_dir_all(taken.join("inside")).expect("a folder");
        archive.install(cache.path()).expect_err("a folder is in the way");
        let left: Vec<_> =
            std::fs::read_dir(cache.path()).expect("it is there").flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
