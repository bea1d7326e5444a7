//! A coordinator on the loopback, driven by hand: a client and a worker that are only calls.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use orchestrator_proto::{
    INLINE_LIMIT_BYTES, MESSAGE_LIMIT_BYTES, PROTOCOL_MIN, PROTOCOL_VERSION, connect,
    v1::{self, coordinator_client::CoordinatorClient},
};
use orchestrator_run::{Assignment, Millis, RunState, UnitResult};
use orchestrator_types::{Digest, RunId};
use tokio_stream::StreamExt;
use tonic::{Code, Status, transport::Channel};

use crate::{Clock, Config, Coordinator, EndError, Reader, SystemClock, blobs::path_in, fixtures};

mod full_disk;

struct Bench {
    coordinator: Coordinator,
    client: CoordinatorClient<Channel>,
    state: tempfile::TempDir,
}

impl Bench {
    async fn start() -> Self {
        Self::in_folder(tempfile::tempdir().unwrap()).await
    }

    async fn in_folder(state: tempfile::TempDir) -> Self {
        Self::with_clock(state, Arc::new(SystemClock::default())).await
    }

    async fn with_clock(state: tempfile::TempDir, clock: Arc<dyn Clock>) -> Self {
        let config = Config {
            slice_wait: Duration::from_millis(300),
            ..Config::local(state.path().to_owned())
        };
        let coordinator = Coordinator::start_with(config, clock).await.unwrap();
        let channel = connect(&format!("http://{}", coordinator.address())).await.unwrap();
        let client = CoordinatorClient::new(channel)
            .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
        Self { coordinator, client, state }
    }

    async fn stop(self) -> tempfile::TempDir {
        let Self { coordinator, client, state } = self;
        drop(client);
        coordinator.shutdown().await;
        state
    }

    fn introduction(node: &str) -> v1::RegisterRequest {
        v1::RegisterRequest {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_VERSION,
            build: orchestrator_proto::BUILD.to_owned(),
            node: node.into(),
            slices: vec![fixtures::offer(node, 0).into()],
            libtorch: "2.11.0".into(),
            session: crate::fresh_name::<orchestrator_types::SessionId>().into(),
            held: Vec::new(),
            withdrawn: Vec::new(),
        }
    }

    async fn register(&mut self, node: &str) -> String {
        let introduction = Self::introduction(node);
        self.client.register(introduction.clone()).await.unwrap();
        introduction.session
    }

    async fn submit(&mut self, request_id: &str) -> v1::SubmitReply {
        let request = submission(request_id);
        self.client.submit(request).await.unwrap().into_inner()
    }

    async fn lease(&mut self, session: &str, number: u32) -> Option<v1::Assignment> {
        let request = v1::LeaseRequest {
            session: session.into(),
            slice: format!("{}.0", "n"),
            request_id: number.to_string(),
            wait_ms: 0,
            count: 1,
        };
        self.client.lease(request).await.unwrap().into_inner().assignments.pop()
    }

    /// Stages in small chunks, or not at all if it is small; then commits.
    async fn deliver(
        &mut self,
        session: &str,
        assignment: &v1::Assignment,
    ) -> Result<v1::CommitOutcome, Status> {
        let work = Assignment::try_from(assignment.clone()).unwrap();
        let (mut result, bytes) = fixtures::output(&work);
        if (bytes.len() as u64) < INLINE_LIMIT_BYTES {
            result.inline = Some(bytes);
            return self.commit(session, assignment, result).await;
        }
        let chunks: Vec<v1::BlobChunk> =
            bytes.chunks(1_000).map(|data| v1::BlobChunk { data: data.to_vec().into() }).collect();
        let staged = self.client.stage(tokio_stream::iter(chunks)).await?.into_inner();
        assert_eq!(staged.digest, result.blob.digest.as_bytes());
        self.commit(session, assignment, result).await
    }

    async fn commit(
        &mut self,
        session: &str,
        assignment: &v1::Assignment,
        result: UnitResult,
    ) -> Result<v1::CommitOutcome, Status> {
        let request = commit(session, assignment, result.into());
        let answers = self.client.commit(request).await?.into_inner().answers;
        Ok(answers[0].outcome())
    }

    async fn finish(&mut self, session: &str) -> u32 {
        let mut commits = 0;
        while let Some(assignment) = self.lease(session, 1_000 + commits).await {
            let outcome = self.deliver(session, &assignment).await.unwrap();
            assert_eq!(outcome, v1::CommitOutcome::Committed);
            commits += 1;
        }
        commits
    }

    async fn files(&mut self, run: &str) -> Result<BTreeMap<String, Vec<u8>>, Status> {
        let request = v1::ResultsRequest { run: run.into(), files: Vec::new() };
        let mut chunks = self.client.results(request).await?.into_inner();
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        while let Some(v1::FileChunk { name, data }) = chunks.message().await? {
            files.entry(name).or_default().extend(data);
        }
        Ok(files)
    }
}

fn submission(request_id: &str) -> v1::SubmitRequest {
    v1::SubmitRequest {
        request_id: request_id.into(),
        eval_yaml: fixtures::EVALUATION.into(),
        evaluation: serde_json::to_vec(&fixtures::evaluation()).unwrap(),
        facts: serde_json::to_vec(&fixtures::facts()).unwrap(),
        keep_embeddings: true,
        base: "/base".into(),
        measured: Vec::new(),
    }
}

fn commit(session: &str, assignment: &v1::Assignment, result: v1::UnitResult) -> v1::CommitRequest {
    v1::CommitRequest {
        session: session.into(),
        finished: vec![v1::Finished {
            run: assignment.run.clone(),
            unit: assignment.unit,
            token: assignment.token,
            result: Some(result),
        }],
    }
}

fn rows(file: &Path) -> i64 {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let reader = SerializedFileReader::new(fs::File::open(file).unwrap()).unwrap();
    reader.metadata().file_metadata().num_rows()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_from_submission_to_its_folder() {
    let mut bench = Bench::start().await;
    let session = bench.register("n").await;
    let name = ulid::Ulid::generate().to_string().to_lowercase();
    let v1::SubmitReply { run, units } = bench.submit(&name).await;
    assert_eq!(run, name, "a client may name its run");
    let watch = v1::WatchRequest { run: run.clone(), after: 0 };
    let watched = bench.client.watch(watch).await.unwrap().into_inner();
    let events = tokio::spawn(watched.collect::<Vec<_>>());
    assert_eq!(bench.files(&run).await.unwrap_err().code(), Code::Unavailable, "not yet");
    assert_eq!(bench.finish(&session).await, units);
    let events: Vec<v1::RunEvent> =
        events.await.unwrap().into_iter().collect::<Result<_, _>>().unwrap();
    let sequences: Vec<u64> =
        events.iter().map(|event| event.sequence).filter(|&sequence| sequence > 0).collect();
    assert_eq!(sequences, (1..=u64::from(units) * 2 + 2).collect::<Vec<_>>());
    assert!(events.iter().any(|event| event.sequence == 0), "progress was told");

    let files = bench.files(&run).await.unwrap();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "embeddings.parquet",
            "eval.yaml",
            "events.jsonl",
            "memory.parquet",
            "plan.json",
            "predictions.parquet",
            "report.json",
            "report.md"
        ]
    );
    assert_eq!(files["eval.yaml"], fixtures::EVALUATION.as_bytes());
    let report: serde_json::Value = serde_json::from_slice(&files["report.json"]).unwrap();
    assert_eq!(report["complete"], true);
    assert_eq!(report["trials"].as_array().unwrap().len(), 2);
    let task = &report["trials"][1]["tasks"][0];
    assert_eq!(task["metrics"]["acc1"], 1.0);
    let samples = serde_json::json!({"total": 300, "evaluated": 300, "quarantined": 0});
    assert_eq!(task["samples"], samples);
    let tasks = &report["trials"][0]["tasks"];
    assert_eq!(tasks[1]["metrics"]["text_to_image_r1"], 1.0);
    assert_eq!((tasks[0].get("captions"), &tasks[1]["captions"]), (None, &"first".into()));
    assert_eq!(report["nodes"][0]["slice"], "n.0");
    let components = serde_json::json!(["text", "vision", "score"]);
    assert_eq!(report["nodes"][0]["components"], components);
    // Two datasets and two trials, each with two shards.
    let images = serde_json::json!({
        "decoded": 8 * fixtures::IMAGES.decoded, "from_cache": 8 * fixtures::IMAGES.from_cache,
        "cache_peak_bytes": 2 << 20, "cache_limit_bytes": 8 << 20,
    });
    assert_eq!(report["nodes"][0]["images"], images);
    let memory = &report["nodes"][0]["memory"];
    assert_eq!(memory["allocated_peak_bytes"], 32 << 20);
    assert_eq!(memory["ooms"], 2, "one executor, however many accounts");
    assert_eq!(report["nodes"][0]["quota_bytes"], 512 << 20, "the ceiling that was in force");
    let batches = [0, 1].map(|trial| report["trials"][trial]["batch"].clone());
    let batch = |text| serde_json::json!({"vision": fixtures::DISPATCHED, "text": text});
    assert_eq!(batches, [batch(32), batch(32)], "images as dispatched, texts as planned");
    assert_eq!(report["provenance"]["libtorch"], "2.11.0");
    assert_eq!(files["events.jsonl"].split(|&byte| byte == b'\n').count(), sequences.len() + 1);

    let id: RunId = run.parse().unwrap();
    let folder = crate::run_folder(bench.state.path(), &id);
    // Two trials, each 300 images for three rankings (one of them by caption).
    assert_eq!(rows(&folder.join("predictions.parquet")), 2 * 3 * 300);
    // One reading from each shard of images.
    let shards = |task: &serde_json::Value| {
        task["images"]["end"].as_i64().unwrap() - task["images"]["start"].as_i64().unwrap()
    };
    let plan: serde_json::Value = serde_json::from_slice(&files["plan.json"]).unwrap();
    let trials = plan["trials"].as_array().unwrap().iter();
    let tasks = trials.flat_map(|trial| trial["tasks"].as_array().unwrap());
    assert_eq!(rows(&folder.join("memory.parquet")), tasks.map(shards).sum::<i64>());
    // Images of both data sets and the captions of one.
    assert_eq!(rows(&folder.join("embeddings.parquet")), 2 * 3 * 300);
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(bench.files(&run).await.unwrap(), files, "made again, the same bytes");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_goes_on_after_a_restart_and_its_folder_is_renewed() {
    let mut bench = Bench::start().await;
    let session = bench.register("n").await;
    let v1::SubmitReply { run, units } = bench.submit("r").await;
    let first = bench.lease(&session, 1).await.unwrap();
    bench.deliver(&session, &first).await.unwrap();
    bench.client.cancel(v1::CancelRequest { run: run.clone() }).await.unwrap();
    let files = bench.files(&run).await.unwrap();
    let report: serde_json::Value = serde_json::from_slice(&files["report.json"]).unwrap();
    assert_eq!(report["complete"], false);
    assert_eq!(report["unfinished"].as_array().unwrap().len(), units as usize - 1);

    let state = bench.stop().await;
    assert!(!Reader::open(state.path()).unwrap().is_live());
    let mut bench = Bench::in_folder(state).await;
    let session = bench.register("n").await;
    let resumed = bench.client.resume(v1::ResumeRequest { run: run.clone() }).await.unwrap();
    // Started, leased, committed, cancelled: all of an earlier life.
    let resumed = resumed.into_inner();
    assert_eq!(resumed, v1::ResumeReply { committed: 1, units, after: 4 });
    assert!(!crate::run_folder(bench.state.path(), &run.parse().unwrap()).exists());
    let mut watched = Vec::new();
    for after in [0, resumed.after] {
        let watch = v1::WatchRequest { run: run.clone(), after };
        let events = bench.client.watch(watch).await.unwrap().into_inner();
        watched.push(tokio::spawn(events.collect::<Vec<_>>()));
    }
    assert_eq!(bench.finish(&session).await, units - 1);
    let later = watched.pop().unwrap().await.unwrap();
    let ends = |event: &Result<v1::RunEvent, Status>| {
        let kind = event.as_ref().unwrap().kind.as_ref();
        matches!(kind, Some(v1::run_event::Kind::StateChanged(changed))
            if changed.state() != v1::RunState::Running)
    };
    assert_eq!(later.iter().filter(|event| ends(event)).count(), 1, "the new end and no other");
    assert!(ends(later.last().unwrap()));
    let last = watched.pop().unwrap().await.unwrap().pop().unwrap().unwrap();
    let complete = v1::StateChanged { state: v1::RunState::Complete.into() };
    let kind = v1::run_event::Kind::StateChanged(complete);
    assert_eq!(last.kind, Some(kind), "an earlier end does not end the watch");
    let files = bench.files(&run).await.unwrap();
    let report: serde_json::Value = serde_json::from_slice(&files["report.json"]).unwrap();
    assert_eq!(report["complete"], true);
    let id: RunId = run.parse().unwrap();
    let reader = Reader::open(bench.state.path()).unwrap();
    assert_eq!(reader.run(&id).unwrap().unwrap().state, RunState::Complete);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_or_missing_blob_is_named_and_a_resume_heals_it() {
    let mut bench = Bench::start().await;
    let session = bench.register("n").await;
    let v1::SubmitReply { run, units } = bench.submit("r").await;
    assert_eq!(bench.finish(&session).await, units);
    let files = bench.files(&run).await.unwrap();
    let id: RunId = run.parse().unwrap();
    let rows = Reader::open(bench.state.path()).unwrap().units(&id).unwrap();
    let results = rows.iter().filter_map(|row| row.result.as_ref());
    let mut large = results.filter(|result| result.inline.is_none());
    let (encoded, ranked) = (large.next().unwrap().blob, large.next_back().unwrap().blob);
    let path_of = |digest| path_in(&bench.state.path().join("blobs"), digest);
    let path = path_of(ranked.digest);
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] ^= 1;
    fs::write(&path, bytes).unwrap();
    fs::remove_file(path_of(encoded.digest)).unwrap();
    fs::remove_dir_all(crate::run_folder(bench.state.path(), &id)).unwrap();
    let status = bench.files(&run).await.unwrap_err();
    let advice = format!("`orchestrator resume {run}` computes it again");
    assert!(status.message().ends_with(&advice), "{status}");

    let request = v1::ResumeRequest { run: run.clone() };
    let resumed = bench.client.resume(request).await.unwrap().into_inner();
    assert!(resumed.committed < units);
    assert_eq!(bench.finish(&session).await, units - resumed.committed);
    let healed = bench.files(&run).await.unwrap();
    assert_eq!(healed["predictions.parquet"], files["predictions.parquet"]);
    assert_eq!(healed["embeddings.parquet"], files["embeddings.parquet"]);
    bench.stop().await;
}

/// Works until it is told to break.
#[derive(Default)]
struct BreakingClock {
    clock: SystemClock,
    broken: AtomicBool,
}

impl Clock for BreakingClock {
    fn now(&self) -> Millis {
        assert!(!self.broken.load(Ordering::Relaxed), "planted");
        self.clock.now()
    }

    fn unix_ms(&self) -> i64 {
        self.clock.unix_ms()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_defect_ends_the_coordinator_and_everybody_who_waits_is_told() {
    let clock = Arc::new(BreakingClock::default());
    let mut bench = Bench::with_clock(tempfile::tempdir().unwrap(), clock.clone()).await;
    bench.register("n").await;
    let v1::SubmitReply { run, .. } = bench.submit("r").await;
    let watch = v1::WatchRequest { run: run.clone(), after: 0 };
    let watched = bench.client.watch(watch).await.unwrap().into_inner();
    let events = tokio::spawn(watched.collect::<Vec<_>>());
    let mut client = bench.client.clone();
    let request = v1::CancelRequest { run };
    clock.broken.store(true, Ordering::Relaxed);
    let called = client.cancel(request).await.unwrap_err();
    assert!(matches!(called.code(), Code::Internal | Code::Unavailable), "{called}");
    let last = events.await.unwrap().pop().unwrap().unwrap_err();
    assert_eq!(last.code(), Code::Internal);
    assert!(last.message().contains("ended by a defect"), "{last}");
    assert_eq!(bench.coordinator.ended().await, Err(EndError::Defect));
    assert!(bench.coordinator.failed());
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_in_work_at_a_defect_is_told_of_it() {
    let clock = Arc::new(BreakingClock::default());
    let mut bench = Bench::with_clock(tempfile::tempdir().unwrap(), clock.clone()).await;
    let session = bench.register("n").await;
    let request = v1::LeaseRequest {
        session,
        slice: "n.0".into(),
        request_id: "1".into(),
        wait_ms: 60_000,
        count: 1,
    };
    let mut client = bench.client.clone();
    let waiting = tokio::spawn(async move { client.lease(request).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    clock.broken.store(true, Ordering::Relaxed);
    let status = waiting.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("ended by a defect"), "{status}");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_versions_and_malformed_calls_are_refused_by_name() {
    let mut bench = Bench::start().await;
    let old = v1::RegisterRequest { protocol_min: 1, protocol_max: 1, ..Bench::introduction("n") };
    let status = bench.client.register(old).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let expected = format!(
        "worker n has protocol versions 1 to 1, the coordinator {PROTOCOL_MIN} to \
         {PROTOCOL_VERSION}; install the same release on both"
    );
    assert_eq!(status.message(), expected);
    let other = v1::RegisterRequest { build: "9.9.9".into(), ..Bench::introduction("n") };
    let status = bench.client.register(other).await.unwrap_err();
    assert!(status.message().contains("build 9.9.9, the coordinator 0.1.0"), "{status}");
    let foreign =
        v1::RegisterRequest { slices: Bench::introduction("m").slices, ..Bench::introduction("n") };
    let status = bench.client.register(foreign).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);

    let status = bench.client.submit(submission("r")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "no worker: {status}");
    let session = bench.register("n").await;
    let nonsense = v1::SubmitRequest { facts: b"{".to_vec(), ..submission("r") };
    let status = bench.client.submit(nonsense).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let nonsense = v1::SubmitRequest { measured: b"[7]".to_vec(), ..submission("r") };
    let status = bench.client.submit(nonsense).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("the list of measured batches cannot be read"), "{status}");
    let unknown = v1::WatchRequest { run: "nobody".into(), after: 0 };
    let mut watched = bench.client.watch(unknown).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap_err().code(), Code::NotFound);

    bench.submit("r").await;
    let assignment = bench.lease(&session, 1).await.unwrap();
    let work = Assignment::try_from(assignment.clone()).unwrap();
    let (result, _) = fixtures::output(&work);
    let mut lies = vec![(v1::UnitResult::from(result), "stage it before the commit")];
    for (inline, problem) in [(vec![0; 4096], "stage it"), (vec![0; 4095], "is not")] {
        let lie = v1::UnitResult {
            blob_digest: Digest::of(b"other").as_bytes().to_vec(),
            blob_bytes: inline.len() as u64,
            inline_blob: Some(inline),
            ..v1::UnitResult::from(fixtures::result(&work))
        };
        lies.push((lie, problem));
    }
    for (lie, problem) in lies {
        let reply = bench.client.commit(commit(&session, &assignment, lie)).await.unwrap();
        let answer = reply.into_inner().answers.pop().unwrap();
        assert_eq!(answer.outcome(), v1::CommitOutcome::Refused);
        assert!(answer.problem.contains(problem), "{}", answer.problem);
    }
    let fetch = v1::FetchRequest { digest: Digest::of(b"?").as_bytes().to_vec() };
    let mut chunks = bench.client.fetch(fetch).await.unwrap().into_inner();
    assert_eq!(chunks.message().await.unwrap_err().code(), Code::NotFound);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blob_comes_back_as_it_was_staged() {
    let mut bench = Bench::start().await;
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    let chunks: Vec<v1::BlobChunk> =
        bytes.chunks(1 << 20).map(|data| v1::BlobChunk { data: data.to_vec().into() }).collect();
    let staged = bench.client.stage(tokio_stream::iter(chunks)).await.unwrap().into_inner();
    assert_eq!(staged.size_bytes, 3_000_000);
    let fetch = v1::FetchRequest { digest: staged.digest };
    let mut fetched = Vec::new();
    let mut chunks = bench.client.fetch(fetch).await.unwrap().into_inner();
    while let Some(chunk) = chunks.message().await.unwrap() {
        fetched.extend(chunk.data);
    }
    assert!(fetched == bytes);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_calls_that_would_wait() {
    let mut bench = Bench::start().await;
    let session = bench.register("n").await;
    let request = v1::LeaseRequest {
        session,
        slice: "n.0".into(),
        request_id: "1".into(),
        wait_ms: 60_000,
        count: 1,
    };
    let mut client = bench.client.clone();
    let waiting = tokio::spawn(async move { client.lease(request).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopping = std::time::Instant::now();
    bench.stop().await;
    assert!(stopping.elapsed() < Duration::from_secs(2), "{:?}", stopping.elapsed());
    assert!(waiting.await.unwrap().is_err());
}
