//! Weights: which inputs, in which shares, make one output along one axis.
//!
//! Invariant: positions and weights are computed in double precision in Pillow's order of
//! operations, so that each fixed-point weight is Pillow's.

use std::ops::Range;

use super::PRECISION;

/// Reach of the bicubic kernel, in pixels of the smaller scale.
const SUPPORT: f64 = 2.0;

/// The part of an axis that the crop keeps; it may reach beyond the picture on both sides.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Window {
    start: i64,
    length: u32,
    full: u32,
}

impl Window {
    /// `length` places in the middle of `full`; an odd rest leaves the larger half after it.
    pub(in super::super) fn centred(full: u32, length: u32) -> Self {
        let start = (i64::from(full) - i64::from(length)).div_euclid(2);
        Self { start, length, full }
    }

    /// Number of places in the window.
    pub(super) fn length(self) -> usize {
        self.length as usize
    }

    /// Number of places before the picture begins.
    pub(super) fn before(self) -> usize {
        usize::try_from(-self.start).unwrap_or(0)
    }

    /// Number of places inside the picture.
    pub(super) fn inside(self) -> usize {
        self.places().len()
    }

    /// The places inside the picture, counted from its edge.
    fn places(self) -> Range<u32> {
        let place = |at: i64| u32::try_from(at.clamp(0, i64::from(self.full))).unwrap_or(self.full);
        place(self.start)..place(self.start + i64::from(self.length))
    }
}

/// One axis of a resize: for each output in the window, its inputs and their weights.
#[derive(Debug)]
pub(in super::super) struct Axis {
    window: Window,
    // Per output: the first input and how many.
    spans: Vec<(usize, usize)>,
    // Per output `stride` weights; those beyond its inputs are zero.
    weights: Vec<i32>,
    stride: usize,
    // Inputs less outputs of the whole axis.
    loss: i64,
}

/// Weights per output are a multiple of this, so that vector code needs no remainder.
pub(super) const GROUP: usize = 4;

impl Axis {
    /// The weights that bring `input` places to the `window` of its resized form.
    pub(in super::super) fn new(input: u32, output: u32, window: Window) -> Self {
        // Pillow skips a pass that would not change the size.
        if input == output {
            let spans: Vec<_> = window.places().map(|place| (place as usize, 1)).collect();
            let weights = [1 << PRECISION, 0, 0, 0].repeat(spans.len());
            return Self { window, spans, weights, stride: GROUP, loss: 0 };
        }
        let loss = i64::from(input) - i64::from(output);
        let kernel = Kernel::new(input, output);
        let stride = kernel.reach().next_multiple_of(GROUP);
        let (mut spans, mut weights) = (Vec::new(), Vec::new());
        for place in window.places() {
            let start = weights.len();
            spans.push(kernel.push_weights(place, &mut weights));
            weights.resize(start + stride, 0);
        }
        Self { window, spans, weights, stride, loss }
    }

    /// The window.
    pub(super) fn window(&self) -> Window {
        self.window
    }

    /// Whether outputs equal inputs.
    pub(super) fn is_identity(&self) -> bool {
        self.loss == 0
    }

    /// How many places the whole axis loses; negative if it gains some.
    pub(super) fn loss(&self) -> i64 {
        self.loss
    }

    /// The inputs that the window reads.
    pub(super) fn inputs(&self) -> Range<usize> {
        let start = self.spans.first().map_or(0, |&(start, _)| start);
        let end = self.spans.last().map_or(0, |&(start, count)| start + count);
        start..end
    }

    /// For each output inside the picture: its first input, how many, and their weights, padded with
    /// zeros to a multiple of [`GROUP`].
    pub(super) fn outputs(&self) -> impl Iterator<Item = (usize, usize, &[i32])> {
        let weights = self.weights.chunks_exact(self.stride);
        self.spans.iter().zip(weights).map(|(&(start, count), weights)| (start, count, weights))
    }
}

/// Pillow's `precompute_coeffs` for one pair of sizes.
struct Kernel {
    input: u32,
    // Inputs per output.
    scale: f64,
    // Width of the kernel relative to its unit form: an enlargement does not narrow it.
    stretch: f64,
    support: f64,
}

impl Kernel {
    fn new(input: u32, output: u32) -> Self {
        let scale = f64::from(input) / f64::from(output);
        let stretch = scale.max(1.0);
        Self { input, scale, stretch, support: SUPPORT * stretch }
    }

    /// The most inputs that one output can have.
    fn reach(&self) -> usize {
        truncated(self.support.ceil()) as usize * 2 + 1
    }

    /// Appends the weights of one output; returns its first input and how many.
    fn push_weights(&self, place: u32, weights: &mut Vec<i32>) -> (usize, usize) {
        let centre = (f64::from(place) + 0.5) * self.scale;
        let first = truncated(centre - self.support + 0.5);
        let end = truncated(centre + self.support + 0.5).min(self.input);
        let narrow = 1.0 / self.stretch;
        let share = |input: u32| bicubic((f64::from(input) - centre + 0.5) * narrow);
        let shares: Vec<f64> = (first..end).map(share).collect();
        let total: f64 = shares.iter().sum();
        let normal = |share: f64| if total == 0.0 { share } else { share / total };
        weights.extend(shares.into_iter().map(|share| fixed(normal(share))));
        (first as usize, (end - first) as usize)
    }
}

/// Towards zero, and not below it: C's conversion to `int` followed by Pillow's clamp.
fn truncated(value: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float-to-integer cast saturates at zero, which is the clamp"
    )]
    let whole = value as u32;
    whole
}

/// A weight in fixed point, rounded half away from zero.
fn fixed(weight: f64) -> i32 {
    let scaled = weight * f64::from(1 << PRECISION);
    #[expect(clippy::cast_possible_truncation, reason = "at most about 2^23")]
    let rounded = (if weight < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32;
    rounded
}

/// Keys' cubic convolution kernel with a = -0.5 (IEEE Trans. ASSP 29, 1981, eq. 15).
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}
