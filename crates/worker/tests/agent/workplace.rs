//! One test's folders, coordinator, units and processes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use orchestrator_proto::{Blocking, Dial, domain::SliceOffer, v1};
use orchestrator_types::{ByteCount, DeviceId, Digest};
use orchestrator_worker::{Agent, Config, DataAccess, Limits, Processes};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::{coordinator::StandIn, executor::BUILD};

/// Agents so far: each life has a name of its own.
static LIVES: AtomicU32 = AtomicU32::new(0);

/// Where a test works.
pub(crate) struct Workplace {
    folder: TempDir,
    pub(crate) coordinator: StandIn,
}

impl Workplace {
    pub(crate) async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("cache")).unwrap();
        Self { folder, coordinator: StandIn::start().await }
    }

    /// Makes executors behave; see the stand-in.
    pub(crate) fn mode(&self, mode: &str) {
        fs::write(self.cache().join("mode"), mode).unwrap();
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.folder.path().join("scratch")
    }

    pub(crate) fn config(&self, slices: u32) -> Config {
        config(&self.coordinator.address(), self.folder.path(), slices)
    }

    pub(crate) async fn agent(&self, slices: u32) -> Agent {
        Agent::start(self.config(slices)).await.unwrap()
    }

    /// Executors of this test that run or are not reaped, as far as their command line can be
    /// read.
    pub(crate) fn executors(&self) -> Vec<i32> {
        processes(&self.scratch())
    }

    /// The executor of slice number `slice`.
    pub(crate) fn executor(&self, slice: usize) -> i32 {
        processes(&self.scratch().join(format!("{slice}.sock")))[0]
    }

    /// Texts to encode in one unit; its number is its token.
    pub(crate) fn hand_out(&self, unit: u32) {
        self.hand_out_work(
            unit,
            v1::assignment::Work::EncodeTexts(v1::EncodeTexts {
                model: Some(v1::Model {
                    folder: "/model".into(),
                    weights_digest: vec![1; 32],
                    precision: v1::Precision::Fp32.into(),
                }),
                dataset: Some(dataset()),
                texts: v1::TextSet::Prompts.into(),
                part: 0,
                parts: 1,
                batch: 8,
                tile: 4,
            }),
        );
    }

    /// A ranking of these texts.
    pub(crate) fn hand_out_ranking(&self, unit: u32, texts: &[Digest]) {
        self.hand_out_work(
            unit,
            v1::assignment::Work::Rank(v1::Rank {
                dataset: Some(dataset()),
                texts: v1::TextSet::Prompts.into(),
                direction: v1::Direction::ImageToClass.into(),
                queries: Some(v1::Shard { start: 0, end: 1 }),
                depth: 1,
                text_blobs: texts.iter().map(|digest| digest.as_bytes().to_vec()).collect(),
                image_blobs: Vec::new(),
            }),
        );
    }

    fn hand_out_work(&self, unit: u32, work: v1::assignment::Work) {
        let run = "01run".to_owned();
        let memory = Some(orchestrator_types::MemoryTerms::default().into());
        let assignment = v1::Assignment {
            run,
            unit,
            token: unit.into(),
            work: Some(work),
            memory,
            ..Default::default()
        };
        self.coordinator.change(|notes| notes.units.push_back(assignment));
    }

    /// Waits for the unit's commit, and gives the bytes that were staged for it.
    pub(crate) async fn committed(&self, unit: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let what = format!("the commit of unit {unit}");
        self.coordinator
            .until(&what, |notes| {
                let commit = notes.committed.iter().find(|commit| commit.unit == unit);
                let Some(commit) = commit else { return false };
                let digest = commit.result.as_ref().unwrap().blob_digest.as_slice();
                bytes.clone_from(&notes.blobs[&Digest::try_from(digest).unwrap()]);
                true
            })
            .await;
        bytes
    }

    /// Waits for the unit's failure, and gives its class and message.
    pub(crate) async fn failed(&self, unit: u32) -> (v1::FailureClass, String) {
        let mut found = None;
        let what = format!("the failure of unit {unit}");
        self.coordinator
            .until(&what, |notes| {
                let failure = notes.failed.iter().find(|failure| failure.unit == unit);
                found = failure.and_then(|failure| failure.failure.clone());
                found.is_some()
            })
            .await;
        let failure = found.unwrap();
        (failure.class(), failure.message)
    }

    /// Waits until a heartbeat tells of the unit.
    pub(crate) async fn computing(&self, unit: u32) {
        let expected = v1::AttemptProgress { token: unit.into(), done: 1, total: 10 };
        let what = format!("progress of unit {unit}");
        self.coordinator.until(&what, |notes| notes.progress.contains(&expected)).await;
    }
}

pub(crate) fn config(coordinator: &str, folder: &Path, slices: u32) -> Config {
    let offer = |number| SliceOffer {
        id: format!("here.{number}").parse().unwrap(),
        node: "here".parse().unwrap(),
        device: DeviceId::Cpu,
        threads: 1,
        memory_bytes: ByteCount::gib(1),
    };
    Config {
        coordinator: coordinator.to_owned(),
        dial: Dial::Tcp,
        session: format!("life-{}", LIVES.fetch_add(1, Ordering::Relaxed)).parse().unwrap(),
        launch: Arc::new(Processes),
        blocking: Blocking::Threads,
        node: "here".parse().unwrap(),
        slices: (0..slices).map(offer).collect(),
        executor: std::env::current_exe().unwrap(),
        scratch: folder.join("scratch"),
        cache: folder.join("cache"),
        data: DataAccess::anywhere(Vec::new()).unwrap(),
        build: BUILD.to_owned(),
        limits: Limits { first_contact: Duration::from_secs(10), ..Limits::default() },
    }
}

fn dataset() -> v1::Dataset {
    v1::Dataset {
        name: "captions".into(),
        source: Some(v1::dataset::Source::Captions(v1::Captions {
            file: "/captions.jsonl".into(),
        })),
        manifest_digest: vec![2; 32],
    }
}

/// Processes whose command line names this file or something in this folder.
fn processes(named: &Path) -> Vec<i32> {
    let ours = named.to_str().unwrap();
    let pid = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&command).contains(ours).then_some(pid)
    };
    fs::read_dir("/proc").unwrap().filter_map(|entry| pid(entry.unwrap())).collect()
}

/// Whether no process has this number, not even one that waits to be reaped.
pub(crate) fn is_gone(pid: i32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

/// Waits until something outside of the agent's protocol holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(Duration::from_secs(30), waiting).await.is_ok(), "still waiting for {what}");
}
