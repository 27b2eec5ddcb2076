//! Steps that the attention kernels share: norm and rotary of a head, blocks of keys, and the access
//! to caches.

#[allow(unsafe_code)]
pub(crate) mod cpu;
pub(crate) mod prepared;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

pub use prepared::{PreparedArgs, PreparedBuffers};

use lily_plan::{Access, Region};

use crate::access;
use crate::gpu::{Entry, Family, GpuLaunch, Unsupported, msl_struct};
use crate::math::{dot, rms_scale, rotary, sum_of_squares};
use crate::shape::LaunchContext;

/// Keys of one block are a multiple of this, so that a block is whole tiles on every device.
pub const BLOCK_KEYS: usize = 32;

/// Keys of one block when `length` keys are cut into at most `splits` blocks; all blocks but the last
/// are full.
pub fn block_keys(length: usize, splits: usize) -> usize {
    BLOCK_KEYS * length.max(1).div_ceil(BLOCK_KEYS * splits)
}

/// Blocks in use for `length` keys, at most `splits`.
pub fn blocks(length: usize, splits: usize) -> usize {
    length.div_ceil(block_keys(length, splits))
}

msl_struct! {
    /// Norm and rotary of a head, inside argument structs.
    pub struct RotaryArgs {
        /// Width of a head.
        pub head_dim: u32,
        /// Leading elements that are rotated; element `i` pairs with `i + rotary_dim / 2`.
        pub rotary_dim: u32,
        /// Base of the angles.
        pub theta: f32,
        /// Eps of RMSNorm.
        pub rms_eps: f32,
    }
}

impl RotaryArgs {
    /// From the model's shape.
    pub fn new(cx: &LaunchContext<'_>) -> Self {
        Self {
            head_dim: cx.shape.head_dim as u32,
            rotary_dim: cx.shape.rotary_dim as u32,
            theta: cx.shape.rope_theta as f32,
            rms_eps: cx.shape.rms_eps,
        }
    }

    /// Adds the constants of `rotary.h` to an entry.
    pub(crate) fn constants(&self, entry: Entry) -> Result<Entry, Unsupported> {
        if self.rotary_dim == 0 || self.rotary_dim > self.head_dim {
            let (found, head_dim) = (self.rotary_dim, self.head_dim);
            return Err(Unsupported(format!("rotary_dim is {found}, need 2 to {head_dim}")));
        }
        let mut entry =
            head_constants(self.head_dim, entry)?.constant("ROTARY_DIM", self.rotary_dim);
        entry.constants.push(("ROTARY_TURNS", turns(self.rotary_dim, self.theta)));
        Ok(entry)
    }

    /// Reference: `rms(x) ∘ weight`, then rotary at a position.
    pub(crate) fn norm_rotate(&self, x: &[f32], weight: &[f32], position: usize) -> Vec<f32> {
        let (head_dim, half) = (self.head_dim as usize, self.rotary_dim as usize / 2);
        let scale = rms_scale(sum_of_squares(x), head_dim, self.rms_eps);
        let mut y: Vec<f32> = x.iter().zip(weight).map(|(x, w)| x * scale * w).collect();
        for i in 0..half {
            let (cos, sin) = rotary(position, i, 2 * half, f64::from(self.theta));
            (y[i], y[i + half]) = (y[i] * cos - y[i + half] * sin, y[i + half] * cos + y[i] * sin);
        }
        y
    }
}

/// Frequencies of the pairs in turns per position, as 64-bit fractions of a turn: an initialiser with the
/// high and the low word of each.
fn turns(rotary_dim: u32, theta: f32) -> String {
    let words = (0..rotary_dim / 2).map(|i| {
        let turn = turn(i, rotary_dim, theta);
        format!("{}u, {}u", turn >> 32, turn & 0xffff_ffff)
    });
    format!("{{{}}}", words.collect::<Vec<_>>().join(", "))
}

/// Fraction of a turn, in units of 2^-64, that a pair makes from one position to the next.
fn turn(pair: u32, rotary_dim: u32, theta: f32) -> u64 {
    let angle = f64::from(theta).powf(-2.0 * f64::from(pair) / f64::from(rotary_dim));
    ((angle / std::f64::consts::TAU).fract() * 2f64.powi(64)) as u64
}

/// Adds the width of a head to an entry.
pub(crate) fn head_constants(head_dim: u32, entry: Entry) -> Result<Entry, Unsupported> {
    Unsupported::unless_multiple("head_dim", head_dim, 16)?;
    Unsupported::above("head_dim", head_dim, 256)?;
    Ok(entry.constant("HEAD_DIM", head_dim))
}

/// Adds the constants of attention itself to an entry: the scale of the scores for exponentials to the
/// base 2, and the query heads of a KV head.
pub(crate) fn score_constants(
    head_dim: u32,
    q_heads: u32,
    kv_heads: u32,
    entry: Entry,
) -> Result<Entry, Unsupported> {
    if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
        let text =
            format!("{q_heads} query heads for {kv_heads} KV heads, need a multiple of them");
        return Err(Unsupported(text));
    }
    let scale = std::f64::consts::LOG2_E / f64::from(head_dim).sqrt();
    Ok(entry.constant("GROUP", q_heads / kv_heads).float("SCORE_SCALE", scale as f32))
}

/// Query heads that one threadgroup of the packed decode form takes: those of a KV head, at most 8.
pub(crate) fn packed_heads(group: u32) -> u32 {
    group.next_power_of_two().min(8)
}

/// An entry of the packed decode form: constants, and threadgroups for every batch of heads. `hopper` is the text
/// for compute capability 9.0.
pub(crate) fn packed_entry(
    heads: [u32; 3],
    launch: &GpuLaunch<'_>,
    entry: Entry,
    hopper: &'static str,
) -> Result<Entry, Unsupported> {
    let [head_dim, q_heads, kv_heads] = heads;
    let entry = score_constants(head_dim, q_heads, kv_heads, entry)?;
    let group = q_heads / kv_heads;
    let packed = packed_heads(group);
    let [splits, _, rows] = launch.grid;
    let grid = [splits, kv_heads * group.div_ceil(packed), rows];
    let threads = crate::attn_split::policy::threads(&launch.target);
    let entry = entry.constant("HEADS", packed).constant("THREADS", threads).over(grid, threads);
    match launch.target.family {
        Family::Nvidia { capability: 90 } => {
            let ring = RING_TILES * TILE_KEYS * (2 * head_dim + 16);
            Ok(entry.from_text("hopper.cu", hopper).shared(threads / 32 * ring))
        }
        _ => Ok(entry),
    }
}

/// Keys of a tile of `packed_keys.h`, and tiles that a warp has in shared memory.
const TILE_KEYS: u32 = 16;
const RING_TILES: u32 = 3;

/// Scale of the scores of heads of `head_dim` elements.
pub fn score_scale(head_dim: usize) -> f32 {
    1.0 / (head_dim as f32).sqrt()
}

/// Rows of the cache `[batch, kv_heads, capacity, head_dim]` that this step adds.
pub(crate) fn new_keys(cx: &LaunchContext<'_>) -> Access {
    let kv_heads = cx.shape.kv_heads;
    access::sequences(cx, move |s, position, added| {
        vec![Region::new([s..s + 1, 0..kv_heads, position..position + added])]
    })
}

/// Rows of the cache up to and with those of this step.
pub(crate) fn keys(cx: &LaunchContext<'_>) -> Access {
    let kv_heads = cx.shape.kv_heads;
    access::sequences(cx, move |s, position, added| {
        vec![Region::new([s..s + 1, 0..kv_heads, 0..position + added])]
    })
}

/// Blocks in use of a partial result `[batch, q_heads, splits, …]`.
pub(crate) fn parts(cx: &LaunchContext<'_>) -> Access {
    let (q_heads, splits) = (cx.shape.q_heads, cx.splits);
    Access::new(Region::new([0..cx.step.rows()]), move |live| {
        let used =
            |(&row, length)| Region::new([row..row + 1, 0..q_heads, 0..blocks(length, splits)]);
        live.rows().iter().zip(live.lengths()).map(used).collect()
    })
}

/// Reference: one block of keys for one query. `keys` and `values` are `[keys, head_dim]`. Returns
/// the unnormalised output, the largest score and the sum of the exponentials.
pub(crate) fn attend(q: &[f32], keys: &[f32], values: &[f32]) -> (Vec<f32>, f32, f32) {
    let head_dim = q.len();
    let scale = score_scale(head_dim);
    let scores: Vec<f32> = keys.chunks(head_dim).map(|k| dot(q, k) * scale).collect();
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = scores.iter().map(|s| f64::from(s - max).exp()).collect();
    let mut out = vec![0f64; head_dim];
    for (w, v) in weights.iter().zip(values.chunks(head_dim)) {
        out.iter_mut().zip(v).for_each(|(o, v)| *o += w * f64::from(*v));
    }
    (out.iter().map(|&o| o as f32).collect(), max, weights.iter().sum::<f64>() as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "thousands of plain integer operations")]
    fn blocks_cover_all_keys_and_all_but_the_last_are_full() {
        for splits in [1, 3, 4, 64, 128] {
            for length in (1..700).chain([4096, 32_768, 262_144]) {
                let (keys, n) = (block_keys(length, splits), blocks(length, splits));
                assert!(keys.is_multiple_of(32) && n >= 1 && n <= splits);
                assert!((n - 1) * keys < length && length <= n * keys);
            }
        }
        assert_eq!((block_keys(4097, 64), blocks(4097, 64)), (96, 43));
    }

    #[test]
    fn rotation_keeps_the_norm_and_depends_on_distance_alone() {
        let a = RotaryArgs { head_dim: 64, rotary_dim: 16, theta: 1e7, rms_eps: 1e-6 };
        let x: Vec<f32> = (0..64).map(|i| ((i * 37 % 19) as f32 - 9.0) / 7.0).collect();
        let y: Vec<f32> = (0..64).map(|i| ((i * 23 % 17) as f32 - 8.0) / 5.0).collect();
        let ones = [1.0; 64];
        let score = |p, q| dot(&a.norm_rotate(&x, &ones, p), &a.norm_rotate(&y, &ones, q));
        let near = score(3, 1);
        for p in [100, 262_100] {
            assert!((score(p + 2, p) - near).abs() < 1e-4 * near.abs().max(1.0));
        }
        let rotated = a.norm_rotate(&x, &ones, 262_143);
        assert!((sum_of_squares(&rotated) - 64.0).abs() < 1e-3);
        assert_eq!(rotated[16..], a.norm_rotate(&x, &ones, 0)[16..]);
        assert_ne!(rotated[..16], a.norm_rotate(&x, &ones, 0)[..16]);
    }

    /// What `rotary_factors` of `rotary.h` computes, in the same steps.
    fn device_factors(turn: u64, position: u32) -> (f32, f32) {
        let turn = (turn.wrapping_mul(u64::from(position)) >> 32) as u32;
        let quarter = turn.wrapping_add(1 << 29) >> 30;
        let x = turn.wrapping_sub(quarter << 30) as i32 as f32 * 1.462_918_1e-9;
        let y = x * x;
        let sine = [2.755_731_9e-6, -1.984_127e-4, 8.333_333e-3, -0.166_666_67];
        let sine = x + x * y * sine.into_iter().fold(0f32, |sum, term| sum.mul_add(y, term));
        let cosine = [-2.755_732e-7, 2.480_158_7e-5, -1.388_888_9e-3, 4.166_666_7e-2, -0.5, 1.0];
        let cosine = cosine.into_iter().fold(0f32, |sum, term| sum.mul_add(y, term));
        match quarter % 4 {
            0 => (cosine, sine),
            1 => (-sine, cosine),
            2 => (-cosine, -sine),
            _ => (sine, -cosine),
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "ten thousands of plain f64 operations")]
    fn device_angles_are_as_exact_at_the_last_position_as_at_the_first() {
        let mut worst = 0f32;
        for (dim, theta) in [(64, 1e7), (18, 5e4), (128, 1e4)] {
            for pair in 0..dim / 2 {
                let turn = turn(pair, dim, theta);
                let positions = (0..262_144).step_by(977).chain([1, 65_537, 262_143, 4_000_000]);
                for position in positions {
                    let (cos, sin) = device_factors(turn, position);
                    let (position, pair) = (position as usize, pair as usize);
                    let exact = rotary(position, pair, dim as usize, f64::from(theta));
                    worst = worst.max((cos - exact.0).abs()).max((sin - exact.1).abs());
                }
            }
        }
        assert!(worst < 2e-7, "{worst:e}");
    }

    #[test]
    fn heads_that_a_gpu_does_not_support_are_refused_by_name() {
        let entry = || Entry {
            function: "attn_split",
            text: None,
            constants: Vec::new(),
            grid: [1; 3],
            threads: 128,
            shared: 0,
        };
        let refusal = |head_dim| head_constants(head_dim, entry()).unwrap_err().0;
        assert_eq!(refusal(100), "head_dim is 100, need a multiple of 16");
        assert_eq!(refusal(272), "head_dim is 272, need at most 256");
        assert!(score_constants(96, 7, 3, entry()).unwrap_err().0.contains("7 query heads"));
        assert!(head_constants(16, entry()).is_ok() && score_constants(96, 6, 3, entry()).is_ok());
        assert_eq!([1, 2, 3, 8, 16].map(packed_heads), [1, 2, 4, 8, 8]);
    }
}
