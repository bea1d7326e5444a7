//! Each seed in a process of its own: what a process counts or limits (tokio's runtimes, the size of
//! files) begins anew, so a seed is the same whatever ran before it. The child is this program once
//! more, told to run the test `one_seed`.

use std::{
    any::Any,
    collections::BTreeMap,
    env, fs,
    path::PathBuf,
    process::Command,
    sync::{Mutex, OnceLock},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use orchestrator_types::planted::Bug;
use serde_json::{Value, json};
use tokio::signal::unix::SignalKind;

use crate::{
    job::{self, Flaws},
    sealed,
    world::{EPOCH, Options, Outcome, options, run},
};

/// Where a child writes what came of its seed.
const OUTCOME: &str = "SIMULATION_OUTCOME";
/// What it runs.
const ORDER: &str = "SIMULATION_ORDER";

/// A seed to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) seed: u64,
    pub(crate) options: Options,
    /// A bug to plant, by its place among all of them.
    pub(crate) bug: Option<usize>,
}

impl Order {
    pub(crate) fn of(seed: u64) -> Self {
        Self { seed, options: options(seed), bug: None }
    }

    /// What this process was started for: as a child, or by somebody who wants to look at `SEED`.
    pub(crate) fn here() -> Self {
        let Ok(order) = env::var(ORDER) else {
            let bug = env::var("BUG").ok().map(|name| number(&name));
            let seed = env::var("SEED").ok().and_then(|seed| seed.parse().ok());
            return Self { bug, ..Self::of(seed.unwrap_or(1)) };
        };
        let order: Value = serde_json::from_str(&order).expect("it is JSON");
        let number = |key: &str| order[key].as_u64().and_then(|number| u32::try_from(number).ok());
        let flaws = Flaws { unreadable: number("unreadable"), deadly: number("deadly") };
        Self {
            seed: order["seed"].as_u64().expect("a seed is a number"),
            options: Options { faults: number("faults").unwrap_or(0), flaws },
            bug: number("bug").map(|bug| bug as usize),
        }
    }

    fn told(self) -> String {
        let Self { seed, options: Options { faults, flaws }, bug } = self;
        let Flaws { unreadable, deadly } = flaws;
        json!({"seed": seed, "faults": faults, "unreadable": unreadable, "deadly": deadly,
            "bug": bug})
        .to_string()
    }

    /// Runs the seed in another process. An error is the promise that was broken.
    pub(crate) fn carry_out(self) -> Result<Outcome, String> {
        let folder = tempfile::tempdir().expect("a folder for the outcome");
        let file = folder.path().join("outcome.json");
        let mut child = Command::new(env::current_exe().expect("this program has a file"));
        child.args(["--ignored", "--exact", "one_seed"]);
        child.env(ORDER, self.told()).env(OUTCOME, &file);
        let ended = child.output().expect("this program starts");
        let Ok(outcome) = fs::read(&file) else {
            let said = String::from_utf8_lossy(&ended.stderr);
            return Err(format!("seed {}: its process {}: {said}", self.seed, ended.status));
        };
        let outcome: Value = serde_json::from_slice(&outcome).expect("the child writes JSON");
        match outcome["broken"].as_str() {
            Some(broken) => Err(broken.to_owned()),
            None => Ok(read(&outcome)),
        }
    }

    /// Runs the seed in this process, which must not have run anything before.
    pub(crate) fn carry_out_here(self) -> Result<Outcome, String> {
        survive_full_disks();
        sealed::seal(self.seed, EPOCH);
        plant(self.bug);
        // A new thread has drawn nothing yet.
        let simulating = thread::spawn(move || run(self.seed, self.options));
        let outcome = simulating.join().map_err(|panic| message(panic.as_ref()));
        if let Some(file) = env::var_os(OUTCOME).map(PathBuf::from) {
            let told = match &outcome {
                Ok(outcome) => write(outcome),
                Err(broken) => json!({"broken": broken}),
            };
            fs::write(file, told.to_string()).expect("the outcome is written");
        }
        outcome
    }
}

/// The oracle: the metrics of a run without faults.
pub(crate) fn undisturbed(flaws: Flaws) -> String {
    static KNOWN: OnceLock<Mutex<BTreeMap<Flaws, String>>> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap();
    let metrics = known.entry(flaws).or_insert_with(|| {
        let order = Order { seed: 0, options: Options { faults: 0, flaws }, bug: None };
        let outcome = order.carry_out().unwrap_or_else(|broken| panic!("without faults: {broken}"));
        assert_eq!(outcome.struck, BTreeMap::new());
        assert_eq!(outcome.told["committed"], job::UNITS as u64);
        outcome.metrics
    });
    metrics.clone()
}

/// A file that may not grow shall be an error of the write, not the end of the process.
fn survive_full_disks() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    // Its handler stays when the stream is gone.
    drop(tokio::signal::unix::signal(SignalKind::from_raw(Signal::SIGXFSZ as i32)).unwrap());
}

/// The place of a bug among all of them.
fn number(name: &str) -> usize {
    let named = |bug: &Bug| format!("{bug:?}") == name;
    Bug::ALL.iter().position(named).expect("a bug of this name")
}

#[cfg(feature = "planted")]
fn plant(bug: Option<usize>) {
    orchestrator_types::planted::plant(bug.map(|bug| Bug::ALL[bug]));
}

#[cfg(not(feature = "planted"))]
fn plant(bug: Option<usize>) {
    assert!(bug.is_none(), "this build has no bug to plant: --features planted");
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

fn write(outcome: &Outcome) -> Value {
    let Outcome { metrics, struck, events, told, took, trace } = outcome;
    let took = u64::try_from(took.as_nanos()).expect("it is minutes");
    json!({"metrics": metrics, "struck": struck, "events": events, "told": told, "took": took,
        "trace": trace})
}

fn read(outcome: &Value) -> Outcome {
    let text = |key: &str| outcome[key].as_str().expect("it is text").to_owned();
    let counts = |key: &str| {
        let counts = outcome[key].as_object().expect("these are counts");
        let count = |(name, count): (&String, &Value)| (name.clone(), count.as_u64().unwrap_or(0));
        counts.iter().map(count).collect()
    };
    let events = outcome["events"].as_array().expect("these are events");
    let event = |event: &Value| event.as_str().expect("an event is text").to_owned();
    Outcome {
        metrics: text("metrics"),
        struck: counts("struck"),
        events: events.iter().map(event).collect(),
        told: counts("told"),
        took: Duration::from_nanos(outcome["took"].as_u64().expect("it is a time")),
        trace: text("trace"),
    }
}
