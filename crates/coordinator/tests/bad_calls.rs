//! Calls that no worker or client of ours makes: too large, malformed, too many, with names and
//! tokens that mean nothing. Each is refused in words, and the coordinator goes on.
//!
//! Beside these: foreign protocols and builds, results that lie (`src/tests.rs`,
//! `src/driver/tests.rs`, `looks.rs`); two coordinators on one store, a store of a later release
//! (`src/store/tests.rs`); a coordinator that nobody can reach (`tests/it/cluster.rs`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http_body_util::Full;
use orchestrator_coordinator::{CallLimits, Config, Coordinator, SystemClock};
use orchestrator_proto::{
    BUILD, INLINE_LIMIT_BYTES, MESSAGE_LIMIT_BYTES, PROTOCOL_MIN, PROTOCOL_VERSION,
    QUESTION_LIMIT_BYTES, Refusal, RefusalCode, connect,
    v1::{self, coordinator_client::CoordinatorClient, inspector_client::InspectorClient},
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::{
    StreamExt as _,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{
    Code, Status,
    codegen::{Bytes, Service as _, http},
    transport::Channel,
};

/// Every method, and whether an empty message is a good one.
const METHODS: [(&str, bool); 18] = [
    ("Coordinator/Submit", false),
    ("Coordinator/Watch", false),
    ("Coordinator/Resume", false),
    ("Coordinator/Cancel", false),
    ("Coordinator/Results", false),
    ("Coordinator/Register", false),
    ("Coordinator/Heartbeat", false),
    ("Coordinator/Lease", false),
    ("Coordinator/Stage", true),
    ("Coordinator/Commit", false),
    ("Coordinator/Fail", false),
    ("Coordinator/Fetch", false),
    ("Coordinator/Goodbye", false),
    ("Inspector/Version", false),
    ("Inspector/Runs", true),
    ("Inspector/Status", false),
    ("Inspector/Nodes", true),
    ("Inspector/Events", false),
];

struct Bench {
    coordinator: Coordinator,
    channel: Channel,
    client: CoordinatorClient<Channel>,
    /// How many there were.
    connections: Arc<AtomicUsize>,
    _state: tempfile::TempDir,
}

impl Bench {
    async fn start() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let state = tempfile::tempdir().unwrap();
        let slice_wait = Duration::from_millis(100);
        let mut config = Config { slice_wait, ..Config::local(state.path().to_owned()) };
        change(&mut config);
        let listener = TcpListener::bind(config.listen).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let incoming = TcpListenerStream::new(listener).map(move |connection| {
            counted.fetch_add(1, Ordering::Relaxed);
            connection
        });
        let clock = Arc::new(SystemClock::default());
        let coordinator = Coordinator::serve_on(incoming, address, config, clock).await.unwrap();
        let channel = connect(&format!("http://{}", coordinator.address())).await.unwrap();
        let client = CoordinatorClient::new(channel.clone());
        Self { coordinator, channel, client, connections, _state: state }
    }

    /// Shows that whatever came before has harmed nobody, and ends.
    async fn goes_on(mut self) {
        self.register().await;
        let mut inspector = InspectorClient::new(self.channel.clone());
        inspector.nodes(v1::NodesRequest {}).await.unwrap();
        let chunk = v1::BlobChunk { data: b"small".to_vec().into() };
        let staged = self.client.stage(tokio_stream::iter([chunk])).await.unwrap().into_inner();
        assert_eq!(staged.size_bytes, 5);
        assert!(!self.coordinator.failed());
        self.coordinator.shutdown().await;
    }

    async fn register(&mut self) -> String {
        let request = v1::RegisterRequest {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_VERSION,
            build: BUILD.to_owned(),
            node: "n".into(),
            slices: vec![v1::Slice {
                id: "n.0".into(),
                device: "cpu".into(),
                memory_bytes: 1 << 30,
                threads: 1,
            }],
            libtorch: "2.11.0".into(),
            session: "s".into(),
            held: Vec::new(),
            withdrawn: Vec::new(),
        };
        self.client.register(request).await.unwrap();
        "s".to_owned()
    }

    /// What a method says to these bytes, which are all of its call's body.
    async fn send(&self, method: &str, bytes: &[u8]) -> (Option<Code>, String) {
        let request = http::Request::post(format!("/orchestrator.v1.{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(tonic::body::Body::new(Full::new(Bytes::copy_from_slice(bytes))))
            .unwrap();
        let mut channel = self.channel.clone();
        std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
        let answer = channel.call(request).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = http_body_util::BodyExt::collect(body).await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        // An error may stand before the body, which is empty then, or behind it.
        let status = Status::from_header_map(&head.headers);
        let status = status.or_else(|| Status::from_header_map(&trailers));
        status.map_or((None, String::new()), |status| {
            (Some(status.code()), status.message().to_owned())
        })
    }
}

/// A message in gRPC's frame: not compressed, its length, itself.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], length.as_slice(), message].concat()
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> Refusal {
    Refusal::from(answer.unwrap_err())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_messages_are_refused_by_their_size() {
    let mut bench = Bench::start().await;
    let session = bench.register().await;
    let large = || vec![b'x'; MESSAGE_LIMIT_BYTES + 1];
    let text = || String::from_utf8(large()).unwrap();
    let result = v1::UnitResult { inline_blob: Some(large()), ..v1::UnitResult::default() };
    let finished = v1::Finished { result: Some(result), ..v1::Finished::default() };
    let commit = v1::CommitRequest { session: session.clone(), finished: vec![finished] };
    let fail = v1::FailRequest { session: text(), ..v1::FailRequest::default() };
    let chunks = vec![
        v1::BlobChunk { data: vec![1; 1 << 20].into() },
        v1::BlobChunk { data: large().into() },
    ];
    let submit = v1::SubmitRequest { facts: large(), ..v1::SubmitRequest::default() };
    let said = [
        refused(bench.client.submit(submit).await),
        refused(bench.client.commit(commit).await),
        refused(bench.client.fail(fail).await),
        refused(bench.client.stage(tokio_stream::iter(chunks)).await),
    ];
    for refusal in said {
        assert_eq!(refusal.code, RefusalCode::Invalid, "{refusal}");
        assert!(refusal.message.contains("too large: found 8388"), "{refusal}");
        assert!(refusal.message.contains("the limit is: 8388608 bytes"), "{refusal}");
    }
    // Who only looks has no reason to send megabytes.
    let mut inspector = InspectorClient::new(bench.channel.clone());
    let run = "x".repeat(QUESTION_LIMIT_BYTES);
    let refusal = refused(inspector.status(v1::StatusRequest { run }).await);
    assert!(refusal.message.contains("the limit is: 2097152 bytes"), "{refusal}");
    // Below the limit of a message and above that of a blob that travels inside a result.
    let inline = usize::try_from(INLINE_LIMIT_BYTES).unwrap();
    let result = v1::UnitResult {
        blob_digest: vec![7; 32],
        inline_blob: Some(vec![0; inline]),
        ..v1::UnitResult::default()
    };
    let finished =
        v1::Finished { run: "r".into(), result: Some(result), ..v1::Finished::default() };
    let commit = v1::CommitRequest { session, finished: vec![finished] };
    let answers = bench.client.commit(commit).await.unwrap().into_inner().answers;
    assert_eq!(answers[0].outcome(), v1::CommitOutcome::Refused);
    assert!(answers[0].problem.contains("stage it"), "{}", answers[0].problem);
    bench.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_message_are_refused_by_every_method() {
    let bench = Bench::start().await;
    for (method, empty_is_good) in METHODS {
        // A field whose length leaves the message; a group that nobody opened; a tag without end.
        for nonsense in [&[0x0a, 0xff, 0xff, 0x03, 1][..], &[0x0c], &[0xff; 11]] {
            let (code, message) = bench.send(method, &framed(nonsense)).await;
            assert_eq!(code, Some(Code::Internal), "{method}: {message}");
            assert!(message.contains("decode Protobuf message"), "{method}: {message}");
        }
        // An empty message lacks what a call is about.
        let (code, message) = bench.send(method, &framed(&[])).await;
        assert_ne!(code, Some(Code::Internal), "{method}: {message}");
        if empty_is_good {
            assert!(matches!(code, None | Some(Code::Ok)), "{method}: {code:?} {message}");
        } else if !matches!(method, "Coordinator/Commit" | "Coordinator/Watch") {
            assert!(!message.is_empty(), "{method}: {code:?}");
        }
        // A frame that says that it is compressed, by nobody knows what; one that is cut off; and
        // one longer than memory.
        for broken in
            [&[1, 0, 0, 0, 1, 7][..], &[0, 0, 0, 0, 9, 1, 2], &[0, 0xff, 0xff, 0xff, 0xff]]
        {
            let (code, message) = bench.send(method, broken).await;
            assert!(
                matches!(code, Some(Code::Internal | Code::OutOfRange)) && !message.is_empty(),
                "{method}: {code:?} {message}"
            );
        }
    }
    let (code, _) = bench.send("Coordinator/NoSuchMethod", &framed(&[])).await;
    assert_eq!(code, Some(Code::Unimplemented));
    bench.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_digests_and_enums_that_cannot_be_are_refused() {
    let mut bench = Bench::start().await;
    let session = bench.register().await;
    let bad_names = ["", "../../etc", "a/b", "A B", &"x".repeat(1 << 16), "a\0b"];
    for name in bad_names {
        let client = &mut bench.client;
        let run = name.to_owned();
        let lease = v1::LeaseRequest {
            slice: run.clone(),
            session: session.clone(),
            ..v1::LeaseRequest::default()
        };
        let heartbeat = v1::HeartbeatRequest { session: run.clone(), attempts: Vec::new() };
        let fail = v1::FailRequest {
            session: session.clone(),
            run: run.clone(),
            ..v1::FailRequest::default()
        };
        let said = [
            refused(client.cancel(v1::CancelRequest { run: run.clone() }).await),
            refused(client.resume(v1::ResumeRequest { run: run.clone() }).await),
            refused(client.watch(v1::WatchRequest { run: run.clone(), after: 0 }).await),
            refused(client.results(v1::ResultsRequest { run, files: Vec::new() }).await),
            refused(client.lease(lease).await),
            refused(client.heartbeat(heartbeat).await),
            refused(client.fail(fail).await),
        ];
        for refusal in said {
            assert_eq!(refusal.code, RefusalCode::Invalid, "{name}: {refusal}");
            assert!(refusal.message.len() < 5_000, "a refusal does not repeat 64 KiB");
        }
    }
    for digest in [vec![], vec![1; 31], vec![1; 33]] {
        let refusal = refused(bench.client.fetch(v1::FetchRequest { digest }).await);
        let expected = Refusal::new(RefusalCode::Invalid, "a digest has 32 bytes");
        assert_eq!(refusal, expected);
    }
    let failure = v1::Failure { class: 99, message: "m".into() };
    let fail = v1::FailRequest {
        session: session.clone(),
        run: "r".into(),
        failure: Some(failure),
        ..v1::FailRequest::default()
    };
    let refusal = refused(bench.client.fail(fail).await);
    assert_eq!(refusal.code, RefusalCode::Invalid);
    assert!(refusal.message.contains("class"), "{refusal}");
    bench.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_and_sessions_that_nobody_gave_out_change_nothing() {
    let mut bench = Bench::start().await;
    let session = bench.register().await;
    let result = v1::UnitResult { blob_digest: vec![7; 32], ..v1::UnitResult::default() };
    let finished = v1::Finished { run: "r".into(), unit: 3, token: 99, result: Some(result) };
    let commit = v1::CommitRequest { session: session.clone(), finished: vec![finished] };
    let answers = bench.client.commit(commit).await.unwrap().into_inner().answers;
    let outcome = answers[0].outcome();
    assert!(matches!(outcome, v1::CommitOutcome::Fenced | v1::CommitOutcome::Refused));
    let attempts = vec![v1::AttemptProgress { token: 99, done: 1, total: 2 }];
    let heartbeat = v1::HeartbeatRequest { session: session.clone(), attempts };
    let revoked = bench.client.heartbeat(heartbeat).await.unwrap().into_inner().revoked;
    assert_eq!(revoked, [99], "an attempt that nobody granted stops");
    let heartbeat = v1::HeartbeatRequest { session: "other".into(), attempts: Vec::new() };
    assert_eq!(refused(bench.client.heartbeat(heartbeat).await).code, RefusalCode::Stale);
    let lease = v1::LeaseRequest {
        session: "other".into(),
        slice: "n.0".into(),
        ..v1::LeaseRequest::default()
    };
    assert_eq!(refused(bench.client.lease(lease).await).code, RefusalCode::Stale);
    bench.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_calls_are_told_to_come_again_and_heartbeats_are_answered() {
    let calls = CallLimits { transfers: 1, ..CallLimits::default() };
    let mut bench = Bench::with(|config| config.calls = calls).await;
    let session = bench.register().await;
    let (chunks, receiver) = mpsc::channel(1);
    let mut client = bench.client.clone();
    let endless = tokio::spawn(async move { client.stage(ReceiverStream::new(receiver)).await });
    // Taken out of the channel by a call that is in work.
    for _ in 0..2 {
        chunks.send(v1::BlobChunk { data: vec![1].into() }).await.unwrap();
    }
    let small = || tokio_stream::iter([v1::BlobChunk { data: vec![2].into() }]);
    let refusal = loop {
        match bench.client.stage(small()).await {
            // It overtook the endless one.
            Ok(_) => tokio::task::yield_now().await,
            Err(status) => break Refusal::from(status),
        }
    };
    assert_eq!(refusal.code, RefusalCode::Overloaded, "{refusal}");
    assert!(refusal.message.contains("as many as it takes; try again"), "{refusal}");
    let heartbeat = v1::HeartbeatRequest { session, attempts: Vec::new() };
    bench.client.heartbeat(heartbeat).await.unwrap();
    drop(chunks);
    assert_eq!(endless.await.unwrap().unwrap().into_inner().size_bytes, 2);
    bench.goes_on().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_grows_old_is_replaced_and_its_calls_are_answered() {
    let age = Duration::from_millis(100);
    let mut bench = Bench::with(|config| config.connection_age = Some(age)).await;
    let session = bench.register().await;
    // Three ages long, on a connection that is long closed to new calls.
    let lease = v1::LeaseRequest {
        session: session.clone(),
        slice: "n.0".into(),
        request_id: "1".into(),
        wait_ms: 300,
        count: 1,
    };
    let mut client = bench.client.clone();
    let waiting = tokio::spawn(async move { client.lease(lease).await });
    while !waiting.is_finished() {
        let heartbeat = v1::HeartbeatRequest { session: session.clone(), attempts: Vec::new() };
        if let Err(status) = bench.client.heartbeat(heartbeat).await {
            // The moment in which one closes: a caller tries again.
            assert_eq!(Refusal::from(status).code, RefusalCode::Unavailable);
        }
        tokio::time::sleep(age / 10).await;
    }
    let assignments = waiting.await.unwrap().unwrap().into_inner().assignments;
    assert_eq!(assignments, []);
    assert!(bench.connections.load(Ordering::Relaxed) > 1, "nobody was asked to connect anew");
    bench.coordinator.shutdown().await;
}
