//! A configuration is refused or leads to a finite list of tensors, whatever the text.
//!
//! `cargo +nightly fuzz run config fuzz/corpus/config fuzz/seeds/config`

#![no_main]

use lily_model::{Config, TensorSpec, mlx_tensors};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(config) = Config::from_json(text, "config.json") {
        assert!(config.vocab_used <= config.vocab_size);
        assert_eq!(config.layer_types.len(), config.num_hidden_layers);
        let bytes: u64 = mlx_tensors(&config).iter().map(TensorSpec::bytes).sum();
        assert!(bytes > 0);
    }
});
