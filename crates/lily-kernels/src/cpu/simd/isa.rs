//! What a kernel body may use of an instruction set, and the entries that compile it for one.
//!
//! A body is written once over [`Isa`]. [`Simd::run`](super::Simd::run) calls it through one entry for
//! each instruction set: a function with the set's target features, into which the body and the
//! operations are inlined. So every operation and every body is `#[inline(always)]`, and bodies use
//! loops: a closure would be a function of its own, without these features.

/// Matrix rows whose products with one input lie side by side in the lanes of one or more vectors.
pub(in crate::cpu) const ROWS: usize = 16;
/// Bytes of a row that [`Isa::transpose`] takes, and 32-bit words of them.
pub(in crate::cpu) const TURNED_BYTES: usize = 32;
pub(in crate::cpu) const WORDS: usize = TURNED_BYTES / 4;
/// Largest code of an 8-bit input.
pub(in crate::cpu) const LIMIT: f32 = 127.0;

/// Work that is compiled for every instruction set.
pub(crate) trait Kernel {
    /// What it gives.
    type Output;

    /// The body; must be `#[inline(always)]`.
    fn run<S: Isa>(self, s: S) -> Self::Output;
}

/// Vector operations of an instruction set. Holding a value proves that the machine has it.
///
/// # Safety
/// Unsafe operations take pointers: whoever calls them makes sure of the memory that they name, which
/// needs no alignment.
pub(crate) trait Isa: Copy {
    /// 32-bit lanes of a vector; divides [`ROWS`].
    const LANES: usize;
    /// Whether there are 32 vector registers, not 16.
    const MANY_REGISTERS: bool;
    /// Whether [`dots`](Self::dots) takes codes up to 255, not up to 15.
    const WIDE_CODES: bool;
    /// How far [`high_nibbles`](Self::high_nibbles) leaves its results shifted to the left.
    const HIGH_SHIFT: u32;

    /// f32 lanes.
    type F: Copy;
    /// i32 lanes, or four bytes in each.
    type I: Copy;

    /// All lanes `x`.
    fn splat(self, x: f32) -> Self::F;
    /// `LANES` values.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// Writes `LANES` values.
    unsafe fn store(self, to: *mut f32, v: Self::F);
    /// Writes `LANES` values past the caches, to memory that is not read again soon: its old content is
    /// not fetched. `to` is aligned to `4 * LANES` bytes. [`end_streams`](Self::end_streams) follows
    /// before another thread may read them.
    #[inline(always)]
    unsafe fn stream(self, to: *mut f32, v: Self::F) {
        // SAFETY: the caller's promise.
        unsafe { self.store(to, v) }
    }
    /// Orders what [`stream`](Self::stream) has written before whatever this thread writes next.
    #[inline(always)]
    fn end_streams(self) {}
    /// `LANES` little-endian bfloat16 values, widened.
    unsafe fn load_bf16(self, from: *const u8) -> Self::F;
    /// `LANES` little-endian half values, widened.
    unsafe fn load_f16(self, from: *const u8) -> Self::F;
    /// `LANES` bytes, as numbers.
    unsafe fn load_u8(self, from: *const u8) -> Self::F;
    /// `LANES` nibbles, the low one of each byte first, as numbers.
    unsafe fn load_u4(self, from: *const u8) -> Self::F;
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once: for sums that must be the same bits everywhere.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a * b + c`, rounded as is fast.
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        self.fma(a, b, c)
    }
    /// Sum of the lanes, in an order that is the instruction set's.
    fn sum(self, v: Self::F) -> f32;

    /// Asks for the memory at `at`; any address will do.
    fn prefetch(self, at: *const u8);
    /// Word `i` of 32 bytes, for `i` in 0..8, of each of `LANES` rows.
    unsafe fn transpose(self, rows: *const *const u8, at: usize) -> [Self::I; WORDS];
    /// The low four bits of each byte.
    fn low_nibbles(self, v: Self::I) -> Self::I;
    /// The high four bits of each byte, [`HIGH_SHIFT`](Self::HIGH_SHIFT) bits too far left.
    fn high_nibbles(self, v: Self::I) -> Self::I;
    /// Bytes 0 and 2 of each lane of `a`, then those of `b`; and bytes 1 and 3.
    fn unzip_bytes(self, a: Self::I, b: Self::I) -> (Self::I, Self::I);
    /// `a + b`.
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// `v << 4`.
    fn shift_left_4(self, v: Self::I) -> Self::I;
    /// `v >> 4`, for multiples of 16.
    fn shift_right_4(self, v: Self::I) -> Self::I;
    /// As f32.
    fn to_f32(self, v: Self::I) -> Self::F;
    /// The same bits as f32.
    fn as_f32(self, v: Self::I) -> Self::F;
    /// The low halves of the lanes as bfloat16, widened.
    fn bf16_low(self, v: Self::I) -> Self::F;
    /// The high halves of the lanes as bfloat16, widened.
    fn bf16_high(self, v: Self::I) -> Self::F;
    /// For each of `T` inputs of 32 codes, 64 bytes apart: the sums over all words of the products of
    /// their bytes, unsigned codes times signed inputs.
    unsafe fn dots<const V: usize, const T: usize>(
        self,
        codes: &[[Self::I; V]; WORDS],
        inputs: *const i8,
    ) -> [[Self::I; V]; T];

    /// Rounds 64 values to 8-bit codes, the 32 even ones first; returns their scale and the sum of the
    /// rounded values. All instruction sets give the same bits.
    #[inline(always)]
    unsafe fn quantise(self, values: *const f32, codes: *mut i8) -> (f32, f32) {
        // SAFETY: the caller's promise.
        let (values, codes) =
            unsafe { (&*values.cast::<[f32; 64]>(), &mut *codes.cast::<[i8; 64]>()) };
        let mut max = 0;
        for v in values {
            // Magnitudes compare like integers, and so does NaN: above infinity.
            max = u32::max(max, v.abs().to_bits());
        }
        let (scale, inverse) = group_scale(f32::from_bits(max));
        let mut total = 0;
        for i in 0..32 {
            let even = (values[2 * i] * inverse).round_ties_even() as i32;
            let odd = (values[2 * i + 1] * inverse).round_ties_even() as i32;
            (codes[i], codes[32 + i]) = (even as i8, odd as i8);
            total += even + odd;
        }
        (scale, scale * total as f32)
    }
}

/// Scale of a group and the factor of its values, from the largest magnitude; a NaN counts as
/// larger than any number. Values too small for a finite factor become 0.
#[inline(always)]
pub(in crate::cpu) fn group_scale(max: f32) -> (f32, f32) {
    let inverse = LIMIT / max;
    if !max.is_finite() {
        (f32::NAN, 0.0)
    } else if !inverse.is_finite() {
        (0.0, 0.0)
    } else {
        (max / LIMIT, inverse)
    }
}
