//! A tokenizer file is refused, or gives a tokenizer that cuts any text into ids that spell it.
//!
//! The input is the file; a text may follow behind a zero byte, which no JSON holds.
//!
//! `cargo +nightly fuzz run tokenizer_file fuzz/corpus/tokenizer_file fuzz/seeds/tokenizer_file`

#![no_main]

use lily_text::{Detokenizer, Markers, SpecialTokens, Tokenizer};

/// Encoded with every tokenizer: cases of the pattern, marks, control tokens.
const TEXT: &str =
    "It's 2\u{a0}e\u{301}\u{4e2d}\u{6587}\u{1f600}\r\n\n  <|im_end|><think> ab\tabc <a>b";

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let (file, text) = match input.iter().position(|&byte| byte == 0) {
        Some(at) => (&input[..at], String::from_utf8_lossy(&input[at + 1..])),
        None => (input, TEXT.into()),
    };
    let Ok(tokenizer) = Tokenizer::from_json(file) else { return };
    for markers in [Markers::Plain, Markers::Control] {
        let Ok(ids) = tokenizer.encode(&text, markers) else { continue };
        let spelled = tokenizer.decode(&ids);
        // Composing characters is the one change that a tokenizer makes; it makes it once.
        let again = tokenizer.encode(&spelled, markers).expect("it is as long as before");
        assert_eq!(tokenizer.decode(&again), spelled);
        if text.is_ascii() {
            assert_eq!(spelled, text);
        }
        let plain = matches!(markers, Markers::Plain);
        assert!(!plain || ids.iter().all(|&id| !tokenizer.is_control(id)));
        let mut stream = Detokenizer::new(&tokenizer, SpecialTokens::Show);
        let mut joined: String = ids.iter().map(|&id| stream.push(id).to_owned()).collect();
        joined.push_str(stream.finish());
        assert_eq!(joined, spelled);
    }
});
