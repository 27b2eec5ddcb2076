//! Kernel functions of a text: signatures and threadgroup arrays.

use std::ops::Range;

use super::scan::Text;
use super::{BufferParam, Edit, TranslateError};

/// Positions, sizes and indices that a kernel may take.
const BUILT_INS: [&str; 11] = [
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "threads_per_simdgroup",
];

/// Types of built-ins.
const BUILT_IN_TYPES: [&str; 6] = ["uint", "uint2", "uint3", "ushort", "ushort2", "ushort3"];

/// A kernel function.
pub(super) struct Kernel<'a> {
    pub name: &'a str,
    pub params: Vec<Param>,
    pub max_threads: Option<String>,
    /// Tokens from the first attribute to the name, which is left out.
    head: Range<usize>,
    /// Tokens of the body, with its braces.
    body: Range<usize>,
    /// Tokens of the parameters' attributes.
    attributes: Vec<Range<usize>>,
}

/// A parameter of a kernel.
pub(super) struct Param {
    pub name: String,
    /// With qualifiers.
    pub ty: String,
    pub kind: ParamKind,
}

pub(super) enum ParamKind {
    Buffer { index: usize, is_reference: bool, is_const: bool, element: String },
    BuiltIn(&'static str),
}

impl Param {
    /// What a device needs to know of a buffer.
    pub fn to_buffer(&self) -> BufferParam {
        let (is_reference, is_const, element) = match &self.kind {
            ParamKind::Buffer { is_reference, is_const, element, .. } => {
                (*is_reference, *is_const, element.clone())
            }
            ParamKind::BuiltIn(_) => (false, true, self.ty.clone()),
        };
        BufferParam { name: self.name.clone(), is_reference, is_const, element }
    }
}

impl Kernel<'_> {
    /// Buffers in the order of their indices.
    pub fn buffers(&self) -> Vec<&Param> {
        let index = |p: &&Param| match p.kind {
            ParamKind::Buffer { index, .. } => index,
            ParamKind::BuiltIn(_) => usize::MAX,
        };
        let mut buffers: Vec<_> = self.params.iter().filter(|p| index(p) != usize::MAX).collect();
        buffers.sort_by_key(index);
        buffers
    }

    /// Makes the kernel a plain function, `kernel_` in front of its name.
    pub fn rewrite(&self, text: &Text<'_>, edits: &mut Vec<Edit>) {
        let range = text.bytes(self.head.start..self.head.end + 1);
        edits.push(Edit { range, with: format!("LILY_KERNEL void kernel_{}", self.name) });
        for attribute in &self.attributes {
            edits.push(Edit { range: text.bytes(attribute.clone()), with: String::new() });
        }
    }
}

/// All kernel functions of a text.
pub(super) fn find<'a>(text: &Text<'a>) -> Result<Vec<Kernel<'a>>, TranslateError> {
    let mut kernels = Vec::new();
    let mut at = 0;
    while at < text.tokens.len() {
        match head(text, at) {
            Some((name, max_threads)) => {
                let kernel = kernel(text, at..name, max_threads)?;
                at = kernel.body.end;
                kernels.push(kernel);
            }
            None => at += 1,
        }
    }
    Ok(kernels)
}

/// If a kernel begins at a token: the index of its name, and its bound of threads.
fn head(text: &Text<'_>, start: usize) -> Option<(usize, Option<String>)> {
    let (mut at, mut is_kernel, mut max_threads) = (start, false, None);
    loop {
        if let Some(end) = text.attribute(at) {
            for i in at + 2..end - 2 {
                is_kernel |= text.at(i) == "kernel";
                if text.at(i) == "max_total_threads_per_threadgroup" {
                    let close = text.close(i + 1).ok()?;
                    max_threads = Some(text.between(i + 2..close));
                }
            }
            at = end;
        } else if text.at(at) == "kernel" {
            is_kernel = true;
            at += 1;
        } else {
            break;
        }
    }
    (is_kernel && text.at(at) == "void").then_some((at + 1, max_threads))
}

fn kernel<'a>(
    text: &Text<'a>,
    head: Range<usize>,
    max_threads: Option<String>,
) -> Result<Kernel<'a>, TranslateError> {
    let (start, name, open) = (text.tokens[head.start].start, text.at(head.end), head.end + 1);
    let before = (0..head.start).rev().take_while(|&i| !matches!(text.at(i), ";" | "}"));
    if before.into_iter().any(|i| text.at(i) == "template") {
        return Err(text.error(
            start,
            format!("kernel `{name}` is a template; make what varies a preprocessor constant"),
        ));
    }
    if text.at(open) != "(" {
        return Err(text.error(start, format!("kernel `{name}` has no parameters")));
    }
    let close = text.close(open)?;
    if text.at(close + 1) != "{" {
        return Err(text.error(start, format!("kernel `{name}` is declared only; define it here")));
    }
    let mut kernel = Kernel {
        name,
        params: Vec::new(),
        max_threads,
        head,
        body: close + 1..text.close(close + 1)? + 1,
        attributes: Vec::new(),
    };
    for tokens in split(text, open + 1..close) {
        let (param, attribute) = param(text, tokens)?;
        kernel.params.push(param);
        kernel.attributes.push(attribute);
    }
    for (expected, param) in kernel.buffers().iter().enumerate() {
        if let ParamKind::Buffer { index, .. } = param.kind
            && index != expected
        {
            return Err(text.error(
                start,
                format!(
                    "`{}` is buffer({index}), need buffer({expected}): no gaps from 0",
                    param.name
                ),
            ));
        }
    }
    Ok(kernel)
}

/// Parts of a list at its commas.
fn split(text: &Text<'_>, tokens: Range<usize>) -> Vec<Range<usize>> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, tokens.start);
    for i in tokens.clone() {
        match text.at(i) {
            "(" | "[" | "<" => depth += 1,
            ")" | "]" | ">" => depth -= 1,
            "," if depth == 0 => {
                parts.push(start..i);
                start = i + 1;
            }
            _ => {}
        }
    }
    if start < tokens.end {
        parts.push(start..tokens.end);
    }
    parts
}

/// A parameter and the tokens of its attribute.
fn param(text: &Text<'_>, tokens: Range<usize>) -> Result<(Param, Range<usize>), TranslateError> {
    let error = |message: String| text.error(text.tokens[tokens.start].start, message);
    let attribute = tokens.clone().find_map(|i| text.attribute(i).map(|end| i..end));
    let Some(attribute) = attribute.filter(|a| a.end == tokens.end && a.start > tokens.start + 1)
    else {
        return Err(error(format!(
            "kernel parameter `{}` needs one [[attribute]] behind its name",
            text.between(tokens.clone())
        )));
    };
    let name_at = attribute.start - 1;
    let (name, ty) = (text.at(name_at).to_string(), text.between(tokens.start..name_at));
    let inner = text.between(attribute.start + 2..attribute.end - 2);
    let words: Vec<_> = (tokens.start..name_at).map(|i| text.at(i)).collect();
    let kind = if let Some(built_in) = BUILT_INS.into_iter().find(|&b| b == inner) {
        if !BUILT_IN_TYPES.contains(&ty.as_str()) {
            return Err(error(format!(
                "`{name}` is {ty}, need uint or ushort, or a vector of 2, 3"
            )));
        }
        ParamKind::BuiltIn(built_in)
    } else if let Some(index) = buffer_index(&inner) {
        let has = |word: &str| words.contains(&word);
        let is_reference = has("&");
        if is_reference == has("*") || !(has("device") || has("constant")) {
            return Err(error(format!(
                "buffer `{name}` is {ty}, need a pointer to device or constant memory, or a reference \
                 to constant memory"
            )));
        }
        if is_reference && !has("constant") {
            return Err(error(format!("`{name}` is {ty}, need a reference to constant memory")));
        }
        let is_const = has("const") || has("constant");
        let qualifiers = ["const", "device", "constant", "*", "&"];
        let element: Vec<_> = words.iter().filter(|w| !qualifiers.contains(w)).copied().collect();
        ParamKind::Buffer { index, is_reference, is_const, element: element.join(" ") }
    } else {
        return Err(error(format!("attribute [[{inner}]] of `{name}` is not in the dialect")));
    };
    Ok((Param { name, ty, kind }, attribute))
}

/// The number in `buffer(3)`.
fn buffer_index(attribute: &str) -> Option<usize> {
    attribute.strip_prefix("buffer(")?.strip_suffix(')')?.parse().ok()
}

/// Rewrites the threadgroup arrays of all kernels.
pub(super) fn arrays(
    text: &Text<'_>,
    kernels: &[Kernel<'_>],
    edits: &mut Vec<Edit>,
) -> Result<(), TranslateError> {
    let mut count = 0;
    for at in 0..text.tokens.len() {
        let begins = at == 0 || matches!(text.at(at - 1), ";" | "{" | "}");
        if text.at(at) != "threadgroup" || !begins {
            continue;
        }
        let Some(array) = array(text, at)? else { continue };
        if !kernels.iter().any(|k| k.body.contains(&at)) {
            return Err(text.error(
                text.tokens[at].start,
                format!("threadgroup array `{}` outside of a kernel's body", array.name),
            ));
        }
        let Array { ty, name, dims, end } = array;
        let with = format!("LILY_THREADGROUP(({ty}), {name}, {dims}, {count})");
        edits.push(Edit { range: text.bytes(at..end), with });
        count += 1;
    }
    Ok(())
}

/// Declaration of a threadgroup array.
struct Array<'a> {
    ty: String,
    name: &'a str,
    dims: String,
    /// Token behind the semicolon.
    end: usize,
}

/// The array declared at a token; `None` if it is a pointer or a function.
fn array<'a>(text: &Text<'a>, start: usize) -> Result<Option<Array<'a>>, TranslateError> {
    let error = |message: &str| text.error(text.tokens[start].start, message);
    let mut at = start + 1;
    if text.at(at) == "alignas" {
        at = text.close(at + 1)? + 1;
    }
    // The type is words, `::` and template arguments; the name is the last word of them.
    let mut name = None;
    loop {
        match text.at(at) {
            "<" => at = text.close(at)? + 1,
            "::" => at += 1,
            _ if text.tokens.get(at).is_some_and(|t| t.is_word()) => {
                name = Some(at);
                at += 1;
            }
            _ => break,
        }
    }
    let Some(name_at) = name.filter(|&n| n > start + 1 && n + 1 == at) else { return Ok(None) };
    let dims_at = at;
    while text.at(at) == "[" {
        at = text.close(at)? + 1;
    }
    match text.at(at) {
        ";" => Ok(Some(Array {
            ty: text.between(start + 1..name_at),
            name: text.at(name_at),
            dims: text.between(dims_at..at),
            end: at + 1,
        })),
        "," => Err(error("several threadgroup arrays in one declaration; declare one at a time")),
        "=" | "{" => Err(error("a threadgroup array with an initial value; store it and wait")),
        _ => Ok(None),
    }
}
