//! Lines of a kernel's text from addresses in its library.

use std::process::Command;

/// File and line of an offset in a library, by the first symbolizer that is there; otherwise the offset.
pub(crate) fn place(library: &str, offset: u64) -> String {
    let address = format!("{offset:#x}");
    let symbolizers = ["llvm-symbolizer-19", "llvm-symbolizer"];
    let commands = symbolizers
        .iter()
        .map(|tool| (*tool, vec!["--inlines", "--functions=none", "-e", library, &address]))
        .chain([("addr2line", vec!["-i", "-e", library, &address])]);
    for (tool, arguments) in commands {
        if let Ok(output) = Command::new(tool).args(arguments).output()
            && output.status.success()
            && let Some(place) = first_text(&String::from_utf8_lossy(&output.stdout))
        {
            return place;
        }
    }
    format!("{library}+{address}")
}

/// The innermost frame in a kernel's text or a shared header, and not in the prelude.
fn first_text(frames: &str) -> Option<String> {
    let frame =
        frames.lines().map(|line| line.split(" (").next().unwrap_or(line).trim()).find(|line| {
            !line.is_empty()
                && !line.starts_with('?')
                && !line.contains("/prelude/")
                && !line.contains("entry point")
        })?;
    let mut parts = frame.trim_start_matches("./").split(':');
    let (file, line) = (parts.next()?, parts.next()?);
    Some(format!("{file}:{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_frame_of_a_text_is_taken() {
        let frames =
            "/cache/prelude/lily_simd.h:40:7\n./topk/kernel.metal:23:5\n./entry point:2:1\n";
        assert_eq!(first_text(frames).as_deref(), Some("topk/kernel.metal:23"));
        assert_eq!(first_text("./lily.h:9 (discriminator 2)\n").as_deref(), Some("lily.h:9"));
        assert_eq!(first_text("??:0:0\n"), None);
    }
}
