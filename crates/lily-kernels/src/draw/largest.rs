//! The largest of many values, without allocation.

use super::MOST;

/// The `most` largest values seen so far with their ids, largest first, the lowest id first on ties.
/// Values are not NaN.
#[derive(Clone, Debug)]
pub struct Largest {
    values: [f32; MOST],
    ids: [u32; MOST],
    len: usize,
    most: usize,
}

impl Largest {
    /// None yet, at most `most`, which is 1 to [`MOST`].
    pub fn new(most: usize) -> Self {
        Self { values: [0.0; MOST], ids: [0; MOST], len: 0, most: most.clamp(1, MOST) }
    }

    /// Takes a value in, if it is among the largest.
    pub fn push(&mut self, value: f32, id: u32) {
        let before =
            |i: usize| self.values[i] > value || (self.values[i] == value && self.ids[i] < id);
        if self.len == self.most && before(self.most - 1) {
            return;
        }
        let mut at = self.len.min(self.most - 1);
        while at > 0 && !before(at - 1) {
            at -= 1;
        }
        self.len = self.most.min(self.len + 1);
        self.values.copy_within(at..self.len - 1, at + 1);
        self.ids.copy_within(at..self.len - 1, at + 1);
        (self.values[at], self.ids[at]) = (value, id);
    }

    /// The values.
    pub fn values(&self) -> &[f32] {
        &self.values[..self.len]
    }

    /// Their ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::few;

    #[test]
    fn largest_is_a_stable_sort_cut_off() {
        let mut random = 7u32;
        let mut values = Vec::new();
        for _ in 0..300 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few values, so that most are ties; both zeros, which are one.
            values
                .push([-0.0, 0.0, 1.5, -2.0, f32::NEG_INFINITY, 3.0][(random >> 24) as usize % 6]);
        }
        for most in few([20, 1, 2, 63, 64]) {
            let mut sorted: Vec<u32> = (0..300).collect();
            let value = |id: &u32| values[*id as usize];
            sorted.sort_by(|a, b| value(b).partial_cmp(&value(a)).unwrap());
            let (mut rising, mut falling) = (Largest::new(most), Largest::new(most));
            (0..300).for_each(|id| rising.push(values[id], id as u32));
            (0..300).rev().for_each(|id| falling.push(values[id], id as u32));
            assert_eq!(rising.ids(), &sorted[..most]);
            assert_eq!(falling.ids(), &sorted[..most]);
            assert_eq!(rising.values()[0], 3.0);
        }
        let mut short = Largest::new(8);
        short.push(1.0, 4);
        short.push(2.0, 9);
        assert_eq!((short.values(), short.ids()), (&[2.0, 1.0][..], &[9, 4][..]));
    }
}
