//! Golden models and engines for the tests of this crate.

pub mod astray;
pub mod faulty;
pub mod gpu;
pub mod layers;
pub mod nano;
pub mod pair;
pub mod plan_model;
pub mod replay;
pub mod rig;
pub mod spoil;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lily_cpu::{CpuDevice, CpuOptions, Numerics, Simd};
use lily_kernels::{ModelShape, table};
use lily_model::engine::{Engine, EngineError, EngineOptions};
use lily_model::plan::model_shape;
use lily_model::{Checkpoint, parse_header};
use lily_plan::{Device, Interpreter, Precision};
use serde::Deserialize;

/// All golden models: real head sizes, other head sizes, dimensions that share no factor with the
/// real ones, unconverted bfloat16, mixed 4 and 8 bits.
pub const GOLDEN: [&str; 5] = ["heads", "generic", "odd", "raw", "mixed"];

/// A golden model with its recorded results.
pub struct Golden {
    /// Its folder.
    pub folder: PathBuf,
    /// Prompts, and what follows them greedily.
    pub prompts: Prompts,
    /// Logits `[tokens, vocab]` of each prompt, in f32 by the reference.
    pub logits: Vec<Vec<f32>>,
}

/// `prompts.json`.
#[derive(Deserialize)]
pub struct Prompts {
    /// Token ids.
    pub prompts: Vec<Vec<u32>>,
    /// Greedy ids after each prompt.
    pub greedy: Vec<Vec<u32>>,
    /// Distance of the two largest logits at each greedy id.
    pub greedy_logit_gaps: Vec<Vec<f32>>,
    /// Index of the prompt whose hidden states are recorded.
    pub hidden_prompt: usize,
}

impl Golden {
    /// Reads a golden model: from the folder that `LILY_GOLDEN_MODELS` names, or from the repository that this was built in.
    pub fn open(name: &str) -> Self {
        let repository = || Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
        let golden = std::env::var_os("LILY_GOLDEN_MODELS").map_or_else(repository, PathBuf::from);
        let folder = golden.join(name);
        let text = std::fs::read_to_string(folder.join("prompts.json")).expect("prompts.json");
        let prompts: Prompts = serde_json::from_str(&text).expect("prompts.json");
        let mut tensors = read_floats(&folder.join("logits_hf32.safetensors"));
        let logits = prompts
            .prompts
            .iter()
            .map(|p| tensors.remove(&format!("logits.{}", p.len())).expect("logits of the prompt"))
            .collect();
        Self { folder, prompts, logits }
    }

    /// Tensors of another file of the folder.
    pub fn tensors(&self, file: &str) -> BTreeMap<String, Vec<f32>> {
        read_floats(&self.folder.join(file))
    }

    /// Dimensions of the model.
    pub fn shape(&self) -> ModelShape {
        model_shape(Checkpoint::open(&self.folder).expect("the checkpoint opens").config())
    }

    /// An engine on a device.
    pub fn engine(&self, device: Box<dyn Device>, options: EngineOptions) -> Engine {
        load(&self.folder, device, options).expect("the golden model loads")
    }
}

/// An engine for a folder, or why its model does not run.
pub fn load(
    folder: &Path,
    mut device: Box<dyn Device>,
    options: EngineOptions,
) -> Result<Engine, EngineError> {
    let checkpoint = Checkpoint::open(folder).expect("the checkpoint opens");
    let shape = model_shape(checkpoint.config());
    let weights = checkpoint.weights().expect("the weights are complete");
    device.weight_files(checkpoint.mapped_files());
    Engine::new(device, shape, weights, options)
}

/// A CPU device with two threads, and the instruction set that the environment names.
pub fn cpu(numerics: Numerics) -> Box<dyn Device> {
    let simd = Simd::from_environment().expect("an instruction set of this machine");
    Box::new(CpuDevice::new(CpuOptions { numerics, threads: 2, simd, ..CpuOptions::default() }))
}

/// The interpreter; `checked` enforces declared ranges.
pub fn interpreter(precision: Precision, checked: bool) -> Box<dyn Device> {
    Box::new(Interpreter::new(table::reference, precision, checked))
}

/// f32 tensors of a safetensors file.
pub fn read_floats(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let file = std::fs::read(path).expect("a golden file");
    let header = parse_header(&file).expect("a whole safetensors file");
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    header.into_iter().map(|(name, e)| (name, floats(&file[e.bytes]))).collect()
}

/// Index of the largest value, lowest on ties.
pub fn argmax(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, &v) in values.iter().enumerate() {
        if v > values[best] {
            best = i;
        }
    }
    best
}

/// Largest difference; NaN counts as infinite.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let difference = |(a, b): (&f32, &f32)| {
        let d = (a - b).abs();
        if d.is_nan() { f32::INFINITY } else { d }
    };
    a.iter().zip(b).map(difference).fold(0.0, f32::max)
}

/// Root mean square of the difference, relative to `want`.
pub fn relative_rms(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(g - w)).sum();
    let size: f64 = want.iter().map(|&w| square(w)).sum();
    (error / size).sqrt()
}
