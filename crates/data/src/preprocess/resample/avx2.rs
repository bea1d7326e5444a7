//! The two passes for processors with AVX2 (x86-64 since 2013); elsewhere each reports that it did
//! nothing.
//!
//! Along rows, a 22-bit weight is split in two 16-bit parts, `weight = high * 2^15 + low`, because
//! the instruction that multiplies and adds neighbouring pairs takes 16-bit numbers. Sums are kept
//! apart and joined at the end. Arithmetic is modulo 2^32, and the true sum fits in 32 bits, so the
//! result is that of the plain code.

#[cfg(not(target_arch = "x86_64"))]
pub(super) use absent::{narrow, shorten};
#[cfg(target_arch = "x86_64")]
pub(super) use present::{narrow, shorten};

#[cfg(target_arch = "x86_64")]
mod present {
    use std::{
        arch::{
            is_x86_feature_detected,
            x86_64::{
                __m128i, __m256i, _mm_set_epi64x, _mm256_add_epi32, _mm256_extract_epi32,
                _mm256_madd_epi16, _mm256_packs_epi32, _mm256_packus_epi16, _mm256_set_m128i,
                _mm256_set1_epi32, _mm256_setr_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
                _mm256_slli_epi32, _mm256_srai_epi32,
            },
        },
        borrow::Cow,
        ops::Range,
    };

    use super::super::{Axis, Grid, HALF, PRECISION, axis::GROUP, vertical};

    /// Rows that are computed together, so that each weight is loaded once for all of them.
    const ROWS: usize = 4;

    /// Bytes of a group of pixels.
    const GROUP_BYTES: usize = GROUP * 3;

    /// Fraction bits that the low part of a weight keeps.
    const LOW_BITS: i32 = 15;

    /// `vertical::shorten`, if the processor can.
    pub(in super::super) fn shorten(
        source: &Grid<'_>,
        span: Range<usize>,
        rows: &Axis,
        bytes: &mut [u8],
    ) -> bool {
        #[target_feature(enable = "avx2")]
        fn widened(source: &Grid<'_>, span: Range<usize>, rows: &Axis, bytes: &mut [u8]) {
            vertical::shorten(source, span, rows, bytes);
        }
        let able = is_x86_feature_detected!("avx2");
        if able {
            #[expect(unsafe_code, reason = "the one way to call code for a detected feature")]
            // SAFETY: the processor has AVX2, as just detected.
            unsafe {
                widened(source, span, rows, bytes);
            }
        }
        able
    }

    /// The horizontal pass over `rows`, if the processor can.
    pub(in super::super) fn narrow(
        source: &Grid<'_>,
        columns: &Axis,
        rows: Range<usize>,
        bytes: &mut [u8],
    ) -> bool {
        let able = is_x86_feature_detected!("avx2");
        if able {
            #[expect(unsafe_code, reason = "the one way to call code for a detected feature")]
            // SAFETY: the processor has AVX2, as just detected.
            unsafe {
                narrow_all(source, columns, rows, bytes);
            }
        }
        able
    }

    #[target_feature(enable = "avx2")]
    fn narrow_all(source: &Grid<'_>, columns: &Axis, rows: Range<usize>, bytes: &mut [u8]) {
        let kernel = Kernel::new(columns, source.left());
        let width = columns.window().inside() * 3;
        let last = rows.end - 1;
        for (block, outs) in bytes.chunks_mut(width * ROWS).enumerate() {
            // A block that is not full computes its last row again and drops it.
            let number = |row: usize| (rows.start + block * ROWS + row).min(last);
            let inputs = [0, 1, 2, 3].map(|row| kernel.padded(source, number(row)));
            let mut outs = outs.chunks_exact_mut(width);
            let outs = [0, 1, 2, 3].map(|_| outs.next().unwrap_or_default());
            kernel.narrow_four(&inputs, outs);
        }
    }

    /// Four weights as the multiply-add instruction takes them: each number holds those of two
    /// neighbouring pixels.
    struct Group {
        low: [i32; 2],
        high: [i32; 2],
    }

    struct Kernel {
        // Per output: where its first input starts, in bytes.
        starts: Vec<usize>,
        // Per output `groups` of these.
        weights: Vec<Group>,
        groups: usize,
        // Bytes of a row that are read, zero weights included.
        reach: usize,
    }

    impl Kernel {
        fn new(columns: &Axis, left: usize) -> Self {
            let mut kernel = Self { starts: Vec::new(), weights: Vec::new(), groups: 0, reach: 0 };
            for (start, _, weights) in columns.outputs() {
                let groups = weights.as_chunks::<GROUP>().0;
                kernel.groups = groups.len();
                kernel.starts.push((start - left) * 3);
                kernel.weights.extend(groups.iter().map(Group::new));
                kernel.reach = kernel.reach.max((start - left) * 3 + groups.len() * GROUP_BYTES);
            }
            kernel
        }

        /// A row with as many bytes behind it as zero weights may read: the next row's, or zeros.
        fn padded<'a>(&self, source: &'a Grid<'_>, row: usize) -> Cow<'a, [u8]> {
            let mut bytes = Cow::from(source.tail_from(row));
            if bytes.len() < self.reach {
                bytes.to_mut().resize(self.reach, 0);
            }
            bytes
        }

        #[target_feature(enable = "avx2")]
        fn narrow_four(&self, inputs: &[Cow<'_, [u8]>; ROWS], outs: [&mut [u8]; ROWS]) {
            let [a, b, c, d] = inputs.each_ref().map(|row| &row[..self.reach]);
            let [out_a, out_b, out_c, out_d] = outs.map(|out| out.as_chunks_mut::<3>().0);
            let weights = self.weights.chunks_exact(self.groups);
            for (place, (&start, weights)) in self.starts.iter().zip(weights).enumerate() {
                let [a, b, c, d] = [a, b, c, d].map(|row| span(row, start, self.groups));
                let pixels = sum_four(weights, a, b, c, d);
                for (out, pixel) in
                    [&mut *out_a, &mut *out_b, &mut *out_c, &mut *out_d].into_iter().zip(pixels)
                {
                    if let Some(out) = out.get_mut(place) {
                        out.copy_from_slice(&pixel.to_le_bytes()[..3]);
                    }
                }
            }
        }
    }

    fn span(row: &[u8], start: usize, groups: usize) -> &[[u8; GROUP_BYTES]] {
        row[start..][..groups * GROUP_BYTES].as_chunks().0
    }

    /// One output pixel of each of four rows, R, G, B in the low bytes.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn sum_four(
        weights: &[Group],
        a: &[[u8; GROUP_BYTES]],
        b: &[[u8; GROUP_BYTES]],
        c: &[[u8; GROUP_BYTES]],
        d: &[[u8; GROUP_BYTES]],
    ) -> [i32; ROWS] {
        let mut low = [_mm256_setzero_si256(); 2];
        let mut high = [_mm256_setzero_si256(); 2];
        for ((((group, a), b), c), d) in weights.iter().zip(a).zip(b).zip(c).zip(d) {
            let rows = [_mm256_set_m128i(load(b), load(a)), _mm256_set_m128i(load(d), load(c))];
            for half in 0..2 {
                let low_weights = _mm256_set1_epi32(group.low[half]);
                let high_weights = _mm256_set1_epi32(group.high[half]);
                for pair in 0..2 {
                    let pixels = _mm256_shuffle_epi8(rows[pair], pairs(half));
                    low[pair] = _mm256_add_epi32(low[pair], _mm256_madd_epi16(pixels, low_weights));
                    high[pair] =
                        _mm256_add_epi32(high[pair], _mm256_madd_epi16(pixels, high_weights));
                }
            }
        }
        let bytes = _mm256_packs_epi32(whole(low[0], high[0]), whole(low[1], high[1]));
        let bytes = _mm256_packus_epi16(bytes, bytes);
        [
            _mm256_extract_epi32::<0>(bytes),
            _mm256_extract_epi32::<4>(bytes),
            _mm256_extract_epi32::<1>(bytes),
            _mm256_extract_epi32::<5>(bytes),
        ]
    }

    /// Joins the two parts of the sums, rounds, and drops the fraction.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn whole(low: __m256i, high: __m256i) -> __m256i {
        let sum = _mm256_add_epi32(_mm256_slli_epi32::<LOW_BITS>(high), low);
        let rounded = _mm256_add_epi32(sum, _mm256_set1_epi32(HALF));
        _mm256_srai_epi32::<{ PRECISION.cast_signed() }>(rounded)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn load(group: &[u8; GROUP_BYTES]) -> __m128i {
        let (first, rest) = group.split_first_chunk::<8>().expect("twelve bytes");
        let rest = rest.first_chunk::<4>().expect("four bytes are left");
        _mm_set_epi64x(i64::from(u32::from_le_bytes(*rest)), i64::from_le_bytes(*first))
    }

    /// Which bytes of a group go where: of pixels 0 and 1 (or 2 and 3) the reds, the greens and the
    /// blues side by side, each widened to 16 bits; in both rows that share a register.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn pairs(half: usize) -> __m256i {
        if half == 0 {
            _mm256_setr_epi8(
                0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, //
                0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
            )
        } else {
            _mm256_setr_epi8(
                6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1, //
                6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,
            )
        }
    }

    impl Group {
        fn new(weights: &[i32; GROUP]) -> Self {
            let low = weights.map(|weight| weight & ((1 << LOW_BITS) - 1));
            let high = weights.map(|weight| weight >> LOW_BITS);
            let pair = |first: i32, second: i32| (first & 0xffff) | (second << 16);
            Self {
                low: [pair(low[0], low[1]), pair(low[2], low[3])],
                high: [pair(high[0], high[1]), pair(high[2], high[3])],
            }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod absent {
    use std::ops::Range;

    use super::super::{Axis, Grid};

    pub(in super::super) fn shorten(_: &Grid<'_>, _: Range<usize>, _: &Axis, _: &mut [u8]) -> bool {
        false
    }

    pub(in super::super) fn narrow(_: &Grid<'_>, _: &Axis, _: Range<usize>, _: &mut [u8]) -> bool {
        false
    }
}
