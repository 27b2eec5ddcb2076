//! Plain Rust bodies. The 8-bit form gives the bits of the vector forms.

use half::bf16;
use lily_plan::{GROUP, RowFormat, RowRef};

use super::inputs::{GroupCodes, Inputs, Token};
use crate::cpu::lanes::{LANES, sum_lanes};

/// Largest code.
pub(super) const LIMIT: f32 = 127.0;

/// Rounds a group to 8 bits.
pub(super) fn quantise(values: &[f32; GROUP], to: GroupCodes<'_>) {
    let max = values.iter().map(|v| v.abs().to_bits()).max().map_or(0.0, f32::from_bits);
    let (scale, inverse) = group_scale(max);
    *to.scale = scale;
    let mut total = 0i32;
    for (i, v) in values.iter().enumerate() {
        let code = (v * inverse).round_ties_even() as i8;
        to.codes[i / 2 + (i % 2) * (GROUP / 2)] = code;
        total += i32::from(code);
    }
    *to.sum = scale * total as f32;
}

/// Scale of a group and the factor of its values, from the largest magnitude; a NaN counts as
/// larger than any number. Values too small for a finite factor become 0.
pub(super) fn group_scale(max: f32) -> (f32, f32) {
    let inverse = LIMIT / max;
    if !max.is_finite() {
        (f32::NAN, 0.0)
    } else if !inverse.is_finite() {
        (0.0, 0.0)
    } else {
        (max / LIMIT, inverse)
    }
}

/// Products of one row with the inputs from `first`.
pub(super) fn product(row: &RowRef<'_>, inputs: &Inputs, first: usize, out: &mut [f32]) {
    for (t, out) in out.iter_mut().enumerate() {
        *out = if inputs.int8() && row.format.is_quantised() {
            int8(row, inputs.token(first + t))
        } else {
            f32(row, inputs.values(first + t), inputs.k())
        };
    }
}

fn int8(row: &RowRef<'_>, token: Token<'_>) -> f32 {
    let value =
        |bytes: &[u8], g: usize| bf16::from_le_bytes([bytes[2 * g], bytes[2 * g + 1]]).to_f32();
    let group_bytes = row.format.code_bytes(GROUP);
    // Even and odd groups are summed apart; the biases join the even ones, eight groups at a time.
    let mut sums = [[0f32; LANES]; 2];
    for (g, inputs) in token.codes.iter().enumerate() {
        let (block, at) = (g / LANES, g % LANES);
        if at == 0 {
            let groups = (token.codes.len() - g).min(LANES);
            let terms = sums[0].iter_mut().zip(&token.sums[block]);
            for (lane, (sum, &input)) in terms.take(groups).enumerate() {
                *sum = value(row.biases, g + lane).mul_add(input, *sum);
            }
        }
        let codes = &row.codes[g * group_bytes..(g + 1) * group_bytes];
        let dots = match row.format {
            RowFormat::Q4 => dots_q4(codes, inputs),
            _ => dots_q8(codes, inputs),
        };
        let scale = value(row.scales, g) * token.scales[block][at];
        for (sum, dot) in sums[g % 2].iter_mut().zip(dots) {
            *sum = (dot as f32).mul_add(scale, *sum);
        }
    }
    let [even, odd] = sums;
    sum_lanes(std::array::from_fn(|lane| even[lane] + odd[lane]))
}

/// Lane `j` has the elements `8j..8j + 8`.
fn dots_q4(codes: &[u8], inputs: &[i8; GROUP]) -> [i32; LANES] {
    let (even, odd) = inputs.split_at(GROUP / 2);
    let mut dots = [0; LANES];
    for (i, &byte) in codes.iter().enumerate() {
        dots[i / 4] +=
            i32::from(byte & 15) * i32::from(even[i]) + i32::from(byte >> 4) * i32::from(odd[i]);
    }
    dots
}

/// Lane `j` has the elements `4j..4j + 4` of both halves.
fn dots_q8(codes: &[u8], inputs: &[i8; GROUP]) -> [i32; LANES] {
    let mut dots = [0; LANES];
    for (i, &code) in codes.iter().enumerate() {
        let input = inputs[i / 2 + (i % 2) * (GROUP / 2)];
        dots[i % (GROUP / 2) / 4] += i32::from(code) * i32::from(input);
    }
    dots
}

fn f32(row: &RowRef<'_>, values: &[[f32; GROUP]], k: usize) -> f32 {
    let (codes, scales) = (row.format.code_bytes(GROUP), row.format.scale_bytes(GROUP));
    let mut sums = [0f32; LANES];
    let mut weights = [0f32; GROUP];
    for (g, values) in values.iter().enumerate() {
        let n = (k - g * GROUP).min(GROUP);
        let group = RowRef {
            format: row.format,
            codes: &row.codes[g * codes..][..row.format.code_bytes(n)],
            scales: &row.scales[g * scales..][..scales],
            biases: &row.biases[g * scales..][..scales],
        };
        group.dequantise(&mut weights[..n]);
        for (w, x) in weights[..n].chunks(LANES).zip(values.chunks(LANES)) {
            for ((sum, w), x) in sums.iter_mut().zip(w).zip(x) {
                *sum += w * x;
            }
        }
    }
    sum_lanes(sums)
}
