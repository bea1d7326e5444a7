//! Along the rows: four rows at a time, so that each weight is loaded once for all of them.

use std::{
    arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_extract_epi32, _mm256_madd_epi16, _mm256_packs_epi32,
        _mm256_packus_epi16, _mm256_set_m128i, _mm256_set1_epi32, _mm256_setr_epi8,
        _mm256_setzero_si256, _mm256_shuffle_epi8,
    },
    borrow::Cow,
    ops::Range,
};

use super::{
    super::{Axis, Grid, axis::GROUP},
    weights::{Pair, joined, load},
};

/// Rows that are computed together.
const ROWS: usize = 4;

/// Bytes of a group of pixels.
const GROUP_BYTES: usize = GROUP * 3;

/// Bytes that are loaded for a group; the last ones are not used.
const LOAD_BYTES: usize = 16;

#[target_feature(enable = "avx2")]
pub(super) fn narrow(source: &Grid<'_>, columns: &Axis, rows: Range<usize>, bytes: &mut [u8]) {
    let kernel = Kernel::new(columns, source.left());
    let width = columns.window().inside() * 3;
    let last = rows.end - 1;
    for (block, outs) in bytes.chunks_mut(width * ROWS).enumerate() {
        // A block that is not full computes its last row again and drops it.
        let number = |row: usize| (rows.start + block * ROWS + row).min(last);
        let inputs = [0, 1, 2, 3].map(|row| kernel.padded(source, number(row)));
        let inputs = inputs.each_ref().map(|row| &**row);
        let mut outs = outs.chunks_exact_mut(width);
        let outs = [0, 1, 2, 3].map(|_| outs.next().unwrap_or_default());
        // The common sizes of the kernel get code without inner loops.
        match kernel.groups {
            1 => narrow_four::<1>(&kernel, inputs, outs),
            2 => narrow_four::<2>(&kernel, inputs, outs),
            3 => narrow_four::<3>(&kernel, inputs, outs),
            4 => narrow_four::<4>(&kernel, inputs, outs),
            _ => narrow_four::<0>(&kernel, inputs, outs),
        }
    }
}

struct Kernel {
    // Per output: where its first input starts, in bytes.
    starts: Vec<usize>,
    // Per output `groups` of these: the weights of four inputs.
    weights: Vec<[Pair; 2]>,
    groups: usize,
    // Bytes of a row that are loaded, zero weights included.
    reach: usize,
}

impl Kernel {
    fn new(columns: &Axis, left: usize) -> Self {
        let mut kernel = Self { starts: Vec::new(), weights: Vec::new(), groups: 0, reach: 0 };
        for (start, _, weights) in columns.outputs() {
            let groups = weights.as_chunks::<GROUP>().0;
            let start = (start - left) * 3;
            kernel.groups = groups.len();
            kernel.starts.push(start);
            kernel
                .weights
                .extend(groups.iter().map(|w| [Pair::new(w[0], w[1]), Pair::new(w[2], w[3])]));
            kernel.reach = kernel.reach.max(start + kernel.span());
        }
        kernel
    }

    /// Bytes that one output loads.
    fn span(&self) -> usize {
        (self.groups - 1) * GROUP_BYTES + LOAD_BYTES
    }

    /// A row with as many bytes behind it as are loaded beyond it: the next row's, or zeros.
    fn padded<'a>(&self, source: &'a Grid<'_>, row: usize) -> Cow<'a, [u8]> {
        let mut bytes = Cow::from(source.tail_from(row));
        if bytes.len() < self.reach {
            bytes.to_mut().resize(self.reach, 0);
        }
        bytes
    }
}

/// All outputs of four rows. `GROUPS` is the kernel's number of groups, or 0 for any.
#[target_feature(enable = "avx2")]
fn narrow_four<const GROUPS: usize>(
    kernel: &Kernel,
    [a, b, c, d]: [&[u8]; ROWS],
    [out_a, out_b, out_c, out_d]: [&mut [u8]; ROWS],
) {
    let groups = if GROUPS == 0 { kernel.groups } else { GROUPS };
    let span = (groups - 1) * GROUP_BYTES + LOAD_BYTES;
    let weights = kernel.weights.chunks_exact(groups);
    for (place, (&start, weights)) in kernel.starts.iter().zip(weights).enumerate() {
        let mut sums = Sums::new();
        let (a, b) = (&a[start..][..span], &b[start..][..span]);
        let (c, d) = (&c[start..][..span], &d[start..][..span]);
        for (group, weights) in weights.iter().enumerate() {
            let at = group * GROUP_BYTES;
            sums.add(
                weights,
                [at_group(a, at), at_group(b, at)],
                [at_group(c, at), at_group(d, at)],
            );
        }
        let pixels = sums.pixels();
        store(out_a, place, pixels[0]);
        store(out_b, place, pixels[1]);
        store(out_c, place, pixels[2]);
        store(out_d, place, pixels[3]);
    }
}

#[inline]
fn at_group(row: &[u8], at: usize) -> &[u8; LOAD_BYTES] {
    row[at..at + LOAD_BYTES].first_chunk().expect("the slice has this length")
}

/// Writes the low three bytes as a pixel; a row that is only computed for company is empty.
#[inline]
fn store(row: &mut [u8], place: usize, pixel: i32) {
    if let Some(out) = row.get_mut(place * 3..place * 3 + 3) {
        out.copy_from_slice(&pixel.to_le_bytes()[..3]);
    }
}

/// Sums of one output pixel in four rows: two rows to a register, each with its R, G, B in the low
/// three numbers of its half.
#[derive(Clone, Copy)]
struct Sums {
    low: [__m256i; 2],
    high: [__m256i; 2],
}

impl Sums {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn new() -> Self {
        Self { low: [_mm256_setzero_si256(); 2], high: [_mm256_setzero_si256(); 2] }
    }

    /// Adds four inputs of each row.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn add(
        &mut self,
        weights: &[Pair; 2],
        [a, b]: [&[u8; LOAD_BYTES]; 2],
        [c, d]: [&[u8; LOAD_BYTES]; 2],
    ) {
        let rows = [_mm256_set_m128i(load(b), load(a)), _mm256_set_m128i(load(d), load(c))];
        for (half, pair) in weights.iter().enumerate() {
            let (low, high) = (_mm256_set1_epi32(pair.low), _mm256_set1_epi32(pair.high));
            for (both, row) in rows.iter().enumerate() {
                let inputs = _mm256_shuffle_epi8(*row, side_by_side(half));
                self.low[both] = _mm256_add_epi32(self.low[both], _mm256_madd_epi16(inputs, low));
                self.high[both] =
                    _mm256_add_epi32(self.high[both], _mm256_madd_epi16(inputs, high));
            }
        }
    }

    /// The pixels, R, G, B in the low bytes.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn pixels(self) -> [i32; ROWS] {
        let (first, second) =
            (joined(self.low[0], self.high[0]), joined(self.low[1], self.high[1]));
        let numbers = _mm256_packs_epi32(first, second);
        let bytes = _mm256_packus_epi16(numbers, numbers);
        [
            _mm256_extract_epi32::<0>(bytes),
            _mm256_extract_epi32::<4>(bytes),
            _mm256_extract_epi32::<1>(bytes),
            _mm256_extract_epi32::<5>(bytes),
        ]
    }
}

/// Which bytes of a group go where: of pixels 0 and 1 (or 2 and 3) the reds, the greens and the
/// blues side by side, each widened to 16 bits; in both rows that share a register.
#[target_feature(enable = "avx2")]
#[inline]
#[rustfmt::skip]
fn side_by_side(half: usize) -> __m256i {
    if half == 0 {
        _mm256_setr_epi8(
            0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
            0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1,
        )
    } else {
        _mm256_setr_epi8(
            6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,
            6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,
        )
    }
}
