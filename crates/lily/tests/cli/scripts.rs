//! The scripts of the repository say what they do, and do nothing for a slip of the pen.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[test]
fn every_script_has_a_help_and_refuses_options_that_it_does_not_have() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = fs::read_dir(root.join("scripts")).unwrap();
    let mut scripts: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    scripts.retain(|path| path.extension().is_none());
    assert!(scripts.len() > 5, "{scripts:?}");
    scripts.extend([root.join(".ci/run"), root.join("benches/peers/run")]);
    for script in scripts {
        let run = |argument: &str| {
            let mut command = Command::new("bash");
            command.arg(&script).arg(argument).stdin(Stdio::null());
            let output = command.output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (output.status.code(), text(output.stdout), text(output.stderr))
        };
        for argument in ["--help", "-h"] {
            let (code, out, err) = run(argument);
            assert_eq!((code, err.as_str()), (Some(0), ""), "{script:?} {argument}: {out}");
            assert!(out.lines().count() > 1, "{script:?} {argument}: {out}");
        }
        for argument in ["--helpp", "-x"] {
            let (code, out, err) = run(argument);
            assert_eq!((code, out.as_str()), (Some(2), ""), "{script:?} {argument}: {err}");
            assert!(err.contains(argument), "{script:?} {argument}: {err}");
        }
    }
}
