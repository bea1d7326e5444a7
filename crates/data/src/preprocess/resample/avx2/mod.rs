//! The two passes for processors with AVX2 (x86-64 since 2013).
//!
//! A 22-bit weight is split in two 16-bit parts, `weight = high * 2^15 + low`, because the
//! instruction that multiplies neighbouring pairs and adds them takes 16-bit numbers: two inputs and
//! their weights a time. The two sums are joined at the end. Arithmetic is modulo 2^32 and the true
//! sum fits in 32 bits, so the result is that of the plain code.
//!
//! Invariant: only the two functions here are reachable from outside, and they run the vector code
//! only after the processor was asked. The vector code itself is safe: it makes registers from
//! checked slices, never from pointers.

mod horizontal;
mod vertical;
mod weights;

use std::{arch::is_x86_feature_detected, ops::Range};

use super::{Axis, Grid};

/// The horizontal pass over `rows` into `bytes`, if the processor can: otherwise `false`.
pub(super) fn narrow(
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
            horizontal::narrow(source, columns, rows, bytes);
        }
    }
    able
}

/// The vertical pass over the bytes `span` of each row, if the processor can: otherwise `false`.
pub(super) fn shorten(
    source: &Grid<'_>,
    span: Range<usize>,
    rows: &Axis,
    bytes: &mut [u8],
) -> bool {
    let able = is_x86_feature_detected!("avx2") && span.len() >= vertical::TILE;
    if able {
        #[expect(unsafe_code, reason = "the one way to call code for a detected feature")]
        // SAFETY: the processor has AVX2, as just detected.
        unsafe {
            vertical::shorten(source, span, rows, bytes);
        }
    }
    able
}
