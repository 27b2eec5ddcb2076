//! Small text files of a checkpoint folder.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use lily_files::Files;

/// Far above any configuration or index; a larger file is not one.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a text file whole. What is no regular file, such as a pipe or a device, could block or
/// never end, and is refused like a file that is too large.
pub(crate) fn read_text(file: &Path) -> io::Result<String> {
    let refuse = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
    if !fs::metadata(file)?.is_file() {
        return Err(refuse("it is no regular file".into()));
    }
    let mut text = String::new();
    File::open(file)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(refuse(format!("it has more than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

/// Reads a text file of a model whole.
pub(crate) fn read_text_of(files: Files<'_>, name: &str) -> io::Result<Cow<'static, str>> {
    match files {
        Files::Folder(folder) => read_text(&folder.join(name)).map(Cow::Owned),
        Files::Packed(packed) => {
            let bytes = packed.file(name).ok_or(io::ErrorKind::NotFound)?;
            std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(io::Error::other)
        }
    }
}

/// The text without the byte order mark that some editors put in front; JSON has no place for one.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_devices_and_huge_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_text(folder.path()).is_err());
        #[cfg(unix)]
        assert!(read_text(Path::new("/dev/zero")).unwrap_err().to_string().contains("regular"));
        let huge = folder.path().join("huge");
        File::create(&huge).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(read_text(&huge).unwrap_err().to_string().contains("more than 67108864 bytes"));
        let small = folder.path().join("small");
        fs::write(&small, "{}").unwrap();
        assert_eq!(read_text(&small).unwrap(), "{}");
        let absent = read_text(&folder.path().join("absent")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
