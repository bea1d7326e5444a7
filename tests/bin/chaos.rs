//! `chaos KILLS SEED FILE [IMAGES]`: kills a running cluster again and again, and checks every run.
//!
//! A run is 100 images, or IMAGES, on two workers. The time between two kills is exponential with a
//! mean of 2 s, the victim is chosen by chance; both follow from the seed. What was killed, and in
//! which phase, is added to FILE after every kill, so that a loop that is stopped goes on where it was.
//!
//! Invariant: after every run its metrics are those of an undisturbed run, byte for byte, and every
//! unit is committed exactly once; otherwise the loop ends with a panic that names the seed.

#![expect(clippy::unwrap_used, reason = "the loop ends by panicking")]

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write as _,
    path::PathBuf,
    process::{Child, ExitCode},
    thread,
    time::{Duration, Instant},
};

use orchestrator_tests::{
    History, Home,
    cluster::{Cluster, Setup, document},
    small_evaluation, task_metrics,
};
use serde_json::{Value, json};

const IMAGES: usize = 100;
const MEAN: Duration = Duration::from_secs(2);
const WORKERS: [&str; 2] = ["a", "b"];
/// Kills in one run at most: then it is left in peace and must end.
const KILLS_A_RUN: u64 = 12;
/// Longest that a run in peace may take; a hang is a fault.
const PEACE: Duration = Duration::from_mins(3);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (numbers, file, images) = match arguments.as_slice() {
        [kills, seed, file] => ([kills, seed], file, Ok(IMAGES)),
        [kills, seed, file, images] => ([kills, seed], file, images.parse()),
        _ => return usage(),
    };
    let ([Ok(kills), Ok(seed)], Ok(images)) = (numbers.map(|it| it.parse()), images) else {
        return usage();
    };
    Loop::open(kills, seed, file.into(), images).run();
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: chaos KILLS SEED FILE [IMAGES]");
    ExitCode::FAILURE
}

/// Steele and others' splitmix64: enough for delays and victims, and the same everywhere.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Exponential with this mean.
    fn delay(&mut self, mean: Duration) -> Duration {
        // In (0, 1].
        let uniform = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        mean.mul_f64(-uniform.ln())
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

struct Loop {
    wanted: u64,
    seed: u64,
    file: PathBuf,
    /// In each run.
    images: usize,
    /// By victim and phase.
    done: BTreeMap<String, u64>,
    runs: u64,
    chance: Chance,
}

impl Loop {
    fn open(wanted: u64, seed: u64, file: PathBuf, images: usize) -> Self {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let (mut done, mut runs) = (BTreeMap::new(), 0);
        for line in lines {
            match line["killed"].as_str() {
                Some(what) => *done.entry(what.to_owned()).or_insert(0) += 1,
                None => runs += 1,
            }
        }
        let before: u64 = done.values().sum();
        // Not the same kills again.
        Self {
            wanted,
            seed,
            file,
            images,
            done,
            runs,
            chance: Chance(seed ^ before.rotate_left(32)),
        }
    }

    fn kills(&self) -> u64 {
        self.done.values().sum()
    }

    fn note(&self, line: &Value) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&self.file).unwrap();
        writeln!(file, "{line}").unwrap();
    }

    fn run(&mut self) {
        eprintln!(
            "seed {}, {} of {} kills done in {}",
            self.seed,
            self.kills(),
            self.wanted,
            self.file.display()
        );
        let expected = undisturbed(self.images);
        while self.kills() < self.wanted {
            self.one_run(&expected);
            self.runs += 1;
            self.note(&json!({ "run": self.runs }));
            eprintln!("seed {}: {} kills in {} runs", self.seed, self.kills(), self.runs);
        }
        self.tell();
    }

    /// A run that is disturbed until it ends or has had enough.
    fn one_run(&mut self, expected: &str) {
        let mut cluster = start();
        let evaluation = small_evaluation(cluster.home(), self.images, "[auto]");
        let mut submit = cluster.submit(&evaluation, &["--set", "placement.split=always"]);
        // Before, a client that finds no coordinator ends at once, as it should.
        cluster.wait_for_status("the run", |_| true);
        for _ in 0..KILLS_A_RUN {
            let delay = self.chance.delay(MEAN);
            if self.kills() >= self.wanted || ended_within(&mut submit, delay) {
                break;
            }
            self.kill(&mut cluster);
        }
        assert!(ended_within(&mut submit, PEACE), "seed {}: a run does not end", self.seed);
        check(&cluster, submit, expected, self.seed);
    }

    fn kill(&mut self, cluster: &mut Cluster) {
        let worker = WORKERS[usize::from(self.chance.below(2) == 1)];
        let phase = phase(&cluster.history());
        let victim = match self.chance.below(3) {
            // It may be starting again after the last kill.
            0 if cluster.kill_executors(worker) == 0 => return,
            0 => "executor",
            1 => {
                cluster.kill_worker(worker);
                cluster.start_worker(worker);
                "agent"
            }
            _ => {
                cluster.kill_coordinator();
                cluster.start_coordinator();
                "coordinator"
            }
        };
        let what = format!("{victim}, {phase}");
        self.note(&json!({ "killed": what }));
        *self.done.entry(what).or_insert(0) += 1;
    }

    /// The table that is kept.
    fn tell(&self) {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{} kills in {} runs, seed {}\n", self.kills(), self.runs, self.seed)
            .unwrap();
        writeln!(out, "| victim, phase | kills |\n| --- | ---: |").unwrap();
        for (what, kills) in &self.done {
            writeln!(out, "| {what} | {kills} |").unwrap();
        }
    }
}

fn start() -> Cluster {
    let mut cluster = Cluster::start(Setup::default());
    for worker in WORKERS {
        cluster.start_worker(worker);
    }
    cluster
}

fn undisturbed(images: usize) -> String {
    let home = Home::default();
    let evaluation = small_evaluation(&home, images, "[auto]");
    task_metrics(&home.submit(&evaluation, &[], 0)["report"])
}

/// What the run's history says at the moment of a kill.
fn phase(history: &History) -> &'static str {
    if history.leases().count() == 0 {
        "before the first lease"
    } else if history.open().is_empty() {
        "between two units"
    } else if history.committed().is_empty() {
        "before the first commit"
    } else {
        "in the middle"
    }
}

fn ended_within(submit: &mut Child, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    while submit.try_wait().unwrap().is_none() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

fn check(cluster: &Cluster, submit: Child, expected: &str, seed: u64) {
    let document = document(submit, 0);
    let (status, history) = (cluster.json(&["status", "last"]), cluster.history());
    let units = status["units"].as_u64().unwrap();
    assert_eq!(history.miscount(units), None, "seed {seed}");
    assert_eq!(history.count("divergence"), 0, "seed {seed}");
    assert_eq!(task_metrics(&document["report"]), expected, "seed {seed}");
}
