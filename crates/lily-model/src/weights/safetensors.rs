//! The header of a safetensors file.
//!
//! A file is an 8-byte little-endian header length, the header (a JSON object from tensor name to
//! type, shape and byte range), and the data. The `safetensors` crate reads the same format; this
//! parser exists because a person with a broken download needs to know which tensor and how many
//! bytes, and because it must notice names that occur twice.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::layout::Dtype;

/// Longest header that is read, in bytes: the limit that the format's own library has.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderEntry {
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    /// Bytes of the data, counted from the start of the file.
    pub bytes: Range<usize>,
}

/// Why a file is not a whole safetensors file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer than the 8 bytes of the header length.
    #[error("has {0} bytes, need at least 8; the file is cut short, download it again")]
    TooShort(usize),
    /// The header would not fit into the file, or is absurdly long.
    #[error(
        "announces a header of {announced} bytes, but only {available} can follow; \
         the file is cut short or damaged, download it again"
    )]
    HeaderLength {
        /// Length in the first 8 bytes.
        announced: u64,
        /// Bytes behind them, or the limit of the format.
        available: u64,
    },
    /// The header is not the JSON object that the format asks for.
    #[error("has a header that is not readable ({0}); the file is damaged, download it again")]
    Malformed(String),
    /// A tensor of an element type that this parser does not know.
    #[error("has tensor `{tensor}` of unknown element type `{dtype}`; use another checkpoint")]
    UnknownDtype {
        /// Tensor name.
        tensor: String,
        /// The type.
        dtype: String,
    },
    /// Shape, type and byte range of a tensor do not agree.
    #[error(
        "has tensor `{tensor}` with {found} bytes, need {expected} for its shape and type; \
         the file is damaged, download it again"
    )]
    Size {
        /// Tensor name.
        tensor: String,
        /// Bytes by shape and type.
        expected: String,
        /// Bytes by its range.
        found: String,
    },
    /// The data of a tensor lies past the end of the file.
    #[error(
        "ends after {found} bytes of data, but tensor `{tensor}` needs {expected}; \
         the file is cut short, download it again"
    )]
    CutShort {
        /// Tensor name.
        tensor: String,
        /// Bytes of data needed.
        expected: u64,
        /// Bytes of data found.
        found: u64,
    },
    /// Tensors overlap, or bytes belong to none.
    #[error(
        "has tensor `{tensor}` at byte {found} of the data, need {expected}; \
         tensors must follow one another without gaps, download the file again"
    )]
    Placement {
        /// Tensor name, or `(end of file)`.
        tensor: String,
        /// Where the tensor must start.
        expected: u64,
        /// Where it starts.
        found: u64,
    },
}

/// Reads the header of a safetensors file; `file` is the whole file.
///
/// On success every range lies inside `file`, has exactly the bytes of its shape and type, and the
/// ranges cover the data without gap or overlap.
///
/// # Errors
/// As [`HeaderError`] lists. Never panics, whatever the bytes, and allocates no more than the file
/// itself has.
pub fn parse_header(file: &[u8]) -> Result<BTreeMap<String, HeaderEntry>, HeaderError> {
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        return Err(HeaderError::TooShort(file.len()));
    };
    let announced = u64::from_le_bytes(*length);
    let available = (rest.len() as u64).min(MAX_HEADER_BYTES);
    if announced > available {
        return Err(HeaderError::HeaderLength { announced, available });
    }
    // Fits: it is at most the length of a slice.
    let (header, data) = rest.split_at(announced as usize);
    let RawHeader(entries) =
        serde_json::from_slice(header).map_err(|e| HeaderError::Malformed(e.to_string()))?;
    check_placement(&entries, data.len() as u64)?;
    let data_start = file.len() - data.len();
    let mut parsed = BTreeMap::new();
    for (tensor, raw) in entries {
        let entry = check_entry(&tensor, raw, data_start)?;
        parsed.insert(tensor, entry);
    }
    Ok(parsed)
}

/// Proves that ranges follow one another from the first byte of the data to the last.
fn check_placement(
    entries: &BTreeMap<String, RawEntry>,
    data_bytes: u64,
) -> Result<(), HeaderError> {
    let mut order: Vec<(&String, [u64; 2])> =
        entries.iter().map(|(name, raw)| (name, raw.data_offsets)).collect();
    order.sort_by_key(|&(_, offsets)| offsets);
    let mut at = 0;
    for (tensor, [start, end]) in order {
        if end > data_bytes {
            return Err(HeaderError::CutShort {
                tensor: tensor.clone(),
                expected: end,
                found: data_bytes,
            });
        }
        if start != at || end < start {
            return Err(HeaderError::Placement {
                tensor: tensor.clone(),
                expected: at,
                found: start,
            });
        }
        at = end;
    }
    if at == data_bytes {
        return Ok(());
    }
    let tensor = "(end of file)".into();
    Err(HeaderError::Placement { tensor, expected: at, found: data_bytes })
}

/// Checks one tensor; its range is known to lie inside the data.
fn check_entry(tensor: &str, raw: RawEntry, data_start: usize) -> Result<HeaderEntry, HeaderError> {
    let Some(dtype) = Dtype::from_name(&raw.dtype) else {
        return Err(HeaderError::UnknownDtype { tensor: tensor.into(), dtype: raw.dtype });
    };
    let [start, end] = raw.data_offsets;
    let size = |shape: &[usize]| {
        shape.iter().try_fold(dtype.bytes(), |bytes, &size| bytes.checked_mul(size))
    };
    let expected = size(&raw.shape);
    if expected.map(|bytes| bytes as u64) != Some(end - start) {
        return Err(HeaderError::Size {
            tensor: tensor.into(),
            expected: expected.map_or("more than memory".into(), |bytes| bytes.to_string()),
            found: (end - start).to_string(),
        });
    }
    let bytes = data_start + start as usize..data_start + end as usize;
    Ok(HeaderEntry { dtype, shape: raw.shape, bytes })
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

/// The header object without its `__metadata__`; a name that occurs twice is an error.
struct RawHeader(BTreeMap<String, RawEntry>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object from tensor names to tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<serde::de::IgnoredAny>()?;
                continue;
            }
            let entry = map
                .next_value::<RawEntry>()
                .map_err(|e| A::Error::custom(format!("tensor `{name}`: {e}")))?;
            if entries.contains_key(&name) {
                return Err(A::Error::custom(format!("tensor `{name}` occurs twice")));
            }
            entries.insert(name, entry);
        }
        Ok(RawHeader(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + data, 0);
        file
    }

    const PAIR: &str = r#"{"__metadata__":{"format":"mlx"},
        "a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
        "b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}}"#;

    #[test]
    fn a_whole_file_gives_ranges_of_the_file() {
        let bytes = file(PAIR, 10);
        let header = parse_header(&bytes).unwrap();
        let start = 8 + PAIR.len();
        assert_eq!(header["a"].bytes, start..start + 8);
        assert_eq!((header["b"].dtype, header["b"].shape.len()), (Dtype::Bf16, 0));
        assert_eq!(header.len(), 2);
    }

    #[test]
    fn every_broken_file_is_refused_with_its_reason() {
        let entry = |name: &str, dtype: &str, shape: &str, offsets: &str| {
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
        };
        let one = |dtype: &str, shape: &str, offsets: &str| {
            format!("{{{}}}", entry("a", dtype, shape, offsets))
        };
        let two = |offsets: &str, name: &str| {
            format!(
                "{{{},{}}}",
                entry("a", "U8", "[4]", "[0,4]"),
                entry(name, "U8", "[4]", offsets)
            )
        };
        for (bytes, expected) in [
            (vec![1, 2, 3], "has 3 bytes, need at least 8"),
            (file(PAIR, 9), "tensor `b` needs 10"),
            (file(PAIR, 11), "(end of file)"),
            (file("[]", 0), "not readable"),
            (file("", 0), "not readable"),
            (file(&one("F32", "[2]", "[0,4]"), 4), "with 4 bytes, need 8"),
            (file(&one("F3", "[2]", "[0,4]"), 4), "unknown element type `F3`"),
            (file(&one("F32", "[-1]", "[0,4]"), 4), "tensor `a`: "),
            (file(&one("F32", "[1]", "[4,0]"), 4), "at byte 4"),
            (file(&one("F32", "[4294967296,4294967296]", "[0,4]"), 4), "need more than memory"),
            (file(&one("F32", "[1]", "[0,18446744073709551615]"), 4), "cut short"),
            (file(&two("[4,8]", "a"), 8), "`a` occurs twice"),
            (file(&two("[2,6]", "b"), 6), "tensor `b` at byte 2 of the data, need 4"),
            (file(&two("[5,9]", "b"), 9), "tensor `b` at byte 5 of the data, need 4"),
        ] {
            let message = parse_header(&bytes).unwrap_err().to_string();
            assert!(message.contains(expected), "{expected}: {message}");
        }
    }

    #[test]
    fn a_changed_byte_of_the_header_length_is_noticed_before_anything_is_allocated() {
        for byte in 0..8 {
            let mut bytes = file(PAIR, 10);
            bytes[byte] ^= 0x40;
            assert!(parse_header(&bytes).is_err(), "byte {byte}");
        }
        let mut bytes = file(PAIR, 10);
        bytes[7] = 0xff;
        let message = parse_header(&bytes).unwrap_err().to_string();
        assert!(message.contains("announces a header of"), "{message}");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, at in 0usize..200, value: u8) {
            let _ = parse_header(&bytes);
            let mut changed = file(PAIR, 10);
            let at = at % changed.len();
            changed[at] = value;
            let _ = parse_header(&changed);
        }
    }
}
