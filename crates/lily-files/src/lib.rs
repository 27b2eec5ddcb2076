//! Where the files of a model are: in a folder, or inside the program.
//!
//! A crate of its own because text and weights are read by crates that share nothing else. Whoever opens a
//! model takes `impl Into<Files>`, so that a path is as good as a [`Packed`] model.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::fmt;
use std::path::{Path, PathBuf};

/// The files of a model as bytes of the program: they cost no copy and no place on a disk.
pub struct Packed {
    /// What messages call it, in place of a folder.
    pub name: &'static str,
    /// Names of files, as in a folder, with their contents.
    pub files: &'static [(&'static str, &'static [u8])],
}

impl Packed {
    /// The contents of a file, if there is one of that name.
    pub fn file(&self, name: &str) -> Option<&'static [u8]> {
        self.files.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Packed").field(&self.name).finish()
    }
}

/// Where the files of a model are.
#[derive(Clone, Copy, Debug)]
pub enum Files<'a> {
    /// In a folder.
    Folder(&'a Path),
    /// In the program.
    Packed(&'static Packed),
}

impl Files<'_> {
    /// The path of a file; for a packed one, what messages call it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// The folder; for a packed model, what messages call it.
    pub fn root(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder,
            Self::Packed(packed) => Path::new(packed.name),
        }
    }

    /// Whether something of that name is there.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.join(name).exists(),
            Self::Packed(packed) => packed.file(name).is_some(),
        }
    }
}

impl<'a> From<&'a Path> for Files<'a> {
    fn from(folder: &'a Path) -> Self {
        Self::Folder(folder)
    }
}

impl<'a> From<&'a PathBuf> for Files<'a> {
    fn from(folder: &'a PathBuf) -> Self {
        Self::Folder(folder)
    }
}

impl From<&'static Packed> for Files<'_> {
    fn from(packed: &'static Packed) -> Self {
        Self::Packed(packed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TWO: Packed = Packed { name: "two", files: &[("a", b"first"), ("b", b"")] };

    #[test]
    fn a_packed_file_is_found_by_its_whole_name() {
        let files = Files::from(&TWO);
        assert_eq!(TWO.file("a"), Some(&b"first"[..]));
        assert_eq!((files.has("b"), files.has("c"), files.has("")), (true, false, false));
        assert_eq!(files.path("b"), Path::new("two/b"));
    }

    #[test]
    fn a_folder_has_what_lies_in_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "first").unwrap();
        let files = Files::from(folder.path());
        assert_eq!((files.has("a"), files.has("b")), (true, false));
        assert_eq!((files.root(), files.path("a")), (folder.path(), folder.path().join("a")));
    }
}
