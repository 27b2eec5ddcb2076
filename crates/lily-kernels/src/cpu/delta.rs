//! Vector operations of the Gated DeltaNet: the delta rule on rows of the state, and SiLU.
//!
//! Each has a form for AVX2 with FMA, taken when the machine has it, and a portable form. The order
//! of a sum depends on the row's length only.

/// What one token does to every row of a head's state.
#[derive(Clone, Copy, Debug)]
pub struct DeltaToken<'a> {
    /// Query, `[k_dim]`.
    pub q: &'a [f32],
    /// Key, `[k_dim]`.
    pub k: &'a [f32],
    /// `q · k`.
    pub qk: f32,
    /// Decay of the state, in 0..=1.
    pub alpha: f32,
    /// Strength of the update, in 0..1.
    pub beta: f32,
}

impl<'a> DeltaToken<'a> {
    /// A token from its query and key, both `[k_dim]`, and its gates.
    pub fn new(q: &'a [f32], k: &'a [f32], log_decay: f32, beta: f32) -> Self {
        Self { q, k, qk: dot_pair(k, q, q).0, alpha: log_decay.exp(), beta }
    }
}

/// The delta rule on rows of a state, each `[k_dim]`: `r = beta (v - alpha S·k)`, then
/// `o = alpha S·q + r (k·q)` and `S ← alpha S + r k`. Both products come from one pass over the row,
/// so that it is read once and written once.
///
/// Reads the old rows from `from`, or from `to` itself if there is none; writes the new ones to `to`.
///
/// # Panics
/// If the lengths do not fit: `to` and `from` have `v.len()` rows of `k_dim`, `out` has `v.len()`
/// elements.
pub fn delta_rows(
    from: Option<&[f32]>,
    to: &mut [f32],
    token: &DeltaToken<'_>,
    v: &[f32],
    out: &mut [f32],
) {
    let k_dim = token.k.len();
    assert!(token.q.len() == k_dim && to.len() == v.len() * k_dim && out.len() == v.len());
    assert!(from.is_none_or(|from| from.len() == to.len()));
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        // SAFETY: AVX2 and FMA are there; the lengths were compared above.
        unsafe { avx2::delta_rows(from, to, token, v, out) };
        return;
    }
    delta_rows_portable(from, to, token, v, out);
}

/// [`delta_rows`] in plain Rust.
fn delta_rows_portable(
    from: Option<&[f32]>,
    to: &mut [f32],
    token: &DeltaToken<'_>,
    v: &[f32],
    out: &mut [f32],
) {
    if let Some(from) = from {
        to.copy_from_slice(from);
    }
    for ((row, v), out) in to.chunks_mut(token.k.len()).zip(v).zip(out) {
        let (k, q) = dot_pair(row, token.k, token.q);
        let r = token.beta * (v - token.alpha * k);
        *out = token.alpha * q + r * token.qk;
        for (s, k) in row.iter_mut().zip(token.k) {
            *s = token.alpha * *s + r * k;
        }
    }
}

/// `(x · a, x · b)`, in eight interleaved sums that the compiler keeps in vector registers.
fn dot_pair(x: &[f32], a: &[f32], b: &[f32]) -> (f32, f32) {
    let (mut sums_a, mut sums_b) = ([0.0; 8], [0.0; 8]);
    let (x8, a8, b8) = (x.as_chunks::<8>(), a.as_chunks::<8>(), b.as_chunks::<8>());
    for ((x, a), b) in x8.0.iter().zip(a8.0).zip(b8.0) {
        for i in 0..8 {
            sums_a[i] += x[i] * a[i];
            sums_b[i] += x[i] * b[i];
        }
    }
    let mut sums = (sums_a.iter().sum::<f32>(), sums_b.iter().sum::<f32>());
    for ((x, a), b) in x8.1.iter().zip(a8.1).zip(b8.1) {
        sums.0 += x * a;
        sums.1 += x * b;
    }
    sums
}

/// `x ← x sigmoid(x)` with a relative error below 1e-6.
pub fn silu(x: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        // SAFETY: AVX2 and FMA are there.
        unsafe { avx2::silu(x) };
        return;
    }
    silu_body(x);
}

/// `x ← e^x` with a relative error below 1e-6, for finite x; at least `e^-87`.
pub fn exp(x: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        // SAFETY: AVX2 and FMA are there.
        unsafe { avx2::exp(x) };
        return;
    }
    exp_body(x);
}

/// Without branches, so that the compiler vectorises it for the instruction set of its caller.
#[inline(always)]
fn exp_body(x: &mut [f32]) {
    for x in x {
        *x = exp_one(*x);
    }
}

/// As [`exp_body`].
#[inline(always)]
fn silu_body(x: &mut [f32]) {
    for x in x {
        *x /= 1.0 + exp_one(-*x);
    }
}

/// `e^x` for finite x, held between `e^-87` and `e^88` so that it stays a normal number:
/// `2^n e^f` with `|f| <= ln(2) / 2` and the Taylor polynomial of degree 7.
#[inline(always)]
fn exp_one(x: f32) -> f32 {
    /// Added to a small number, it leaves its nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    /// `ln 2` in two parts: `n` times the first is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let n = x * std::f32::consts::LOG2_E + ROUND;
    let power = f32::from_bits((n.to_bits() << 23).wrapping_add(0x3f80_0000));
    let n = n - ROUND;
    let f = x - n * LN2_HIGH - n * LN2_LOW;
    let mut sum = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * f + coefficient;
    }
    sum * power
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! AVX2 and FMA forms.

    use std::arch::x86_64::*;

    use super::DeltaToken;

    /// Rows that share the loads of `k` and `q`: two accumulators each stay in registers.
    const ROWS: usize = 4;

    pub(super) fn available() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

    /// # Safety
    /// AVX2 and FMA are there; `q` and `k` have `k_dim` elements, `to` and `from` have `v.len()` rows
    /// of `k_dim`, `out` has `v.len()` elements.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn delta_rows(
        from: Option<&[f32]>,
        to: &mut [f32],
        token: &DeltaToken<'_>,
        v: &[f32],
        out: &mut [f32],
    ) {
        let k_dim = token.k.len();
        let to = to.as_mut_ptr();
        let from = from.map_or(to.cast_const(), <[f32]>::as_ptr);
        let whole = v.len() / ROWS * ROWS;
        for row in (0..whole).step_by(ROWS) {
            // SAFETY: rows `row..row + ROWS` are inside `from` and `to`.
            let sums = unsafe {
                let first = row * k_dim;
                rows::<ROWS>(from.add(first), to.add(first), token, &v[row..row + ROWS])
            };
            out[row..row + ROWS].copy_from_slice(&sums);
        }
        for row in whole..v.len() {
            // SAFETY: row `row` is inside `from` and `to`.
            let sums = unsafe {
                let first = row * k_dim;
                rows::<1>(from.add(first), to.add(first), token, &v[row..row + 1])
            };
            out[row] = sums[0];
        }
    }

    /// `N` rows; returns their outputs.
    ///
    /// # Safety
    /// AVX2 and FMA are there; `from` and `to` point to `N` rows of `k_dim` elements and are equal or
    /// do not overlap; `v` has `N` elements.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn rows<const N: usize>(
        from: *const f32,
        to: *mut f32,
        token: &DeltaToken<'_>,
        v: &[f32],
    ) -> [f32; N] {
        let (k, q, k_dim) = (token.k.as_ptr(), token.q.as_ptr(), token.k.len());
        let whole = k_dim / 8 * 8;
        let (mut sums_k, mut sums_q) = ([_mm256_setzero_ps(); N], [_mm256_setzero_ps(); N]);
        for i in (0..whole).step_by(8) {
            // SAFETY: `i + 8 <= k_dim`, the length of `k`, `q` and each of the rows.
            unsafe {
                let (k, q) = (_mm256_loadu_ps(k.add(i)), _mm256_loadu_ps(q.add(i)));
                for n in 0..N {
                    let s = _mm256_loadu_ps(from.add(n * k_dim + i));
                    sums_k[n] = _mm256_fmadd_ps(s, k, sums_k[n]);
                    sums_q[n] = _mm256_fmadd_ps(s, q, sums_q[n]);
                }
            }
        }
        let (mut r, mut out) = ([0.0; N], [0.0; N]);
        for n in 0..N {
            let (mut sum_k, mut sum_q) = (sum(sums_k[n]), sum(sums_q[n]));
            for i in whole..k_dim {
                // SAFETY: `i < k_dim`, the length of each of the rows.
                let s = unsafe { *from.add(n * k_dim + i) };
                sum_k += s * token.k[i];
                sum_q += s * token.q[i];
            }
            r[n] = token.beta * (v[n] - token.alpha * sum_k);
            out[n] = token.alpha * sum_q + r[n] * token.qk;
        }
        let alpha = _mm256_set1_ps(token.alpha);
        for i in (0..whole).step_by(8) {
            // SAFETY: as for the first pass.
            unsafe {
                let k = _mm256_loadu_ps(k.add(i));
                for (n, &r) in r.iter().enumerate() {
                    let s = _mm256_loadu_ps(from.add(n * k_dim + i));
                    let s = _mm256_fmadd_ps(_mm256_set1_ps(r), k, _mm256_mul_ps(alpha, s));
                    _mm256_storeu_ps(to.add(n * k_dim + i), s);
                }
            }
        }
        for (n, &r) in r.iter().enumerate() {
            for i in whole..k_dim {
                // SAFETY: `i < k_dim`, the length of each of the rows.
                unsafe {
                    *to.add(n * k_dim + i) = token.alpha * *from.add(n * k_dim + i) + r * token.k[i]
                };
            }
        }
        out
    }

    /// Sum of the eight lanes.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn sum(x: __m256) -> f32 {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }

    /// # Safety
    /// AVX2 and FMA are there.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn silu(x: &mut [f32]) {
        super::silu_body(x);
    }

    /// # Safety
    /// AVX2 and FMA are there.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn exp(x: &mut [f32]) {
        super::exp_body(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silu_is_as_accurate_as_the_scalar_formula() {
        let step = if cfg!(miri) { 97 } else { 1 };
        let x: Vec<f32> = (-4000..4000).step_by(step).map(|i| i as f32 * 0.0213).collect();
        let mut y = x.clone();
        silu(&mut y);
        for (x, y) in x.into_iter().zip(y) {
            let want = f64::from(x) / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(y) - want).abs() <= 1e-6 * want.abs() + 1e-36, "silu({x}) = {y}");
        }
    }

    #[test]
    fn silu_keeps_not_a_number() {
        let mut x = [f32::NAN; 9];
        silu(&mut x);
        assert!(x.iter().all(|x| x.is_nan()));
    }

    #[test]
    fn delta_rows_agrees_with_the_portable_form_in_place_or_not() {
        for k_dim in crate::conformance::few([11, 5, 8, 96, 128, 131]) {
            let value = |i: usize| ((i * 7919 + k_dim) % 1013) as f32 / 1013.0 - 0.5;
            let state: Vec<f32> = (0..7 * k_dim).map(value).collect();
            let q: Vec<f32> = (0..k_dim).map(|i| value(i + 31)).collect();
            let k: Vec<f32> = (0..k_dim).map(|i| 0.2 * value(i + 77)).collect();
            let v: Vec<f32> = (0..7).map(|i| value(i + 5)).collect();
            let token = DeltaToken::new(&q, &k, -0.3, 0.7);
            let (mut want, mut want_out) = (state.clone(), [0.0; 7]);
            delta_rows_portable(None, &mut want, &token, &v, &mut want_out);
            let (mut moved, mut moved_out) = (vec![f32::NAN; 7 * k_dim], [0.0; 7]);
            delta_rows(Some(&state), &mut moved, &token, &v, &mut moved_out);
            let (mut same, mut same_out) = (state.clone(), [0.0; 7]);
            delta_rows(None, &mut same, &token, &v, &mut same_out);
            assert_eq!((&moved, moved_out), (&same, same_out));
            let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(close(&want, &same) && close(&want_out, &same_out), "k_dim {k_dim}");
        }
    }
}
