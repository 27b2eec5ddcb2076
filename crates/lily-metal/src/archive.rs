//! Names of the files that keep machine code between starts.
//!
//! A name is the hash of everything that the code depends on, so that what is found is always right: after an update of
//! lily, of macOS or of the machine other files are looked for.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::machine::Wanted;

/// What machine code depends on besides the function.
#[derive(Clone, Debug)]
pub struct Place {
    /// Version of lily.
    pub lily: &'static str,
    /// Metal's name of the GPU.
    pub gpu: String,
    /// Version of macOS, with its build.
    pub system: String,
}

impl Place {
    /// Name of the file with the machine code of a function: the kernel's name, for people, and the hash.
    pub fn file_name(&self, wanted: &Wanted<'_>) -> String {
        let Wanted { kernel, source, indirect } = *wanted;
        // Code for indirect command buffers is other code.
        let form = if indirect { "indirect" } else { "direct" };
        let mut hash = Sha256::new();
        for part in [self.lily, &*self.gpu, &*self.system, form, source.function, &*source.text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut name = format!("{kernel}-");
        for byte in &hash.finalize()[..16] {
            let _ = write!(name, "{byte:02x}");
        }
        name + ".metalar"
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lily_kernels::gpu::Source;

    use super::*;

    #[test]
    fn everything_that_machine_code_depends_on_changes_the_name() {
        let place =
            |lily, gpu: &str, system: &str| Place { lily, gpu: gpu.into(), system: system.into() };
        let here = place("0.1.0", "Apple M4", "Version 15.5 (Build 24F74)");
        let source = |text: &str, function| Source::metal(text, function);
        let [one, other, text] = [source("a", "f"), source("a", "g"), source("b", "f")];
        let wanted = |source, indirect| Wanted { kernel: "head", source, indirect };
        let names = [
            here.file_name(&wanted(&one, false)),
            here.file_name(&wanted(&other, false)),
            here.file_name(&wanted(&text, false)),
            here.file_name(&wanted(&one, true)),
            place("0.1.1", "Apple M4", "Version 15.5 (Build 24F74)")
                .file_name(&wanted(&one, false)),
            place("0.1.0", "Apple M5", "Version 15.5 (Build 24F74)")
                .file_name(&wanted(&one, false)),
            place("0.1.0", "Apple M4", "Version 15.6 (Build 24G84)")
                .file_name(&wanted(&one, false)),
        ];
        let distinct: BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert_eq!(names[0], here.clone().file_name(&wanted(&one, false)));
        assert!(names[0].starts_with("head-") && names[0].ends_with(".metalar"), "{}", names[0]);
    }
}
