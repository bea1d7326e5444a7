//! `scheduler DATASETS WORKERS`: how many units a second a coordinator hands out and takes back.
//!
//! The coordinator is the product's own process with its store on the disk; workers are made up: each
//! is a connection that leases units in batches and at once commits a result of the right form, small
//! blob included. A data set has 4,096 shards, and a unit encodes a shard of images or ranks it. Prints
//! one JSON object.
//!
//! Absent on purpose: data, models, executors. Nothing here is measured but the bookkeeping.

#![expect(clippy::unwrap_used, reason = "a benchmark ends by panicking")]

use std::{
    env, fs,
    io::{self, Write as _},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use orchestrator_proto::{
    BUILD, PROTOCOL_VERSION, connect,
    v1::{self, coordinator_client::CoordinatorClient},
};
use orchestrator_spec::{DatasetFacts, Facts, ModelFacts, TowerFacts};
use orchestrator_tests::cluster::{Cluster, Setup};
use orchestrator_types::{ByteCount, Digest};
use serde_json::json;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

/// Shards of 256 images: the most that a plan makes of one data set.
const SHARDS: u32 = 4_096;
const SHARD: u32 = 256;
/// Units of one lease and of one commit.
const BATCH: u32 = 64;
/// A small run before, so that memory of a busy coordinator is known without the large one.
const WARM_UP_DATASETS: u32 = 24;
/// Units that are left when the coordinator is stopped and started again.
const LEFT: u64 = 2_000;
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Between two looks at the coordinator's memory.
const LOOK: Duration = Duration::from_millis(50);
/// One account of an executor's memory, as tiny-clip's executors tell it.
const ACCOUNT: &[u8] = include_bytes!("account.json");

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    // Cargo adds `--bench`.
    let numbers: Vec<u32> = arguments.iter().filter_map(|number| number.parse().ok()).collect();
    let [datasets, workers] = numbers.as_slice() else {
        eprintln!("usage: scheduler DATASETS WORKERS");
        return ExitCode::FAILURE;
    };
    let mut out = io::stdout().lock();
    writeln!(out, "{}", measure(*datasets, *workers)).unwrap();
    ExitCode::SUCCESS
}

fn measure(datasets: u32, workers: u32) -> serde_json::Value {
    let setup = Setup { lease: "60 s".into(), heartbeat: "5 s".into(), ..Setup::default() };
    let mut cluster = Cluster::start(setup);
    let runtime = Runtime::new().unwrap();
    let crowd = runtime.block_on(Crowd::connect(&cluster.url(), workers));

    let memory = Memory::watch(cluster.coordinator_pid());
    let idle = memory.take_peak();
    let warm_up = runtime.block_on(crowd.run(WARM_UP_DATASETS, 0));
    let base = memory.take_peak();
    let before = processor_seconds(cluster.coordinator_pid());
    let whole = runtime.block_on(crowd.run(datasets, LEFT));
    let used = processor_seconds(cluster.coordinator_pid()) - before;
    let peak = memory.take_peak();
    drop(memory);
    eprintln!("{} units in {:.1?}; the coordinator stops and starts", whole.done, whole.took);

    let stopped = Instant::now();
    cluster.terminate_coordinator();
    let stop = stopped.elapsed();
    let clean = started(&mut cluster);
    cluster.kill_coordinator();
    let unclean = started(&mut cluster);
    let bytes = fs::metadata(cluster.state().join("store.sqlite")).unwrap().len();
    let finished = runtime.block_on(crowd.finish(&whole));
    let ended = cluster.json(&["status", &whole.run]);
    assert_eq!(ended["state"], "complete", "{ended}");

    let per_unit = (peak - base) as f64 / (whole.units - warm_up.units) as f64;
    json!({
        "units": whole.units,
        "workers": workers,
        "batch": BATCH,
        "seconds": whole.took.as_secs_f64(),
        "per_second": whole.done as f64 / whole.took.as_secs_f64(),
        "coordinator_microseconds_per_unit": used * 1e6 / whole.done as f64,
        "idle_bytes": idle,
        "base_bytes": base,
        "peak_bytes": peak,
        "bytes_per_unit": per_unit,
        "submit_seconds": whole.submitted.as_secs_f64(),
        "stop_seconds": stop.as_secs_f64(),
        "restart_seconds": clean.as_secs_f64(),
        "restart_after_kill_seconds": unclean.as_secs_f64(),
        "store_bytes": bytes,
        "finished_after_restart": finished,
    })
}

fn started(cluster: &mut Cluster) -> Duration {
    let before = Instant::now();
    cluster.start_coordinator();
    before.elapsed()
}

/// A run, as far as the crowd took it.
struct Ran {
    run: String,
    units: u64,
    done: u64,
    /// From the submission's acceptance to the last commit.
    took: Duration,
    submitted: Duration,
}

/// Workers without executors.
struct Crowd {
    workers: Vec<Worker>,
    submitter: CoordinatorClient<Channel>,
}

impl Crowd {
    async fn connect(url: &str, workers: u32) -> Self {
        let submitter = CoordinatorClient::new(connect(url).await.unwrap());
        let mut crowd = Self { workers: Vec::new(), submitter };
        for number in 0..workers {
            let client = CoordinatorClient::new(connect(url).await.unwrap());
            let mut worker = Worker { client, name: format!("w{number}"), life: 0 };
            worker.register().await;
            crowd.workers.push(worker);
        }
        crowd
    }

    /// Works on a run of so many data sets until no more than `left` units are left.
    async fn run(&self, datasets: u32, left: u64) -> Ran {
        let before = Instant::now();
        let request = submission(datasets);
        let reply = self.submitter.clone().submit(request).await.unwrap().into_inner();
        let (submitted, units) = (before.elapsed(), u64::from(reply.units));
        let before = Instant::now();
        let done = self.work(units - left).await;
        Ran { run: reply.run, units, done, took: before.elapsed(), submitted }
    }

    /// Says hello to a coordinator that was started again, and does what is left.
    async fn finish(&self, ran: &Ran) -> u64 {
        let mut again = Self { workers: self.workers.clone(), submitter: self.submitter.clone() };
        for worker in &mut again.workers {
            worker.life += 1;
            worker.register().await;
        }
        again.work(ran.units - ran.done).await
    }

    async fn work(&self, wanted: u64) -> u64 {
        let asked = Arc::new(AtomicU64::new(0));
        let done = Arc::new(AtomicU64::new(0));
        let works = self
            .workers
            .iter()
            .cloned()
            .map(|worker| tokio::spawn(worker.work(wanted, asked.clone(), done.clone())));
        for work in works.collect::<Vec<_>>() {
            work.await.unwrap();
        }
        done.load(Relaxed)
    }
}

#[derive(Clone)]
struct Worker {
    client: CoordinatorClient<Channel>,
    name: String,
    life: u32,
}

impl Worker {
    fn session(&self) -> String {
        format!("session-{}-{}", self.name, self.life)
    }

    async fn register(&mut self) {
        let slice = v1::Slice {
            id: format!("{}.0", self.name),
            device: "cpu".into(),
            threads: 1,
            memory_bytes: 8 << 30,
        };
        let request = v1::RegisterRequest {
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            build: BUILD.into(),
            node: self.name.clone(),
            slices: vec![slice],
            session: self.session(),
            ..v1::RegisterRequest::default()
        };
        self.client.register(request).await.unwrap();
    }

    /// Leases and commits until all workers together have asked for `wanted` units.
    async fn work(mut self, wanted: u64, asked: Arc<AtomicU64>, done: Arc<AtomicU64>) {
        let (mut lease, mut beat) = (0_u64, Instant::now());
        while done.load(Relaxed) < wanted {
            // Nothing is in work between a commit and the next lease.
            if beat.elapsed() > HEARTBEAT {
                self.heartbeat().await;
                beat = Instant::now();
            }
            let before = asked.fetch_add(BATCH.into(), Relaxed);
            let count = u64::from(BATCH).min(wanted.saturating_sub(before));
            if count == 0 {
                // Others have asked for the rest, and may not get it.
                asked.fetch_sub(BATCH.into(), Relaxed);
                tokio::time::sleep(LOOK).await;
                continue;
            }
            let assignments = self.lease(count, &mut lease).await;
            let unused = count - assignments.len() as u64;
            asked.fetch_sub(u64::from(BATCH) - count + unused, Relaxed);
            if assignments.is_empty() {
                continue;
            }
            done.fetch_add(self.commit(assignments).await, Relaxed);
        }
    }

    async fn lease(&mut self, count: u64, number: &mut u64) -> Vec<v1::Assignment> {
        *number += 1;
        let request = v1::LeaseRequest {
            session: self.session(),
            slice: format!("{}.0", self.name),
            request_id: format!("{}-{number}", self.session()),
            wait_ms: 1_000,
            count: u32::try_from(count).unwrap(),
        };
        self.client.lease(request).await.unwrap().into_inner().assignments
    }

    async fn heartbeat(&mut self) {
        let request = v1::HeartbeatRequest { session: self.session(), attempts: Vec::new() };
        self.client.heartbeat(request).await.unwrap();
    }

    async fn commit(&mut self, assignments: Vec<v1::Assignment>) -> u64 {
        let mut finished: Vec<v1::Finished> = assignments.into_iter().map(finished).collect();
        // An executor's account tells of everything before: the last of a batch is enough.
        if let Some(result) = finished.last_mut().and_then(|last| last.result.as_mut()) {
            result.account_json = ACCOUNT.to_vec();
        }
        let request = v1::CommitRequest { session: self.session(), finished };
        let answers = loop {
            match self.client.commit(request.clone()).await {
                Ok(reply) => break reply.into_inner().answers,
                // Too many at once: agents come again, too.
                Err(status) if status.code() == tonic::Code::Unavailable => {
                    tokio::time::sleep(LOOK).await;
                }
                Err(status) => panic!("{status}"),
            }
        };
        for answer in &answers {
            let committed = answer.outcome() == v1::CommitOutcome::Committed;
            assert!(committed, "{:?}: {}", answer.outcome(), answer.problem);
        }
        answers.len() as u64
    }
}

/// A result of the right form.
fn finished(assignment: v1::Assignment) -> v1::Finished {
    let v1::Assignment { run, unit, token, work, .. } = assignment;
    let (rows, partial, samples) = match work.unwrap() {
        v1::assignment::Work::EncodeTexts(_) => (10, String::new(), Vec::new()),
        v1::assignment::Work::EncodeImages(work) => {
            let shard = work.shard.unwrap();
            let samples = Digest::of(&shard.start.to_le_bytes()).as_bytes().to_vec();
            (shard.end - shard.start, String::new(), samples)
        }
        v1::assignment::Work::Rank(work) => {
            let shard = work.queries.unwrap();
            let rows = shard.end - shard.start;
            let classes = "\"7\":{\"right\":200,\"total\":256}";
            let partial = format!(
                "{{\"zero_shot\":{{\"ranks\":{{\"1\":{rows}}},\"classes\":{{{classes}}}}}}}"
            );
            (rows, partial, Vec::new())
        }
    };
    let blob = unit.to_le_bytes().to_vec();
    let result = v1::UnitResult {
        rows: rows.into(),
        blob_digest: Digest::of(&blob).as_bytes().to_vec(),
        blob_bytes: blob.len() as u64,
        partial: partial.into_bytes(),
        timing: Some(v1::Timing { total_ms: 7, ..v1::Timing::default() }),
        reading: Some(v1::ExecutorReading::default()),
        inputs: (!samples.is_empty()).then_some(v1::InputDigests { samples }),
        inline_blob: Some(blob),
        images: Some(v1::ImageCounts { decoded: rows.into(), ..v1::ImageCounts::default() }),
        ..v1::UnitResult::default()
    };
    v1::Finished { run, unit, token, result: Some(result) }
}

/// So many data sets, each of the most shards that a plan makes.
fn submission(datasets: u32) -> v1::SubmitRequest {
    let each = |form: &dyn Fn(u32) -> String| (0..datasets).map(form).collect::<String>();
    let yaml = format!(
        "version: 1\nname: {datasets} data sets\nmodels: [{{path: m}}]\nplacement: {{split: always}}\ndatasets:\n{}tasks:\n{}",
        each(&|number| format!("  d{number}: {{format: imagefolder, path: d{number}}}\n")),
        each(&|number| format!("  - zero_shot: {{dataset: d{number}}}\n")),
    );
    let evaluation = orchestrator_spec::parse("eval.yaml", &yaml, &[]).unwrap();
    let named = |number: u32| (format!("d{number}").parse().unwrap(), Ok(dataset(number)));
    let facts = Facts { models: vec![Ok(model())], datasets: (0..datasets).map(named).collect() };
    v1::SubmitRequest {
        request_id: format!("01k6zzzzzzzzzzzzzzzzzz{datasets:04}"),
        eval_yaml: yaml.clone(),
        evaluation: serde_json::to_vec(&evaluation).unwrap(),
        facts: serde_json::to_vec(&facts).unwrap(),
        base: "/base".to_owned(),
        ..v1::SubmitRequest::default()
    }
}

fn model() -> ModelFacts {
    let tower = |tokens, width| TowerFacts {
        layers: 6,
        width,
        heads: 4,
        mlp: 4 * width,
        tokens,
        weights_bytes: ByteCount::mib(7),
    };
    ModelFacts {
        architecture: "CLIPModel".into(),
        weights_bytes: ByteCount::mib(15),
        parameters: 7_640_000,
        weights_blake3: Digest::of(b"weights"),
        tokenizer_blake3: Digest::of(b"tokenizer"),
        preprocess: "bicubic 112".into(),
        crop: "112".into(),
        image_size: 112,
        context: 32,
        embedding_width: 4,
        vision: tower(50, 256),
        text: tower(32, 192),
    }
}

fn dataset(number: u32) -> DatasetFacts {
    DatasetFacts {
        samples: SHARDS * SHARD,
        labelled: true,
        classes: 10,
        templates: 1,
        captions_first: 0,
        captions_all: 0,
        manifest_digest: Digest::of(&number.to_le_bytes()),
        templates_digest: Some(Digest::of(b"templates")),
        warnings: Vec::new(),
    }
}

/// The resident set of a process, looked at again and again.
struct Memory {
    peak: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl Memory {
    fn watch(pid: i32) -> Self {
        let memory = Self { peak: Arc::default(), ended: Arc::default() };
        let (peak, ended) = (memory.peak.clone(), memory.ended.clone());
        thread::spawn(move || {
            while !ended.load(Relaxed) {
                peak.fetch_max(resident_bytes(pid), Relaxed);
                thread::sleep(LOOK);
            }
        });
        thread::sleep(4 * LOOK);
        memory
    }

    /// The largest since it was taken last.
    fn take_peak(&self) -> u64 {
        let peak = self.peak.swap(0, Relaxed);
        thread::sleep(2 * LOOK);
        peak
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}

/// Time on processors of a process, of all its threads.
fn processor_seconds(pid: i32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).map(|it| it.parse::<u64>().unwrap()).sum();
    // USER_HZ is 100 on every Linux.
    ticks as f64 / 100.0
}

/// Anonymous memory: what the process itself has taken, without files that it maps.
fn resident_bytes(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
