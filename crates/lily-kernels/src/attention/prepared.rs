//! Norm and rotary as the prologue of decode attention: queries, the new key and the new value are
//! prepared where they are used, and the new rows of the cache are stored on the way.
//!
//! The eight bindings stand together, in the order of [`bind`]. The row of the new position is read
//! by no one but its writer, which takes it from registers.

use half::bf16;
use lily_plan::{Access, Binding, BufferId, Element, ReferenceIo, Region};

use super::{RotaryArgs, new_keys};
use crate::access;
use crate::gpu::{Entry, Unsupported, msl_struct};
use crate::shape::LaunchContext;

/// Indices of the bindings.
pub(crate) mod bind {
    pub const CONTROL: usize = 0;
    pub const AQ: usize = 1;
    pub const AK: usize = 2;
    pub const AV: usize = 3;
    pub const Q_NORM: usize = 4;
    pub const K_NORM: usize = 5;
    pub const K: usize = 6;
    pub const V: usize = 7;
    /// The first binding of the kernel itself.
    pub const END: usize = 8;
}

/// Buffers of the prologue.
#[derive(Clone, Copy, Debug)]
pub struct PreparedBuffers {
    /// i32 `[batch, 8]`.
    pub control: BufferId,
    /// f32 `[rows, q_heads, head_dim]`.
    pub aq: BufferId,
    /// f32 `[rows, kv_heads, head_dim]`.
    pub ak: BufferId,
    /// f32 `[rows, kv_heads, head_dim]`.
    pub av: BufferId,
    /// `[head_dim]`.
    pub q_norm: BufferId,
    /// `[head_dim]`.
    pub k_norm: BufferId,
    /// kv `[batch, kv_heads, capacity, head_dim]`; older rows are read, the new one is written.
    pub k: BufferId,
    /// As `k`.
    pub v: BufferId,
}

impl PreparedBuffers {
    /// The bindings of the prologue.
    pub(crate) fn bindings(&self, cx: &LaunchContext<'_>) -> Vec<Binding> {
        vec![
            Binding::read("control", self.control, access::sequence_rows(cx)),
            Binding::read("aq", self.aq, access::rows(cx)),
            Binding::read("ak", self.ak, access::rows(cx)),
            Binding::read("av", self.av, access::rows(cx)),
            Binding::read("q_norm", self.q_norm, access::whole()),
            Binding::read("k_norm", self.k_norm, access::whole()),
            Binding::owned("k", self.k, older_keys(cx), new_keys(cx)),
            Binding::owned("v", self.v, older_keys(cx), new_keys(cx)),
        ]
    }
}

/// Rows of the cache before this step's own.
fn older_keys(cx: &LaunchContext<'_>) -> Access {
    let kv_heads = cx.shape.kv_heads;
    access::sequences(cx, move |s, position, _| {
        vec![Region::new([s..s + 1, 0..kv_heads, 0..position])]
    })
}

msl_struct! {
    /// The prologue inside argument structs.
    pub struct PreparedArgs {
        /// Norm and rotary.
        pub rotary: RotaryArgs,
        /// Query heads.
        pub q_heads: u32,
        /// Key and value heads.
        pub kv_heads: u32,
        /// Positions of the KV cache.
        pub capacity: u32,
        /// 1: queries are rounded to bfloat16, as they would be in a buffer of matrix inputs.
        pub q_bf16: u32,
        /// 1: the new key and value are rounded to bfloat16, as in the cache.
        pub kv_bf16: u32,
    }
}

impl PreparedArgs {
    /// The prologue of a launch.
    pub(crate) fn new(cx: &LaunchContext<'_>) -> Self {
        let flag = |element: Element| u32::from(element == Element::Bf16);
        Self {
            rotary: RotaryArgs::new(cx),
            q_heads: cx.shape.q_heads as u32,
            kv_heads: cx.shape.kv_heads as u32,
            capacity: cx.session.capacity as u32,
            q_bf16: flag(cx.session.precision.act),
            kv_bf16: flag(cx.session.precision.kv),
        }
    }

    /// Adds the constants of the prologue to an entry.
    pub(crate) fn constants(&self, entry: Entry) -> Result<Entry, Unsupported> {
        if self.q_bf16 == 0 || self.kv_bf16 == 0 {
            let text = "queries or the KV cache are f32, need bfloat16; use a CPU device for f32";
            return Err(Unsupported(text.into()));
        }
        self.rotary.constants(entry)
    }

    /// Width of a head.
    pub(crate) fn head_dim(&self) -> usize {
        self.rotary.head_dim as usize
    }

    /// Query heads that share a KV head.
    pub(crate) fn group(&self) -> usize {
        (self.q_heads / self.kv_heads) as usize
    }

    /// First element of a KV head in the cache.
    pub(crate) fn cache_at(&self, sequence: usize, kv_head: usize) -> usize {
        (sequence * self.kv_heads as usize + kv_head) * self.capacity as usize * self.head_dim()
    }

    /// Reference: prepares a KV head of a decode row and stores its new rows. Returns the queries of
    /// the group `[group, head_dim]`, all keys and all values `[position + 1, head_dim]`.
    pub(crate) fn prepare(
        &self,
        io: &mut ReferenceIo<'_>,
        row: usize,
        kv_head: usize,
        position: usize,
    ) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let (dim, group) = (self.head_dim(), self.group());
        let (aq, ak, av) = (io.f32(bind::AQ), io.f32(bind::AK), io.f32(bind::AV));
        let (q_norm, k_norm) = (io.f32(bind::Q_NORM), io.f32(bind::K_NORM));
        let first = (row * self.q_heads as usize + kv_head * group) * dim;
        let queries = aq[first..first + group * dim]
            .chunks(dim)
            .flat_map(|q| round(self.rotary.norm_rotate(q, &q_norm, position), self.q_bf16))
            .collect();
        let raw = (row * self.kv_heads as usize + kv_head) * dim;
        let new_key = self.rotary.norm_rotate(&ak[raw..raw + dim], &k_norm, position);
        let new_value = av[raw..raw + dim].to_vec();
        let cache = self.cache_at(row, kv_head);
        let mut with_older = |binding: usize, new: Vec<f32>| {
            let new = round(new, self.kv_bf16);
            let mut rows = io.f32(binding)[cache..cache + position * dim].to_vec();
            rows.extend(&new);
            io.store(binding, cache + position * dim, new);
            rows
        };
        let keys = with_older(bind::K, new_key);
        (queries, keys, with_older(bind::V, new_value))
    }
}

fn round(values: Vec<f32>, to_bf16: u32) -> Vec<f32> {
    match to_bf16 {
        0 => values,
        _ => values.into_iter().map(|v| bf16::from_f32(v).to_f32()).collect(),
    }
}
