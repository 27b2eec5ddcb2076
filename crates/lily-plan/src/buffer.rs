//! Buffers of a session and ranges inside them.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// Index of a buffer in its [`Buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(u32);

impl BufferId {
    /// The index as a number.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Element type of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
    /// 32-bit signed integer.
    I32,
    /// A weight matrix as stored; its rows may differ in format, so only the sum is known.
    Matrix {
        /// Bytes of all rows: codes, scales and biases.
        total_bytes: u64,
    },
}

impl Element {
    /// Bytes of one element; `None` for matrices.
    pub fn bytes(self) -> Option<usize> {
        match self {
            Self::F32 | Self::I32 => Some(4),
            Self::Bf16 => Some(2),
            Self::Matrix { .. } => None,
        }
    }

    /// Short name as printed in plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::Matrix { .. } => "matrix",
        }
    }
}

/// What a buffer is for; decides who allocates it and what a snapshot saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BufferKind {
    /// Bound to the checkpoint, never written.
    Weight,
    /// Lives as long as a sequence: KV cache, convolution and recurrent state.
    State,
    /// Dead between two steps.
    Scratch,
    /// Control block, stop lists, output ring, prompt of the chunk.
    Control,
}

/// A declared buffer.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Unique name, such as `layers.3.k`.
    pub name: String,
    /// Element type.
    pub element: Element,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Purpose.
    pub kind: BufferKind,
}

impl Buffer {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes_of(self.elements())
    }

    /// Bytes of `elements` elements; for matrices their even share of the total.
    pub fn bytes_of(&self, elements: usize) -> u64 {
        match self.element {
            Element::Matrix { total_bytes } => {
                let share = u128::from(total_bytes) * elements as u128;
                (share / (self.elements().max(1) as u128)) as u64
            }
            other => elements as u64 * other.bytes().unwrap_or(0) as u64,
        }
    }
}

/// All buffers of a session; decode and prefill plans share them.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    list: Vec<Buffer>,
    by_name: HashMap<String, BufferId>,
}

impl Buffers {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a buffer.
    ///
    /// # Panics
    /// If the name is taken: names come from the plan builder, not from files.
    pub fn add(
        &mut self,
        kind: BufferKind,
        name: impl Into<String>,
        element: Element,
        shape: impl Into<Vec<usize>>,
    ) -> BufferId {
        let name = name.into();
        let id = BufferId(self.list.len() as u32);
        let taken = self.by_name.insert(name.clone(), id);
        assert!(taken.is_none(), "buffer `{name}` is declared twice");
        self.list.push(Buffer { name, element, shape: shape.into(), kind });
        id
    }

    /// Finds a buffer by name.
    pub fn find(&self, name: &str) -> Option<BufferId> {
        self.by_name.get(name).copied()
    }

    /// The buffer behind an id of this table.
    pub fn get(&self, id: BufferId) -> &Buffer {
        &self.list[id.index()]
    }

    /// All buffers with their ids, in order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = (BufferId, &Buffer)> {
        self.list.iter().enumerate().map(|(i, b)| (BufferId(i as u32), b))
    }

    /// Number of buffers.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether no buffer is declared.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Bytes of all buffers of one kind.
    pub fn bytes(&self, kind: BufferKind) -> u64 {
        self.list.iter().filter(|b| b.kind == kind).map(Buffer::bytes).sum()
    }
}

/// A box inside a buffer: one range for each leading axis, the other axes whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Region(Vec<Range<usize>>);

impl Region {
    /// The whole buffer.
    pub fn whole() -> Self {
        Self(Vec::new())
    }

    /// Ranges of the leading axes.
    pub fn new(axes: impl Into<Vec<Range<usize>>>) -> Self {
        Self(axes.into())
    }

    /// One index of each leading axis.
    pub fn at(indices: impl IntoIterator<Item = usize>) -> Self {
        Self(indices.into_iter().map(|i| i..i + 1).collect())
    }

    /// Ranges given explicitly; axes behind them are whole.
    pub fn axes(&self) -> &[Range<usize>] {
        &self.0
    }

    /// Whether two boxes of one buffer share an element.
    pub fn overlaps(&self, other: &Self) -> bool {
        !self.0.iter().any(Range::is_empty)
            && !other.0.iter().any(Range::is_empty)
            && self.0.iter().zip(&other.0).all(|(a, b)| a.start < b.end && b.start < a.end)
    }

    /// Number of elements in a buffer of `shape`.
    pub fn elements(&self, shape: &[usize]) -> usize {
        let axis = |(i, &size): (usize, &usize)| self.0.get(i).map_or(size, Range::len);
        shape.iter().enumerate().map(axis).product()
    }

    /// Whether the box lies inside a buffer of `shape`.
    pub fn fits(&self, shape: &[usize]) -> bool {
        self.0.len() <= shape.len()
            && self.0.iter().zip(shape).all(|(r, &size)| r.start <= r.end && r.end <= size)
    }

    /// Whether `inner` lies inside this box, both in a buffer of `shape`.
    pub fn contains(&self, inner: &Self, shape: &[usize]) -> bool {
        let axis = |region: &Self, i: usize| region.0.get(i).cloned().unwrap_or(0..shape[i]);
        inner.elements(shape) == 0
            || (0..shape.len()).all(|i| {
                let (outer, inner) = (axis(self, i), axis(inner, i));
                outer.start <= inner.start && inner.end <= outer.end
            })
    }

    /// Calls `visit` with every contiguous run of elements, as offsets into the flat buffer.
    pub fn for_each_run(&self, shape: &[usize], mut visit: impl FnMut(Range<usize>)) {
        let explicit = self.0.len();
        if explicit == 0 {
            return visit(0..shape.iter().product());
        }
        let inner: usize = shape[explicit..].iter().product();
        let mut strides = vec![inner; explicit];
        for axis in (0..explicit - 1).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        visit_axis(&self.0, &strides, 0, &mut visit);
    }
}

fn visit_axis(
    axes: &[Range<usize>],
    strides: &[usize],
    base: usize,
    visit: &mut dyn FnMut(Range<usize>),
) {
    let (range, stride) = (axes[0].clone(), strides[0]);
    if axes.len() == 1 {
        if !range.is_empty() {
            visit(base + range.start * stride..base + range.end * stride);
        }
        return;
    }
    for i in range {
        visit_axis(&axes[1..], &strides[1..], base + i * stride, visit);
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        let part = |r: &Range<usize>| match r.len() {
            1 => r.start.to_string(),
            _ => format!("{}..{}", r.start, r.end),
        };
        write!(f, "[{}]", self.0.iter().map(part).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_visits_exactly_its_elements() {
        let shape = [3, 4, 5];
        for region in [
            Region::whole(),
            Region::new([1..3]),
            Region::new([0..2, 1..3]),
            Region::new([2..3, 0..4, 1..2]),
            Region::new([1..1]),
        ] {
            let mut seen = Vec::new();
            region.for_each_run(&shape, |run| seen.extend(run));
            assert_eq!(seen.len(), region.elements(&shape));
            let inside = |flat: usize| {
                let index = [flat / 20, flat / 5 % 4, flat % 5];
                region.axes().iter().zip(index).all(|(r, i)| r.contains(&i))
            };
            assert!(seen.iter().all(|&flat| inside(flat)));
            assert_eq!((0..60).filter(|&flat| inside(flat)).count(), seen.len());
        }
    }

    #[test]
    fn matrix_bytes_are_shared_evenly() {
        let mut buffers = Buffers::new();
        let matrix = Element::Matrix { total_bytes: 4 * 36 };
        let id = buffers.add(BufferKind::Weight, "w", matrix, [4, 64]);
        assert_eq!(buffers.get(id).bytes_of(Region::at([2]).elements(&[4, 64])), 36);
    }
}
