//! Files by the hash of what they are made from.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

/// Where compiled kernels lie: `LILY_MSL_CACHE`; in a program that cargo built, `lily-msl` in its
/// target folder; otherwise `lily-msl` in the user's cache folder. Nothing in it is ever taken away; it may
/// be deleted at any time.
pub fn cache_folder() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(folder) = variable("LILY_MSL_CACHE") {
        return folder;
    }
    let target = std::env::current_exe().ok().and_then(|exe| {
        exe.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists()).map(Path::to_path_buf)
    });
    target
        .or_else(|| variable("XDG_CACHE_HOME"))
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("lily-msl")
}

/// Hash of several texts, as the name of a file.
pub(crate) fn key<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize()[..16].iter().fold(String::new(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// A name beside `path` that no other process or thread uses.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or(OsStr::new("file")).to_os_string();
    name.push(format!(".{}.{count}", std::process::id()));
    path.with_file_name(name)
}

/// Writes a file at once, so that other processes see all of it or nothing.
pub(crate) fn write(path: &Path, content: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let part = temporary(path);
    std::fs::write(&part, content)?;
    std::fs::rename(part, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_where_parts_end() {
        assert_eq!(key(["ab", "c"]), key(["ab", "c"]));
        assert_ne!(key(["ab", "c"]), key(["a", "bc"]));
    }

    #[test]
    fn temporary_names_differ() {
        let path = Path::new("/cache/kernel.so");
        assert_ne!(temporary(path), temporary(path));
        assert_eq!(temporary(path).parent(), path.parent());
    }
}
