//! Rules of the dialect that the compilers in use do not check.

use std::collections::BTreeSet;

use super::TranslateError;
use super::scan::Text;

/// Words that no text may use, with the reason.
const REFUSED: [(&str, &str); 20] = [
    ("double", "GPUs have no double; write float"),
    ("std", "there is no std; metal:: has what kernels need"),
    ("goto", "jumps are not in Metal; use loops and returns"),
    ("try", "there are no exceptions in kernels"),
    ("throw", "there are no exceptions in kernels"),
    ("new", "kernels do not allocate"),
    ("delete", "kernels do not allocate"),
    ("virtual", "there are no virtual functions in kernels"),
    ("dynamic_cast", "there is no type information in kernels"),
    ("typeid", "there is no type information in kernels"),
    ("asm", "assembly belongs to a prelude"),
    ("static", "variables are local, or `constant constexpr`"),
    ("simd_ballot", "votes are simd_all and simd_any"),
    ("simd_vote", "votes are simd_all and simd_any"),
    ("quad_sum", "quads are not the same on all GPUs; use simd operations"),
    ("quad_shuffle", "quads are not the same on all GPUs; use simd operations"),
    ("quad_broadcast", "quads are not the same on all GPUs; use simd operations"),
    ("isnan", "fast math may assume that there is no NaN; look at the bits"),
    ("isinf", "fast math may assume that there is no infinity; look at the bits"),
    ("isfinite", "fast math may assume that all is finite; look at the bits"),
];

/// Where a pointer may point.
const SPACES: [&str; 4] = ["device", "constant", "threadgroup", "thread"];

/// Words that stand around a type.
const QUALIFIERS: [&str; 6] = ["const", "volatile", "constexpr", "typename", "struct", "metal"];

/// Checks a text.
pub(super) fn check(text: &Text<'_>) -> Result<(), TranslateError> {
    refused(text)?;
    address_spaces(text)
}

fn refused(text: &Text<'_>) -> Result<(), TranslateError> {
    let specific = text.device_specific();
    for (index, token) in text.tokens.iter().enumerate() {
        if specific.iter().any(|range| range.contains(&token.start)) {
            continue;
        }
        if token.text.starts_with("__builtin_") {
            let message = format!("`{}` belongs to one compiler", token.text);
            return Err(text.error(token.start, message));
        }
        // A field or a function of that name is none of them.
        let member = index > 0 && matches!(text.at(index - 1), "." | "->");
        if let Some((word, why)) = REFUSED.iter().find(|(word, _)| *word == token.text)
            && !member
        {
            return Err(text.error(token.start, format!("`{word}`: {why}")));
        }
    }
    Ok(())
}

/// Every pointer and reference says where it points. clang takes a missing word for `thread`, NVRTC for
/// anything; Apple's compiler refuses it.
fn address_spaces(text: &Text<'_>) -> Result<(), TranslateError> {
    let types = types(text);
    for (index, token) in text.tokens.iter().enumerate() {
        if !is_type(&types, token.text) || text.at(index + 1) == "::" {
            continue;
        }
        let mut at = index + 1;
        if text.at(at) == "<" {
            at = text.close(at)? + 1;
        }
        let mut found = false;
        while QUALIFIERS.contains(&text.at(at)) || SPACES.contains(&text.at(at)) {
            found |= SPACES.contains(&text.at(at));
            at += 1;
        }
        if !points(text, at) {
            continue;
        }
        let before = (0..index)
            .rev()
            .map(|i| text.at(i))
            .take_while(|word| *word == "::" || QUALIFIERS.contains(word) || SPACES.contains(word));
        found |= before.into_iter().any(|word| SPACES.contains(&word));
        if !found {
            let declared = text.between(index..at);
            return Err(text.error(
                token.start,
                format!(
                    "pointer or reference to {declared} without an address space; write device, \
                     constant, threadgroup or thread"
                ),
            ));
        }
    }
    Ok(())
}

/// Whether a type that ends in front of a token is pointed to: `T*`, `T&`, `T (&name)[..]`.
fn points(text: &Text<'_>, at: usize) -> bool {
    match text.at(at) {
        "*" | "&" | "&&" => true,
        "(" => {
            matches!(text.at(at + 1), "*" | "&") && text.at(at + 3) == ")" && text.at(at + 4) == "["
        }
        _ => false,
    }
}

/// Names of types that the text declares: structs, aliases, template parameters.
fn types<'a>(text: &Text<'a>) -> BTreeSet<&'a str> {
    let mut types = BTreeSet::new();
    for index in 0..text.tokens.len() {
        match text.at(index) {
            "struct" | "class" | "typename" | "enum" | "using" => {
                types.insert(text.at(index + 1));
            }
            "typedef" => {
                let end = (index..text.tokens.len()).find(|&i| text.at(i) == ";");
                types.extend(end.map(|end| text.at(end - 1)));
            }
            _ => {}
        }
    }
    types.remove("namespace");
    types
}

fn is_type(types: &BTreeSet<&str>, word: &str) -> bool {
    let scalar = word.trim_end_matches(['2', '3', '4']);
    let scalars = [
        "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half",
        "bfloat", "float", "void", "auto", "size_t", "uint8_t", "uint16_t", "uint32_t",
    ];
    types.contains(word)
        || scalars.contains(&word)
        || (scalars.contains(&scalar) && word.len() == scalar.len() + 1)
        || word.starts_with("atomic_") && !word.ends_with("_explicit")
        || word.starts_with("simdgroup_") && (word == "simdgroup_matrix" || word.ends_with("8x8"))
        || matches!(word, "atomic" | "vec" | "array" | "tensor" | "cooperative_tensor")
}
