//! What the CPU faces of the Gated DeltaNet kernels share.

use std::ops::Range;

use super::{GdnArgs, l2_scale};
use crate::cpu::delta::{DeltaToken, delta_rows};
use crate::cpu::{SharedSlice, Simd, part};
use crate::shape::StepArgs;

/// The taps of some channels, as `[conv_width, channels]`: one row for each column of the window.
pub(crate) fn turn_taps(d: &GdnArgs, taps: &[f32], channels: Range<usize>, turned: &mut Vec<f32>) {
    let width = d.conv_width as usize;
    turned.clear();
    for tap in 0..width {
        turned.extend(channels.clone().map(|c| taps[c * width + tap]));
    }
}

/// Convolution and SiLU of some channels of one token. `columns` are the inputs of the window, the
/// oldest first, cut to these channels; `None` before the start.
pub(crate) fn convolve<'a>(
    simd: Simd,
    columns: impl Iterator<Item = Option<&'a [f32]>>,
    turned: &[f32],
    out: &mut [f32],
) {
    out.fill(0.0);
    for (taps, column) in turned.chunks(out.len()).zip(columns) {
        simd.add_product(taps, column.unwrap_or_default(), out);
    }
    simd.silu(out);
}

/// What a head's channels are; decides their norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Divided by its length and by `sqrt(k_dim)`.
    Query,
    /// Divided by its length.
    Key,
    /// As it is.
    Value,
}

/// Norm and rounding of a head's convolved channels.
pub(crate) fn finish(simd: Simd, d: &GdnArgs, part: Part, x: &mut [f32]) {
    let scale = |x: &[f32]| l2_scale(simd.dot(x, x));
    match part {
        Part::Query => simd.scale(scale(x) / (d.k_dim as f32).sqrt(), x),
        Part::Key => simd.scale(scale(x), x),
        Part::Value => {}
    }
    if d.act_bf16 != 0 {
        x.iter_mut().for_each(|x| *x = d.round(*x));
    }
}

/// A place in the state ring: rows of one head of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct StateRows {
    /// The sequence.
    pub sequence: usize,
    /// The value head.
    pub v_head: usize,
    /// Its value rows.
    pub rows: Range<usize>,
}

impl StateRows {
    /// Elements of these rows before `position`.
    pub fn elements(&self, d: &GdnArgs, position: usize) -> Range<usize> {
        let (first, k_dim) =
            (d.state(self.sequence, position, self.v_head).start, d.k_dim as usize);
        first + self.rows.start * k_dim..first + self.rows.end * k_dim
    }

    /// One token: takes the state before position `from` to the slot of position `to`. The slots may
    /// be the same; the state before position 0 is zero and not read. `v` and `out` have an element
    /// for each row.
    ///
    /// # Safety
    /// These rows belong to the calling tile in both slots, and no slice of them lives.
    pub unsafe fn step(
        &self,
        simd: Simd,
        ring: SharedSlice<'_, f32>,
        d: &GdnArgs,
        (from, to): (usize, usize),
        token: &DeltaToken<'_>,
        v: &[f32],
        out: &mut [f32],
    ) {
        let (old, new) = (self.elements(d, from), self.elements(d, to));
        // SAFETY: the caller owns these rows. Two slots are the same or do not overlap, and the old
        // rows are borrowed only if they are not the new ones.
        let (old, new) = unsafe {
            let apart = from != 0 && old != new;
            (apart.then(|| ring.read(old)), ring.write(new))
        };
        if from == 0 {
            new.fill(0.0);
        }
        delta_rows(simd, old, new, token, v, out);
    }
}

/// The tiles of a scan over a prefill chunk: blocks of value rows of each head, and a last one that
/// fills the convolution ring.
pub(crate) struct ScanTiles<'a> {
    d: &'a GdnArgs,
    /// Value rows of one tile.
    tile_rows: usize,
    /// The chunk's sequence.
    pub sequence: usize,
    /// Position of the chunk's first token.
    pub position: usize,
    /// Tokens of the chunk.
    pub tokens: usize,
}

impl<'a> ScanTiles<'a> {
    /// The tiles of a launch.
    pub fn new(step: &StepArgs, d: &'a GdnArgs, control: &[i32], tile_rows: usize) -> Self {
        let (tokens, position) = (step.live_rows(control).len(), step.position_of(control, 0));
        Self { d, tile_rows, sequence: step.sequence as usize, position, tokens }
    }

    /// Number of tiles; 0 without a token.
    pub fn count(&self) -> usize {
        if self.tokens == 0 { 0 } else { self.d.v_heads as usize * self.blocks() + 1 }
    }

    /// The state that a tile takes over the chunk; `None` is the last tile.
    pub fn nth(&self, tile: usize) -> Option<StateRows> {
        let (v_head, block) = (tile / self.blocks(), tile % self.blocks());
        let rows = part(self.d.v_dim as usize, self.tile_rows, block);
        (v_head < self.d.v_heads as usize).then_some(StateRows {
            sequence: self.sequence,
            v_head,
            rows,
        })
    }

    /// Copies the last `kept` rows of `qkv` into the convolution ring.
    ///
    /// # Safety
    /// The launch only reads `qkv`; the ring belongs to the calling tile.
    pub unsafe fn store_columns(
        &self,
        qkv: SharedSlice<'_, f32>,
        ring: SharedSlice<'_, f32>,
        kept: u32,
    ) {
        let channels = self.d.conv_channels();
        for row in self.tokens.saturating_sub(kept as usize)..self.tokens {
            let first = self.d.column(self.sequence, self.position + row);
            // SAFETY: the caller's contract.
            unsafe {
                let column = qkv.read(row * channels..(row + 1) * channels);
                ring.write(first..first + channels).copy_from_slice(column);
            }
        }
    }

    fn blocks(&self) -> usize {
        (self.d.v_dim as usize).div_ceil(self.tile_rows)
    }
}
