//! `--device auto` on a machine with an NVIDIA driver: whatever is missing, the processor answers, and one line says why.
//! The driver is pretended (`driver.c`), so nothing here runs on a GPU.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with the pretended driver and a model of real size.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn get() -> &'static Self {
        static MACHINE: OnceLock<Machine> = OnceLock::new();
        MACHINE.get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/auto/driver.c");
            let driver = folder.path().join("libcuda.so");
            let built = Command::new("cc")
                .args(["-shared", "-fPIC", "-o"])
                .args([&driver, &source])
                .status();
            assert!(built.expect("a C compiler").success());
            std::fs::write(folder.path().join("large.json"), large().to_string()).unwrap();
            Self { folder }
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What `lily` prints for people on this machine with a driver of these settings.
    fn lily(&self, settings: &[(&str, &str)], args: &[&str]) -> (bool, String, String) {
        let mut lily = Command::new(env!("CARGO_BIN_EXE_lily"));
        lily.args(args)
            .current_dir(self.folder.path())
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("LILY_NVRTC", self.path("libcuda.so"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .envs(settings.iter().copied());
        let output = lily.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.success(), text(output.stdout), text(output.stderr))
    }

    /// Measures the large model and gives what is said on the way.
    fn bench(&self, settings: &[(&str, &str)], more: &[&str]) -> Vec<String> {
        let bench = ["bench", "--preset", "large.json", "--lengths=2", "--decode=1", "--reps=1"];
        let (ok, out, said) = self.lily(settings, &[&bench, more].concat());
        assert!(ok && out.lines().count() == 2, "{settings:?}: {out}{said}");
        assert!(said.contains("random weights on cpu, "), "{settings:?}: {said}");
        said.lines().filter(|line| !line.contains(" on cpu, ")).map(Into::into).collect()
    }
}

/// Shapes of 1.4 GB of weights of which a token needs few.
fn large() -> Value {
    let mut config = lily_model::synth::preset("tiny").unwrap();
    let text = config["text_config"].as_object_mut().unwrap();
    let kinds = text["layer_types"].as_array().unwrap();
    let kinds: Vec<Value> = kinds.iter().cycle().take(3 * kinds.len()).cloned().collect();
    for (field, value) in [
        ("num_experts", json!(256)),
        ("hidden_size", json!(512)),
        ("moe_intermediate_size", json!(512)),
        ("shared_expert_intermediate_size", json!(512)),
        ("num_hidden_layers", json!(12)),
        ("layer_types", json!(kinds)),
    ] {
        text.insert(field.into(), value);
    }
    config
}

const FREE: (&str, &str) = ("PRETEND_FREE", "16000000000");

#[test]
fn what_a_gpu_lacks_is_said_in_one_line_and_the_processor_runs_the_model() {
    let machine = Machine::get();
    for (settings, reason) in [
        (
            vec![FREE, ("PRETEND_CAPABILITY", "75")],
            "Pretend GPU has compute capability 7.5, need at least 8.0",
        ),
        (
            vec![FREE, ("PRETEND_VERSION", "11040")],
            "the NVIDIA driver offers CUDA 11.4, need at least 11.8",
        ),
        (vec![FREE, ("PRETEND_INIT", "999")], "cuInit failed: pretended failure"),
        (vec![("PRETEND_FREE", "1000000000")], "the weights need "),
        (vec![FREE, ("LILY_NVRTC", "/nowhere")], "compiled once by NVRTC, which was not found"),
        // All is there, and nothing works.
        (vec![FREE], "NVRTC does not compile kernel `"),
    ] {
        let said = machine.bench(&settings, &[]);
        let [line] = &said[..] else { panic!("{reason}: {said:?}") };
        assert!(line.starts_with("lily: the processor is used, not the NVIDIA GPU: "), "{line}");
        assert!(line.contains(reason) && line.contains("--device cuda"), "{line}, need {reason}");
    }
}

/// A library that has the driver's name and none of its functions.
#[test]
fn a_driver_without_functions_is_no_panic() {
    let machine = Machine::get();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("empty.c");
    std::fs::write(&source, "int nothing;\n").unwrap();
    let driver = folder.path().join("libcuda.so");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&driver, &source]).status();
    assert!(built.expect("a C compiler").success());
    let empty = [FREE, ("LD_LIBRARY_PATH", folder.path().to_str().unwrap())];
    let said = machine.bench(&empty, &[]);
    assert!(said.len() == 1 && said[0].contains("has no such function"), "{said:?}");
    let (ok, _, said) = machine.lily(&empty, &["doctor", "--device", "cuda"]);
    assert!(!ok && said.contains("cuInit") && !said.contains("panicked"), "{said}");
}

#[test]
fn nothing_is_said_where_no_gpu_could_be_missed() {
    let machine = Machine::get();
    // No device; the toolkit's library to link against.
    for init in ["100", "34"] {
        assert_eq!(machine.bench(&[FREE, ("PRETEND_INIT", init)], &[]), [""; 0], "{init}");
    }
    let old = [FREE, ("PRETEND_CAPABILITY", "75")];
    for options in [&["--exact"][..], &["--threads=1"], &["--load=read"], &["--device=cpu"]] {
        assert_eq!(machine.bench(&old, options), [""; 0], "{options:?}");
    }
    // Below 1 GB.
    let tiny = ["bench", "--preset", "tiny", "--lengths=2", "--decode=1", "--reps=1"];
    let (ok, _, said) = machine.lily(&old, &tiny);
    assert!(ok && said.lines().count() == 1 && said.contains(" on cpu, "), "{said}");
}

#[test]
fn a_gpu_that_was_asked_for_is_never_replaced() {
    let machine = Machine::get();
    let bench = ["bench", "--preset=tiny", "--lengths=2", "--decode=1", "--device=cuda"];
    for (settings, reason) in [
        (vec![FREE, ("PRETEND_CAPABILITY", "75")], "need at least 8.0 (Ampere); use --device cpu"),
        (vec![FREE, ("PRETEND_INIT", "100")], "the NVIDIA driver finds 0 GPUs"),
        (vec![FREE], "NVRTC does not compile kernel `"),
    ] {
        let (ok, out, said) = machine.lily(&settings, &bench);
        assert!(!ok && out.is_empty() && said.contains(reason), "{settings:?}: {out}{said}");
    }
}
