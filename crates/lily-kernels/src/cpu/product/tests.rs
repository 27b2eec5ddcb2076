//! Products of all formats against dequantised weights in f64.

use half::{bf16, f16};
use lily_plan::{GROUP, RowFormat, RowRef, RowSegment, WeightMatrix};

use super::*;
use crate::cpu::Numerics;

const FORMATS: [RowFormat; 5] =
    [RowFormat::Q4, RowFormat::Q8, RowFormat::Bf16, RowFormat::F16, RowFormat::F32];
const NUMERICS: [Numerics; 2] = [Numerics::Exact, Numerics::Int8];
const CODES: Wanted = Wanted { codes: true, values: false };

/// Random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In -1..1.
    fn value(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// Weights of about 1, scales of both signs; the bytes begin at an odd address.
fn matrix(random: &mut Random, format: RowFormat, rows: usize, k: usize) -> WeightMatrix {
    let mut codes = vec![0u8];
    let (mut scales, mut biases) = (vec![0u8], vec![0u8]);
    if format.is_quantised() {
        codes.extend((0..rows * format.code_bytes(k)).map(|_| random.bits() as u8));
        let levels = (1 << format.bits()) as f32;
        for _ in 0..rows * k / GROUP {
            let scale = random.value() * 2.0 / levels;
            let bias = -scale * levels / 2.0 + 0.1 * random.value();
            scales.extend(bf16::from_f32(scale).to_le_bytes());
            biases.extend(bf16::from_f32(bias).to_le_bytes());
        }
    } else {
        for v in random.values(rows * k) {
            match format {
                RowFormat::F32 => codes.extend(v.to_le_bytes()),
                // Miri lacks the instruction that the other conversion takes.
                RowFormat::F16 => codes.extend(f16::from_f32_const(v).to_le_bytes()),
                _ => codes.extend(bf16::from_f32(v).to_le_bytes()),
            }
        }
    }
    let part = |bytes: Vec<u8>| bytes::Bytes::from(bytes).slice(1..);
    let segment = RowSegment::whole("test", format, rows, part(codes), part(scales), part(biases));
    WeightMatrix::new(1, rows, k, vec![segment]).unwrap()
}

/// Both forms of the inputs, where both can be.
fn inputs(simd: Simd, numerics: Numerics, x: &[Vec<f32>]) -> Inputs {
    let k = x[0].len();
    let codes = numerics == Numerics::Int8 && k.is_multiple_of(GROUP);
    let mut inputs = Inputs::default();
    inputs.clear(simd, Wanted { codes, values: true }, k, x.len());
    x.iter().for_each(|row| inputs.push(row, 0.75));
    inputs
}

/// All results `[tokens, rows]` of one call.
fn products(simd: Simd, m: &WeightMatrix, inputs: &Inputs) -> Vec<f32> {
    let mut space = vec![f32::NAN; 5];
    multiply(simd, m, (0, 0..m.rows()), inputs, 0..inputs.tokens(), &mut space).to_vec()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Lengths with and without a ragged group, below and above eight groups.
fn lengths(format: RowFormat) -> &'static [usize] {
    match (format.is_quantised(), cfg!(miri)) {
        (true, true) => &[192],
        (true, false) => &[64, 128, 448, 512, 576, 1088, 2048],
        (false, true) => &[72],
        (false, false) => &[1, 3, 8, 63, 64, 65, 72, 200, 576, 1000],
    }
}

#[test]
fn products_agree_with_dequantised_weights_in_f64() {
    let mut random = Random(1);
    for (simd, numerics) in Simd::available().into_iter().flat_map(|s| NUMERICS.map(|n| (s, n))) {
        for format in FORMATS {
            for &k in lengths(format) {
                let tokens: &[usize] = if cfg!(miri) { &[2] } else { &[1, 2, 3, 4, 5, 9] };
                for &tokens in tokens {
                    let m = matrix(&mut random, format, if cfg!(miri) { 1 } else { 18 }, k);
                    let x: Vec<Vec<f32>> = (0..tokens).map(|_| random.values(k)).collect();
                    let got = products(simd, &m, &inputs(simd, numerics, &x));
                    check(&m, &x, numerics, &got).unwrap_or_else(|error| {
                        panic!("{simd:?} {numerics:?} {format:?} k {k} tokens {tokens}: {error}")
                    });
                }
            }
        }
    }
}

/// The error of f32 sums is a share of the sum of magnitudes; with 8-bit inputs each of them is off
/// by at most half a step of `0.75 / 127`, for quantised rows.
fn check(m: &WeightMatrix, x: &[Vec<f32>], numerics: Numerics, got: &[f32]) -> Result<(), String> {
    let mut w = vec![0.0; m.k()];
    for r in 0..m.rows() {
        let row = m.row(0, r);
        row.dequantise(&mut w);
        // Codes are not centred: their products are larger than the weights'.
        let spread = if row.format.is_quantised() { 3.0 } else { 1.0 };
        for (t, x) in x.iter().enumerate() {
            let terms = || w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(0.75 * x));
            let want: f64 = terms().sum();
            let size = terms().map(f64::abs).sum::<f64>() + w.len() as f64 * 0.01;
            let mut allowed = 2e-6 * size * spread;
            if numerics == Numerics::Int8 && row.format.is_quantised() {
                allowed += w.iter().map(|w| f64::from(w.abs())).sum::<f64>() * 0.75 / 127.0 / 2.0;
            }
            let got = f64::from(got[t * m.rows() + r]);
            let error = (got - want).abs();
            if error.is_nan() || error > allowed {
                return Err(format!("row {r}, input {t}: {got}, need {want} within {allowed:.1e}"));
            }
        }
    }
    Ok(())
}

#[test]
fn eight_bit_products_are_exact_for_inputs_that_are_codes() {
    // Inputs of whole numbers with a largest of 127 have the scale 1, so nothing is rounded.
    let mut random = Random(2);
    for simd in Simd::available() {
        for format in [RowFormat::Q4, RowFormat::Q8] {
            let k = 192;
            let mut codes = vec![0u8; format.code_bytes(k)];
            codes.iter_mut().for_each(|c| *c = random.bits() as u8);
            // Also the largest codes against the largest inputs of one sign.
            codes[..format.code_bytes(GROUP)].fill(255);
            let one = |v: f32| bf16::from_f32(v).to_le_bytes().repeat(k / GROUP);
            let (scales, biases) = (one(-0.5), one(2.0));
            let row = RowRef { format, codes: &codes, scales: &scales, biases: &biases };
            let copy = |bytes: &[u8]| bytes::Bytes::copy_from_slice(bytes);
            let parts = (copy(&codes), copy(&scales), copy(&biases));
            let segment = RowSegment::whole("test", format, 1, parts.0, parts.1, parts.2);
            let m = WeightMatrix::new(1, 1, k, vec![segment]).unwrap();
            for sign in [1.0f32, -1.0] {
                let mut x: Vec<f32> = (0..k).map(|_| (127.0 * random.value()).round()).collect();
                x[..GROUP].fill(127.0 * sign);
                x.chunks_mut(GROUP).for_each(|group| group[5] = 127.0 * sign);
                let mut prepared = Inputs::default();
                prepared.clear(simd, CODES, k, 1);
                prepared.push(&x, 1.0);
                let mut w = vec![0.0; k];
                row.dequantise(&mut w);
                let want: f64 = w.iter().zip(&x).map(|(w, x)| f64::from(w * x)).sum();
                let got = products(simd, &m, &prepared)[0];
                assert_eq!(f64::from(got), want, "{simd:?} {format:?} {sign}");
            }
        }
    }
}

#[test]
fn every_level_gives_the_same_bits_with_eight_bit_inputs() {
    let mut random = Random(3);
    for format in [RowFormat::Q4, RowFormat::Q8] {
        for &k in lengths(format) {
            let m = matrix(&mut random, format, 4, k);
            let x: Vec<Vec<f32>> = (0..5).map(|_| random.values(k)).collect();
            let results: Vec<Vec<u32>> = Simd::available()
                .into_iter()
                .map(|simd| bits(&products(simd, &m, &inputs(simd, Numerics::Int8, &x))))
                .collect();
            assert!(results.iter().all(|r| *r == results[0]), "{format:?}, k {k}");
        }
    }
}

#[test]
fn results_do_not_depend_on_how_many_inputs_or_rows_are_multiplied_together() {
    let mut random = Random(4);
    for (simd, numerics) in Simd::available().into_iter().flat_map(|s| NUMERICS.map(|n| (s, n))) {
        for format in FORMATS {
            let (rows, tokens) = if cfg!(miri) { (2, 5) } else { (37, 75) };
            let k = match (format.is_quantised(), cfg!(miri)) {
                (true, false) => 704,
                (true, true) => 128,
                (false, _) => 333,
            };
            let m = matrix(&mut random, format, rows, k);
            let x: Vec<Vec<f32>> = (0..tokens).map(|_| random.values(k)).collect();
            let all = inputs(simd, numerics, &x);
            let together = bits(&products(simd, &m, &all));
            let mut space = Vec::new();
            for (t, x) in x.iter().enumerate().step_by(3) {
                let alone = inputs(simd, numerics, std::slice::from_ref(x));
                let want = &together[t * rows..(t + 1) * rows];
                let name = format!("{simd:?} {numerics:?} {format:?} {t}");
                assert_eq!(bits(&products(simd, &m, &alone)), want, "{name}");
                let first = t % rows;
                let rest = multiply(simd, &m, (0, first..rows), &all, t..t + 1, &mut space);
                assert_eq!(bits(rest), want[first..], "{name}");
            }
        }
    }
}

/// Two experts whose rows come from tensors of several formats: every third from the first, and so on.
#[test]
fn rows_of_several_tensors_and_experts_are_found() {
    let mut random = Random(9);
    let (k, rows, experts) = (128, 21, 2);
    for formats in [[RowFormat::Q4; 3], [RowFormat::Q4, RowFormat::Q8, RowFormat::Bf16]] {
        let parts: Vec<WeightMatrix> =
            formats.map(|f| matrix(&mut random, f, 1 + experts * rows / 3, k)).to_vec();
        let segment = |i: usize| {
            let mut segment = parts[i].segments()[0].clone();
            (segment.first_row, segment.row_step, segment.rows) = (i, 3, rows / 3);
            (segment.source_row, segment.expert_stride) = (1, rows / 3);
            segment.experts = 0..experts;
            segment
        };
        let m = WeightMatrix::new(experts, rows, k, (0..3).map(segment).collect()).unwrap();
        let x = [random.values(k), random.values(k)];
        for (simd, numerics) in Simd::available().into_iter().flat_map(|s| NUMERICS.map(|n| (s, n)))
        {
            let inputs = inputs(simd, numerics, &x);
            let mut space = Vec::new();
            let wants = [0, 1, 2].map(|i| products(simd, &parts[i], &inputs));
            let all = [(1, 5..6), (1, 7..7), (0, 2..20), (0, 0..rows), (1, 0..rows)];
            for (expert, range) in all.into_iter().take(if cfg!(miri) { 3 } else { 5 }) {
                let got = multiply(simd, &m, (expert, range.clone()), &inputs, 0..2, &mut space);
                for (at, got) in got.iter().enumerate() {
                    let (t, row) = (at / range.len(), range.start + at % range.len());
                    let stored = 1 + expert * rows / 3 + row / 3;
                    let want = wants[row % 3][t * (1 + 14) + stored];
                    assert_eq!(
                        got.to_bits(),
                        want.to_bits(),
                        "{simd:?} {numerics:?} {expert} {row}"
                    );
                }
            }
        }
    }
}

/// Two tensors in turn, and a third behind them: rows that lie alike end where a tensor does, and before
/// factors behind which no whole vector can be read.
#[test]
fn rows_that_lie_alike_are_multiplied_together_and_no_others() {
    let mut random = Random(11);
    for (k, runs) in [(2048, &[80, 32, 5][..]), (512, &[64, 16, 32, 5])] {
        let parts = [40, 40, 37].map(|rows| matrix(&mut random, RowFormat::Q4, rows, k));
        let segment = |i: usize| {
            let mut segment = parts[i].segments()[0].clone();
            (segment.first_row, segment.row_step) = [(0, 2), (1, 2), (80, 1)][i];
            segment
        };
        let m = WeightMatrix::new(1, 117, k, (0..3).map(segment).collect()).unwrap();
        let mut found = Rows::nowhere(k);
        let mut first = 0;
        for &run in runs {
            found.find(&m, 0, first..117);
            assert_eq!(found.len(), run, "from row {first} on, k {k}");
            first += run;
        }
        if cfg!(miri) {
            continue;
        }
        for (simd, tokens) in Simd::available().into_iter().flat_map(|s| [(s, 1), (s, 3)]) {
            let x: Vec<Vec<f32>> = (0..tokens).map(|_| random.values(k)).collect();
            let inputs = inputs(simd, Numerics::Int8, &x);
            let wants = parts.each_ref().map(|part| products(simd, part, &inputs));
            let got = products(simd, &m, &inputs);
            for (t, row) in (0..tokens).flat_map(|t| (0..117).map(move |row| (t, row))) {
                let want = if row < 80 {
                    wants[row % 2][t * 40 + row / 2]
                } else {
                    wants[2][t * 37 + row - 80]
                };
                assert_eq!(got[t * 117 + row].to_bits(), want.to_bits(), "{simd:?} {k} {t} {row}");
            }
        }
    }
}

#[test]
fn a_value_that_is_no_number_reaches_every_result() {
    let mut random = Random(5);
    for (simd, numerics) in Simd::available().into_iter().flat_map(|s| NUMERICS.map(|n| (s, n))) {
        for format in FORMATS {
            let k = if cfg!(miri) { 128 } else { 640 };
            let m = matrix(&mut random, format, 2, k);
            let all = [(0, f32::NAN), (70, f32::INFINITY), (63, -f32::NAN), (k - 1, f32::NAN)];
            for (at, bad) in all.into_iter().take(if cfg!(miri) { 2 } else { 4 }) {
                let mut x = vec![random.values(k), random.values(k)];
                x[1][at] = bad;
                let got = products(simd, &m, &inputs(simd, numerics, &x));
                let ok = |(i, v): (usize, &f32)| v.is_finite() == (i < 2);
                assert!(got.iter().enumerate().all(ok), "{simd:?} {numerics:?} {format:?} {got:?}");
            }
        }
    }
}

#[test]
fn zeros_and_tiny_and_huge_groups_stay_finite() {
    let mut random = Random(6);
    for simd in Simd::available() {
        for format in [RowFormat::Q4, RowFormat::Q8] {
            let m = matrix(&mut random, format, 2, 128);
            for x in [0.0, 1e-45, 1e-38, 1e-30, 1e35] {
                let mut inputs = Inputs::default();
                inputs.clear(simd, CODES, 128, 1);
                inputs.push(&[x; 128], 1.0);
                let got = products(simd, &m, &inputs);
                let mut w = vec![0.0; 128];
                m.row(0, 0).dequantise(&mut w);
                let want = w.iter().map(|&w| f64::from(w) * f64::from(x)).sum::<f64>();
                let allowed = want.abs() * 1e-2 + f64::from(x) * 0.5 + 1e-35;
                assert!(
                    (f64::from(got[0]) - want).abs() <= allowed,
                    "{simd:?} {x}: {got:?} {want}"
                );
            }
        }
    }
}

#[test]
fn prepared_rows_of_an_earlier_product_are_forgotten() {
    let mut random = Random(7);
    let m = matrix(&mut random, RowFormat::Q4, 2, 128);
    let x = [random.values(128)];
    for simd in Simd::available() {
        let mut used = inputs(simd, Numerics::Int8, &[vec![9.0; 640], vec![7.0; 640]]);
        used.clear(simd, CODES, 128, 1);
        used.push(&x[0], 0.75);
        let fresh = inputs(simd, Numerics::Int8, &x);
        assert_eq!(bits(&products(simd, &m, &used)), bits(&products(simd, &m, &fresh)));
    }
}

#[test]
#[should_panic(expected = "values of a row")]
fn a_row_of_another_length_is_refused() {
    let mut random = Random(8);
    let m = matrix(&mut random, RowFormat::Q4, 1, 128);
    products(Simd::detect(), &m, &inputs(Simd::detect(), Numerics::Int8, &[vec![0.0; 64]]));
}
