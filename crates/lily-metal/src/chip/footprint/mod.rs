//! What a kernel function takes of a GPU core: threads and threadgroup memory, read from its text.
//!
//! Metal says so once it has compiled a function. Here the same numbers come from the source alone, so that
//! every variant of every plan is held to a chip's limits on any machine: the arrays that the function
//! declares in threadgroup memory, with their sizes evaluated, and the bound of threads that it promises
//! the compiler.

mod expression;

use std::collections::HashMap;

use lily_kernels::gpu::Source;

use expression::{Constants, evaluate, words};

/// Threads of a simdgroup on every Apple GPU.
pub const SIMD_WIDTH: u32 = 32;
/// Most threads of a threadgroup on every Apple GPU; a function that takes many registers gets fewer,
/// unless it promises the compiler a bound.
pub const MAX_THREADS: u32 = 1024;
/// Bytes of threadgroup memory that a threadgroup has on every Apple GPU.
pub const THREADGROUP_BYTES: u32 = 32 << 10;

/// What a function takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of the arrays in threadgroup memory, each rounded up to 16.
    pub threadgroup_bytes: u32,
    /// Most threads of a threadgroup that the function promises.
    pub max_threads: Option<u32>,
}

/// A text whose footprint cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("function `{function}`: {reason}")]
pub struct FootprintError {
    /// The function.
    pub function: String,
    /// What was found, and what is understood.
    pub reason: String,
}

impl Footprint {
    /// Reads the footprint of a source's function.
    ///
    /// # Errors
    /// The function is not there, or a size is no constant.
    pub fn of(source: &Source) -> Result<Self, FootprintError> {
        let error = |reason: String| FootprintError { function: source.function.into(), reason };
        read(source).map_err(error)
    }

    /// Checks that a threadgroup of `threads` threads runs on every Apple GPU.
    ///
    /// # Errors
    /// Says which limit is broken, with both numbers.
    pub fn check(&self, threads: u32) -> Result<(), String> {
        let Self { threadgroup_bytes, max_threads } = *self;
        if threads == 0 || !threads.is_multiple_of(SIMD_WIDTH) {
            return Err(format!("{threads} threads, need a multiple of {SIMD_WIDTH}"));
        }
        if threads > MAX_THREADS {
            return Err(format!("{threads} threads, need at most {MAX_THREADS}"));
        }
        match max_threads {
            None => {
                // Registers may then leave fewer than the launch has.
                return Err(format!("{threads} threads, and the function promises no bound"));
            }
            Some(bound) if bound < threads => {
                return Err(format!("{threads} threads, and the function promises {bound}"));
            }
            Some(_) => {}
        }
        if threadgroup_bytes > THREADGROUP_BYTES {
            return Err(format!(
                "{threadgroup_bytes} bytes of threadgroup memory, need at most {THREADGROUP_BYTES}"
            ));
        }
        Ok(())
    }
}

/// Bytes of the types that arrays in threadgroup memory have.
const TYPES: &[(&str, u32)] = &[
    ("float", 4),
    ("float2", 8),
    ("float4", 16),
    ("int", 4),
    ("int4", 16),
    ("uint", 4),
    ("uint2", 8),
    ("uint4", 16),
    ("ushort", 2),
    ("bfloat", 2),
    ("bfloat4", 8),
    ("half", 2),
    ("half4", 8),
    ("atomic_uint", 4),
    ("atomic_int", 4),
];

fn read(source: &Source) -> Result<Footprint, String> {
    let (text, constants) = preprocess(&source.text)?;
    let tokens = words(&text);
    let name = |i: &usize| tokens[*i] == source.function && *i >= 2 && tokens[i - 1] == "void";
    let at = (0..tokens.len()).find(name).ok_or("there is no such function in the text")?;
    let max_threads = promised(&tokens[..at - 1], &constants)?;
    let open = (at..tokens.len()).find(|&i| tokens[i] == "{").ok_or("the function has no body")?;
    let mut footprint = Footprint { threadgroup_bytes: 0, max_threads };
    let mut depth = 0;
    for i in open..tokens.len() {
        match tokens[i] {
            "{" => depth += 1,
            "}" => depth -= 1,
            "threadgroup" if matches!(tokens[i - 1], ";" | "{" | "}") => {
                let bytes = array(&tokens[i + 1..], &constants)?.next_multiple_of(16);
                footprint.threadgroup_bytes = footprint
                    .threadgroup_bytes
                    .checked_add(bytes)
                    .ok_or("more than 4 GiB of threadgroup memory")?;
            }
            _ => {}
        }
        if depth == 0 {
            return Ok(footprint);
        }
    }
    Err("the function's body does not end".into())
}

/// The bound in `[[kernel, max_total_threads_per_threadgroup(n)]]`, right in front of `void`.
fn promised(tokens: &[&str], constants: &Constants) -> Result<Option<u32>, String> {
    let start = tokens.iter().rposition(|t| matches!(*t, ";" | "}")).map_or(0, |i| i + 1);
    let head = &tokens[start..];
    let Some(at) = head.iter().position(|t| *t == "max_total_threads_per_threadgroup") else {
        return Ok(None);
    };
    let value = evaluate(&head[at + 1..enclosed(head, at + 1)?], constants)?;
    u32::try_from(value).map(Some).map_err(|_| format!("a bound of {value} threads"))
}

/// Bytes of the array declared by `T name[a][b];`. A pointer takes none.
fn array(tokens: &[&str], constants: &Constants) -> Result<u32, String> {
    let end = tokens.iter().position(|t| *t == ";").ok_or("a declaration without end")?;
    let Some(first) = tokens[..end].iter().position(|t| matches!(*t, "[" | "*" | "=")) else {
        return Err(format!("`{}` is no array", tokens[..end].join(" ")));
    };
    if tokens[first] != "[" {
        return Ok(0);
    }
    let ty = tokens[0];
    let size = TYPES.iter().find(|(name, _)| *name == ty).map(|(_, size)| *size);
    let size = size.filter(|_| first == 2);
    let size = size.ok_or_else(|| format!("the size of `{ty}` is not known here"))?;
    let (mut bytes, mut at) = (i64::from(size), first);
    while at < end {
        let close = enclosed(tokens, at)?;
        let length = evaluate(&tokens[at + 1..close - 1], constants)?;
        bytes = bytes.checked_mul(length).ok_or("an array beyond 64 bits")?;
        at = close;
    }
    u32::try_from(bytes).map_err(|_| format!("an array of {bytes} bytes"))
}

/// Behind the bracket that closes the one at `open`.
fn enclosed(tokens: &[&str], open: usize) -> Result<usize, String> {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match *token {
            "(" | "[" => depth += 1,
            ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(i + 1);
        }
    }
    Err("a bracket is not closed".into())
}

/// The text that Apple's compiler would see, without comments and directives, and the integer constants of
/// it: macros without parameters, and `constant constexpr` scalars.
fn preprocess(text: &str) -> Result<(String, Constants), String> {
    let mut constants = Constants::new();
    let mut out = String::with_capacity(text.len());
    // For each open `#if`: whether its lines count, and whether an earlier branch did.
    let mut branches: Vec<(bool, bool)> = Vec::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let live = branches.iter().all(|(live, _)| *live);
        let Some(directive) = line.strip_prefix('#') else {
            if live {
                scalar(line, &mut constants);
                out += line;
                out.push('\n');
            }
            continue;
        };
        let (word, rest) =
            directive.trim().split_once(char::is_whitespace).unwrap_or((directive.trim(), ""));
        let known = |name: &str| constants.contains_key(name.trim());
        match word {
            "if" | "ifdef" | "ifndef" => {
                let holds = live
                    && match word {
                        "if" => evaluate(&words(&defined(rest, &constants)), &constants)? != 0,
                        "ifdef" => known(rest),
                        _ => !known(rest),
                    };
                branches.push((holds, holds));
            }
            "elif" | "else" => {
                let (_, taken) = branches.pop().ok_or("an #else without its #if")?;
                let above = branches.iter().all(|(live, _)| *live);
                let holds = above
                    && !taken
                    && (word == "else"
                        || evaluate(&words(&defined(rest, &constants)), &constants)? != 0);
                branches.push((holds, holds || taken));
            }
            "endif" => {
                branches.pop().ok_or("an #endif without its #if")?;
            }
            "define" if live => {
                let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                if !name.contains('(') {
                    constants.insert(name.into(), value.trim().into());
                }
            }
            "undef" if live => {
                constants.remove(rest.trim());
            }
            _ => {}
        }
    }
    Ok((out, constants))
}

/// `defined(X)` and `defined X` as 1 or 0.
fn defined(condition: &str, constants: &HashMap<String, String>) -> String {
    let tokens = words(condition);
    let (mut out, mut i) = (String::new(), 0);
    while i < tokens.len() {
        if tokens[i] == "defined" {
            let bracket = tokens.get(i + 1) == Some(&"(");
            let name = tokens.get(i + 1 + usize::from(bracket)).copied().unwrap_or_default();
            out += if constants.contains_key(name) { "1 " } else { "0 " };
            i += if bracket { 4 } else { 2 };
        } else {
            out += tokens[i];
            out.push(' ');
            i += 1;
        }
    }
    out
}

/// Takes `constant constexpr T NAME = value;`.
fn scalar(line: &str, constants: &mut Constants) {
    let Some(rest) = line.strip_prefix("constant constexpr ") else { return };
    let Some((left, value)) = rest.split_once('=') else { return };
    if let Some(name) = left.split_whitespace().nth(1)
        && left.split_whitespace().count() == 2
        && let Some(value) = value.trim().strip_suffix(';')
    {
        constants.insert(name.into(), value.trim().into());
    }
}

#[cfg(test)]
mod tests;
