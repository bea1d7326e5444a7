//! One seed: a coordinator, three workers, a client and somebody who replays messages, in a network
//! and a time that are made up; checked after every step that is due, and at the end against a run
//! without faults.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use orchestrator_coordinator::{Clock, Config, Coordinator};
use orchestrator_proto::{Blocking, domain::SliceOffer};
use orchestrator_run::Millis;
use orchestrator_types::{ByteCount, DeviceId};
use orchestrator_worker::{Agent, Config as AgentConfig, DataAccess, Limits};
use tokio::time::sleep;

use crate::{
    executor::{Executors, Pretend},
    faults::{Faults, WORKERS, free_disk},
    job::Flaws,
    mischief::mischief,
    network,
    onlooker::Onlooker,
    random::Random,
    sealed, trace,
    user::{Seen, Story, evaluate},
};

const TICK: Duration = Duration::from_millis(10);
const LEASE: Duration = Duration::from_secs(2);
/// A run ends within this time after the faults (I9).
const BOUND: Duration = Duration::from_secs(150);
/// 2026-01-01, where the simulation's wall clock starts.
pub(crate) const EPOCH: Duration = Duration::from_hours(490_896);

/// How one seed is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) faults: u32,
    pub(crate) flaws: Flaws,
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The trials of the report, without times.
    pub(crate) metrics: String,
    /// Faults by kind.
    pub(crate) struck: BTreeMap<String, u64>,
    /// What the client was told, with the times.
    pub(crate) events: Vec<String>,
    /// The same by kind.
    pub(crate) told: BTreeMap<String, u64>,
    pub(crate) took: Duration,
    /// Digest of every byte that went over the network, and when.
    pub(crate) trace: String,
}

/// The options that follow from a seed.
pub(crate) fn options(seed: u64) -> Options {
    let mut random = Random::new(seed ^ 0x0F1A);
    let faults = u32::try_from(random.within(2..9)).expect("it is small");
    let flaws = Flaws {
        unreadable: random.one_in(2).then_some(700),
        deadly: random.one_in(4).then_some(1_234),
    };
    Options { faults, flaws }
}

struct SimulatedClock(Arc<AtomicI64>);

impl Clock for SimulatedClock {
    fn now(&self) -> Millis {
        Millis(u64::try_from(turmoil::elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn unix_ms(&self) -> i64 {
        let now = EPOCH + turmoil::sim_elapsed().unwrap_or_default();
        let now = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        now + self.0.load(Ordering::Relaxed)
    }
}

/// Runs a seed; panics where a promise is broken.
pub(crate) fn run(seed: u64, options: Options) -> Outcome {
    trace::begin();
    let prefix = format!("simulation-{}-", std::process::id());
    let folder = tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir_in(shared_memory())
        .expect("a folder in memory");
    let state = folder.path().join("state");
    let (executors, told) = (Executors::default(), Seen::default());
    let mut faults = Faults::new(seed, options.faults, &state, executors.clone());
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .epoch(UNIX_EPOCH + EPOCH)
        .simulation_duration(Duration::from_secs(1_000))
        .tick_duration(TICK)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(20))
        .tcp_capacity(4_096)
        .enable_random_order()
        .build();
    {
        let (state, jump) = (state.clone(), faults.jump_ms.clone());
        sim.host("coordinator", move || coordinate(state.clone(), jump.clone()));
    }
    for name in WORKERS {
        let (executors, folder) = (executors.clone(), folder.path().join(name));
        let lives = Arc::new(AtomicU64::new(0));
        let flaws = options.flaws;
        sim.host(name, move || {
            let life = lives.fetch_add(1, Ordering::Relaxed) + 1;
            work(name, life, folder.clone(), executors.clone(), flaws, seed)
        });
    }
    let (replays, again) = (faults.replays.clone(), executors.clone());
    sim.host("mischief", move || mischief(replays.clone(), again.clone(), seed));
    let client = told.clone();
    sim.client("user", async move {
        evaluate(client).await;
        Ok(())
    });
    let (mut onlooker, mut calm_since) = (Onlooker::new(seed, &state), None);
    loop {
        let done = sim.step().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let now = sim.elapsed();
        sealed::set_clock(EPOCH + now);
        if done {
            break;
        }
        faults.step(&mut sim, told.story().committed.len());
        onlooker.look(&told);
        let crowded = executors.crowded();
        assert!(crowded.is_empty(), "I7: seed {seed}: two executors at once on {crowded:?}");
        if faults.are_over() {
            let since = *calm_since.get_or_insert(now);
            assert!(
                now < since + BOUND,
                "I9: seed {seed} does not end: {:#?}",
                told.story().counts
            );
        }
    }
    free_disk();
    onlooker.look(&told);
    let Story { events, counts, report, .. } = told.story().clone();
    let report = report.expect("the client has fetched it");
    let named = |counts: BTreeMap<&str, u64>| {
        counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
    };
    Outcome {
        metrics: metrics(&report),
        struck: named(faults.struck.clone()),
        events: events.into_values().collect(),
        told: named(counts),
        took: sim.elapsed(),
        trace: trace::end().expect("it was begun").to_string(),
    }
}

async fn coordinate(state: PathBuf, jump: Arc<AtomicI64>) -> turmoil::Result {
    // A lock of the life before goes with its last task.
    let address = ([0, 0, 0, 0], network::PORT).into();
    let config = Config {
        expected_slices: 6,
        slice_wait: Duration::from_secs(5),
        heartbeat: Duration::from_millis(200),
        lease: LEASE,
        continue_interrupted: true,
        straggler: Duration::from_millis(1_500),
        blocking: Blocking::Inline,
        ..Config::local(state)
    };
    let incoming = network::incoming().await?;
    let clock = Arc::new(SimulatedClock(jump));
    let coordinator = Coordinator::serve_on(incoming, address, config, clock).await?;
    coordinator.ended().await?;
    Ok(())
}

async fn work(
    name: &'static str,
    life: u64,
    folder: PathBuf,
    executors: Executors,
    flaws: Flaws,
    seed: u64,
) -> turmoil::Result {
    let mut tries = 0_u32;
    let mut random = Random::new(seed ^ name.bytes().map(u64::from).sum::<u64>());
    if life == 1 && random.one_in(4) {
        // It joins when a submission already waits for it.
        sleep(random.millis(0..2_500)).await;
    }
    loop {
        tries += 1;
        let offer = |number: u32| SliceOffer {
            id: format!("{name}.{number}").parse().expect("a legal name"),
            node: name.parse().expect("a legal name"),
            device: DeviceId::Cpu,
            threads: 2,
            memory_bytes: ByteCount::gib(1),
        };
        let build = orchestrator_proto::BUILD.to_owned();
        let session = format!("{name}-life-{life}-{tries}");
        executors.begin_session(&session);
        let doors = Arc::new(Mutex::new(BTreeMap::new()));
        let launch = Pretend {
            executors: executors.clone(),
            flaws,
            seed,
            build: build.clone(),
            session: session.clone(),
            doors,
        };
        let config = AgentConfig {
            coordinator: network::ADDRESS.to_owned(),
            dial: network::dial(),
            session: session.parse().expect("a legal name"),
            node: name.parse().expect("a legal name"),
            slices: (0..2).map(offer).collect(),
            executor: "none".into(),
            launch: Arc::new(launch),
            blocking: Blocking::Inline,
            scratch: folder.join("scratch"),
            cache: folder.join("cache"),
            data: DataAccess::anywhere(Vec::new()).expect("no root is named"),
            build,
            limits: Limits { reconnect: Duration::from_mins(1), ..Limits::default() },
        };
        fs::create_dir_all(&folder)?;
        // A coordinator that is away, or a name that was taken: once more, as a service would.
        if let Ok(mut agent) = Agent::start(config).await {
            drop(agent.ended().await);
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// What must not depend on faults: the trials without their times.
fn metrics(report: &str) -> String {
    let mut report: serde_json::Value = serde_json::from_str(report).expect("it is JSON");
    let trials = report["trials"].as_array_mut().expect("there are trials");
    for trial in trials {
        let trial = trial.as_object_mut().expect("a trial is an object");
        trial.retain(|key, _| key == "tasks" || key == "model" || key == "precision");
    }
    let told = serde_json::json!({"complete": report["complete"], "trials": report["trials"]});
    serde_json::to_string_pretty(&told).expect("it has a JSON form")
}

fn shared_memory() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}
