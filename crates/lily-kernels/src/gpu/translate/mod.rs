//! Metal source for other compilers: clang on a CPU and NVRTC.
//!
//! A prelude ([`crate::gpu::prelude`]) gives most of Metal's words a meaning there. What a prelude
//! cannot express is rewritten here, and everything else passes through untouched, every line where it was:
//!
//! 1. kernel signatures lose their `[[...]]` attributes and become plain functions;
//! 2. `threadgroup T name[..];` becomes `LILY_THREADGROUP((T), name, [..], index)`;
//! 3. `#pragma unroll` is dropped for clang, which it only slows down;
//! 4. one entry point for [`Source::function`] is appended.
//!
//! The rules of the dialect that no compiler but Apple's checks are checked on the way (`lint`): what
//! breaks one is refused with file and line. `docs/kernels.md` lists the dialect.

mod entry;
mod kernel;
mod lint;
mod scan;

use super::{Language, Source};
use scan::Text;

/// A compiler that a translation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// clang, C++14 (C++20 with tensor operations), for the MSL test device. The entry point is
    /// `lily_entry`.
    Cpu,
    /// NVRTC, C++20. The entry point has the name of the kernel function.
    Cuda,
}

/// A kernel function for another compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Complete text.
    pub text: String,
    /// Name of the kernel function.
    pub function: String,
    /// Buffer arguments by index, without gaps.
    pub buffers: Vec<BufferParam>,
    /// Most threads of a threadgroup, as the expression in the text.
    pub max_threads: Option<String>,
    /// Whether the text uses Metal 4 tensor operations.
    pub tensor_operations: bool,
}

/// A buffer argument of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferParam {
    /// Name.
    pub name: String,
    /// Passed as `constant T&`.
    pub is_reference: bool,
    /// Only read.
    pub is_const: bool,
    /// Element type as written, without qualifiers.
    pub element: String,
}

/// Text outside of the dialect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {message}")]
pub struct TranslateError {
    /// File, as in the source's line markers.
    pub file: String,
    /// Line in it.
    pub line: usize,
    /// What was found and what the dialect has instead.
    pub message: String,
}

/// Translates a kernel function for another compiler; fails on text outside of the dialect. CUDA text is what NVRTC
/// takes, and nobody else does.
pub fn translate(source: &Source, dialect: Dialect) -> Result<Translation, TranslateError> {
    let text = Text::new(&source.text)?;
    if source.language == Language::Cuda {
        return match dialect {
            Dialect::Cuda => Ok(Translation {
                text: source.text.clone(),
                function: source.function.into(),
                buffers: Vec::new(),
                max_threads: None,
                tensor_operations: false,
            }),
            Dialect::Cpu => Err(text.error(0, "CUDA text, need Metal text")),
        };
    }
    lint::check(&text)?;
    let kernels = kernel::find(&text)?;
    let kernel = kernels.iter().find(|k| k.name == source.function).ok_or_else(|| {
        text.error(0, format!("no kernel function `{}`, which the entry names", source.function))
    })?;
    let mut edits = Vec::new();
    for kernel in &kernels {
        kernel.rewrite(&text, &mut edits);
    }
    kernel::arrays(&text, &kernels, &mut edits)?;
    if dialect == Dialect::Cpu {
        edits.extend(text.unroll_pragmas().map(|range| Edit { range, with: String::new() }));
    }
    text.no_attributes_but(&edits)?;
    let mut out = apply(&source.text, edits);
    out += &match dialect {
        Dialect::Cpu => entry::cpu(kernel),
        Dialect::Cuda => entry::cuda(kernel, entry::Wait::of(&source.text)),
    };
    Ok(Translation {
        text: out,
        function: kernel.name.to_string(),
        buffers: kernel.buffers().iter().map(|p| p.to_buffer()).collect(),
        max_threads: kernel.max_threads.clone(),
        // Shared headers name the tensor headers behind a switch.
        tensor_operations: !source.text.contains("#define TENSOR_OPERATIONS 0")
            && (source.text.contains("<metal_tensor>")
                || source.text.contains("MetalPerformancePrimitives")),
    })
}

/// A replacement of a range of the text.
struct Edit {
    range: std::ops::Range<usize>,
    with: String,
}

/// The text with its edits, each padded so that no line moves.
fn apply(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|e| e.range.start);
    let mut out = String::with_capacity(text.len() + 1024);
    let mut at = 0;
    for edit in edits {
        out += &text[at..edit.range.start];
        out += &edit.with;
        let lines = |s: &str| s.bytes().filter(|&b| b == b'\n').count();
        let lost = lines(&text[edit.range.clone()]).saturating_sub(lines(&edit.with));
        out.extend(std::iter::repeat_n('\n', lost));
        at = edit.range.end;
    }
    out + &text[at..]
}

#[cfg(test)]
mod tests;
