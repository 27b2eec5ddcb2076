//! Copies of golden checkpoints with damaged tensors.

use std::ops::Range;
use std::path::Path;

use lily_model::parse_header;
use tempfile::TempDir;

use crate::Golden;

/// NaN as a bfloat16 value, little-endian.
pub const BF16_NAN: [u8; 2] = [0xc0, 0x7f];
/// Infinity as a bfloat16 value, little-endian.
pub const BF16_INFINITY: [u8; 2] = [0x80, 0x7f];
/// About the largest bfloat16 value, 3e38, little-endian.
pub const BF16_HUGE: [u8; 2] = [0x60, 0x7f];

/// A copy of a golden checkpoint; its folder goes away with it.
pub struct Spoiled {
    folder: TempDir,
}

impl Spoiled {
    /// Copies configuration and weights.
    pub fn new(golden: &Golden) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the copy");
        for file in ["config.json", "model.safetensors"] {
            let copied = std::fs::copy(golden.folder.join(file), folder.path().join(file));
            copied.expect("a golden file can be copied");
        }
        Self { folder }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills the values `elements` of a bfloat16 tensor with `value`; all of them if `None`.
    pub fn fill(self, tensor: &str, elements: Option<Range<usize>>, value: [u8; 2]) -> Self {
        let path = self.path().join("model.safetensors");
        let mut file = std::fs::read(&path).expect("the copy");
        let header = parse_header(&file).expect("a whole safetensors file");
        let entry = header.get(tensor).unwrap_or_else(|| panic!("there is no tensor `{tensor}`"));
        let values = file[entry.bytes.clone()].as_chunks_mut::<2>().0;
        let elements = elements.unwrap_or(0..values.len());
        values[elements].fill(value);
        std::fs::write(&path, file).expect("the copy can be written");
        self
    }

    /// Makes the embedding of a token NaN, so that only a sequence that holds it is lost.
    pub fn poison_token(self, token: u32) -> Self {
        let name = "language_model.model.embed_tokens.scales";
        let file = std::fs::read(self.path().join("model.safetensors")).expect("the copy");
        let header = parse_header(&file).expect("a whole safetensors file");
        let groups = header[name].shape[1];
        let first = token as usize * groups;
        self.fill(name, Some(first..first + groups), BF16_NAN)
    }
}
