//! Writes a tiny random model that one can talk to: weights, tokenizer and chat template.
//!
//! `cargo run -p lily-server --example chat_model -- FOLDER`

use std::error::Error;
use std::path::Path;

use lily_model::synth::{SynthOptions, preset, write};
use lily_text::synth_tokenizer_files;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("expected the folder to write to")?;
    let folder = Path::new(&folder);
    let config = preset("tiny").ok_or("there is no preset `tiny`")?;
    write(&SynthOptions::new(config, folder), &mut |_| {})?;
    let files = synth_tokenizer_files(512)?;
    for (name, text) in [
        ("tokenizer.json", files.tokenizer_json),
        ("tokenizer_config.json", files.tokenizer_config_json),
        ("chat_template.jinja", files.chat_template_jinja),
    ] {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}
