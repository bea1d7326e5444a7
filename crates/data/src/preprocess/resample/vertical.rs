//! The second pass: each output row is a weighted sum of rows.

use super::horizontal::Narrowed;
use super::{Axis, HALF, to_byte};

/// Columns summed at a time: small enough that the sums stay in registers.
const TILE: usize = 64;

/// Writes each output row of `rows` into the next of `kept`.
pub(super) fn pass<'a>(narrowed: &Narrowed, rows: &Axis, kept: impl Iterator<Item = &'a mut [u8]>) {
    for ((start, count, weights), out) in rows.outputs().zip(kept) {
        if rows.is_identity() {
            out.copy_from_slice(narrowed.row(start));
        } else {
            row(narrowed, start, &weights[..count], out);
        }
    }
}

fn row(narrowed: &Narrowed, start: usize, weights: &[i32], out: &mut [u8]) {
    let mut tiles = out.chunks_exact_mut(TILE);
    let mut at = 0;
    for tile in &mut tiles {
        let mut sums = [HALF; TILE];
        for (input, &weight) in (start..).zip(weights) {
            let row: &[u8; TILE] = narrowed.row(input)[at..].first_chunk().expect("tile in row");
            for (sum, &byte) in sums.iter_mut().zip(row) {
                *sum += weight * i32::from(byte);
            }
        }
        for (byte, sum) in tile.iter_mut().zip(sums) {
            *byte = to_byte(sum);
        }
        at += TILE;
    }
    for byte in tiles.into_remainder() {
        let inputs = (start..).zip(weights);
        let sum = inputs
            .fold(HALF, |sum, (input, &weight)| sum + weight * i32::from(narrowed.row(input)[at]));
        *byte = to_byte(sum);
        at += 1;
    }
}
