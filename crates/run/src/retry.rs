//! When, and how often, a unit is tried again.

/// Attempts that may fail for a defect of ours before a unit is given up.
pub const COUNTED_ATTEMPTS: u32 = 4;

/// Attempts that may be lost with their worker before the unit is given up. Losing a worker says
/// nothing about the unit, so the budget is wide; it still ends, so that a run does too.
pub const INFRASTRUCTURE_ATTEMPTS: u32 = 10;

/// Monotonic time in milliseconds since the coordinator started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// `self` plus `ms` milliseconds.
    #[must_use]
    pub const fn after(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` to `self`; 0 if it is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Milliseconds to wait before attempt number `failures + 1`: 0.2 s, doubled each time, 10 s at
/// most.
pub const fn backoff(failures: u32) -> u64 {
    let shift = if failures > 6 { 6 } else { failures.saturating_sub(1) };
    let wait = 200_u64 << shift;
    if wait > 10_000 { 10_000 } else { wait }
}
