//! Log probabilities of the tokens that a model might have chosen.

/// Log probabilities at one place of a text: natural logarithms of the model's own distribution, the
/// softmax of its logits before temperature, filters, penalties, biases and masks.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token that was chosen.
    pub chosen: f32,
    /// The most likely tokens with theirs, most likely first, lowest id first on ties.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// From logits `[vocab]` without padding rows: those of `id` and of the `top` most likely.
    pub(crate) fn new(logits: &[f32], id: u32, top: usize) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from(l - largest).exp()).sum();
        let norm = f64::from(largest) + sum.ln();
        let logprob = |id: u32| {
            let logit = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
            (f64::from(logit) - norm) as f32
        };
        let by_logit =
            |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        let top = top.min(ids.len());
        if top > 0 && top < ids.len() {
            ids.select_nth_unstable_by(top - 1, by_logit);
        }
        ids.truncate(top);
        ids.sort_unstable_by(by_logit);
        Self { chosen: logprob(id), top: ids.into_iter().map(|id| (id, logprob(id))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_are_those_of_the_softmax_with_the_lowest_id_first_on_ties() {
        let logits = [1.0f32, 3.0, 2.0, 3.0, -1.0];
        let got = TokenLogprobs::new(&logits, 2, 3);
        let total: f32 = logits.iter().map(|l| l.exp()).sum();
        let want = |id: usize| (logits[id].exp() / total).ln();
        assert!((got.chosen - want(2)).abs() < 1e-5, "{got:?}");
        let ids: Vec<u32> = got.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 3, 2]);
        for (id, logprob) in got.top {
            assert!((logprob - want(id as usize)).abs() < 1e-5, "{id}: {logprob}");
        }
        let all = TokenLogprobs::new(&logits, 0, 99).top;
        let sum: f32 = all.iter().map(|(_, l)| l.exp()).sum();
        assert!((all.len() == 5) && (sum - 1.0).abs() < 1e-5, "{sum}");
        assert!(TokenLogprobs::new(&logits, 0, 0).top.is_empty());
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let got = TokenLogprobs::new(&[1e30, 1e30, f32::NEG_INFINITY], 1, 2);
        assert!((got.chosen + std::f32::consts::LN_2).abs() < 1e-3 || got.chosen == 0.0);
        assert_eq!(got.top.len(), 2);
    }
}
