//! [`Life`]: all accounts of one executor in two.
//!
//! An executor gives an account with every result, and each tells of everything since it started. What
//! a report wants of them all is the newest and the most that any of them said; readings over time,
//! which each account continues, are kept apart.

use orchestrator_types::{ByteCount, Phase};
use serde::{Deserialize, Serialize};

use crate::{Account, ForecastReading, PhaseReading};

/// See the module's documentation. Neither account has readings over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Life {
    /// The newest.
    pub newest: Account,
    /// Of every figure the most that any account said, each breach, and of each forecast the one with
    /// the largest measurement.
    pub most: Account,
}

impl Life {
    /// Of one account.
    pub fn of(mut account: Account) -> Self {
        account.samples.clear();
        Self { most: account.clone(), newest: account }
    }

    /// Takes in a further account of the same executor. It is the newest unless its counters, which
    /// only grow, say that it is older.
    pub fn add(&mut self, mut account: Account) {
        account.samples.clear();
        raise(&mut self.most, &account);
        let age = |it: &Account| {
            let counters = (it.ooms, it.retries, it.splits);
            (counters, it.host.resident_peak_bytes, it.reserved_peak_bytes)
        };
        if age(&account) >= age(&self.newest) {
            self.newest = account;
        }
    }
}

fn raise(most: &mut Account, other: &Account) {
    // `None` is less than anything.
    fn to<T: PartialOrd + Copy>(most: &mut T, other: T) {
        if other > *most {
            *most = other;
        }
    }
    to(&mut most.weights_bytes, other.weights_bytes);
    to(&mut most.predicted_peak_bytes, other.predicted_peak_bytes);
    to(&mut most.allocated_peak_bytes, other.allocated_peak_bytes);
    if other.reserved_peak_bytes >= most.reserved_peak_bytes {
        (most.reserved_peak_bytes, most.fragmentation) =
            (other.reserved_peak_bytes, other.fragmentation);
    }
    to(&mut most.device_peak_bytes, other.device_peak_bytes);
    to(&mut most.outside_allocator_bytes, other.outside_allocator_bytes);
    to(&mut most.host.resident_peak_bytes, other.host.resident_peak_bytes);
    to(&mut most.host.anonymous_bytes, other.host.anonymous_bytes);
    to(&mut most.host.mapped_bytes, other.host.mapped_bytes);
    to(&mut most.host.pinned_bytes, other.host.pinned_bytes);
    to(&mut most.host.cgroup_used_bytes, other.host.cgroup_used_bytes);
    to(&mut most.ooms, other.ooms);
    to(&mut most.retries, other.retries);
    to(&mut most.splits, other.splits);
    for phase in [Phase::Load, Phase::WarmUp, Phase::Run] {
        let (most, other) = (most.phases.of_mut(phase), other.phases.of(phase));
        let PhaseReading {
            seconds,
            allocated_peak_bytes,
            reserved_peak_bytes,
            device_peak_bytes,
            host_peak_bytes,
        } = *other;
        to(&mut most.seconds, seconds);
        to(&mut most.allocated_peak_bytes, allocated_peak_bytes);
        to(&mut most.reserved_peak_bytes, reserved_peak_bytes);
        to(&mut most.device_peak_bytes, device_peak_bytes);
        to(&mut most.host_peak_bytes, host_peak_bytes);
    }
    for forecast in &other.forecasts {
        match most.forecasts.iter_mut().find(|known| known.is_of_the_same(forecast)) {
            Some(known) if forecast.weight() > known.weight() => *known = forecast.clone(),
            Some(_) => {}
            None => most.forecasts.push(forecast.clone()),
        }
    }
    let fresh = other.breaches.iter().filter(|breach| !most.breaches.contains(breach));
    let fresh: Vec<_> = fresh.cloned().collect();
    most.breaches.extend(fresh);
}

impl ForecastReading {
    fn is_of_the_same(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.component, it.precision, it.rows, it.tokens);
        key(self) == key(other) && self.model == other.model
    }

    /// Of two readings of the same, the one that says more has the larger weight.
    pub const fn weight(&self) -> (Option<ByteCount>, u32, ByteCount) {
        (self.measured_bytes, self.probes, self.predicted_bytes)
    }
}
