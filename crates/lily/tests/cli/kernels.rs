//! `lily kernels`. What compiles needs NVRTC, which `LILY_NVRTC` names or the system finds: skipped without it.

use std::path::Path;

use serde_json::json;

use crate::support::{Outcome, fields, golden, program};

/// Runs the program with a cache folder of its own.
fn lily_with_cache(cache: &Path, args: &[&str]) -> Outcome {
    let output = program().env("XDG_CACHE_HOME", cache).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

#[test]
fn exported_kernels_are_the_same_files_after_an_import() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    let file = folder.path().join("kernels");
    let (file, model) = (file.to_str().unwrap(), golden("odd"));
    let export =
        ["kernels", "export", file, "--arch", "sm_80", "-m", &model, "--chunk", "16", "--json"];
    let exported = lily_with_cache(&here, &export);
    if exported.code == Some(1) && exported.stderr.contains("found no NVRTC library") {
        assert!(std::env::var_os("LILY_NVRTC").is_none(), "{exported:?}");
        assert!(!Path::new(file).exists());
        println!("skipped: {}", exported.stderr);
        return;
    }
    let exported = exported.json();
    assert_eq!(fields(&exported), ["architecture", "bytes", "file", "kernels"]);
    let kernels = exported["kernels"].as_u64().unwrap();
    assert!(kernels > 20, "{exported}");
    let import = ["kernels", "import", file, "--json"];
    let imported = lily_with_cache(&there, &import).json();
    assert_eq!(imported["new"], json!(kernels));
    assert_eq!(imported["architecture"], json!("sm_80"));
    let contents = |cache: &Path| {
        let files = std::fs::read_dir(cache.join("lily/cuda")).unwrap().flatten();
        let mut files: Vec<_> =
            files.map(|f| (f.file_name(), std::fs::read(f.path()).unwrap())).collect();
        files.sort();
        files
    };
    assert_eq!(contents(&there), contents(&here));
    assert_eq!(lily_with_cache(&there, &import).json()["new"], json!(0));

    // Without NVRTC: all of it comes from the cache, so that the file is the same.
    let again = folder.path().join("again");
    let mut export = export;
    export[2] = again.to_str().unwrap();
    let mut command = program();
    command.env("XDG_CACHE_HOME", &there).env("LILY_NVRTC", folder.path().join("nothing"));
    assert!(command.args(export).output().unwrap().status.success());
    assert_eq!(std::fs::read(again).unwrap(), std::fs::read(file).unwrap());
}

#[test]
fn damaged_and_foreign_exports_leave_the_cache_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernels");
    let import = |text: &str| {
        std::fs::write(&file, text).unwrap();
        lily_with_cache(folder.path(), &["kernels", "import", file.to_str().unwrap()])
    };
    import("PK\u{3}\u{4} a zip file").assert_fails("kernels is no export of compiled kernels; ");
    import("lily compiled kernels 1\nsm_90a\n").assert_fails("kernels is damaged or cut off; ");
    import("lily compiled kernels 9\nsm_90a\n").assert_fails("of another version of lily");
    if cfg!(unix) {
        // Read to its end, it would fill the memory; and opened, a pipe would wait for its writer.
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in ["/dev/zero", pipe.to_str().unwrap()] {
            let refused = lily_with_cache(folder.path(), &["kernels", "import", path]);
            refused.assert_fails(&format!("cannot read {path}: it is no regular file"));
        }
        std::fs::remove_file(pipe).unwrap();
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn an_export_without_nvrtc_and_one_for_an_old_gpu_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernels");
    let file = file.to_str().unwrap();
    let mut command = program();
    command.env("XDG_CACHE_HOME", folder.path()).env("LILY_NVRTC", folder.path().join("nothing"));
    let export = ["kernels", "export", file, "-m", "tiny", "--arch"];
    let output = command.args(export).arg("sm_90a").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("found no NVRTC library")
            && error.contains("with LILY_NVRTC")
            && !error.contains("another machine"),
        "{error}"
    );
    assert_eq!((output.status.code(), Path::new(file).exists()), (Some(1), false));
    for unknown in ["sm_75", "sm_999"] {
        let refused = lily_with_cache(folder.path(), &[&export[..], &[unknown]].concat());
        refused.assert_usage("expected a GPU generation, one of sm_80, sm_86, ");
    }
    let short = lily_with_cache(folder.path(), &[&export[..], &["sm_90"]].concat());
    short.assert_usage(
        "expected sm_90a, which is what a GPU of this generation asks for, found sm_90",
    );
}
