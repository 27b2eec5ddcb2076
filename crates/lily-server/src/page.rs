//! `GET /`: a small chat page.
//!
//! Its files are part of the program, so it works without a network. It asks the server that it came
//! from and nobody else, and the headers here hold it to that.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::routing::{MethodRouter, get};

use crate::shared::Shared;

/// A file of the page.
struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

/// The page itself.
const INDEX: File =
    File { path: "/", kind: "text/html; charset=utf-8", text: include_str!("../page/index.html") };
/// What it loads.
const PARTS: [File; 5] = [
    File {
        path: "/page/style.css",
        kind: "text/css; charset=utf-8",
        text: include_str!("../page/style.css"),
    },
    File {
        path: "/page/chat.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("../page/chat.js"),
    },
    File {
        path: "/page/api.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("../page/api.js"),
    },
    File {
        path: "/page/markdown.js",
        kind: "text/javascript; charset=utf-8",
        text: include_str!("../page/markdown.js"),
    },
    File { path: "/page/icon.svg", kind: "image/svg+xml", text: include_str!("../page/icon.svg") },
];

/// Nothing but the page's own files may run, be shown or be asked; text never becomes markup, and no
/// other page may frame this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";
/// With every file.
const HEADERS: [(&str, &str); 8] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
    // The next version of the program has others.
    ("cache-control", "no-cache"),
];

/// The page.
pub(crate) fn index() -> MethodRouter<Arc<Shared>> {
    serve(&INDEX)
}

/// Routes of what the page loads.
pub(crate) fn parts() -> impl Iterator<Item = (&'static str, MethodRouter<Arc<Shared>>)> {
    PARTS.iter().map(|file| (file.path, serve(file)))
}

/// Whether a path is the page or a part of it. They hold nothing secret: whoever has no key yet must
/// be asked for it somewhere.
pub(crate) fn is_page(path: &str) -> bool {
    path == INDEX.path || PARTS.iter().any(|file| file.path == path)
}

fn serve(file: &'static File) -> MethodRouter<Arc<Shared>> {
    get(move || async move { response(file) })
}

fn response(file: &'static File) -> Response {
    let mut response = Response::new(Body::from(file.text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(file.kind));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_only_files_that_are_served() {
        let named = |text: &'static str| {
            let quoted = text.split('"').chain(text.split('\''));
            quoted.filter(|word| word.starts_with("page/") || word.starts_with("./"))
        };
        let mut seen = 0;
        for file in [&INDEX].into_iter().chain(&PARTS) {
            for name in named(file.text) {
                let path =
                    format!("/page/{}", name.trim_start_matches("page/").trim_start_matches("./"));
                assert!(is_page(&path), "{} names {name}", file.path);
                seen += 1;
            }
        }
        // The style, the icon, the script, and the two that it imports.
        assert!(seen >= 5, "{seen}");
    }

    #[test]
    fn no_file_of_the_page_has_an_address_of_elsewhere_or_makes_markup_of_text() {
        for file in [&INDEX].into_iter().chain(&PARTS) {
            let text = file.text.replace("http://www.w3.org/2000/svg", "");
            for word in
                ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", " style="]
            {
                assert!(!text.contains(word), "{} has {word}", file.path);
            }
            // Addresses in the texts of models are followed by readers only.
            let mut addresses = text.split("://").skip(1);
            let is_host = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphanumeric());
            assert!(!addresses.any(is_host), "{} names an address", file.path);
        }
    }
}
