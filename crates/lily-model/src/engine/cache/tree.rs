//! The tree of token runs.

use super::CacheUse;

/// Bytes by piece, in an order that the engine knows. Of rows, a piece has the same number of bytes
/// for every token.
pub(crate) type Pieces = Vec<Vec<u8>>;

/// What a node takes besides its pieces, about.
const NODE_BYTES: u64 = 512;
const ROOT: usize = 0;

/// A run of tokens behind those of its parent.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) parent: usize,
    /// Each begins with another token.
    pub(super) children: Vec<usize>,
    pub(super) tokens: Vec<u32>,
    /// Position behind the last token.
    pub(super) end: usize,
    rows: Pieces,
    pub(super) state: Option<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pieces: Pieces,
    /// When a prompt last went on here, or it was saved.
    pub(super) used: u64,
}

/// Where a prompt can go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Nodes from the first token to the saved state.
    path: Vec<usize>,
    /// Tokens in the saved state; 0 if there is none.
    pub(crate) tokens: usize,
    /// Tokens that the prompt has in common with something that is kept: it parts there.
    pub(crate) parted: usize,
}

/// Rows of a run of tokens.
pub(crate) struct Run<'a> {
    /// Position of the first.
    pub(crate) start: usize,
    /// Position behind the last.
    pub(crate) end: usize,
    /// Their rows.
    pub(crate) rows: &'a Pieces,
}

/// Beginnings of earlier sequences, in a bounded number of bytes.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    /// The first is the root, which has no tokens.
    pub(super) nodes: Vec<Node>,
    unused: Vec<usize>,
    /// Prompts looked up so far.
    pub(super) clock: u64,
    pub(super) figures: CacheUse,
}

/// Bytes of a state and of the rows of so many tokens in front of it.
pub(crate) fn needed_bytes(tokens: usize, state_bytes: u64, row_bytes: u64) -> u64 {
    // One node for the new tokens, and one where a run is cut in two.
    state_bytes + tokens as u64 * (row_bytes + 4) + 2 * NODE_BYTES
}

impl Default for PrefixCache {
    /// One that keeps nothing.
    fn default() -> Self {
        Self::new(0)
    }
}

impl PrefixCache {
    pub(crate) fn new(capacity: u64) -> Self {
        let figures = CacheUse { capacity, ..CacheUse::default() };
        Self { nodes: vec![Node::default()], unused: Vec::new(), clock: 0, figures }
    }

    /// Whether nothing is ever kept.
    pub(crate) fn is_off(&self) -> bool {
        self.figures.capacity == 0
    }

    pub(crate) fn figures(&self) -> CacheUse {
        self.figures
    }

    /// Where a prompt can go on, with at least one token left to read. Changes nothing.
    pub(crate) fn find(&self, prompt: &[u32]) -> Found {
        let (path, parted) = self.walk(prompt);
        let can_resume =
            |&node: &usize| self.nodes[node].state.is_some() && self.nodes[node].end < prompt.len();
        let length = path.iter().rposition(can_resume).map_or(0, |last| last + 1);
        let tokens = path[..length].last().map_or(0, |&node| self.nodes[node].end);
        Found { path: path[..length].to_vec(), tokens, parted }
    }

    /// Counts a prompt that goes on where it was found.
    pub(crate) fn note_use(&mut self, found: &Found) {
        self.clock += 1;
        let clock = self.clock;
        match found.path.last() {
            None => self.figures.misses += 1,
            Some(&node) => {
                self.figures.hits += 1;
                self.figures.reused_tokens += found.tokens as u64;
                if let Some(state) = &mut self.nodes[node].state {
                    state.used = clock;
                }
            }
        }
    }

    /// The rows in front of a saved state that was found, in order.
    pub(crate) fn rows(&self, found: &Found) -> impl Iterator<Item = Run<'_>> {
        found.path.iter().map(|&node| {
            let node = &self.nodes[node];
            Run { start: node.end - node.tokens.len(), end: node.end, rows: &node.rows }
        })
    }

    /// A saved state that was found.
    pub(crate) fn state(&self, found: &Found) -> Option<&Pieces> {
        let node = found.path.last()?;
        self.nodes[*node].state.as_ref().map(|state| &state.pieces)
    }

    /// Tokens in the last saved state on the way of `tokens`.
    pub(crate) fn saved(&self, tokens: &[u32]) -> usize {
        let (path, _) = self.walk(tokens);
        let last = path.iter().rev().find(|&&node| self.nodes[node].state.is_some());
        last.map_or(0, |&node| self.nodes[node].end)
    }

    /// Makes room for the state behind `tokens`. Gives the position from which on its rows are not
    /// here yet; `None` if the state is here, or is worth less than those that had to go for it.
    pub(crate) fn make_room(
        &mut self,
        tokens: &[u32],
        state_bytes: u64,
        row_bytes: u64,
    ) -> Option<usize> {
        let (path, parted) = self.walk(tokens);
        let whole = path.last().map_or(0, |&node| self.nodes[node].end);
        if whole == tokens.len() && path.last().is_some_and(|&n| self.nodes[n].state.is_some()) {
            return None;
        }
        let needed = needed_bytes(tokens.len() - parted, state_bytes, row_bytes);
        let worth = (tokens.len() - self.saved(tokens)) as f64;
        // The run that is only begun is needed too.
        let mut kept = path;
        let last = kept.last().copied().unwrap_or(ROOT);
        kept.extend(tokens.get(whole).and_then(|&token| self.child(last, token)));
        if !self.evict_for(needed, worth, &kept) {
            self.figures.refused += 1;
            return None;
        }
        Some(parted)
    }

    /// Keeps a state and the rows of the last tokens, from where [`make_room`](Self::make_room) said.
    pub(crate) fn insert(&mut self, tokens: &[u32], from: usize, rows: Pieces, pieces: Pieces) {
        let (path, parted) = self.walk(tokens);
        debug_assert_eq!(from, parted, "rows from where the tree ends");
        let mut node = path.last().copied().unwrap_or(ROOT);
        let whole = self.nodes[node].end;
        let mut cut = None;
        if parted > whole
            && let Some(child) = self.child(node, tokens[whole])
        {
            node = self.cut(child, parted - whole);
            cut = Some(child);
        }
        if parted < tokens.len() {
            let run = tokens[parted..].to_vec();
            node = self.add(Node {
                parent: node,
                tokens: run,
                end: tokens.len(),
                rows,
                ..Node::default()
            });
        }
        self.figures.bytes += bytes_of(&pieces);
        self.figures.states += 1;
        self.figures.saved += 1;
        let used = self.clock;
        self.nodes[node].state = Some(State { pieces, used });
        // What it led to may have gone for this.
        if let Some(child) = cut {
            self.prune(child, &[]);
        }
    }

    /// Gives up the room for a state that could not be saved after all.
    pub(crate) fn give_up_room(&mut self, tokens: &[u32]) {
        self.figures.refused += 1;
        let (path, _) = self.walk(tokens);
        let last = path.last().copied().unwrap_or(ROOT);
        let whole = self.nodes[last].end;
        if let Some(child) = tokens.get(whole).and_then(|&token| self.child(last, token)) {
            self.prune(child, &[]);
        }
        self.prune(last, &[]);
    }

    /// Forgets the states on the way of a prompt: they have led to numbers that are not finite.
    pub(crate) fn forget(&mut self, prompt: &[u32]) {
        let (path, _) = self.walk(prompt);
        for node in path.into_iter().rev() {
            self.drop_state(node, &[]);
        }
    }

    /// Nodes whose tokens `tokens` has all, from the first token on, and how far it goes with what is
    /// here, to the middle of the next node maybe.
    fn walk(&self, tokens: &[u32]) -> (Vec<usize>, usize) {
        let (mut path, mut node, mut at) = (Vec::new(), ROOT, 0);
        while let Some(child) = tokens.get(at).and_then(|&token| self.child(node, token)) {
            let run = &self.nodes[child].tokens;
            let same = common(run, &tokens[at..]);
            at += same;
            if same < run.len() {
                break;
            }
            path.push(child);
            node = child;
        }
        (path, at)
    }

    fn child(&self, node: usize, token: u32) -> Option<usize> {
        let mut children = self.nodes[node].children.iter().copied();
        children.find(|&child| self.nodes[child].tokens.first() == Some(&token))
    }

    fn add(&mut self, node: Node) -> usize {
        self.figures.bytes += node.bytes();
        let parent = node.parent;
        let index = match self.unused.pop() {
            Some(index) => {
                self.nodes[index] = node;
                index
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.nodes[parent].children.push(index);
        index
    }

    /// Cuts a run behind its first tokens; gives the node of these.
    fn cut(&mut self, child: usize, tokens: usize) -> usize {
        let node = &mut self.nodes[child];
        if tokens >= node.tokens.len() {
            return child;
        }
        self.figures.bytes -= node.bytes();
        let parent = node.parent;
        let rest = node.tokens.split_off(tokens);
        let front = std::mem::replace(&mut node.tokens, rest);
        let length = front.len() + node.tokens.len();
        let mut front_rows = Vec::with_capacity(node.rows.len());
        for piece in &mut node.rows {
            let rest = piece.split_off(piece.len() / length * tokens);
            let mut piece = std::mem::replace(piece, rest);
            piece.shrink_to_fit();
            front_rows.push(piece);
        }
        let end = node.end - node.tokens.len();
        self.figures.bytes += node.bytes();
        self.nodes[parent].children.retain(|&c| c != child);
        let front =
            self.add(Node { parent, tokens: front, end, rows: front_rows, ..Node::default() });
        self.nodes[front].children.push(child);
        self.nodes[child].parent = front;
        front
    }

    /// Bytes and states, counted anew; a leaf without a state is a fault.
    #[cfg(test)]
    pub(super) fn count(&self) -> (u64, usize) {
        let live = |index: &usize| *index != ROOT && !self.unused.contains(index);
        let nodes = (0..self.nodes.len()).filter(live).map(|index| &self.nodes[index]);
        nodes.fold((0, 0), |(bytes, states), node| {
            assert!(node.state.is_some() || !node.children.is_empty(), "a leaf leads to a state");
            let state = node.state.as_ref().map_or(0, |state| bytes_of(&state.pieces));
            (bytes + node.bytes() + state, states + usize::from(node.state.is_some()))
        })
    }

    /// Drops a state, and rows that lead to none, but for nodes in `kept`.
    pub(super) fn drop_state(&mut self, node: usize, kept: &[usize]) {
        if let Some(state) = self.nodes[node].state.take() {
            self.figures.bytes -= bytes_of(&state.pieces);
            self.figures.states -= 1;
        }
        self.prune(node, kept);
    }

    /// Removes a node that leads to no state, and so on upwards.
    pub(super) fn prune(&mut self, mut node: usize, kept: &[usize]) {
        // One that is gone has no tokens.
        while !self.nodes[node].tokens.is_empty()
            && self.nodes[node].state.is_none()
            && self.nodes[node].children.is_empty()
            && !kept.contains(&node)
        {
            let gone = std::mem::take(&mut self.nodes[node]);
            self.figures.bytes -= gone.bytes();
            self.nodes[gone.parent].children.retain(|&child| child != node);
            self.unused.push(node);
            node = gone.parent;
        }
    }
}

impl Node {
    fn bytes(&self) -> u64 {
        bytes_of(&self.rows) + 4 * self.tokens.len() as u64 + NODE_BYTES
    }
}

fn bytes_of(pieces: &Pieces) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

/// Tokens that two runs begin with alike.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
