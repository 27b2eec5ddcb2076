//! Where everything lies: all buffers of a session in a few allocations, made once.
//!
//! The first allocation holds argument structs and the slots of small reads; then come control blocks, work
//! memory, states and weights, each kind apart. No buffer crosses an allocation, and no allocation is
//! larger than the device's largest one.

use std::collections::HashMap;

use lily_kernels::gpu::{MatrixFormat, weight_bytes};
use lily_plan::{Buffer, BufferId, BufferKind, Buffers, FETCH_BYTES, Weight, Weights};

use crate::encoder::Limits;

/// An allocation, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllocationId(pub usize);

/// A range of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The allocation.
    pub allocation: AllocationId,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Place {
    /// A part of this place.
    ///
    /// # Panics
    /// If it is not inside.
    pub fn part(self, offset: u64, bytes: u64) -> Self {
        assert!(offset + bytes <= self.bytes, "{bytes} bytes at {offset} of {}", self.bytes);
        Self { offset: self.offset + offset, bytes, ..self }
    }

    /// Behind the last byte.
    pub fn end(self) -> u64 {
        self.offset + self.bytes
    }

    /// Whether two places share a byte.
    pub fn overlaps(self, other: Self) -> bool {
        self.allocation == other.allocation
            && self.offset < other.end()
            && other.offset < self.end()
    }
}

/// Reads under way at once: more than any engine runs ahead. A later read takes the slot of one that
/// nobody took.
pub const FETCH_SLOTS: usize = 64;

/// Bytes of the argument structs of all plans. Equal structs lie there once, so a plan adds a few dozen; a
/// server has some hundred plans.
const ARGUMENT_BYTES: u64 = 4 << 20;

/// A buffer does not fit into any allocation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "buffer {name} has {bytes} bytes, the device's largest buffer {largest}; use a smaller context, or \
     a smaller model"
)]
pub struct TooLarge {
    /// The buffer.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// The device's limit.
    pub largest: u64,
}

/// Places of everything.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    sizes: Vec<u64>,
    places: Vec<Place>,
    formats: Vec<Option<MatrixFormat>>,
}

impl Layout {
    /// Places all buffers; weights have their size on the device.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn new(buffers: &Buffers, weights: &Weights, limits: &Limits) -> Result<Self, TooLarge> {
        Self::of_sizes(buffers, limits, |buffer| device_bytes(buffer, weights))
    }

    /// As [`new`](Self::new); `size` gives the bytes that a buffer takes on the device, and the format of a matrix.
    ///
    /// # Errors
    /// [`TooLarge`].
    pub fn of_sizes(
        buffers: &Buffers,
        limits: &Limits,
        size: impl Fn(&Buffer) -> (u64, Option<MatrixFormat>),
    ) -> Result<Self, TooLarge> {
        let slots = (FETCH_SLOTS * FETCH_BYTES) as u64;
        let nowhere = Place { allocation: AllocationId(0), offset: 0, bytes: 0 };
        let mut layout = Self {
            sizes: vec![ARGUMENT_BYTES + slots],
            places: vec![nowhere; buffers.len()],
            formats: vec![None; buffers.len()],
        };
        for kind in
            [BufferKind::Control, BufferKind::Scratch, BufferKind::State, BufferKind::Weight]
        {
            let mut open = None;
            for (id, buffer) in buffers.iter().filter(|(_, b)| b.kind == kind) {
                let (bytes, format) = size(buffer);
                layout.formats[id.index()] = format;
                layout.places[id.index()] =
                    layout.place(&mut open, bytes, limits).ok_or_else(|| TooLarge {
                        name: buffer.name.clone(),
                        bytes,
                        largest: limits.allocation_bytes,
                    })?;
            }
        }
        Ok(layout)
    }

    /// Puts bytes at the end of the open allocation, or opens another.
    fn place(
        &mut self,
        open: &mut Option<AllocationId>,
        bytes: u64,
        limits: &Limits,
    ) -> Option<Place> {
        if bytes > limits.allocation_bytes {
            return None;
        }
        let room = |id: &AllocationId| {
            let start = self.sizes[id.0].next_multiple_of(limits.constant_alignment);
            start + bytes <= limits.arena_bytes.min(limits.allocation_bytes)
        };
        let allocation = open.filter(room).unwrap_or_else(|| {
            self.sizes.push(0);
            AllocationId(self.sizes.len() - 1)
        });
        *open = Some(allocation);
        let size = &mut self.sizes[allocation.0];
        let offset = size.next_multiple_of(limits.constant_alignment);
        // An allocation is never empty.
        *size = (offset + bytes).max(1);
        Some(Place { allocation, offset, bytes })
    }

    /// Bytes of each allocation.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// Bytes of all allocations.
    pub fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Where a buffer lies.
    pub fn of(&self, buffer: BufferId) -> Place {
        self.places[buffer.index()]
    }

    /// Device format of a weight matrix.
    pub fn format(&self, buffer: BufferId) -> Option<MatrixFormat> {
        self.formats[buffer.index()]
    }

    /// Where argument structs lie.
    pub fn arguments(&self) -> Place {
        Place { allocation: AllocationId(0), offset: 0, bytes: ARGUMENT_BYTES }
    }

    /// A slot of a small read.
    pub fn slot(&self, index: usize) -> Place {
        let offset = ARGUMENT_BYTES + (index % FETCH_SLOTS * FETCH_BYTES) as u64;
        Place { allocation: AllocationId(0), offset, bytes: FETCH_BYTES as u64 }
    }
}

/// Bytes of a buffer on the device, and the format of a matrix.
fn device_bytes(buffer: &Buffer, weights: &Weights) -> (u64, Option<MatrixFormat>) {
    let weight = match buffer.kind {
        BufferKind::Weight => weights.get(&buffer.name),
        _ => None,
    };
    let format = match weight {
        Some(Weight::Matrix(matrix)) => Some(MatrixFormat::of(matrix)),
        _ => None,
    };
    (weight.map_or(buffer.bytes(), |weight| weight_bytes(weight) as u64), format)
}

/// Argument structs of all plans, each once.
#[derive(Debug, Default)]
pub struct Arguments {
    known: HashMap<Vec<u8>, Place>,
    used: u64,
}

impl Arguments {
    /// Where a struct lies, and whether it is new and has to be written. `None` if there is no room left.
    pub fn place(&mut self, arena: Place, args: &[u8], limits: &Limits) -> Option<(Place, bool)> {
        if let Some(place) = self.known.get(args) {
            return Some((*place, false));
        }
        let (offset, bytes) = (self.used, args.len() as u64);
        if offset + bytes > arena.bytes {
            return None;
        }
        let place = arena.part(offset, bytes);
        self.used = (offset + bytes).next_multiple_of(limits.constant_alignment);
        self.known.insert(args.to_vec(), place);
        Some((place, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_plan::Element;

    fn buffers(sizes: &[(BufferKind, usize)]) -> Buffers {
        let mut table = Buffers::new();
        for (i, &(kind, bytes)) in sizes.iter().enumerate() {
            table.add(kind, format!("b{i}"), Element::F32, [bytes / 4]);
        }
        table
    }

    #[test]
    fn buffers_are_apart_aligned_and_inside_allocations_below_the_limit() {
        let limits = Limits { allocation_bytes: 4096, arena_bytes: 2048, ..Limits::default() };
        let kinds =
            [BufferKind::State, BufferKind::Scratch, BufferKind::State, BufferKind::Control];
        let sizes: Vec<_> = (0..40).map(|i| (kinds[i % 4], 4 + 92 * i)).collect();
        let table = buffers(&sizes);
        let layout = Layout::new(&table, &Weights::new(), &limits).expect("all fit");
        let places: Vec<Place> = table.iter().map(|(id, _)| layout.of(id)).collect();
        for (i, (id, buffer)) in table.iter().enumerate() {
            let place = layout.of(id);
            assert_eq!(place.bytes, buffer.bytes());
            assert!(place.offset.is_multiple_of(256));
            assert!(place.end() <= layout.sizes()[place.allocation.0]);
            assert!(place.allocation != layout.arguments().allocation);
            assert!(places[..i].iter().all(|other| !other.overlaps(place)));
        }
        let shared =
            |allocation| places.iter().filter(|p| p.allocation.0 == allocation).count() > 1;
        for (i, &size) in layout.sizes().iter().enumerate().skip(1) {
            assert!(size <= if shared(i) { 2048 } else { 4096 });
        }
        assert!(layout.sizes().len() > 4, "the buffers of a kind take several allocations");
    }

    #[test]
    fn a_buffer_above_the_limit_is_refused_by_name() {
        let limits = Limits { allocation_bytes: 1024, ..Limits::default() };
        let table = buffers(&[(BufferKind::State, 512), (BufferKind::State, 2048)]);
        let error = Layout::new(&table, &Weights::new(), &limits).unwrap_err();
        assert!(
            error.to_string().starts_with("buffer b1 has 2048 bytes, the device's largest buffer")
        );
    }

    #[test]
    fn equal_arguments_lie_once_and_a_full_arena_is_refused() {
        let limits = Limits::default();
        let arena = Place { allocation: AllocationId(0), offset: 0, bytes: 600 };
        let mut arguments = Arguments::default();
        let mut place = |args: &[u8]| arguments.place(arena, args, &limits);
        let (first, is_new) = place(&[1; 20]).expect("there is room");
        assert!(is_new && first.offset == 0 && first.bytes == 20);
        assert_eq!(
            place(&[2; 20]).map(|(place, is_new)| (place.offset, is_new)),
            Some((256, true))
        );
        assert_eq!(place(&[1; 20]), Some((first, false)));
        assert!(place(&[3; 20]).is_some());
        assert_eq!(place(&[4; 20]), None);
    }

    #[test]
    fn slots_are_apart_and_behind_the_arguments() {
        let layout = Layout::new(&Buffers::new(), &Weights::new(), &Limits::default()).unwrap();
        let slots: Vec<Place> = (0..FETCH_SLOTS).map(|i| layout.slot(i)).collect();
        for (i, slot) in slots.iter().enumerate() {
            assert!(!slot.overlaps(layout.arguments()) && slot.end() <= layout.sizes()[0]);
            assert!(slots[..i].iter().all(|other| !other.overlaps(*slot)));
        }
        assert_eq!(layout.slot(FETCH_SLOTS), slots[0]);
    }
}
