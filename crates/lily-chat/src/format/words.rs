//! Keywords of JSON schema by what they speak of.

/// Speak of strings.
const STRINGS: [&str; 4] = ["format", "maxLength", "minLength", "pattern"];
/// Speak of objects.
const OBJECTS: [&str; 11] = [
    "additionalProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "maxProperties",
    "minProperties",
    "patternProperties",
    "properties",
    "propertyNames",
    "required",
    "unevaluatedProperties",
];
/// Speak of numbers or of arrays.
const OTHERS: [&str; 15] = [
    "additionalItems",
    "contains",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "items",
    "maxContains",
    "maxItems",
    "maximum",
    "minContains",
    "minItems",
    "minimum",
    "multipleOf",
    "prefixItems",
    "unevaluatedItems",
    "uniqueItems",
];
/// Speak of any value. `then` and `else` say nothing without `if`.
const ANY: [&str; 11] = [
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "if",
    "not",
    "oneOf",
    "type",
];

/// What a keyword speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It says nothing about which values there may be, or nobody knows it.
    Silent,
    Strings,
    Objects,
    /// Numbers or arrays.
    Others,
    Any,
}

/// What a keyword speaks of.
pub(crate) fn subject(word: &str) -> Word {
    let kinds: [(&[&str], Word); 4] = [
        (&STRINGS, Word::Strings),
        (&OBJECTS, Word::Objects),
        (&OTHERS, Word::Others),
        (&ANY, Word::Any),
    ];
    let kind = kinds.into_iter().find(|(words, _)| words.contains(&word));
    kind.map_or(Word::Silent, |(_, subject)| subject)
}
