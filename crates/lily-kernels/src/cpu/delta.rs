//! The delta rule of the Gated DeltaNet on rows of a head's state.

#![allow(clippy::needless_range_loop)] // one index names vectors of several arrays alike

use super::Simd;
use super::simd::{Isa, Kernel};

/// Least bytes of rows that go from one place to another for which the processor's caches are passed by:
/// the states of all layers are more than caches hold.
const FAR_BYTES: usize = 32 << 10;
/// Elements from the rows that are read to those that are asked for: two blocks of rows.
const FAR_AHEAD: usize = 1024;

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
    pub fn new(simd: Simd, q: &'a [f32], k: &'a [f32], log_decay: f32, beta: f32) -> Self {
        Self { q, k, qk: simd.dot(k, q), alpha: log_decay.exp(), beta }
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
    simd: Simd,
    from: Option<&[f32]>,
    to: &mut [f32],
    token: &DeltaToken<'_>,
    v: &[f32],
    out: &mut [f32],
) {
    let k_dim = token.k.len();
    assert!(token.q.len() == k_dim && to.len() == v.len() * k_dim && out.len() == v.len());
    assert!(from.is_none_or(|from| from.len() == to.len()));
    let to = to.as_mut_ptr();
    let from = from.map_or(to.cast_const(), <[f32]>::as_ptr);
    simd.run(Rows { from, to, token, v, out });
}

/// Rows whose lengths fit; `from` and `to` are the same or do not overlap.
struct Rows<'a> {
    from: *const f32,
    to: *mut f32,
    token: &'a DeltaToken<'a>,
    v: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        if self.are_far::<S>() {
            self.all::<S, true>(s);
            s.end_streams();
        } else {
            self.all::<S, false>(s);
        }
    }
}

impl Rows<'_> {
    /// Whether the old rows come from memory and the new ones go there, as whole aligned vectors.
    #[inline(always)]
    fn are_far<S: Isa>(&self) -> bool {
        let k_dim = self.token.k.len();
        self.from != self.to.cast_const()
            && size_of_val(self.token.k) * self.v.len() >= FAR_BYTES
            && k_dim.is_multiple_of(S::LANES)
            && (self.to as usize).is_multiple_of(size_of::<f32>() * S::LANES)
    }

    #[inline(always)]
    fn all<S: Isa, const FAR: bool>(&mut self, s: S) {
        /// Rows that share the loads of `k` and `q`: two sums each stay in registers.
        const TOGETHER: usize = 4;
        let mut row = 0;
        // SAFETY: the rows are inside `from` and `to`; far ones are aligned vectors.
        unsafe {
            while row + TOGETHER <= self.v.len() {
                self.rows::<S, TOGETHER, FAR>(s, row);
                row += TOGETHER;
            }
            while row < self.v.len() {
                self.rows::<S, 1, FAR>(s, row);
                row += 1;
            }
        }
    }

    /// `N` rows from `row` on.
    ///
    /// # Safety
    /// They are there, and if `FAR`, each new one is a number of aligned vectors.
    #[inline(always)]
    unsafe fn rows<S: Isa, const N: usize, const FAR: bool>(&mut self, s: S, row: usize) {
        let DeltaToken { q, k, qk, alpha, beta } = *self.token;
        let k_dim = k.len();
        let whole = k_dim / S::LANES * S::LANES;
        let (mut sums_k, mut sums_q) = ([s.splat(0.0); N], [s.splat(0.0); N]);
        // SAFETY: `i + LANES <= k_dim`, the length of `k`, `q` and each of the rows; single elements
        // are below it.
        unsafe {
            let (from, to) = (self.from.add(row * k_dim), self.to.add(row * k_dim));
            let mut i = 0;
            while i < whole {
                let (k, q) = (s.load(k.as_ptr().add(i)), s.load(q.as_ptr().add(i)));
                for n in 0..N {
                    let at = from.add(n * k_dim + i);
                    if FAR {
                        s.prefetch(at.wrapping_add(FAR_AHEAD).cast());
                    }
                    let state = s.load(at);
                    sums_k[n] = s.mul_add(state, k, sums_k[n]);
                    sums_q[n] = s.mul_add(state, q, sums_q[n]);
                }
                i += S::LANES;
            }
            let mut r = [0.0; N];
            for n in 0..N {
                let (mut sum_k, mut sum_q) = (s.sum(sums_k[n]), s.sum(sums_q[n]));
                for i in whole..k_dim {
                    let state = *from.add(n * k_dim + i);
                    sum_k += state * k[i];
                    sum_q += state * q[i];
                }
                r[n] = beta * (self.v[row + n] - alpha * sum_k);
                self.out[row + n] = alpha * sum_q + r[n] * qk;
            }
            let mut i = 0;
            while i < whole {
                let k = s.load(k.as_ptr().add(i));
                for (n, &r) in r.iter().enumerate() {
                    let state = s.mul(s.splat(alpha), s.load(from.add(n * k_dim + i)));
                    let (to, state) = (to.add(n * k_dim + i), s.mul_add(s.splat(r), k, state));
                    match FAR {
                        true => s.stream(to, state),
                        false => s.store(to, state),
                    }
                }
                i += S::LANES;
            }
            for (n, &r) in r.iter().enumerate() {
                for i in whole..k_dim {
                    let at = n * k_dim + i;
                    *to.add(at) = alpha * *from.add(at) + r * k[i];
                }
            }
        }
    }
}

/// The delta rule as [`delta_rows`], on value rows that lie turned: `state` `[k_dim, n]`, with `v` and
/// `out` of `n` elements. The sums over `k_dim` are in lanes of their own, so that no row is added up
/// across a vector.
///
/// # Panics
/// If the lengths do not fit.
pub fn delta_columns(
    simd: Simd,
    state: &mut [f32],
    token: &DeltaToken<'_>,
    v: &[f32],
    out: &mut [f32],
) {
    let k_dim = token.k.len();
    assert!(token.q.len() == k_dim && state.len() == v.len() * k_dim && out.len() == v.len());
    simd.run(Columns { state: state.as_mut_ptr(), token, v, out });
}

/// Columns whose lengths fit.
struct Columns<'a> {
    state: *mut f32,
    token: &'a DeltaToken<'a>,
    v: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Isa>(mut self, s: S) {
        let n = self.v.len();
        let mut column = 0;
        // SAFETY: the columns are inside the state.
        unsafe {
            while column + 2 * S::LANES <= n {
                self.columns::<S, 2>(s, column);
                column += 2 * S::LANES;
            }
            if column + S::LANES <= n {
                self.columns::<S, 1>(s, column);
                column += S::LANES;
            }
        }
        for column in column..n {
            let DeltaToken { q, k, qk, alpha, beta } = *self.token;
            let (mut sum_k, mut sum_q) = (0.0, 0.0);
            for i in 0..k.len() {
                // SAFETY: as above.
                let state = unsafe { *self.state.add(i * n + column) };
                sum_k += state * k[i];
                sum_q += state * q[i];
            }
            let r = beta * (self.v[column] - alpha * sum_k);
            self.out[column] = alpha * sum_q + r * qk;
            for (i, k) in k.iter().enumerate() {
                // SAFETY: as above.
                unsafe {
                    let state = self.state.add(i * n + column);
                    *state = alpha * *state + r * k;
                }
            }
        }
    }
}

impl Columns<'_> {
    /// `V` vectors of columns from `column` on.
    ///
    /// # Safety
    /// They are there.
    #[inline(always)]
    unsafe fn columns<S: Isa, const V: usize>(&mut self, s: S, column: usize) {
        let DeltaToken { q, k, qk, alpha, beta } = *self.token;
        let n = self.v.len();
        // Even and odd elements are summed apart, which hides the latency of a multiply-add.
        let (mut sums_k, mut sums_q) = ([[s.splat(0.0); V]; 2], [[s.splat(0.0); V]; 2]);
        // SAFETY: `V` vectors from `column` on are in each of the `k_dim` rows of the state, in `v` and
        // in `out`.
        unsafe {
            for i in 0..k.len() {
                let row = self.state.add(i * n + column);
                let (k, q) = (s.splat(*k.as_ptr().add(i)), s.splat(*q.as_ptr().add(i)));
                for v in 0..V {
                    let state = s.load(row.add(v * S::LANES));
                    sums_k[i % 2][v] = s.mul_add(state, k, sums_k[i % 2][v]);
                    sums_q[i % 2][v] = s.mul_add(state, q, sums_q[i % 2][v]);
                }
            }
            let mut r = [s.splat(0.0); V];
            for v in 0..V {
                let at = column + v * S::LANES;
                let sum_k = s.add(sums_k[0][v], sums_k[1][v]);
                let sum_q = s.add(sums_q[0][v], sums_q[1][v]);
                let rest = s.mul_add(s.splat(-alpha), sum_k, s.load(self.v.as_ptr().add(at)));
                r[v] = s.mul(s.splat(beta), rest);
                let out = s.mul_add(r[v], s.splat(qk), s.mul(s.splat(alpha), sum_q));
                s.store(self.out.as_mut_ptr().add(at), out);
            }
            for i in 0..k.len() {
                let row = self.state.add(i * n + column);
                let k = s.splat(*k.as_ptr().add(i));
                for v in 0..V {
                    let state = s.mul(s.splat(alpha), s.load(row.add(v * S::LANES)));
                    s.store(row.add(v * S::LANES), s.mul_add(r[v], k, state));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silu_and_exp_are_as_accurate_as_the_scalar_formulas() {
        let step = if cfg!(miri) { 97 } else { 1 };
        let x: Vec<f32> = (-4000..4000).step_by(step).map(|i| i as f32 * 0.0213).collect();
        for simd in Simd::available() {
            let (mut y, mut e) = (x.clone(), x.clone());
            simd.silu(&mut y);
            simd.exp(&mut e);
            let pairs: Vec<[f32; 2]> = x.iter().map(|&x| [x, 0.5]).collect();
            let mut gated = vec![0.0; x.len()];
            simd.gated(&pairs, &mut gated);
            for (i, &x) in x.iter().enumerate() {
                let want = f64::from(x) / (1.0 + (-f64::from(x)).exp());
                let close = |got: f32, want: f64| {
                    (f64::from(got) - want).abs() <= 1e-6 * want.abs() + 1e-36
                };
                assert!(close(y[i], want), "{simd:?} silu({x}) = {}", y[i]);
                assert!(close(gated[i], 0.5 * want), "{simd:?} gated({x}) = {}", gated[i]);
                assert!(close(e[i], f64::from(x).exp()), "{simd:?} exp({x}) = {}", e[i]);
            }
        }
    }

    #[test]
    fn silu_and_exp_keep_not_a_number() {
        for simd in Simd::available() {
            let (mut x, mut e) = ([f32::NAN; 9], [f32::NAN; 9]);
            simd.silu(&mut x);
            simd.exp(&mut e);
            assert!(x.iter().chain(&e).all(|x| x.is_nan()), "{simd:?}");
        }
    }

    #[test]
    fn the_delta_rule_agrees_with_plain_sums_in_rows_and_in_columns_in_place_or_not() {
        let all = [(11, 7), (5, 1), (8, 16), (128, 37), (131, 50)];
        for &(k_dim, n) in if cfg!(miri) { &all[..3] } else { &all[..] } {
            let value = |i: usize| ((i * 7919 + k_dim) % 1013) as f32 / 1013.0 - 0.5;
            let state: Vec<f32> = (0..n * k_dim).map(value).collect();
            let q: Vec<f32> = (0..k_dim).map(|i| value(i + 31)).collect();
            let k: Vec<f32> = (0..k_dim).map(|i| 0.2 * value(i + 77)).collect();
            let v: Vec<f32> = (0..n).map(|i| value(i + 5)).collect();
            let (mut want, want_out) = (state.clone(), {
                let mut state: Vec<f32> = state.clone();
                crate::gdn::delta_token(&mut state, &q, &k, &v, -0.3, 0.7)
            });
            crate::gdn::delta_token(&mut want, &q, &k, &v, -0.3, 0.7);
            for simd in Simd::available() {
                let token = DeltaToken::new(simd, &q, &k, -0.3, 0.7);
                let (mut moved, mut moved_out) = (vec![f32::NAN; n * k_dim], vec![0.0; n]);
                delta_rows(simd, Some(&state), &mut moved, &token, &v, &mut moved_out);
                let (mut same, mut same_out) = (state.clone(), vec![0.0; n]);
                delta_rows(simd, None, &mut same, &token, &v, &mut same_out);
                assert_eq!((&moved, &moved_out), (&same, &same_out));
                let mut turned = vec![0.0; n * k_dim];
                for (row, i) in (0..n).flat_map(|row| (0..k_dim).map(move |i| (row, i))) {
                    turned[i * n + row] = state[row * k_dim + i];
                }
                let mut turned_out = vec![0.0; n];
                delta_columns(simd, &mut turned, &token, &v, &mut turned_out);
                let close = |a: f32, b: f32| (a - b).abs() < 1e-5;
                for row in 0..n {
                    let name = format!("{simd:?} k_dim {k_dim} row {row} of {n}");
                    assert!(close(same_out[row], want_out[row]), "{name}");
                    assert!(close(turned_out[row], want_out[row]), "{name}");
                    for i in 0..k_dim {
                        let want = want[row * k_dim + i];
                        assert!(close(same[row * k_dim + i], want), "{name} {i}");
                        assert!(close(turned[i * n + row], want), "{name} {i}");
                    }
                }
            }
        }
    }
}
