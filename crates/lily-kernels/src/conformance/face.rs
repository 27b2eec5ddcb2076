//! Runs the CPU face of a case's kernel without a device: for claims that [`check`](super::check)
//! cannot make, such as what becomes of NaN.

use half::bf16;
use lily_plan::{Element, Interpreter, Weight, WeightMatrix};

use super::{Case, Contents, precision};
use crate::cpu::{CpuLaunch, Numerics, Operand, Scratch, SharedSlice, Simd, next_stamp};
use crate::table;

enum Store {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    I32(Vec<i32>),
    Matrix(WeightMatrix),
}

/// Runs the tiles of the case's launch, the last one first, and returns every buffer.
///
/// # Panics
/// If the kernel is not in the table or the case is not complete.
pub fn run_face(case: &Case, numerics: Numerics) -> Vec<Contents> {
    let launch = &case.plan.launches()[0];
    let kernel = table::find(launch.kernel).expect("cases name kernels of the table");
    let buffers = case.plan.buffers();
    let mut stores: Vec<Store> = buffers
        .iter()
        .zip(&case.contents)
        .map(|((_, buffer), contents)| match contents {
            Contents::Weight => match &case.weights[&buffer.name] {
                Weight::Matrix(matrix) => Store::Matrix(matrix.clone()),
                Weight::Vector(values) => Store::F32(values.clone()),
            },
            Contents::Int(values) => Store::I32(values.clone()),
            Contents::Float(values) if buffer.element == Element::Bf16 => {
                Store::Bf16(values.iter().map(|&v| bf16::from_f32(v)).collect())
            }
            Contents::Float(values) => Store::F32(values.clone()),
        })
        .collect();
    let operands: Vec<Operand<'_>> = stores
        .iter_mut()
        .map(|store| match store {
            Store::F32(values) => Operand::F32(SharedSlice::new(values)),
            Store::Bf16(values) => Operand::Bf16(SharedSlice::new(values)),
            Store::I32(values) => Operand::I32(SharedSlice::new(values)),
            Store::Matrix(matrix) => Operand::Matrix(matrix),
        })
        .collect();
    let operands: Vec<Operand<'_>> =
        launch.bindings.iter().map(|b| operands[b.buffer.index()]).collect();
    let view = CpuLaunch {
        args: &launch.args,
        operands: &operands,
        numerics,
        simd: Simd::detect(),
        stamp: next_stamp(),
    };
    let mut scratch = Scratch::default();
    for tile in (0..(kernel.cpu.tiles)(&view)).rev() {
        (kernel.cpu.run)(&view, tile, &mut scratch);
    }
    let contents = |(store, before): (Store, &Contents)| match (store, before) {
        (_, Contents::Weight) | (Store::Matrix(_), _) => Contents::Weight,
        (Store::F32(values), _) => Contents::Float(values),
        (Store::Bf16(values), _) => Contents::Float(values.iter().map(|v| v.to_f32()).collect()),
        (Store::I32(values), _) => Contents::Int(values),
    };
    stores.into_iter().zip(&case.contents).map(contents).collect()
}

/// Runs the case's launch with its reference, declared ranges unchecked, and returns every buffer.
///
/// # Panics
/// If the launch fails.
pub fn run_reference(case: &Case) -> Vec<Contents> {
    let mut device = Interpreter::new(table::reference, precision(case), false);
    super::run(&mut device, case, &case.contents).expect("an unchecked reference cannot fail")
}
