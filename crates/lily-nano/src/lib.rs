//! lily-nano, a small trained model, as bytes of the program.
//!
//! The folder `model` of this crate is a checkpoint like any other; `models/nano` holds what trained it and its
//! model card. [`NANO`] has the same files for programs that answer without a file of their own.

#![forbid(unsafe_code)]

use lily_files::Packed;

/// Contents that begin at a multiple of 64 bytes, as those of a mapped file do.
#[repr(align(64))]
struct Aligned<Bytes: ?Sized>(Bytes);

/// A file of the folder, and its name.
macro_rules! file {
    ($name:literal) => {{
        static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!("../model/", $name)));
        ($name, &FILE.0)
    }};
}

/// The model's files. The weights are in two, because none may have over 16 MiB.
pub static NANO: Packed = Packed {
    name: "lily-nano",
    files: &[
        file!("config.json"),
        file!("generation_config.json"),
        file!("tokenizer.json"),
        file!("tokenizer_config.json"),
        file!("chat_template.jinja"),
        file!("model.safetensors.index.json"),
        file!("model-00001-of-00002.safetensors"),
        file!("model-00002-of-00002.safetensors"),
    ],
};
