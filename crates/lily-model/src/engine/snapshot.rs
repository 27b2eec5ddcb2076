//! Saved states: snapshot, restore, fork.

use std::ops::Range;

use lily_kernels::ModelShape;
use lily_plan::{BufferId, Buffers, Device, DeviceError, Element, Precision};

use super::sequence::Sequence;
use super::{Engine, EngineError, SequenceId};
use crate::plan::MixerBuffers;

/// The state of a sequence at one position, in host memory: KV rows so far, the columns of the
/// convolution that the next step reads, and one recurrent state for each DeltaNet layer.
#[derive(Clone, Debug)]
pub struct Snapshot {
    sequence: Sequence,
    pieces: Vec<Vec<u8>>,
    /// What the pieces' sizes follow from.
    shape: ModelShape,
    precision: Precision,
}

impl Snapshot {
    /// Tokens in the saved states.
    pub fn tokens(&self) -> &[u32] {
        &self.sequence.tokens
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(Vec::len).sum()
    }
}

/// A range of a state buffer, in elements.
pub(crate) struct Piece {
    buffer: BufferId,
    elements: Range<usize>,
}

impl Engine {
    /// Saves the state of a sequence. A state that is not finite is refused, never saved.
    pub fn snapshot(&mut self, sequence: SequenceId) -> Result<Snapshot, EngineError> {
        self.settle(sequence)?;
        let state = self.sequence(sequence)?.clone();
        let mut pieces =
            self.read_pieces(sequence, self.state_pieces(sequence, state.position()))?;
        let rows = self.row_pieces(sequence, 0..state.position());
        pieces.extend(self.read_pieces(sequence, rows)?);
        let oldest = state.position();
        Ok(Snapshot {
            sequence: Sequence { oldest, logits_row: None, resident: Vec::new(), ..state },
            pieces,
            shape: self.shape.clone(),
            precision: self.session.precision,
        })
    }

    /// Puts a saved state into an open sequence, which may be another one, also of another engine
    /// for the same model and precision.
    pub fn restore(
        &mut self,
        sequence: SequenceId,
        snapshot: &Snapshot,
    ) -> Result<(), EngineError> {
        self.settle(sequence)?;
        if snapshot.shape != self.shape || snapshot.precision != self.session.precision {
            return Err(EngineError::ForeignSnapshot);
        }
        let (needed, context) = (snapshot.sequence.position(), self.session.capacity);
        if needed > context {
            return Err(EngineError::ContextFull { needed, context });
        }
        let mut pieces = self.state_pieces(sequence, needed);
        pieces.extend(self.row_pieces(sequence, 0..needed));
        for (piece, bytes) in pieces.into_iter().zip(&snapshot.pieces) {
            write_piece(self.device.as_mut(), &self.buffers.table, &piece, bytes)?;
        }
        // A run that began before finds another sequence in its place.
        self.opened += 1;
        self.sequences[sequence.0] = Sequence { opened: self.opened, ..snapshot.sequence.clone() };
        self.write_control(sequence)
    }

    /// Copies a sequence into a new one.
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, EngineError> {
        let snapshot = self.snapshot(sequence)?;
        let copy = self.open()?;
        let restored = self.restore(copy, &snapshot);
        if restored.is_err() {
            self.close(copy);
        }
        restored.map(|()| copy)
    }

    /// Reads pieces of a sequence; one that is not finite is an error.
    pub(crate) fn read_pieces(
        &mut self,
        sequence: SequenceId,
        pieces: Vec<Piece>,
    ) -> Result<Vec<Vec<u8>>, EngineError> {
        let mut read = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let buffer = self.buffers.table.get(piece.buffer);
            let (element, name) = (buffer.element, buffer.name.clone());
            let size = element.bytes().unwrap_or(0);
            let mut bytes = vec![0; piece.elements.len() * size];
            self.device.read(piece.buffer, piece.elements.start * size, &mut bytes)?;
            if !is_finite(element, &bytes) {
                return Err(EngineError::PoisonedState { sequence: sequence.0, buffer: name });
            }
            read.push(bytes);
        }
        Ok(read)
    }

    /// What a sequence at `position` reads of its convolutions and recurrent states, always in the
    /// same order.
    pub(crate) fn state_pieces(&self, sequence: SequenceId, position: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if position == 0 {
            return pieces;
        }
        let (shape, session) = (&self.shape, &self.session);
        let mut add = |buffer, unit: usize, index: usize| {
            pieces.push(Piece { buffer, elements: index * unit..(index + 1) * unit });
        };
        for layer in &self.buffers.layers {
            let MixerBuffers::Gdn(g) = &layer.mixer else { continue };
            // The columns that the next step reads. Other slots may hold anything: a chunk writes no
            // more than these.
            let (column, slots) = (shape.conv_channels(), session.conv_slots(shape));
            for p in position.saturating_sub(shape.conv_width - 1)..position {
                add(g.conv, column, sequence.0 * slots + p % slots);
            }
            let state = shape.v_heads * shape.v_dim * shape.k_dim;
            let slots = session.state_slots();
            add(g.state, state, sequence.0 * slots + position % slots);
        }
        pieces
    }

    /// Keys and values of a range of positions, always in the same order.
    pub(crate) fn row_pieces(&self, sequence: SequenceId, positions: Range<usize>) -> Vec<Piece> {
        let (shape, session) = (&self.shape, &self.session);
        let head = session.capacity * shape.head_dim;
        let mut pieces = Vec::new();
        for layer in &self.buffers.layers {
            let MixerBuffers::Attention(a) = &layer.mixer else { continue };
            for kv_head in 0..shape.kv_heads {
                let first = (sequence.0 * shape.kv_heads + kv_head) * head;
                let from = first + positions.start * shape.head_dim;
                let elements = from..first + positions.end * shape.head_dim;
                pieces.push(Piece { buffer: a.k, elements: elements.clone() });
                pieces.push(Piece { buffer: a.v, elements });
            }
        }
        pieces
    }

    /// Bytes of pieces.
    pub(crate) fn piece_bytes(&self, pieces: &[Piece]) -> u64 {
        let size = |buffer| self.buffers.table.get(buffer).element.bytes().unwrap_or(0);
        pieces.iter().map(|piece| (piece.elements.len() * size(piece.buffer)) as u64).sum()
    }
}

/// Writes the bytes of a piece.
pub(crate) fn write_piece(
    device: &mut dyn Device,
    table: &Buffers,
    piece: &Piece,
    bytes: &[u8],
) -> Result<(), DeviceError> {
    let size = table.get(piece.buffer).element.bytes().unwrap_or(0);
    device.write(piece.buffer, piece.elements.start * size, bytes)
}

/// Whether no number has an exponent of ones only. Blocks without an exit inside are read as quickly as
/// memory gives them.
fn is_finite(element: Element, bytes: &[u8]) -> bool {
    const BLOCK: usize = 16 << 10;
    bytes.chunks(BLOCK).all(|block| match element {
        Element::Bf16 => block
            .as_chunks::<2>()
            .0
            .iter()
            .fold(true, |all, &b| all & (u16::from_le_bytes(b) & 0x7f80 != 0x7f80)),
        _ => block
            .as_chunks::<4>()
            .0
            .iter()
            .fold(true, |all, &b| all & (u32::from_le_bytes(b) & 0x7f80_0000 != 0x7f80_0000)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_not_finite_is_found_anywhere_in_both_element_types() {
        for at in [0, 1, 4095, 4096, 8191, 8192, 9999] {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let value = |i| if i == at { bad } else { [0.0, -1.5, f32::MAX, 1e-40][i % 4] };
                let wide: Vec<u8> = (0..10_000).flat_map(|i| value(i).to_le_bytes()).collect();
                assert!(!is_finite(Element::F32, &wide), "{bad} at {at}");
                let short = |i| half::bf16::from_f32(if i == at { bad } else { 1e38 });
                let short: Vec<u8> = (0..10_000).flat_map(|i| short(i).to_le_bytes()).collect();
                assert!(!is_finite(Element::Bf16, &short), "{bad} at {at}");
                let mut sound = wide;
                sound[4 * at..4 * at + 4].fill(0);
                assert!(is_finite(Element::F32, &sound));
            }
        }
    }
}
