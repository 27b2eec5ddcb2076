//! Measures products of packed rows: `cargo run --release -p lily-cpu --example
//! product`, with the names of instruction sets if not the best one is meant.
//!
//! One token: GB/s of packed rows (codes, scales, biases) of a matrix larger than the caches, and of
//! plain reads of as many bytes. Several tokens: 10^9 multiply-adds a second. Each thread has its
//! part of the rows and is timed piece by piece; the rates of the fastest tenth are added up, so that
//! other programs that take the processor for a while do not count.

use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use lily_kernels::cpu::{Inputs, Numerics, Simd, Wanted, multiply};
use lily_plan::{GROUP, RowFormat, RowSegment, WeightMatrix};

/// Reduction length of Qwen3.6-35B-A3B's projections.
const K: usize = 2048;
/// Rows: 151 MB of 4-bit weights, more than any last-level cache here.
const ROWS: usize = 131_072;
/// Rows of a tile.
const TILE: usize = 128;

/// Rows timed together: 0.3 MB of 4-bit weights, some tens of microseconds.
const PIECE: usize = 256;

fn main() {
    println!("{ROWS} rows of {K}");
    for format in [RowFormat::Q4, RowFormat::Q8] {
        let m = matrix(format);
        let (name, row_gb) = (format.name(), format.row_bytes(K) as f64 / 1e9);
        for threads in [1, 2] {
            let rate = row_gb * rows_per_second(threads, 5, ROWS, |rows| read(&m, rows));
            println!("{name} read, {threads} threads: {rate:.1} GB/s");
        }
        for simd in chosen() {
            measure(simd, &m, (name, row_gb));
        }
    }
}

/// The instruction sets named on the command line; otherwise the best one.
fn chosen() -> Vec<Simd> {
    let named = |name: String| Simd::named(&name).unwrap_or_else(|error| panic!("{error}"));
    let names: Vec<Simd> = std::env::args().skip(1).map(named).collect();
    if names.is_empty() { vec![Simd::detect()] } else { names }
}

fn measure(simd: Simd, m: &WeightMatrix, (format, row_gb): (&str, f64)) {
    let level = simd.level().name();
    for numerics in [Numerics::Int8, Numerics::Exact] {
        let name = format!("{format} {numerics:?} {level}");
        let one = inputs(simd, numerics, m, 1);
        let multiply_one = |rows| multiply_rows(simd, m, &one, rows);
        for threads in [1, 2] {
            let rate = row_gb * rows_per_second(threads, 5, ROWS, multiply_one);
            println!("{name}, 1 token, {threads} threads: {rate:.1} GB/s");
        }
        let rate = row_gb * rows_per_second(1, 200, PIECE, multiply_one);
        println!("{name}, 1 token, from cache: {rate:.1} GB/s");
        for tokens in [2, 4, 8, 32, 64] {
            let many = inputs(simd, numerics, m, tokens);
            let work = |rows| multiply_rows(simd, m, &many, rows);
            let rate = (K * tokens) as f64 * rows_per_second(1, 20, 4 * PIECE, work) / 1e9;
            println!("{name}, {tokens} tokens: {rate:.1} GMAC/s");
        }
    }
}

/// Every stored byte is different noise; all rows of a block lie side by side.
fn matrix(format: RowFormat) -> WeightMatrix {
    let mut state = 1u64;
    let mut noise = |n: usize| -> Bytes {
        let words = (0..n / 8).flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state ^ (state >> 29)).to_le_bytes()
        });
        words.collect::<Vec<u8>>().into()
    };
    // bfloat16 0.0078: the exponent of a usual scale.
    let values = || Bytes::from([0x00, 0x3c].repeat(ROWS * K / GROUP));
    let segment = RowSegment::whole(
        "noise",
        format,
        ROWS,
        noise(ROWS * format.code_bytes(K)),
        values(),
        values(),
    );
    WeightMatrix::new(1, ROWS, K, vec![segment]).expect("one segment of all rows")
}

fn inputs(simd: Simd, numerics: Numerics, m: &WeightMatrix, tokens: usize) -> Inputs {
    let mut inputs = Inputs::default();
    inputs.clear(simd, Wanted::by(numerics, m), K, tokens);
    for t in 0..tokens {
        let row: Vec<f32> = (0..K).map(|i| ((i * 37 + t * 11) % 101) as f32 - 50.0).collect();
        inputs.push(&row, 0.02);
    }
    inputs
}

/// Goes through each thread's part of the rows, piece by piece.
fn rows_per_second(
    threads: usize,
    passes: usize,
    rows: usize,
    work: impl Fn(Range<usize>) -> f32 + Sync,
) -> f64 {
    let share = rows / threads;
    let part = |t: usize| {
        let mut seconds: Vec<f64> = Vec::new();
        for _ in 0..passes {
            for first in (t * share..(t + 1) * share).step_by(PIECE) {
                let start = Instant::now();
                std::hint::black_box(work(first..first + PIECE));
                seconds.push(start.elapsed().as_secs_f64());
            }
        }
        seconds.sort_by(f64::total_cmp);
        PIECE as f64 / seconds[seconds.len() / 10]
    };
    std::thread::scope(|scope| {
        let part = &part;
        let others: Vec<_> = (1..threads).map(|t| scope.spawn(move || part(t))).collect();
        let first = part(0);
        others.into_iter().map(|t| t.join().expect("a piece does not panic")).sum::<f64>() + first
    })
}

fn multiply_rows(simd: Simd, m: &WeightMatrix, inputs: &Inputs, rows: Range<usize>) -> f32 {
    let mut space = Vec::with_capacity(TILE * inputs.tokens());
    let mut total = 0.0;
    for first in rows.step_by(TILE) {
        let rows = first..first + TILE;
        total += multiply(simd, m, (0, rows), inputs, 0..inputs.tokens(), &mut space)[0];
    }
    total
}

/// What memory gives: as many bytes of the codes as the rows have with scales and biases.
fn read(m: &WeightMatrix, rows: Range<usize>) -> f32 {
    let codes = &m.segments()[0].codes;
    let row_bytes = m.segments()[0].format.row_bytes(K);
    let bytes = rows.len() * row_bytes;
    let begin = (rows.start * row_bytes) % (codes.len() - bytes);
    let mut sums = [0u64; 16];
    for block in codes[begin..begin + bytes].as_chunks::<8>().0.as_chunks::<16>().0 {
        for (sum, word) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0u64, |a, &b| a.wrapping_add(b)) as f32
}
