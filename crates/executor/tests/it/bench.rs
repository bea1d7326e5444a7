//! An executor on a temporary socket, and its client.
//!
//! Invariant: libtorch's counters and limits are the process's. An executor that runs in the test's
//! own process beside others has no quota that matters; one that has is alone in it.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use orchestrator_executor::{DecodedFolder, ServeError, Settings, serve};
use orchestrator_ledger::Account;
use orchestrator_proto::{
    connect_unix,
    domain::{AssignedWork, Assignment, UnitResult},
    v1::{self, execute_event::Event, executor_client::ExecutorClient},
};
use orchestrator_types::{
    ByteCount, DeviceId, Digest, FailureClass, FencingToken, MemoryTerms, UnitId,
};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tonic::transport::Channel;

/// How an attempt ended.
pub(crate) type Outcome = Result<UnitResult, (FailureClass, String)>;

/// One running executor. Dropping it ends it.
pub(crate) struct Bench {
    folder: TempDir,
    client: ExecutorClient<Channel>,
    host: Option<Host>,
}

/// Where it runs.
enum Host {
    Here { end: oneshot::Sender<()>, thread: Serving, _turn: Turn },
    Process(Child),
}

type Serving = thread::JoinHandle<Result<(), ServeError>>;

impl Bench {
    /// In this process, beside others.
    pub(crate) async fn start(threads: usize) -> Self {
        Self::start_here(threads, Turn::beside_others(), None).await
    }

    /// In this process, beside others, with decoded samples in this folder.
    pub(crate) async fn with_decoded(threads: usize, folder: &Path, limit: ByteCount) -> Self {
        let decoded = DecodedFolder { folder: folder.to_owned(), limit };
        Self::start_here(threads, Turn::beside_others(), Some(decoded)).await
    }

    /// In this process, alone.
    pub(crate) async fn alone(threads: usize) -> Self {
        Self::start_here(threads, Turn::alone(), None).await
    }

    async fn start_here(threads: usize, turn: Turn, decoded: Option<DecodedFolder>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let settings = Settings {
            roots: Vec::new(),
            blobs: folder.path().join("blobs"),
            cache: folder.path().join("cache"),
            decoded,
            threads,
            device: DeviceId::Cpu,
            ceiling: ByteCount::gib(4),
        };
        let (end, ended) = oneshot::channel::<()>();
        let serving = socket.clone();
        let thread = thread::spawn(move || {
            serve(settings, &serving, "test".to_owned(), async { drop(ended.await) })
        });
        let client = connect(socket, || assert!(!thread.is_finished(), "it ended")).await;
        Self { folder, client, host: Some(Host::Here { end, thread, _turn: turn }) }
    }

    /// As the worker's agent starts it: the program, in a process of its own.
    pub(crate) async fn process(threads: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrator-executor"));
        let path = |name: &str| folder.path().join(name);
        command.arg("--socket").arg(&socket).arg("--blobs").arg(path("blobs"));
        command.arg("--cache").arg(path("cache")).args(["--threads", &threads.to_string()]);
        let ceiling = ByteCount::gib(4).as_u64().to_string();
        command.args(["--build", "test", "--ceiling", &ceiling]);
        command.env("RUST_LOG", "error").stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let client = connect(socket, || {
            assert_eq!(child.try_wait().unwrap(), None, "it ended");
        });
        let client = client.await;
        Self { folder, client, host: Some(Host::Process(child)) }
    }

    /// The process id, of an executor with a process of its own.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.host {
            Some(Host::Process(child)) => Some(child.id()),
            _ => None,
        }
    }

    /// Whether a process of its own still runs.
    pub(crate) fn lives(&mut self) -> bool {
        match &mut self.host {
            Some(Host::Process(child)) => child.try_wait().unwrap().is_none(),
            Some(Host::Here { thread, .. }) => !thread.is_finished(),
            None => false,
        }
    }

    pub(crate) fn client(&self) -> ExecutorClient<Channel> {
        self.client.clone()
    }

    pub(crate) fn blob_path(&self, digest: Digest) -> PathBuf {
        self.folder.path().join("blobs").join(digest.to_string())
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.folder.path().join("cache").join("text")
    }

    pub(crate) fn blob(&self, digest: Digest) -> Vec<u8> {
        std::fs::read(self.blob_path(digest)).unwrap()
    }

    /// Runs one attempt to its end.
    pub(crate) async fn execute(&self, work: AssignedWork) -> Outcome {
        self.execute_on(work, &MemoryTerms::default()).await
    }

    /// Runs one attempt to its end, on these terms.
    pub(crate) async fn execute_on(&self, work: AssignedWork, memory: &MemoryTerms) -> Outcome {
        self.outcome(request_on("01test", work, memory.clone())).await
    }

    /// Runs one attempt of another run to its end.
    pub(crate) async fn execute_in(&self, run: &str, work: AssignedWork) -> Outcome {
        self.outcome(request_on(run, work, MemoryTerms::default())).await
    }

    async fn outcome(&self, request: v1::ExecuteRequest) -> Outcome {
        let mut events = self.client().execute(request).await.unwrap().into_inner();
        let mut last = None;
        while let Some(event) = events.message().await.unwrap() {
            assert!(last.is_none(), "nothing follows the last event");
            match event.event.unwrap() {
                Event::Progress(v1::Progress { done, total }) => assert!(done <= total),
                Event::Result(result) => last = Some(Ok(UnitResult::try_from(result).unwrap())),
                Event::Failure(failure) => {
                    let class = failure.class().try_into().unwrap();
                    last = Some(Err((class, failure.message)));
                }
            }
        }
        last.expect("a stream ends with a result or a failure")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        match self.host.take().expect("dropped once") {
            Host::Here { end, thread, _turn } => {
                drop(end);
                let served = thread.join();
                if !thread::panicking() {
                    served.unwrap().unwrap();
                }
            }
            Host::Process(mut child) => {
                // It ends when its standard input closes; a test that failed does not wait for that.
                if thread::panicking() {
                    drop(child.kill());
                }
                drop(child.wait());
            }
        }
    }
}

async fn connect(socket: PathBuf, mut alive: impl FnMut()) -> ExecutorClient<Channel> {
    loop {
        alive();
        tokio::time::sleep(Duration::from_millis(5)).await;
        if let Ok(channel) = connect_unix(socket.clone()).await {
            return ExecutorClient::new(channel);
        }
    }
}

/// What an executor told of its memory.
pub(crate) fn account(result: &UnitResult) -> &Account {
    result.account.as_ref().expect("every result has an account")
}

pub(crate) fn request(work: AssignedWork) -> v1::ExecuteRequest {
    request_on("01test", work, MemoryTerms::default())
}

fn request_on(run: &str, work: AssignedWork, memory: MemoryTerms) -> v1::ExecuteRequest {
    let assignment = Assignment {
        run: run.parse().unwrap(),
        unit: UnitId(0),
        token: FencingToken(1),
        work,
        memory,
        alone: false,
        set_aside: Vec::new(),
        set_aside_reason: String::new(),
    };
    v1::ExecuteRequest { assignment: Some(assignment.into()) }
}

/// The right to run an executor in this process. Where every test has its own process it is always
/// free. Whoever is beside others never waits for one who waits to be alone: a test may hold two.
struct Turn {
    alone: bool,
}

static RUNNING: Mutex<Running> = Mutex::new(Running { beside: 0, alone: false });
static LEFT: Condvar = Condvar::new();

struct Running {
    beside: usize,
    alone: bool,
}

impl Turn {
    fn beside_others() -> Self {
        Self::wait(|running| running.alone).beside += 1;
        Self { alone: false }
    }

    fn alone() -> Self {
        Self::wait(|running| running.alone || running.beside > 0).alone = true;
        Self { alone: true }
    }

    fn wait(busy: impl Fn(&Running) -> bool) -> std::sync::MutexGuard<'static, Running> {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        while busy(&running) {
            running = LEFT.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        running
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if self.alone {
            running.alone = false;
        } else {
            running.beside -= 1;
        }
        LEFT.notify_all();
    }
}
