//! An executor on a temporary socket, and its client.

use std::{path::PathBuf, thread, time::Duration};

use orchestrator_executor::{ServeError, Settings, serve};
use orchestrator_proto::{
    connect_unix,
    domain::{AssignedWork, Assignment, UnitResult},
    v1::{self, execute_event::Event, executor_client::ExecutorClient},
};
use orchestrator_types::{ByteCount, DeviceId, Digest, FailureClass, FencingToken, UnitId};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tonic::transport::Channel;

/// How an attempt ended.
pub(crate) type Outcome = Result<UnitResult, (FailureClass, String)>;

/// One running executor. Dropping it ends it.
pub(crate) struct Bench {
    folder: TempDir,
    client: ExecutorClient<Channel>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<Result<(), ServeError>>>,
}

impl Bench {
    pub(crate) async fn start(threads: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let settings = Settings {
            blobs: folder.path().join("blobs"),
            cache: folder.path().join("cache"),
            threads,
            device: DeviceId::Cpu,
            ceiling: ByteCount::gib(4),
        };
        let (end, ended) = oneshot::channel::<()>();
        let serving = socket.clone();
        let thread = thread::spawn(move || {
            serve(settings, &serving, "test".to_owned(), async { drop(ended.await) })
        });
        let mut client = None;
        while client.is_none() {
            assert!(!thread.is_finished(), "the executor ended");
            tokio::time::sleep(Duration::from_millis(5)).await;
            client = connect_unix(socket.clone()).await.ok().map(ExecutorClient::new);
        }
        let client = client.unwrap();
        Self { folder, client, end: Some(end), thread: Some(thread) }
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
        let mut events = self.client().execute(request(work)).await.unwrap().into_inner();
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
        drop(self.end.take());
        let served = self.thread.take().expect("dropped once").join();
        if !thread::panicking() {
            served.unwrap().unwrap();
        }
    }
}

pub(crate) fn request(work: AssignedWork) -> v1::ExecuteRequest {
    let assignment = Assignment {
        run: "01test".parse().unwrap(),
        unit: UnitId(0),
        token: FencingToken(1),
        work,
        memory: orchestrator_types::MemoryTerms::default(),
    };
    v1::ExecuteRequest { assignment: Some(assignment.into()) }
}
