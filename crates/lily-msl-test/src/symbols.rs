//! Lines of a kernel's text from addresses in its library.

use std::process::Command;

/// Steps back to an instruction with a line: the compiler gives none to those that it merged.
const STEPS_BACK: [u64; 6] = [0, 4, 16, 40, 80, 160];

/// File and line of an offset in a library, by the first symbolizer that is there; otherwise the offset.
pub(crate) fn place(library: &str, offset: u64) -> String {
    let near = STEPS_BACK.iter().find_map(|step| line(library, offset.saturating_sub(*step)));
    near.unwrap_or_else(|| format!("{library}+{offset:#x}"))
}

fn line(library: &str, offset: u64) -> Option<String> {
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
            return Some(place);
        }
    }
    None
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
    (line != "0").then(|| format!("{file}:{line}"))
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
        assert_eq!(first_text("./lily.h:0:0\n"), None);
    }
}
