//! Files in memory: the one place that maps them.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;
use memmap2::Mmap;

/// Maps a whole file for reading. Slices of the result keep the mapping alive.
///
/// # Errors
/// The file cannot be opened or mapped, or is not a regular file.
pub(crate) fn map(path: &Path) -> io::Result<Bytes> {
    // Opening a pipe would wait for its writer, so look first.
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    let file = File::open(path)?;
    // SAFETY: the mapping is private to reading and lives as long as the `Bytes` that own it. The
    // bytes are only ever read as plain numbers, all of whose bit patterns are valid. A process
    // that rewrites or truncates a weight file under a running model breaks this like it breaks
    // every program that maps its weights; lily itself never writes to a file that it has mapped.
    let map = unsafe { Mmap::map(&file)? };
    Ok(Bytes::from_owner(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_slice_outlives_everything_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"abcdef").unwrap();
        let slice = map(&path).unwrap().slice(2..4);
        drop(folder);
        assert_eq!(&slice[..], b"cd");
    }

    #[test]
    fn folders_and_absent_files_are_errors_and_an_empty_file_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        assert!(map(folder.path()).is_err());
        assert!(map(&folder.path().join("absent")).is_err());
        std::fs::write(folder.path().join("empty"), b"").unwrap();
        assert!(map(&folder.path().join("empty")).unwrap().is_empty());
    }
}
