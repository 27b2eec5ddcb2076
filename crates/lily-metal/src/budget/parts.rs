//! Weights spread over several buffers, because a device's largest buffer is smaller than its memory.

/// Bytes that a matrix's place in its buffer is a multiple of: two cache lines, and the largest alignment that Metal asks
/// of an offset on a Mac.
pub const PART_ALIGNMENT: u64 = 256;
/// Bytes of a page on Apple silicon; a buffer's length is a multiple.
pub const PAGE: u64 = 16 << 10;
/// Bytes that a buffer of weights has at most, even where the device allows more: a few buffers for the full-size model,
/// none of them so large that a fragmented machine cannot map it.
pub const PART_BYTES: u64 = 4 << 30;

/// Where weights lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Place of each weight, in the order given.
    pub places: Vec<Place>,
    /// Length of each buffer in bytes, a multiple of [`PAGE`].
    pub buffers: Vec<u64>,
}

/// Place of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of the buffer.
    pub buffer: usize,
    /// Byte in it, a multiple of [`PART_ALIGNMENT`].
    pub offset: u64,
}

/// A weight that no buffer of the device can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "weight {index} takes {bytes} bytes, but the largest buffer of this device has {max_buffer}; use a model with smaller \
     matrices or a Mac with more memory"
)]
pub struct PartsError {
    /// Index of the weight.
    pub index: usize,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of the largest buffer.
    pub max_buffer: u64,
}

/// Lays weights of the given bytes into buffers, in order, so that a layer's weights lie side by side. A weight is never
/// cut. `max_buffer` is the device's `maxBufferLength`.
///
/// # Errors
/// A weight is larger than a buffer may be.
pub fn split(bytes: &[u64], max_buffer: u64) -> Result<Parts, PartsError> {
    let whole_pages = max_buffer / PAGE * PAGE;
    let mut parts = Parts { places: Vec::with_capacity(bytes.len()), buffers: Vec::new() };
    // Bytes taken of the last buffer.
    let mut taken = 0;
    for (index, &bytes) in bytes.iter().enumerate() {
        if bytes > whole_pages {
            return Err(PartsError { index, bytes, max_buffer });
        }
        let offset = u64::next_multiple_of(taken, PART_ALIGNMENT);
        // A weight above the usual size gets a buffer of its own.
        let limit = whole_pages.min(PART_BYTES);
        let offset = match parts.buffers.last() {
            Some(_) if offset.checked_add(bytes).is_some_and(|end| end <= limit) => offset,
            _ => {
                parts.buffers.push(0);
                0
            }
        };
        taken = offset + bytes;
        let buffer = parts.buffers.len() - 1;
        parts.buffers[buffer] = taken.max(1).next_multiple_of(PAGE);
        parts.places.push(Place { buffer, offset });
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn weights_lie_in_order_and_a_full_buffer_is_followed_by_another() {
        let parts = split(&[100, 300, 16_000, 1], PAGE).expect("none is larger than a page");
        let place = |buffer, offset| Place { buffer, offset };
        assert_eq!(parts.places, [place(0, 0), place(0, 256), place(1, 0), place(1, 16_128)]);
        assert_eq!(parts.buffers, [PAGE, PAGE]);
        assert_eq!(split(&[], PAGE), Ok(Parts { places: Vec::new(), buffers: Vec::new() }));
    }

    #[test]
    fn a_weight_above_the_largest_buffer_is_refused_with_the_numbers() {
        let error = split(&[1, 2 * PAGE + 1], 3 * PAGE - 1).unwrap_err();
        assert_eq!(error, PartsError { index: 1, bytes: 2 * PAGE + 1, max_buffer: 3 * PAGE - 1 });
        assert!(error.to_string().contains("weight 1 takes 32769 bytes"), "{error}");
    }

    #[test]
    fn a_weight_above_the_usual_size_has_a_buffer_of_its_own() {
        let parts = split(&[10, PART_BYTES + 10, 10], 3 * PART_BYTES).expect("a buffer holds it");
        assert_eq!(parts.places.iter().map(|p| p.buffer).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(parts.buffers[1], PART_BYTES + PAGE);
    }

    proptest! {
        /// Weights do not overlap, lie inside of their buffers, and buffers are no longer than they need to be.
        #[test]
        fn places_are_apart_aligned_and_inside(
            bytes in proptest::collection::vec(0u64..(3 << 30), 0..60),
            max_buffer in (3u64 << 30)..(40 << 30),
        ) {
            let parts = split(&bytes, max_buffer).expect("every weight fits into a buffer");
            prop_assert_eq!(parts.places.len(), bytes.len());
            let mut ends = vec![0; parts.buffers.len()];
            for (place, bytes) in parts.places.iter().zip(&bytes) {
                prop_assert!(place.offset.is_multiple_of(PART_ALIGNMENT));
                prop_assert!(place.offset >= ends[place.buffer]);
                ends[place.buffer] = place.offset + bytes;
            }
            for (length, end) in parts.buffers.iter().zip(ends) {
                prop_assert!(*length <= max_buffer && length.is_multiple_of(PAGE));
                prop_assert!(*length >= end && *length <= end + PAGE);
            }
            // No two neighbours would have fitted into one.
            for pair in parts.buffers.windows(2) {
                prop_assert!(pair[0] + pair[1] > max_buffer.min(PART_BYTES) / PAGE * PAGE);
            }
        }
    }
}
