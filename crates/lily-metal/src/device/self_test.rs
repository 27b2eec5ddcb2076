//! Whether tensor operations multiply right on this device: a product of small whole numbers, which is exact, by the
//! words that kernels use (`tile/tensor.h`). Users report systems on which such products are wrong without an error.

use half::bf16;
use lily_kernels::gpu::{HEADERS, Source};

use super::MetalDevice;
use crate::arena::{AllocationId, Place};
use crate::chip::SelfTest;
use crate::encoder::{PipelineId, Prepared, Work, record_one};
use crate::machine::{Host, HostError, Wanted};

/// Rows of the tile, columns, and the length of the sums, in steps of 64.
const ROWS: usize = 32;
const COLUMNS: usize = 64;
const STEP: usize = 64;
const STEPS: usize = 3;
const K: usize = STEP * STEPS;

/// Threads: the four simdgroups that multiply a tile together.
const THREADS: u32 = 128;

const TEXT: &str = "\
#line 1 \"self_test/kernel.metal\"
constant constexpr uint COLUMNS = 64;
constant constexpr uint STEP = 64;
constant constexpr uint PITCH = STEP + 8;

[[kernel, max_total_threads_per_threadgroup(128)]] void tensor_self_test(
    constant Args& args [[buffer(0)]],
    const device bfloat* a [[buffer(1)]],
    const device bfloat* b [[buffer(2)]],
    device float* out [[buffer(3)]],
    uint tid [[thread_index_in_threadgroup]])
{
    threadgroup bfloat left[TILE_ROWS * PITCH];
    threadgroup bfloat right[COLUMNS * PITCH];
    threadgroup float result[TILE_ROWS * COLUMNS];

    constexpr auto descriptor = matmul2d_descriptor(
        TILE_ROWS, COLUMNS, STEP, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroups<4>> product;
    auto sums = product.get_destination_cooperative_tensor<TileOperand, TileOperand, float>();
    tile_clear(sums);
    const uint k = args.steps * STEP;
    for (uint step = 0; step < args.steps; step++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = tid; i < TILE_ROWS * STEP; i += 128) {
            left[i / STEP * PITCH + i % STEP] = a[i / STEP * k + step * STEP + i % STEP];
        }
        for (uint i = tid; i < COLUMNS * STEP; i += 128) {
            right[i / STEP * PITCH + i % STEP] = b[i / STEP * k + step * STEP + i % STEP];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        TileOperand rows = tile_operand(left, STEP, TILE_ROWS, PITCH);
        TileOperand columns = tile_operand(right, STEP, COLUMNS, PITCH);
        product.run(rows, columns, sums);
    }
    tile_store(sums, result, COLUMNS, 0);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < TILE_ROWS * COLUMNS; i += 128) {
        out[i] = result[i];
    }
}
";

/// Complete source of the test.
fn source() -> Source {
    let header = HEADERS.iter().find(|(name, _)| *name == "tensor.h").map_or("", |(_, text)| text);
    let text = format!(
        "#include <metal_stdlib>\nusing namespace metal;\n#define TENSOR_OPERATIONS 1\n\
         #define TILE_ROWS {ROWS}\nstruct Args {{ uint steps; }};\n#line 1 \"tensor.h\"\n{header}\n{TEXT}"
    );
    Source { text, function: "tensor_self_test" }
}

/// An element of the left operand, and one of the right: whole numbers up to 8, whose sums of products are exact in
/// f32.
fn left(row: usize, k: usize) -> i32 {
    ((row * 7 + k * 3) % 17) as i32 - 8
}

fn right(column: usize, k: usize) -> i32 {
    ((column * 5 + k * 11) % 15) as i32 - 7
}

fn bytes(rows: usize, element: impl Fn(usize, usize) -> i32) -> Vec<u8> {
    let elements = (0..rows).flat_map(|row| (0..K).map(move |k| (row, k)));
    elements.flat_map(|(row, k)| bf16::from_f32(element(row, k) as f32).to_le_bytes()).collect()
}

impl<H: Host> MetalDevice<H> {
    /// Runs the test, before anything is allocated, and tells the host.
    pub(super) fn test_tensors(&mut self) {
        let result = match self.multiply() {
            Ok(true) => SelfTest::Passed,
            // A text that does not compile is a failure like a wrong number: kernels take the other form.
            Ok(false) | Err(_) => SelfTest::Failed,
        };
        self.host.tested(result);
    }

    /// Whether every number of the product is right.
    fn multiply(&mut self) -> Result<bool, HostError> {
        let source = source();
        let infos = self.host.compile(&[Wanted { kernel: "self_test", source: &source }])?;
        let pipeline = PipelineId(self.pipelines.len());
        self.pipelines.extend(infos);
        let contents = [
            (STEPS as u32).to_le_bytes().to_vec(),
            bytes(ROWS, left),
            bytes(COLUMNS, right),
            bytemuck::cast_slice(&[f32::NAN; ROWS * COLUMNS]).to_vec(),
        ];
        let (mut places, mut end) = (Vec::new(), 0u64);
        for content in &contents {
            let bytes = content.len() as u64;
            places.push(Place { allocation: AllocationId(0), offset: end, bytes });
            end = (end + bytes).next_multiple_of(self.limits.constant_alignment);
        }
        self.host.allocate(&[end])?;
        for (place, content) in places.iter().zip(&contents) {
            self.host.bytes(*place)?.copy_from_slice(content);
        }
        let out = places[3];
        let prepared = Prepared { pipeline, places, grid: [1; 3], threads: THREADS };
        if self.run_body(record_one(&prepared, Work::SelfTest))?.is_some() {
            return Ok(false);
        }
        let found = self.host.bytes(out)?;
        let found = found.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        Ok(found.eq(expected()))
    }
}

/// The product, by rows.
fn expected() -> impl Iterator<Item = f32> {
    let pairs = (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| (row, column)));
    pairs.map(|(row, column)| (0..K).map(|k| left(row, k) * right(column, k)).sum::<i32>() as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chip::Footprint;

    #[test]
    fn the_product_tells_rows_columns_and_steps_apart() {
        let product: Vec<f32> = expected().collect();
        assert_eq!(product.len(), ROWS * COLUMNS);
        for (i, j) in [(0, 1), (0, COLUMNS), (5 * COLUMNS + 3, 3 * COLUMNS + 5)] {
            assert_ne!(product[i], product[j], "{i} {j}");
        }
        let short: i32 = (0..STEP).map(|k| left(3, k) * right(4, k)).sum();
        assert_ne!(product[3 * COLUMNS + 4], short as f32);
        assert!(product.iter().all(|v| v.abs() < 2f32.powi(24)));
    }

    #[test]
    fn its_text_fits_every_apple_gpu() {
        let footprint = Footprint::of(&source()).expect("its sizes are constants");
        assert_eq!(footprint.check(THREADS), Ok(()));
    }
}
