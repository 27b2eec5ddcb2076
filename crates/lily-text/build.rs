//! Lets tests that need the published files report themselves as ignored where there are none: the
//! test runner decides that when it is compiled.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(lily_reference)");
    println!("cargo::rerun-if-env-changed=LILY_REFERENCE");
    if std::env::var_os("LILY_REFERENCE").is_some() {
        println!("cargo::rustc-cfg=lily_reference");
    }
}
