//! Cases at random dimensions.

use lily_plan::{GROUP, Precision};

use super::{Case, cases_at, cases_in, chosen_cases, named_kernels};
use crate::shape::{Mixer, ModelShape};
use crate::table;

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    /// A multiple of `step`, from one to `most` of it.
    fn multiple(&mut self, step: usize, most: usize) -> usize {
        step * (1 + self.below(most))
    }
}

/// Random dimensions within what every kernel accepts; small, so that references are quick.
pub fn random_shape(seed: u64) -> ModelShape {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let (kv_heads, k_heads) = (1 + random.below(3), 1 + random.below(3));
    let head_dim = random.multiple(16, 16);
    let experts = 2 + random.below(40);
    let vocab = 70 + random.below(700);
    let (k_dim, v_dim) = (random.multiple(32, 4), random.multiple(32, 4));
    let q_heads = whole_groups(kv_heads, 1 + random.below(8), head_dim);
    let v_heads = whole_groups(k_heads, 1 + random.below(4), v_dim);
    ModelShape {
        hidden: random.multiple(64, 6),
        layers: vec![Mixer::Gdn, Mixer::Attention],
        vocab,
        vocab_used: vocab - random.below(60),
        q_heads,
        kv_heads,
        head_dim,
        rotary_dim: random.multiple(2, head_dim / 2),
        rope_theta: [1e4, 1e5, 1e6, 1e7][random.below(4)],
        k_heads,
        v_heads,
        k_dim,
        v_dim,
        conv_width: 2 + random.below(4),
        experts,
        top_k: 1 + random.below(experts.min(12)),
        inner: random.multiple(64, 4),
        rms_eps: 1e-6,
    }
}

/// Heads in groups of `group` or a few more, so that all of them together are whole quantisation groups.
fn whole_groups(heads: usize, group: usize, dim: usize) -> usize {
    let is_whole = |group: &usize| (heads * group * dim).is_multiple_of(GROUP);
    heads * (group..group + GROUP).find(is_whole).unwrap_or(GROUP)
}

/// A case of each of the [`named_kernels`] at the dimensions of a seed, chosen by it.
pub fn random_cases(precision: Precision, seed: u64) -> Vec<Case> {
    let mut random = Random(!seed);
    let mut chosen = Vec::new();
    for kernel in named_kernels() {
        let own = || {
            let build = || table::cases_of(|other| other.name == kernel.name);
            cases_in(precision, || cases_at(vec![random_shape(seed)], build))
        };
        chosen.extend(chosen_cases(own, |mut cases| {
            vec![cases.swap_remove(random.below(cases.len()))]
        }));
    }
    for case in &mut chosen {
        case.name += &format!(", seed {seed}");
    }
    chosen
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn seeds_give_dimensions_of_their_own_and_the_same_twice() {
        let shapes: Vec<String> = (0..64).map(|seed| format!("{:?}", random_shape(seed))).collect();
        assert_eq!(shapes.iter().collect::<BTreeSet<_>>().len(), 64);
        assert_eq!(shapes[7], format!("{:?}", random_shape(7)));
        let all = (0..64).map(random_shape);
        for shape in all {
            assert!(shape.rotary_dim <= shape.head_dim && shape.top_k <= shape.experts);
            assert!(shape.q_heads.is_multiple_of(shape.kv_heads) && shape.q_heads <= 33);
            assert!(shape.vocab_used > 0 && shape.vocab_used <= shape.vocab);
        }
    }
}
