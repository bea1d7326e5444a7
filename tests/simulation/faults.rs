//! Faults from a counted budget: which, when and against whom follows from the seed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use turmoil::Sim;

use crate::{executor::Executors, job::UNITS, random::Random};

/// Kinds of fault. Each must have struck, or the suite fails.
pub(crate) const KINDS: [&str; 10] = [
    "coordinator crash",
    "worker crash",
    "executor crash",
    "partition",
    "one-way partition",
    "hold and release",
    "delay",
    "clock jump",
    "disk full",
    "replayed messages",
];

/// Workers of the cluster.
pub(crate) const WORKERS: [&str; 3] = ["w0", "w1", "w2"];

/// Faults begin and end within this time.
const STORM: Duration = Duration::from_secs(12);

/// What a fault undoes, and when.
#[derive(Clone, Copy)]
enum Cure {
    Bounce(&'static str),
    Repair(&'static str),
    Release(&'static str),
    Calm,
    FreeDisk,
}

/// The faults of one seed.
pub(crate) struct Faults {
    random: Random,
    left: u32,
    next: Duration,
    cures: Vec<(Duration, Cure)>,
    pub(crate) struck: BTreeMap<&'static str, u64>,
    pub(crate) executors: Executors,
    /// Added to the coordinator's wall clock, in milliseconds.
    pub(crate) jump_ms: Arc<AtomicI64>,
    /// Messages of the past that somebody should send again.
    pub(crate) replays: Arc<AtomicI64>,
    state: PathBuf,
    down: Vec<&'static str>,
    /// The disk is full as soon as so many units are told to be committed.
    full_at: Option<usize>,
}

impl Faults {
    pub(crate) fn new(seed: u64, budget: u32, state: &Path, executors: Executors) -> Self {
        let mut random = Random::new(seed ^ 0xFA17);
        let next = random.millis(20..2_000);
        Self {
            random,
            left: budget,
            next,
            cures: Vec::new(),
            struck: BTreeMap::new(),
            executors,
            jump_ms: Arc::default(),
            replays: Arc::default(),
            state: state.to_owned(),
            down: Vec::new(),
            full_at: None,
        }
    }

    /// Whether everything is repaired and nothing more comes.
    pub(crate) fn are_over(&self) -> bool {
        self.left == 0 && self.cures.is_empty() && self.full_at.is_none()
    }

    /// Strikes and cures what is due, after so many units were told to be committed.
    pub(crate) fn step(&mut self, sim: &mut Sim<'_>, committed: usize) {
        let now = sim.elapsed();
        if self.full_at.is_some_and(|full| committed >= full || now >= STORM) {
            self.full_at = None;
            let until = now + self.random.millis(300..1_500);
            if self.fill_disk(until) {
                self.count("disk full");
            }
        }
        let due: Vec<_> = self.cures.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, cure) in due {
            self.cure(sim, cure);
        }
        if self.left > 0 && now >= self.next {
            self.left -= 1;
            if now < STORM {
                self.strike(sim, now);
            } else {
                self.left = 0;
            }
            self.next = now + self.random.millis(100..2_500);
        }
    }

    fn strike(&mut self, sim: &mut Sim<'_>, now: Duration) {
        let kind = *self.random.pick(&KINDS);
        let worker = *self.random.pick(&WORKERS);
        let caller = if self.random.one_in(3) { "user" } else { worker };
        let whole = self.random.one_in(2);
        let length = if whole { 300..1_500 } else { 2_500..6_000 };
        let until = now + self.random.millis(length);
        let struck = match kind {
            "coordinator crash" => self.crash(sim, "coordinator", until),
            "worker crash" => self.crash(sim, worker, until),
            "executor crash" => {
                let slice = format!("{worker}.{}", self.random.within(0..2));
                // Longer than its agent waits for it.
                let stuck = self.random.millis(3_500..6_000);
                let stuck = if self.random.one_in(2) { stuck } else { Duration::ZERO };
                self.executors.kill(&slice.parse().expect("a legal name"), stuck)
            }
            "partition" => {
                sim.partition(caller, "coordinator");
                self.cures.push((until, Cure::Repair(caller)));
                true
            }
            "one-way partition" => {
                // Requests arrive, answers do not: work is done and nobody hears of it.
                sim.partition_oneway("coordinator", caller);
                self.cures.push((until, Cure::Repair(caller)));
                true
            }
            "hold and release" => {
                sim.hold(caller, "coordinator");
                self.cures.push((until, Cure::Release(caller)));
                true
            }
            "delay" => {
                sim.set_max_message_latency(Duration::from_millis(400));
                self.cures.push((until, Cure::Calm));
                true
            }
            "clock jump" => {
                let hour = 3_600_000;
                let jump = if self.random.one_in(2) { hour } else { -hour };
                self.jump_ms.fetch_add(jump, Ordering::Relaxed);
                true
            }
            "disk full" if whole => self.fill_disk(until),
            "disk full" => {
                // The end of a run is a moment of its own.
                self.full_at = Some(UNITS - 1 - self.random.index(3));
                false
            }
            "replayed messages" => {
                self.replays.fetch_add(5, Ordering::Relaxed);
                true
            }
            _ => unreachable!("every kind has its fault"),
        };
        if struck {
            println!("{now:?} {kind} ({worker}, {caller}) until {until:?}");
            self.count(kind);
        }
    }

    fn count(&mut self, kind: &'static str) {
        *self.struck.entry(kind).or_default() += 1;
    }

    fn crash(&mut self, sim: &mut Sim<'_>, host: &'static str, until: Duration) -> bool {
        if self.down.contains(&host) {
            return false;
        }
        sim.crash(host);
        self.down.push(host);
        self.cures.push((until, Cure::Bounce(host)));
        true
    }

    /// No file can grow beyond the size that the store's log has now: its writes fail, while files
    /// that are smaller can be written.
    fn fill_disk(&mut self, until: Duration) -> bool {
        let log = self.state.join("store.sqlite-wal");
        let Ok(size) = std::fs::metadata(log).map(|file| file.len()) else { return false };
        let Ok((_, hard)) = getrlimit(Resource::RLIMIT_FSIZE) else { return false };
        // Smaller files than this are written by others.
        if size < 64 << 10 || setrlimit(Resource::RLIMIT_FSIZE, size, hard).is_err() {
            return false;
        }
        self.cures.push((until, Cure::FreeDisk));
        true
    }

    fn cure(&mut self, sim: &mut Sim<'_>, cure: Cure) {
        match cure {
            Cure::Bounce(host) => {
                self.down.retain(|down| *down != host);
                sim.bounce(host);
            }
            Cure::Repair(caller) => {
                sim.repair(caller, "coordinator");
            }
            Cure::Release(caller) => sim.release(caller, "coordinator"),
            Cure::Calm => sim.set_max_message_latency(Duration::from_millis(20)),
            Cure::FreeDisk => free_disk(),
        }
    }
}

/// Files may grow again.
pub(crate) fn free_disk() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_FSIZE) {
        assert!(setrlimit(Resource::RLIMIT_FSIZE, hard, hard).is_ok(), "the limit is ours");
    }
}
