//! A request's body is accepted, or refused with an error of the API's shape that says why.
//!
//! `cargo +nightly fuzz run request_json fuzz/corpus/request_json fuzz/seeds/request_json`

#![no_main]

use lily_server::testing::{chat_request, text_request};

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    let answers =
        [false, true].map(|lenient| [chat_request(body, lenient), text_request(body, lenient)]);
    for refused in answers.into_iter().flatten() {
        let Err(refused) = refused else { continue };
        let error = &refused["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert!(error["param"].is_string() || error["code"].is_string());
        // What is wrong with a request is never this side's fault.
        assert_ne!(error["type"], "server_error");
    }
});
