//! A header is refused or gives ranges inside the file that have the size of their shapes.
//!
//! `cargo +nightly fuzz run safetensors_header fuzz/corpus/safetensors_header
//! fuzz/seeds/safetensors_header`

#![no_main]

use lily_model::parse_header;

libfuzzer_sys::fuzz_target!(|file: &[u8]| {
    if let Ok(header) = parse_header(file) {
        for entry in header.values() {
            let elements: usize = entry.shape.iter().product();
            assert_eq!(file[entry.bytes.clone()].len(), elements * entry.dtype.bytes());
        }
    }
});
