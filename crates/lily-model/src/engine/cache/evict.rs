//! What goes when there is no room.

use super::PrefixCache;

impl PrefixCache {
    /// Gives up states until `needed` bytes are free, those first that are worth least. `false` if
    /// one that would have to go is worth more than `worth`, or all of them were not enough. Nodes in
    /// `kept` stay; their states may go.
    ///
    /// A state is worth the tokens that a prompt would have to read again without it, back to the
    /// state in front of it, divided by the prompts since it was used. So a state in the middle of a
    /// conversation that has gone on goes before the last state of another one, and a long beginning
    /// that many prompts share stays.
    pub(super) fn evict_for(&mut self, needed: u64, worth: f64, kept: &[usize]) -> bool {
        if needed > self.figures.capacity {
            return false;
        }
        while self.figures.bytes + needed > self.figures.capacity {
            let Some((least, node)) = self.least() else { break };
            if least > worth {
                break;
            }
            self.drop_state(node, kept);
            self.figures.evicted += 1;
        }
        let has_room = self.figures.bytes + needed <= self.figures.capacity;
        if !has_room {
            // Nothing comes behind them.
            for &node in kept.iter().rev() {
                self.prune(node, &[]);
            }
        }
        has_room
    }

    /// The state that is worth least.
    fn least(&self) -> Option<(f64, usize)> {
        let states = self.nodes.iter().enumerate().filter_map(|(index, node)| {
            let state = node.state.as_ref()?;
            let lost = (node.end - self.state_before(node.parent)) as f64;
            // The clock never goes back.
            let prompts = self.clock.saturating_sub(state.used) as f64;
            Some((lost / (1.0 + prompts), index))
        });
        states.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Position of the last saved state up to the end of a node; 0 if there is none.
    fn state_before(&self, mut node: usize) -> usize {
        while self.nodes[node].end > 0 && self.nodes[node].state.is_none() {
            node = self.nodes[node].parent;
        }
        self.nodes[node].end
    }
}
