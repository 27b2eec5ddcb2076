//! Complete Metal source of one kernel function.

use std::fmt::Write as _;

use super::{Entry, GpuFace, Text};

/// Shared headers by the name that kernels include them with.
pub const HEADERS: &[(&str, &str)] = &[
    ("choice.h", include_str!("../../prelude/choice.h")),
    ("draw.h", include_str!("../../prelude/draw.h")),
    ("affine.h", include_str!("../../format/affine.h")),
    ("gemv.h", include_str!("../../prelude/gemv.h")),
    ("gemv_residual.h", include_str!("../../prelude/gemv_residual.h")),
    ("lily.h", include_str!("../../prelude/lily.h")),
    ("flash.h", include_str!("../../tile/flash.h")),
    ("float.h", include_str!("../../tile/float.h")),
    ("gdn.h", include_str!("../../prelude/gdn.h")),
    ("gdn_chunk.h", include_str!("../../prelude/gdn_chunk.h")),
    ("norm.h", include_str!("../../prelude/norm.h")),
    ("residual.h", include_str!("../../prelude/residual.h")),
    ("attention.h", include_str!("../../prelude/attention.h")),
    ("matrix.h", include_str!("../../tile/matrix.h")),
    ("packed_keys.h", include_str!("../../tile/packed_keys.h")),
    ("packed_heads.h", include_str!("../../prelude/packed_heads.h")),
    ("rotary.h", include_str!("../../prelude/rotary.h")),
    ("routing.h", include_str!("../../prelude/routing.h")),
    ("dequantise.h", include_str!("../../format/dequantise.h")),
    ("fragments.h", include_str!("../../tile/fragments.h")),
    ("gemm.h", include_str!("../../tile/gemm.h")),
    ("grouped.h", include_str!("../../tile/grouped.h")),
    ("hopper.h", include_str!("../../tile/hopper.h")),
    ("hopper_dense.h", include_str!("../../tile/hopper_dense.h")),
    ("hopper_grouped.h", include_str!("../../tile/hopper_grouped.h")),
    ("hopper_products.h", include_str!("../../tile/hopper_products.h")),
    ("hopper_project.h", include_str!("../../tile/hopper_project.h")),
    ("hopper_residual.h", include_str!("../../tile/hopper_residual.h")),
    ("hopper_scales.h", include_str!("../../tile/hopper_scales.h")),
    ("mma.h", include_str!("../../tile/mma.h")),
    ("residual_tile.h", include_str!("../../tile/residual_tile.h")),
    ("row_scales.h", include_str!("../../tile/row_scales.h")),
    ("tensor.h", include_str!("../../tile/tensor.h")),
    ("warpgroup.h", include_str!("../../tile/warpgroup.h")),
];

/// What a text is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Language {
    /// Metal, for every GPU.
    Metal,
    /// CUDA, for one generation of NVIDIA GPUs: it declares its function as NVRTC wants it.
    Cuda,
}

impl Language {
    fn of(name: &str) -> Self {
        if name.ends_with(".cu") { Self::Cuda } else { Self::Metal }
    }
}

/// Source with everything in it but the system headers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// The text.
    pub text: String,
    /// The kernel function in it.
    pub function: &'static str,
    /// What it is written in.
    pub language: Language,
}

impl Source {
    /// Complete Metal source.
    pub fn metal(text: impl Into<String>, function: &'static str) -> Self {
        Self { text: text.into(), function, language: Language::Metal }
    }

    /// Puts an entry's constants and the argument struct in front of the kernel's text and its headers into
    /// it. Line markers keep the places of the original files.
    ///
    /// # Panics
    /// If the text includes a header that does not exist; a test covers every kernel.
    pub fn assemble(kernel: &str, face: &GpuFace, entry: &Entry) -> Self {
        let mut text = String::from("#include <metal_stdlib>\nusing namespace metal;\n");
        for (name, value) in &entry.constants {
            let _ = writeln!(text, "#define {name} {value}");
        }
        text += &(face.args)();
        let mut included = Vec::new();
        let own = Text { name: "kernel.metal", content: face.text };
        let Text { name, content } = entry.text.unwrap_or(own);
        insert(&mut text, &format!("{kernel}/{name}"), content, &mut included);
        Self { text, function: entry.function, language: Language::of(name) }
    }
}

/// Appends a file, headers in place of their `#include`, each once.
fn insert(text: &mut String, name: &str, content: &str, included: &mut Vec<&'static str>) {
    let _ = writeln!(text, "#line 1 \"{name}\"");
    for (index, line) in content.lines().enumerate() {
        let header = line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next());
        let Some(header) = header else {
            let _ = writeln!(text, "{line}");
            continue;
        };
        let (header, content) = HEADERS
            .iter()
            .find(|(name, _)| *name == header)
            .unwrap_or_else(|| panic!("{name} includes {header}, which is no shared header"));
        if !included.contains(header) {
            included.push(header);
            insert(text, header, content, included);
        }
        let _ = writeln!(text, "#line {} \"{name}\"", index + 2);
    }
}

#[cfg(test)]
mod tests {
    use crate::conformance::cases_in;
    use crate::gpu::Target;
    use crate::gpu::translate::{Dialect, translate};
    use crate::table;

    use super::*;

    #[test]
    fn every_text_assembles_with_its_headers_once_and_is_in_the_dialect() {
        let mut checked = 0;
        for case in cases_in(lily_plan::Precision::BF16, table::cases) {
            let launch = &case.plan.launches()[0];
            let kernel = table::find(launch.kernel).expect("cases name kernels of the table");
            let matrices = |b: &lily_plan::Binding| {
                let weight = case.weights.get(&case.plan.buffers().get(b.buffer).name)?;
                match weight {
                    lily_plan::Weight::Matrix(m) => Some(crate::gpu::MatrixFormat::of(m)),
                    lily_plan::Weight::Vector(_) => None,
                }
            };
            let formats: Vec<_> = launch.bindings.iter().map(matrices).collect();
            let entry = Target::TEST.entry(launch, 0, &formats);
            let (face, entry) = entry.unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let source = Source::assemble(kernel.name, &face, &entry);
            assert!(source.text.contains(&format!("void {}(", entry.function)), "{}", case.name);
            assert_eq!(source.text.matches("#line 1 \"lily.h\"").count(), 1, "{}", case.name);
            assert!(!source.text.contains("#include \""), "{}", case.name);
            for dialect in [Dialect::Cpu, Dialect::Cuda] {
                translate(&source, dialect).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            }
            checked += 1;
        }
        assert!(checked > 0, "no kernel has a Metal text");
    }
}
