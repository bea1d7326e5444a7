//! A real disk that is full for a while: a tiny one in memory, which only root can make.

use std::{io::Write, process::Command};

use super::*;
use crate::{check_store, durable::DISK_FULL};

/// Everything in this test happens within this, or never.
const PATIENCE: Duration = Duration::from_mins(1);

/// A folder of 16 MiB; none, and said so, where mounting is not allowed.
struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"])
            .arg(folder.path())
            .output();
        match mount {
            Ok(done) if done.status.success() => Some(Self(folder)),
            failed => {
                eprintln!("SKIPPED: a full disk, because none can be mounted here: {failed:?}");
                None
            }
        }
    }

    fn ballast(&self) -> std::path::PathBuf {
        self.0.path().join("ballast")
    }

    /// Writes until nothing more fits.
    fn fill(&self) {
        let mut file = fs::File::create(self.ballast()).unwrap();
        while file.write_all(&[7; 4096]).is_ok() {}
    }

    /// Leaves this much room.
    fn leave(&self, bytes: u64) {
        let file = fs::File::options().write(true).open(self.ballast()).unwrap();
        file.set_len(file.metadata().unwrap().len() - bytes).unwrap();
    }

    fn free(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.0.path()).status());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_pauses_the_coordinator_and_nothing_is_lost() {
    let Some(disk) = TinyDisk::new() else { return };
    let state = tempfile::tempdir_in(disk.0.path()).unwrap();
    let mut bench = Bench::in_folder(state).await;
    let session = bench.register("n").await;
    let v1::SubmitReply { run, units } = bench.submit("r").await;
    let assignment = bench.lease(&session, 1).await.unwrap();
    let work = Assignment::try_from(assignment.clone()).unwrap();
    let (mut result, bytes) = fixtures::output(&work);
    assert!((bytes.len() as u64) < INLINE_LIMIT_BYTES, "it needs no disk but the store's");
    result.inline = Some(bytes);

    disk.fill();
    let chunks = (0..4).map(|_| v1::BlobChunk { data: vec![1; 1 << 20].into() });
    let staged = bench.client.stage(tokio_stream::iter(chunks)).await.unwrap_err();
    assert_eq!(staged.code(), Code::Unavailable);
    assert!(staged.message().starts_with(DISK_FULL), "{staged}");
    let refused = bench.commit(&session, &assignment, result.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().starts_with(DISK_FULL), "{refused}");
    assert!(bench.coordinator.paused().is_some_and(|reason| reason.starts_with(DISK_FULL)));
    let request = v1::HeartbeatRequest {
        session: session.clone(),
        attempts: vec![v1::AttemptProgress { token: assignment.token, done: 1, total: 2 }],
    };
    let revoked = bench.client.heartbeat(request).await.unwrap().into_inner().revoked;
    assert!(revoked.is_empty(), "the attempt still counts");
    assert_eq!(bench.lease(&session, 2).await, None, "nothing is handed out");

    disk.free();
    let resumed = async {
        while bench.coordinator.paused().is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, resumed).await.unwrap();
    let outcome = bench.commit(&session, &assignment, result).await.unwrap();
    assert_eq!(outcome, v1::CommitOutcome::Committed, "what was refused was not stored");
    assert_eq!(bench.finish(&session).await, units - 1);
    let report = bench.files(&run).await.unwrap().remove("report.json").unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["complete"], true);
    let state = bench.stop().await;
    assert_eq!(check_store(state.path()).unwrap(), []);
    let database = rusqlite::Connection::open(state.path().join("store.sqlite")).unwrap();
    let check = database.query_row("PRAGMA quick_check", [], |row| row.get::<_, String>(0));
    assert_eq!(check.unwrap(), "ok");
}

/// Rounds in which the driver looks whether it can go on.
const ROUNDS: u32 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_too_full_for_a_blob_pauses_the_coordinator_until_the_blob_fits() {
    let Some(disk) = TinyDisk::new() else { return };
    let state = tempfile::tempdir_in(disk.0.path()).unwrap();
    let mut bench = Bench::in_folder(state).await;
    let session = bench.register("n").await;
    let v1::SubmitReply { run, .. } = bench.submit("r").await;
    let assignment = bench.lease(&session, 1).await.unwrap();
    let blob =
        || tokio_stream::iter((0..4).map(|_| v1::BlobChunk { data: vec![1; 1 << 20].into() }));
    // The store has room enough for its own writes all the time.
    disk.fill();
    disk.leave(3 << 20);
    let staged = bench.client.stage(blob()).await.unwrap_err();
    assert_eq!(staged.code(), Code::Unavailable);
    let reason = bench.coordinator.paused().expect("the run waits for disk space");
    assert!(reason.starts_with(DISK_FULL) && staged.message() == reason, "{reason} {staged}");
    let channel = connect(&format!("http://{}", bench.coordinator.address())).await.unwrap();
    let mut inspector = v1::inspector_client::InspectorClient::new(channel);
    for round in 0..ROUNDS {
        let status = v1::StatusRequest { run: run.clone() };
        let status = inspector.status(status).await.unwrap().into_inner().status;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        assert_eq!(status["waits"], reason, "status tells it in round {round}");
        assert_eq!(bench.lease(&session, 2 + round).await, None, "nothing is handed out");
        let attempts = vec![v1::AttemptProgress { token: assignment.token, done: 1, total: 2 }];
        let beat = v1::HeartbeatRequest { session: session.clone(), attempts };
        let revoked = bench.client.heartbeat(beat).await.unwrap().into_inner().revoked;
        assert!(revoked.is_empty(), "the attempt still counts");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    disk.free();
    let resumed = async {
        while bench.coordinator.paused().is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, resumed).await.unwrap();
    bench.client.stage(blob()).await.unwrap();
    assert_eq!(bench.deliver(&session, &assignment).await.unwrap(), v1::CommitOutcome::Committed);
    bench.finish(&session).await;
    let report = bench.files(&run).await.unwrap().remove("report.json").unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["complete"], true);
    bench.stop().await;
}
