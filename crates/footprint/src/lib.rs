//! How many bytes a tower needs: an analytic walk over its layers, corrected by probes, and the
//! batch that follows from it.
//!
//! Invariants:
//! - [`walk`] mirrors the engine's forward pass allocation by allocation. Whoever changes one changes
//!   the other; tests and `cargo xtask bench memory` compare predictions, probes included, with peaks.
//! - A prediction grows with the rows, so that the largest batch that fits can be found without
//!   trying one that does not.
//!
//! Absent on purpose: clocks, devices, tensors. Times and measured bytes are passed in.

mod batch;
mod forecast;
mod tower;
mod walk;

pub use batch::{
    KNEE_TOKENS, Learned, Pressure, RATE_TOLERANCE, Timed, knee, prior_rows, probe_rows,
    rows_that_fit,
};
pub use forecast::{Forecast, MOST_PROBES, Probe};
pub use tower::{Attention, Input, Kind, Setting, Tower};
pub use walk::{Walk, math_attention, walk};
