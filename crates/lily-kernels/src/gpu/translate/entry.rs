//! Entry points, appended to a translation.

use super::kernel::{Kernel, Param, ParamKind};

/// Marker in front of the entry point, so that messages about it are not taken for the kernel's.
const MARKER: &str = "\n#line 1 \"entry point\"\n";

/// Where a kernel waits for the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// At its start.
    AtStart,
    /// Where its text says `wait_for_previous_kernel()`; then every function of the text does.
    InText,
}

impl Wait {
    /// What a text says.
    pub fn of(text: &str) -> Self {
        if text.contains("wait_for_previous_kernel();") { Self::InText } else { Self::AtStart }
    }
}

/// `lily_entry(call)`, which one thread runs, and `lily_max_threads`.
pub(super) fn cpu(kernel: &Kernel<'_>) -> String {
    let argument = |p: &Param| match &p.kind {
        ParamKind::Buffer { index, is_reference: true, element, .. } => {
            format!("*(constant {element}*)call.reference({index}, sizeof({element}))")
        }
        ParamKind::Buffer { index, element, .. } => {
            format!("({})call.pointer({index}, sizeof({element}))", p.ty)
        }
        ParamKind::BuiltIn(name) => format!("::lily_rt::builtin<{}>(call.{name}())", p.ty),
    };
    let arguments: Vec<_> = kernel.params.iter().map(argument).collect();
    let max_threads = kernel.max_threads.as_deref().unwrap_or("1024");
    format!(
        "{MARKER}LILY_EXPORT void lily_entry(const ::lily_rt::Call& call) {{\n    kernel_{}({});\n}}\n\
         LILY_EXPORT const uint lily_max_threads;\n\
         const uint lily_max_threads = {max_threads};\n",
        kernel.name,
        arguments.join(", "),
    )
}

/// `extern "C" __global__ void function(...)`: the argument struct by value, every buffer a pointer
/// that nothing else aliases. It waits for the kernel before it, unless the text says where to.
pub(super) fn cuda(kernel: &Kernel<'_>, wait: Wait) -> String {
    let parameter = |p: &&Param| match &p.kind {
        ParamKind::Buffer { is_reference: true, element, .. } => {
            format!("const __grid_constant__ {element} {}", p.name)
        }
        ParamKind::Buffer { is_const, element, .. } => {
            let qualifier = if *is_const { "const " } else { "" };
            format!("{qualifier}{element}* __restrict__ {}", p.name)
        }
        ParamKind::BuiltIn(_) => String::new(),
    };
    let argument = |p: &Param| match &p.kind {
        ParamKind::Buffer { .. } => p.name.clone(),
        ParamKind::BuiltIn(name) => format!("lily_builtin<{}>(lily_{name}())", p.ty),
    };
    let parameters: Vec<_> = kernel.buffers().iter().map(parameter).collect();
    let arguments: Vec<_> = kernel.params.iter().map(argument).collect();
    let bounds = match &kernel.max_threads {
        Some(threads) => format!("__launch_bounds__({threads}, LILY_MIN_BLOCKS) "),
        None => String::new(),
    };
    let wait = match wait {
        Wait::InText => "",
        Wait::AtStart => "    wait_for_previous_kernel();\n",
    };
    format!(
        "{MARKER}extern \"C\" __global__ void {bounds}{name}({}) {{\n{wait}    kernel_{name}({});\n}}\n",
        parameters.join(", "),
        arguments.join(", "),
        name = kernel.name,
    )
}
