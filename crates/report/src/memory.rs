//! The accounts of a slice's executors → the memory part of the report.
//!
//! An account tells of its executor since that started, so of one executor the largest of each
//! counter counts; over executors, which served the slice one after the other, counters add up and
//! peaks do not. Invariant: equal accounts give an equal result, in whatever order they arrived.

use std::collections::{BTreeMap, BTreeSet};

use orchestrator_ledger::{Account, Breach, ForecastReading, PhaseReading, Sample};
use orchestrator_types::{ByteCount, Component, Phase, Precision};

use crate::{
    evidence::{AccountEvidence, MemoryEvidence},
    report::{Forecast, HostMemory, Memory, PhaseMemory, Phases},
};

/// The ceiling last in force, and all that is known of a slice's memory.
pub(crate) fn fold(evidence: MemoryEvidence) -> (Option<ByteCount>, Memory) {
    let MemoryEvidence { planned_peak, weights, host_peak, accounts } = evidence;
    let accounts = in_order(&accounts);
    let Some(last) = accounts.last() else {
        let memory = Memory {
            weights_bytes: weights,
            predicted_peak_bytes: planned_peak,
            host_peak_bytes: host_peak,
            ..Memory::default()
        };
        return (None, memory);
    };
    let peak = |of: fn(&Account) -> ByteCount| accounts.iter().map(|account| of(account)).max();
    let seen =
        |of: fn(&Account) -> Option<ByteCount>| accounts.iter().filter_map(|it| of(it)).max();
    let memory = Memory {
        weights_bytes: peak(|it| it.weights_bytes).max(weights),
        predicted_peak_bytes: peak(|it| it.predicted_peak_bytes),
        allocated_peak_bytes: peak(|it| it.allocated_peak_bytes),
        reserved_peak_bytes: peak(|it| it.reserved_peak_bytes),
        device_peak_bytes: seen(|it| it.device_peak_bytes),
        outside_allocator_bytes: seen(|it| it.outside_allocator_bytes),
        host_peak_bytes: peak(|it| it.host.resident_peak_bytes).max(host_peak),
        fragmentation: fragmentation(&accounts),
        ooms: Some(total(&accounts, |it| it.ooms)),
        phases: phases(&accounts),
        allocator: Some(last.allocator.clone()),
        retries: Some(total(&accounts, |it| it.retries)),
        splits: Some(total(&accounts, |it| it.splits)),
        host: host(&accounts, last),
        forecasts: forecasts(&accounts),
        holders: last.holders.clone(),
        peak_holders: last.peak_holders.clone(),
        breaches: breaches(&accounts),
    };
    (Some(last.quota_bytes), memory)
}

/// The account that tells of the latest moment.
pub fn newest(accounts: &[AccountEvidence]) -> Option<&Account> {
    in_order(accounts).last().copied()
}

/// The driver of the GPUs as each slice's newest account tells it; of unequal ones, all.
pub(crate) fn drivers<'a>(slices: impl Iterator<Item = &'a MemoryEvidence>) -> Option<String> {
    let told = slices.filter_map(|memory| newest(&memory.accounts)?.driver.as_deref());
    let versions: BTreeSet<&str> = told.collect();
    let all = versions.into_iter().collect::<Vec<_>>().join(", ");
    Some(all).filter(|all| !all.is_empty())
}

/// The readings of all accounts by time, each once.
pub fn samples(accounts: &[AccountEvidence]) -> Vec<Sample> {
    let each = accounts.iter().flat_map(|evidence| &evidence.account.samples);
    let mut samples: Vec<Sample> = each.copied().collect();
    samples.sort_by_key(|sample| {
        (sample.at_unix_ms, sample.phase, sample.allocated_bytes, sample.reserved_bytes)
    });
    samples.dedup();
    samples
}

/// By the time of their commit. Counters only grow, so they tell apart what was committed in one
/// millisecond.
fn in_order(accounts: &[AccountEvidence]) -> Vec<&Account> {
    let mut ordered: Vec<&AccountEvidence> = accounts.iter().collect();
    ordered.sort_by_key(|AccountEvidence { committed_unix_ms, account }| {
        let counters = (account.ooms, account.retries, account.splits);
        let peaks = (account.host.resident_peak_bytes, account.reserved_peak_bytes);
        (*committed_unix_ms, account.started_at_unix_ms, counters, peaks)
    });
    ordered.into_iter().map(|evidence| &evidence.account).collect()
}

/// Of each executor the largest, of all executors the sum.
fn total(accounts: &[&Account], of: fn(&Account) -> u64) -> u64 {
    let mut largest = BTreeMap::<i64, u64>::new();
    for account in accounts {
        let entry = largest.entry(account.started_at_unix_ms).or_default();
        *entry = of(account).max(*entry);
    }
    largest.into_values().fold(0, u64::saturating_add)
}

/// At the largest reserve.
fn fragmentation(accounts: &[&Account]) -> Option<f64> {
    let at_peak = accounts.iter().max_by_key(|account| account.reserved_peak_bytes)?;
    at_peak.fragmentation.filter(|share| share.is_finite())
}

fn phases(accounts: &[&Account]) -> Phases {
    let of = |phase| phase_of(accounts, phase);
    Phases { load: of(Phase::Load), warm_up: of(Phase::WarmUp), run: of(Phase::Run) }
}

fn phase_of(accounts: &[&Account], phase: Phase) -> PhaseMemory {
    let readings = || accounts.iter().map(|account| account.phases.of(phase));
    let peak = |of: fn(&PhaseReading) -> ByteCount| readings().map(of).max();
    let mut longest = BTreeMap::<i64, f64>::new();
    for account in accounts {
        let entry = longest.entry(account.started_at_unix_ms).or_default();
        *entry = account.phases.of(phase).seconds.max(*entry);
    }
    PhaseMemory {
        seconds: Some(longest.into_values().sum()).filter(|seconds: &f64| seconds.is_finite()),
        allocated_peak_bytes: peak(|it| it.allocated_peak_bytes),
        reserved_peak_bytes: peak(|it| it.reserved_peak_bytes),
        device_peak_bytes: readings().filter_map(|it| it.device_peak_bytes).max(),
        host_peak_bytes: peak(|it| it.host_peak_bytes),
    }
}

/// The most of what accounts and their readings saw.
fn host(accounts: &[&Account], last: &Account) -> HostMemory {
    let samples = || accounts.iter().flat_map(|account| &account.samples);
    let hosts = || accounts.iter().map(|account| &account.host);
    HostMemory {
        anonymous_bytes: samples()
            .map(|it| it.anonymous_bytes)
            .chain(hosts().map(|it| it.anonymous_bytes))
            .max(),
        mapped_bytes: samples()
            .map(|it| it.mapped_bytes)
            .chain(hosts().map(|it| it.mapped_bytes))
            .max(),
        pinned_bytes: hosts().map(|it| it.pinned_bytes).max(),
        cgroup_limit_bytes: last.host.cgroup_limit_bytes,
        cgroup_used_bytes: samples()
            .filter_map(|it| it.cgroup_used_bytes)
            .chain(hosts().filter_map(|it| it.cgroup_used_bytes))
            .max(),
    }
}

/// One for each component, shape and precision: the one with the largest measurement.
fn forecasts(accounts: &[&Account]) -> Vec<Forecast> {
    type Key<'a> = (&'a str, Component, Precision, u32, u32);
    let mut largest = BTreeMap::<Key<'_>, &ForecastReading>::new();
    for reading in accounts.iter().flat_map(|account| &account.forecasts) {
        let ForecastReading { component, model, precision, rows, tokens, .. } = reading;
        let entry =
            largest.entry((model, *component, *precision, *rows, *tokens)).or_insert(reading);
        if reading.weight() > entry.weight() {
            *entry = reading;
        }
    }
    largest.into_values().map(forecast).collect()
}

fn forecast(reading: &ForecastReading) -> Forecast {
    let predicted = reading.predicted_bytes.as_u64() as f64;
    let measured = reading.measured_bytes.map(|bytes| bytes.as_u64() as f64);
    let error = measured
        .filter(|measured| *measured > 0.0)
        .map(|measured| ((predicted - measured) / measured * 10_000.0).round() / 100.0);
    Forecast {
        component: reading.component,
        model: reading.model.clone(),
        precision: reading.precision,
        rows: reading.rows,
        tokens: reading.tokens,
        predicted_bytes: reading.predicted_bytes,
        measured_bytes: reading.measured_bytes,
        error_percent: error,
        probes: reading.probes,
        reason: reading.reason.clone(),
    }
}

/// Each once, by time: an executor repeats those of before in every account.
fn breaches(accounts: &[&Account]) -> Vec<Breach> {
    let mut breaches: Vec<Breach> =
        accounts.iter().flat_map(|account| account.breaches.iter().cloned()).collect();
    breaches.sort_by(|a, b| {
        let key = |breach: &Breach| (breach.at_unix_ms, breach.used_bytes, breach.quota_bytes);
        key(a).cmp(&key(b)).then_with(|| a.by.cmp(&b.by))
    });
    breaches.dedup();
    breaches
}
