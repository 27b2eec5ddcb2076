//! Random weights in memory, for measuring: the shapes and formats of a model without its file.
//!
//! All matrices are windows of one pool of random rows, and those of one shape share their scales, so that a model of
//! 19.5 GB takes the memory of its largest matrices; a device that copies its weights gives each of them memory of its own.

use std::collections::HashMap;
use std::sync::Arc;

use super::random::{Stream, normal, uniform};
use crate::plan::{MatrixBytes, declare};
use bytes::Bytes;
use half::bf16;
use lily_kernels::{ModelShape, SessionShape};
use lily_plan::{
    BufferKind, Buffers, Element, GROUP, Precision, RowFormat, RowSegment, Weight, WeightMatrix,
    Weights,
};

/// Codes and scales of rows, shared by all matrices of one format and shape.
#[derive(Clone)]
struct Pool {
    codes: Bytes,
    scales: Bytes,
    biases: Bytes,
}

/// Weights of exact shapes with values of about 1 over the square root of the row length. Matrices are
/// 4-bit, the router 8-bit, as in the published checkpoints.
pub fn random_weights(shape: &ModelShape, seed: u64) -> Weights {
    let table = weight_buffers(shape);
    let mut weights = Weights::new();
    let declared: Vec<_> = table.iter().filter(|(_, b)| b.kind == BufferKind::Weight).collect();
    let largest = declared.iter().map(|(_, b)| b.elements()).max().unwrap_or(0);
    let mut pools = Pools {
        codes: random_bytes(seed, largest.div_ceil(2)),
        scales: Stream::new(seed, "scales"),
        known: HashMap::new(),
    };
    for (_, buffer) in declared {
        let name = buffer.name.clone();
        let role = name.rsplit('.').next().unwrap_or(&name);
        let weight = match (buffer.element, &buffer.shape[..]) {
            (Element::Matrix { .. }, &[rows, k]) => pools.matrix(role, 1, rows, k),
            (Element::Matrix { .. }, &[experts, rows, k]) => pools.matrix(role, experts, rows, k),
            _ => Weight::Vector(vector(seed, &name, role, buffer.elements())),
        };
        weights.insert(name, weight);
    }
    weights
}

/// The declared weights; sessions of any size have the same.
fn weight_buffers(shape: &ModelShape) -> Arc<Buffers> {
    let session = SessionShape {
        batch: 1,
        tokens: 1,
        capacity: 2,
        run_ahead: 1,
        splits: 1,
        ring: 1,
        logit_rows: 1,
        precision: Precision::EXACT,
    };
    declare(shape, &session, &MatrixBytes::new()).table
}

/// Makes matrices out of as little memory as possible.
struct Pools {
    codes: Bytes,
    scales: Stream,
    /// By format, rows and row length.
    known: HashMap<(RowFormat, usize, usize), Pool>,
}

impl Pools {
    fn matrix(&mut self, role: &str, experts: usize, rows: usize, k: usize) -> Weight {
        let format = if role == "router" { RowFormat::Q8 } else { RowFormat::Q4 };
        let pool = self.pool(format, experts * rows, k);
        let segment = RowSegment {
            tensor: role.into(),
            format,
            experts: 0..experts,
            first_row: 0,
            row_step: 1,
            rows,
            source_row: 0,
            expert_stride: rows,
            codes: pool.codes,
            scales: pool.scales,
            biases: pool.biases,
        };
        Weight::Matrix(
            WeightMatrix::new(experts, rows, k, vec![segment])
                .expect("the pool has the size of the matrix"),
        )
    }

    /// Rows whose weights have mean 0: the bias is the negative middle of the codes.
    fn pool(&mut self, format: RowFormat, rows: usize, k: usize) -> Pool {
        if let Some(pool) = self.known.get(&(format, rows, k)) {
            return pool.clone();
        }
        let levels = (1u32 << format.bits()) as f64;
        let scale = (12.0 / k as f64).sqrt() / levels;
        // A short pattern, repeated: scales are read, never looked at.
        let pattern = 4096.min(rows * k / GROUP);
        let (mut scales, mut biases) = (Vec::new(), Vec::new());
        for group in 0..rows * k / GROUP {
            let word = self.scales.word((group % pattern) as u64);
            let scale = scale * (0.5 + uniform(word));
            scales.extend(bf16::from_f64(scale).to_le_bytes());
            biases.extend(bf16::from_f64(-scale * (levels - 1.0) / 2.0).to_le_bytes());
        }
        let bytes = rows * format.code_bytes(k);
        let codes = self.codes.slice(..bytes);
        let pool = Pool { codes, scales: scales.into(), biases: biases.into() };
        self.known.insert((format, rows, k), pool.clone());
        pool
    }
}

fn random_bytes(seed: u64, bytes: usize) -> Bytes {
    let stream = Stream::new(seed, "codes");
    let mut out = Vec::with_capacity(bytes + 8);
    for position in 0..bytes.div_ceil(8) as u64 {
        out.extend(stream.word(position).to_le_bytes());
    }
    out.truncate(bytes);
    out.into()
}

fn vector(seed: u64, name: &str, role: &str, elements: usize) -> Vec<f32> {
    let stream = Stream::new(seed, name);
    let value = |word: u64| match role {
        // As `values.rs` draws them.
        "A_log" => (0.05f64.ln() + uniform(word) * (3.0f64 / 0.05).ln()).exp().ln(),
        "dt_bias" => -4.0 + 4.5 * uniform(word),
        "conv1d" => 0.6 * normal(word),
        _ => 1.0 + 0.15 * normal(word),
    };
    (0..elements as u64).map(|i| value(stream.word(i)) as f32).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use crate::plan::model_shape;
    use crate::synth;

    #[test]
    fn every_weight_of_the_plan_is_there_and_the_pool_is_shared() {
        let preset = synth::preset("tiny").unwrap();
        let config = Config::from_json(&preset.to_string(), Path::new("tiny")).unwrap();
        let shape = model_shape(&config);
        let weights = random_weights(&shape, 7);
        lily_plan::check_weights(&weight_buffers(&shape), &weights).unwrap();
        let first = |name: &str| match &weights[name] {
            Weight::Matrix(m) => m.segments()[0].clone(),
            Weight::Vector(_) => panic!("{name} is a vector"),
        };
        let codes = |name: &str| first(name).codes.as_ptr();
        assert_eq!(codes("embed_tokens"), codes("layers.0.gate_up"));
        let scales = |name: &str| first(name).scales.as_ptr();
        assert_eq!(scales("layers.1.gate_up"), scales("layers.0.gate_up"));
        assert_ne!(scales("layers.0.down"), scales("layers.0.gate_up"));
    }
}
