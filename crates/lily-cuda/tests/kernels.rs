//! Every kernel compiles to machine code with NVRTC, without spills; needs NVRTC, but no GPU.

use std::collections::BTreeMap;

use lily_cuda::CudaError;
use lily_cuda::compiler::{Architecture, Compiler, Resources};
use lily_kernels::conformance::{Bar, cases_in};
use lily_kernels::gpu::{Family, GpuLaunch, MatrixFormat, Products, Source, Target};
use lily_kernels::table;
use lily_plan::Weight;

#[test]
fn every_kernel_compiles_without_spills() {
    let library = std::env::var_os("LILY_NVRTC").map(Into::into);
    let compiler = Compiler::new(library, None);
    if let Err(error @ CudaError::NoNvrtc { .. }) = compiler.nvrtc_version() {
        println!("skipped: {error}");
        return;
    }
    let mut sources: BTreeMap<(String, u32), Source> = BTreeMap::new();
    for (major, minor) in [(9, 0), (8, 0)] {
        let target = Target {
            family: Family::Nvidia { capability: 10 * major + minor },
            products: Products::SimdgroupMatrix,
        };
        for case in cases_in(Bar::Bf16.precision(), table::cases) {
            let launch = &case.plan.launches()[0];
            let Some(face) = table::find(launch.kernel).and_then(|k| k.gpu) else { continue };
            let format = |b: &lily_plan::Binding| match case
                .weights
                .get(&case.plan.buffers().get(b.buffer).name)?
            {
                Weight::Matrix(matrix) => Some(MatrixFormat::of(matrix)),
                Weight::Vector(_) => None,
            };
            let formats: Vec<_> = launch.bindings.iter().map(format).collect();
            let view = GpuLaunch {
                args: &launch.args,
                grid: launch.grid,
                threads: launch.threads,
                formats: &formats,
                target,
            };
            let Ok(entry) = (face.entry)(&view) else { continue };
            let source = Source::assemble(launch.kernel, &face, &entry);
            // One variant of each function and set of constants.
            let key = format!("{} {:?}", entry.function, entry.constants);
            sources.entry((key, 10 * major + minor)).or_insert(source);
        }
    }
    let mut failures = Vec::new();
    for ((key, capability), source) in &sources {
        let architecture = Architecture::of(capability / 10, capability % 10);
        match compiler.compile(source.function, source, &architecture) {
            Err(error) => failures.push(error.to_string()),
            Ok(cubin) => {
                let used = Resources::parse(&cubin.report).unwrap_or_default();
                println!(
                    "{:28} {:8} {:4} registers {:6} bytes shared {:4} bytes spilled  {key}",
                    source.function,
                    architecture.name(),
                    used.registers,
                    used.shared_bytes,
                    used.spill_bytes
                );
                if used.spill_bytes > 0 {
                    failures.push(format!("{key} spills {} bytes", used.spill_bytes));
                }
            }
        }
    }
    assert!(!sources.is_empty(), "no kernel has a Metal text");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
