//! The whole cluster in one deterministic process: the product's coordinator, agents, protocol and
//! store over a made-up network and time, with a stand-in for the executors only.
//!
//! Faults come from a counted budget. After every look the store keeps its promises and what was
//! told is kept; at the end the metrics equal those of a run without faults, byte for byte.
//! `SEEDS=10000` runs more than the suite does; `SEED=17` runs one and shows what happened.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is a test through and through")]

mod executor;
mod faults;
mod job;
mod mischief;
mod network;
mod random;
mod user;
mod world;

use std::{
    collections::BTreeMap,
    env,
    sync::{Mutex, OnceLock},
};

use nix::sys::signal::Signal;
use tokio::signal::unix::SignalKind;

use crate::{
    faults::KINDS,
    job::Flaws,
    world::{Options, Outcome, options, run},
};

/// Seeds in the suite, over all parts.
const SEEDS: u64 = 200;
/// Parts that may run at the same time.
const PARTS: u64 = 8;

fn seeds() -> u64 {
    env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// The oracle: the metrics of a run without faults.
fn undisturbed(flaws: Flaws) -> String {
    static KNOWN: OnceLock<Mutex<BTreeMap<Flaws, String>>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    if let Some(metrics) = known.lock().unwrap().get(&flaws) {
        return metrics.clone();
    }
    let outcome = run(0, Options { faults: 0, flaws });
    assert_eq!(outcome.struck, BTreeMap::new());
    known.lock().unwrap().insert(flaws, outcome.metrics.clone());
    outcome.metrics
}

fn checked(seed: u64) -> Outcome {
    survive_full_disks();
    let options = options(seed);
    let outcome = run(seed, options);
    assert_eq!(outcome.metrics, undisturbed(options.flaws), "I10: seed {seed}");
    outcome
}

/// A file that may not grow shall be an error of the write, not the end of the process.
fn survive_full_disks() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        // Its handler stays when the stream is gone.
        drop(tokio::signal::unix::signal(SignalKind::from_raw(Signal::SIGXFSZ as i32)).unwrap());
    });
}

/// Every seed of one part, in one thread: the limit on the size of files is the process's.
fn part(number: u64) {
    let mut struck: BTreeMap<&str, u64> = BTreeMap::new();
    let mut told: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in (1..=seeds()).filter(|seed| seed % PARTS == number) {
        let outcome = checked(seed);
        for (kind, count) in outcome.struck {
            *struck.entry(kind).or_default() += count;
        }
        for (kind, count) in outcome.story.counts {
            *told.entry(kind).or_default() += count;
        }
    }
    println!("part {number}: faults {struck:?}; told {told:?}");
    // With fewer seeds chance may leave one out.
    if seeds() >= SEEDS {
        for kind in KINDS {
            assert!(struck.get(kind).is_some_and(|count| *count > 0), "{kind} never struck");
        }
        for kind in ["lost", "fenced", "failed", "quarantined"] {
            assert!(told.get(kind).is_some_and(|count| *count > 0), "{kind} was never told");
        }
    }
}

#[test]
fn promises_hold_in_part_0() {
    part(0);
}

#[test]
fn promises_hold_in_part_1() {
    part(1);
}

#[test]
fn promises_hold_in_part_2() {
    part(2);
}

#[test]
fn promises_hold_in_part_3() {
    part(3);
}

#[test]
fn promises_hold_in_part_4() {
    part(4);
}

#[test]
fn promises_hold_in_part_5() {
    part(5);
}

#[test]
fn promises_hold_in_part_6() {
    part(6);
}

#[test]
fn promises_hold_in_part_7() {
    part(7);
}

/// The events have always been the same; the time that a run took has differed by a step, once.
/// Until the cause is known, a failure of this test says little about the product.
#[test]
#[ignore = "one step of difference was seen; the cause is not known: -- --ignored a_seed"]
fn a_seed_gives_the_same_story_every_time() {
    for seed in [3, 11] {
        let (first, second) = (checked(seed), checked(seed));
        assert_eq!(first.story.events, second.story.events, "seed {seed}");
        assert_eq!(first.took, second.took);
    }
}

#[test]
#[ignore = "for one seed: SEED=17 LOG=info cargo test --test simulation -- --ignored --nocapture"]
fn one_seed() {
    let filter = env::var("LOG").unwrap_or_default();
    tracing_subscriber::fmt().with_env_filter(filter).without_time().init();
    let seed = env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let options = options(seed);
    println!("seed {seed}: {options:?}");
    let outcome = checked(seed);
    for (number, event) in &outcome.story.events {
        println!("{number} {event}");
    }
    println!("{:?} {:?} {:?}", outcome.took, outcome.struck, outcome.story.counts);
}

/// Twelve bugs of the kind that peers have had: each is found within a thousand seeds.
#[cfg(feature = "planted")]
#[test]
#[ignore = "takes minutes; `cargo xtask bench planted` runs it"]
fn planted_bugs_are_found() {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use orchestrator_types::planted::{Bug, plant};

    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let found = (1..=1_000).find_map(|seed| {
            plant(None);
            let oracle = undisturbed(options(seed).flaws);
            survive_full_disks();
            plant(Some(bug));
            let run = catch_unwind(AssertUnwindSafe(|| {
                assert_eq!(run(seed, options(seed)).metrics, oracle, "I10");
            }));
            faults::free_disk();
            let why = run.err()?;
            let text = why.downcast_ref::<String>().cloned();
            let text = text.or_else(|| why.downcast_ref::<&str>().map(ToString::to_string));
            Some((seed, text.unwrap_or_default()))
        });
        plant(None);
        match found {
            Some((seed, why)) => {
                let why: String =
                    why.lines().next().unwrap_or_default().chars().take(120).collect();
                println!("{bug:?}: found with seed {seed}: {why}");
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found within 1,000 seeds: {missed:?}");
}
