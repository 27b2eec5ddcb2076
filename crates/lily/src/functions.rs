//! Functions of kernels that a model runs on an NVIDIA GPU.

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;
use lily_kernels::ModelShape;
use lily_kernels::gpu::{MatrixFormat, Source, Target};
use lily_model::engine::{EngineOptions, every_plan};
use lily_model::plan::MatrixBytes;

/// Requests that `lily serve` runs at once unless the command line says otherwise.
pub const SESSIONS: usize = 4;

/// A model and its engine, as far as they decide which functions run.
pub struct Functions<'a> {
    /// Dimensions.
    pub shape: &'a ModelShape,
    /// Formats of the weight matrices by buffer.
    pub formats: &'a HashMap<String, MatrixFormat>,
    /// Bytes of the weight matrices by buffer.
    pub matrices: &'a MatrixBytes,
    /// Context, sequences and chunk.
    pub options: &'a EngineOptions,
}

impl Functions<'_> {
    /// Every function that prompts and answers may need on `target`, by kernel.
    ///
    /// # Errors
    /// An option is outside of its range, or a launch has no function.
    pub fn on(&self, target: Target) -> Result<BTreeSet<(&'static str, Source)>> {
        let mut sources = BTreeSet::new();
        let mut unsupported = Ok(());
        every_plan(
            self.shape,
            self.options,
            lily_cuda::PRECISION,
            lily_cuda::FUSIONS,
            self.matrices,
            &mut |plan| {
                for (index, launch) in plan.launches().iter().enumerate() {
                    let name = |b: &lily_plan::Binding| &plan.buffers().get(b.buffer).name;
                    let formats: Vec<_> = launch
                        .bindings
                        .iter()
                        .map(|b| self.formats.get(name(b)).copied())
                        .collect();
                    match target.entry(launch, index, &formats) {
                        Ok((face, entry)) => {
                            let source = Source::assemble(launch.kernel, &face, &entry);
                            sources.insert((launch.kernel, source));
                        }
                        Err(error) if unsupported.is_ok() => unsupported = Err(error),
                        Err(_) => {}
                    }
                }
            },
        )?;
        unsupported?;
        Ok(sources)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use lily_cuda::compiler::Architecture;
    use lily_model::plan::{config_matrix_bytes, config_matrix_formats, model_shape};
    use lily_model::{Config, synth};

    use super::*;

    #[test]
    fn more_sequences_and_longer_contexts_need_no_other_functions() {
        let preset = synth::preset("tiny").expect("a preset");
        let config = synth::plan(&preset, 0).expect("a plan").config().to_string();
        let config = Config::from_json(&config, Path::new("tiny")).expect("a model");
        let with = |batch, context, chunk| {
            let options = EngineOptions { batch, context, chunk, ..EngineOptions::default() };
            let target = Architecture::of(9, 0).target();
            let functions = Functions {
                shape: &model_shape(&config),
                formats: &config_matrix_formats(&config),
                matrices: &config_matrix_bytes(&config),
                options: &options,
            };
            functions.on(target).expect("every launch has a function")
        };
        let all = with(SESSIONS, 65_536, 2048);
        for (batch, context, chunk) in [(1, 256, 512), (16, 4096, 2048), (3, 70_000, 1000)] {
            let needed = with(batch, context, chunk);
            assert!(needed.len() > 20 && needed.is_subset(&all), "{batch}, {context}, {chunk}");
        }
    }
}
