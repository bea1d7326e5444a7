//! Figures for Prometheus.
//!
//! Invariant: telling a figure costs the driver an atomic operation or two and never a wait; whoever
//! scrapes reads what the last turn left. Counters count since the start of the process: what
//! outlives it is in the store.

use std::{fmt, sync::Arc, time::Instant};

use orchestrator_run::RunState;
use orchestrator_types::FailureClass;
use prometheus_client::{
    encoding::text::encode,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::Registry,
};

use crate::event::RunEvent;

/// One label with its value.
type Label = [(&'static str, &'static str); 1];

const ENDED: [RunState; 3] = [RunState::Complete, RunState::Incomplete, RunState::Cancelled];

/// What is counted. Clones count together.
#[derive(Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    /// Life of the coordinator.
    epoch: Gauge,
    runs: Gauge,
    runs_ended: Vec<(RunState, Counter)>,
    units_waiting: Gauge,
    units_ended: Gauge,
    leases: Gauge,
    sessions: Gauge,
    slices_waiting: Gauge,
    heartbeats: Counter,
    commits: Counter,
    rows: Counter,
    fenced: Counter,
    failures: Family<Label, Counter>,
    quarantined: Counter,
    workers_lost: Counter,
    transaction: Histogram,
    turn: Histogram,
    rolled_back: Counter,
    paused: Gauge,
    divergences: Counter,
    blob_bytes: Counter,
    calls_shed: Counter,
}

/// How many of everything there are at the end of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub epoch: u64,
    pub runs: usize,
    pub units_waiting: usize,
    pub units_ended: usize,
    pub leases: usize,
    pub sessions: usize,
    pub slices_waiting: usize,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("orchestrator");
        let registry_of = &mut registry;
        let units = family::<Gauge>(registry_of, "units", "Units of runs in work, by state");
        let ended =
            family::<Counter>(registry_of, "runs_ended", "Runs that ended, by how they ended");
        let build = Info::new([("version", orchestrator_proto::BUILD)]);
        registry_of.register("build", "The build of the coordinator", build);
        let of = |name, label| [(name, label)];
        let metrics = Self {
            epoch: gauge(registry_of, "epoch", "Life of the coordinator over this store, from 1"),
            runs: gauge(registry_of, "runs", "Runs in work"),
            runs_ended: ENDED
                .map(|state| (state, ended.get_or_create_owned(&of("state", state.name()))))
                .into(),
            units_waiting: units.get_or_create_owned(&of("state", "waiting")),
            units_ended: units.get_or_create_owned(&of("state", "ended")),
            leases: units.get_or_create_owned(&of("state", "leased")),
            sessions: gauge(registry_of, "sessions", "Connected workers"),
            slices_waiting: gauge(registry_of, "slices_waiting", "Slices that wait for a unit"),
            heartbeats: counter(registry_of, "heartbeats", "Heartbeats of workers"),
            commits: counter(registry_of, "commits", "Results that count"),
            rows: counter(registry_of, "rows", "Rows of the results that count"),
            fenced: counter(registry_of, "fenced", "Results that came too late to count"),
            failures: family(registry_of, "failures", "Failed attempts, by class"),
            quarantined: counter(registry_of, "quarantined_samples", "Samples set aside"),
            workers_lost: counter(registry_of, "workers_lost", "Workers lost with units in work"),
            transaction: histogram(
                registry_of,
                "transaction_seconds",
                "Time of a turn and its transaction, until it is durable",
                exponential_buckets(0.000_25, 2.0, 16),
            ),
            turn: histogram(
                registry_of,
                "turn_requests",
                "Requests that one transaction served",
                exponential_buckets(1.0, 2.0, 12),
            ),
            rolled_back: counter(registry_of, "rolled_back", "Transactions that failed"),
            paused: gauge(registry_of, "paused", "1 while nothing can be stored, else 0"),
            divergences: counter(
                registry_of,
                "divergences",
                "Late results with other bytes than those that count",
            ),
            blob_bytes: counter(registry_of, "blob_bytes", "Bytes of blobs that workers stored"),
            calls_shed: counter(
                registry_of,
                "calls_shed",
                "Calls refused because too many were in work",
            ),
            registry: Arc::default(),
        };
        Self { registry: Arc::new(registry), ..metrics }
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let gauge = Gauge::default();
    registry.register(name, help, gauge.clone());
    gauge
}

fn family<T>(registry: &mut Registry, name: &str, help: &str) -> Family<Label, T>
where
    T: Default + Clone + fmt::Debug + Send + Sync + 'static,
    Family<Label, T>: prometheus_client::encoding::EncodeMetric,
{
    let family = Family::<Label, T>::default();
    registry.register(name, help, family.clone());
    family
}

fn histogram(
    registry: &mut Registry,
    name: &str,
    help: &str,
    buckets: impl Iterator<Item = f64>,
) -> Histogram {
    let histogram = Histogram::new(buckets);
    registry.register(name, help, histogram.clone());
    histogram
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Metrics {
    /// An event that is durable.
    pub(crate) fn happened(&self, event: &RunEvent) {
        match event {
            RunEvent::StateChanged { state } => {
                let ended = self.runs_ended.iter().filter(|(ended, _)| ended == state);
                ended.for_each(|(_, counter)| {
                    counter.inc();
                });
            }
            RunEvent::UnitCommitted { rows, .. } => {
                self.commits.inc();
                self.rows.inc_by(*rows);
            }
            RunEvent::UnitFailed { attempt: 0, .. } | RunEvent::UnitLeased { .. } => {}
            RunEvent::UnitFailed { class, .. } => self.failed(*class),
            RunEvent::SampleQuarantined { .. } => {
                self.quarantined.inc();
            }
            RunEvent::WorkerLost { .. } => {
                self.workers_lost.inc();
            }
            RunEvent::Divergence { .. } => {
                self.divergences.inc();
            }
            RunEvent::LateResult { .. } => {
                self.fenced.inc();
            }
        }
    }

    fn failed(&self, class: FailureClass) {
        self.failures.get_or_create(&[("class", class.name())]).inc();
    }

    pub(crate) fn heartbeat(&self) {
        self.heartbeats.inc();
    }

    pub(crate) fn stored(&self, bytes: u64) {
        self.blob_bytes.inc_by(bytes);
    }

    /// The end of a turn that served `requests` and began at `begun`.
    pub(crate) fn turned(&self, requests: usize, begun: Instant, durable: bool) {
        if !durable {
            self.rolled_back.inc();
        }
        // A turn without requests is a look at the clock.
        if requests > 0 {
            self.transaction.observe(begun.elapsed().as_secs_f64());
            self.turn.observe(requests as f64);
        }
    }

    /// What there is after a turn.
    pub(crate) fn stand(&self, standing: Standing) {
        let Standing { epoch, runs, units_waiting, units_ended, leases, sessions, slices_waiting } =
            standing;
        self.epoch.set(i64::try_from(epoch).unwrap_or(i64::MAX));
        self.runs.set(count(runs));
        self.units_waiting.set(count(units_waiting));
        self.units_ended.set(count(units_ended));
        self.leases.set(count(leases));
        self.sessions.set(count(sessions));
        self.slices_waiting.set(count(slices_waiting));
    }

    /// Nothing can be stored now, or it can again.
    pub(crate) fn paused(&self, paused: bool) {
        self.paused.set(paused.into());
    }

    /// A call was refused because too many were in work.
    pub(crate) fn call_shed(&self) {
        self.calls_shed.inc();
    }

    /// Everything as Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string does not fail.
        encode(&mut text, &self.registry).map_or_else(|_| String::new(), |()| text)
    }
}

#[cfg(test)]
mod tests {
    use orchestrator_types::{FencingToken, UnitId};

    use super::*;

    #[test]
    fn every_figure_has_a_name_and_a_sentence() {
        let metrics = Metrics::default();
        let slice = || "n.0".parse().unwrap();
        let unit = UnitId(1);
        metrics.happened(&RunEvent::UnitCommitted {
            unit,
            slice: slice(),
            rows: 7,
            total_ms: 5,
            cached: false,
        });
        let failed = |attempt| RunEvent::UnitFailed {
            unit,
            attempt,
            slice: Some(slice()),
            class: FailureClass::Crash,
            message: String::new(),
            last: false,
        };
        metrics.happened(&failed(1));
        metrics.happened(&failed(0));
        metrics.happened(&RunEvent::LateResult { unit, token: FencingToken(3) });
        metrics.happened(&RunEvent::StateChanged { state: RunState::Running });
        metrics.happened(&RunEvent::StateChanged { state: RunState::Complete });
        metrics.heartbeat();
        metrics.stored(10);
        metrics.paused(true);
        metrics.call_shed();
        metrics.turned(3, Instant::now(), true);
        metrics.turned(0, Instant::now(), false);
        metrics.stand(Standing {
            epoch: 2,
            runs: 1,
            units_waiting: 4,
            units_ended: 5,
            leases: 6,
            sessions: 2,
            slices_waiting: 3,
        });
        // Times differ; everything else is told exactly.
        let text = metrics.text();
        let lines = text.lines().filter(|line| !line.starts_with("orchestrator_transaction"));
        // Labels come in no order of their own.
        let mut lines: Vec<&str> = lines.collect();
        lines.sort_unstable();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
