//! Time, passed in, so that tests can hold it still.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use orchestrator_run::Millis;

/// The two kinds of time that a coordinator needs.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic: deadlines and leases.
    fn now(&self) -> Millis;

    /// Wall clock, milliseconds since 1970: for people only, never for a decision.
    fn unix_ms(&self) -> i64;
}

/// The operating system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        Millis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn unix_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }
}
