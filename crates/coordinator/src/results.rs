//! The run folder of a run that has ended: made once from what is stored, then sent as it is.
//!
//! Invariant: a folder under its run's name is complete (made elsewhere, synced, renamed) and tells
//! the run's history up to the event that ended it. A run that is opened again has none until it
//! has ended anew; making it twice gives the same bytes.

mod embeddings;
mod error;
mod evidence;
mod memory;
mod predictions;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use orchestrator_ledger::Account;
use orchestrator_proto::{CHUNK_BYTES, Refusal, RefusalCode, v1};
use orchestrator_run::UnitResult;
use orchestrator_types::{RunId, SliceId, UnitId};
use tokio::sync::Mutex;

use crate::{
    blobs::{BlobError, Blobs},
    durable,
    event::Recorded,
    store::{Documents, Reader, RunSummary, SliceRow, StoreError, UnitRow, UnitStage},
};

use self::error::{ResultsError, file};

/// Events read from the store at once.
const PAGE: u32 = 1_000;

/// Where the finished files of `run` lie in the state folder `state`, once they have been asked
/// for.
pub fn run_folder(state: &Path, run: &RunId) -> PathBuf {
    state.join("runs").join(run.as_str())
}

/// Makes run folders, one at a time.
#[derive(Debug)]
pub(crate) struct Results {
    state: PathBuf,
    blobs: Arc<Blobs>,
    making: Mutex<()>,
}

/// Everything that is stored of an ended run.
struct Ended {
    summary: RunSummary,
    end: u64,
    documents: Documents,
    /// Those with a row.
    units: Vec<UnitRow>,
    slices: Vec<SliceRow>,
    /// Accounts of executors by slice, with the time at which they came.
    accounts: BTreeMap<SliceId, Vec<(i64, Account)>>,
}

impl Ended {
    fn row(&self, unit: UnitId) -> Option<&UnitRow> {
        let index = self.units.binary_search_by_key(&unit, |row| row.unit).ok()?;
        Some(&self.units[index])
    }

    fn result(&self, unit: UnitId) -> Option<&UnitResult> {
        let row = self.row(unit).filter(|row| row.stage == UnitStage::Committed);
        row.and_then(|row| row.result.as_ref())
    }

    /// The blob of a unit; none if it has no result.
    async fn blob(&self, unit: UnitId, blobs: &Blobs) -> Result<Option<Vec<u8>>, BlobError> {
        let Some(result) = self.result(unit) else { return Ok(None) };
        match &result.inline {
            Some(inline) => Ok(Some(inline.clone())),
            None => blobs.read(result.blob.digest).await?.all().await.map(Some),
        }
    }
}

impl Results {
    pub(crate) fn new(state: PathBuf, blobs: Arc<Blobs>) -> Self {
        Self { state, blobs, making: Mutex::new(()) }
    }

    /// The folder of an ended run, made if it is not there. Blocks between reading blobs.
    pub(crate) async fn folder(&self, run: &RunId) -> Result<PathBuf, Refusal> {
        let summary =
            Reader::open(&self.state)?.run(run)?.ok_or_else(|| crate::driver::unknown(run))?;
        let Some(end) = summary.ended_sequence else {
            let message = format!("run {run} has not ended yet; watch it, then ask again");
            return Err(Refusal::new(RefusalCode::Unavailable, message));
        };
        let _one_at_a_time = self.making.lock().await;
        let folder = run_folder(&self.state, run);
        if last_event(&folder).is_some_and(|last| last.sequence == end) {
            return Ok(folder);
        }
        let ended = self.ended(summary, end)?;
        self.make(&ended, &folder).await.map_err(|error| error.refusal(run))?;
        Ok(folder)
    }

    fn ended(&self, summary: RunSummary, end: u64) -> Result<Ended, Refusal> {
        let (reader, run) = (Reader::open(&self.state)?, &summary.id);
        Ok(Ended {
            documents: reader.documents(run)?.ok_or_else(|| crate::driver::unknown(run))?,
            units: reader.units(run)?,
            slices: reader.slices(run)?,
            accounts: reader.accounts(run)?,
            summary,
            end,
        })
    }

    async fn make(&self, ended: &Ended, folder: &Path) -> Result<(), ResultsError> {
        let draft = folder.with_file_name(format!(".{}", ended.summary.id));
        remove(&draft)?;
        durable::create_all(&draft).map_err(file("create", &draft))?;
        self.write(ended, &draft).await?;
        durable::sync(&draft).map_err(file("sync", &draft))?;
        remove(folder)?;
        let now =
            Reader::open(&self.state)?.run(&ended.summary.id)?.and_then(|run| run.ended_sequence);
        if now != Some(ended.end) {
            remove(&draft)?;
            return Err(ResultsError::OpenedAgain);
        }
        fs::rename(&draft, folder).map_err(file("rename to", folder))?;
        let parent = folder.parent().expect("a run folder lies in a folder");
        durable::sync(parent).map_err(file("sync", parent))
    }

    async fn write(&self, ended: &Ended, draft: &Path) -> Result<(), ResultsError> {
        let Documents { eval_yaml, plan, .. } = &ended.documents;
        write(draft, "eval.yaml", eval_yaml.as_bytes())?;
        let plan = serde_json::to_string_pretty(plan).map_err(ResultsError::Json)?;
        write(draft, "plan.json", format!("{plan}\n").as_bytes())?;
        predictions::write(ended, &self.blobs, create(draft, "predictions.parquet")?).await?;
        if ended.documents.keep_embeddings {
            embeddings::write(ended, &self.blobs, draft).await?;
        }
        let evidence = evidence::gather(ended)?;
        memory::write(&evidence, create(draft, "memory.parquet")?)?;
        let report = orchestrator_report::fold(evidence)?;
        let json = orchestrator_report::json::write(&report);
        write(draft, "report.json", json.as_bytes())?;
        let markdown = orchestrator_report::markdown::write(&report);
        write(draft, "report.md", markdown.as_bytes())?;
        write_events(&Reader::open(&self.state)?, ended, create(draft, "events.jsonl")?)
    }
}

/// Removes the folder of a run that is opened again: it tells of an end that no longer holds.
pub(crate) fn discard(state: &Path, run: &RunId) -> Result<(), StoreError> {
    let path = run_folder(state, run);
    match fs::remove_dir_all(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::File { action: "remove the old results in", path, source })
        }
        _ => Ok(()),
    }
}

/// Reads the files of a finished folder, in order of their names. Blocks.
#[derive(Debug)]
pub(crate) struct FolderReader {
    folder: PathBuf,
    /// Names of files that were not opened yet, last one first.
    names: Vec<String>,
    open: Option<(String, File)>,
}

impl FolderReader {
    /// Those of the names in `only`, or all.
    pub(crate) fn open(folder: PathBuf, only: &[String]) -> Result<Self, Refusal> {
        let entries = fs::read_dir(&folder).map_err(file("list", &folder))?;
        let mut names: Vec<String> = entries
            .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_, _>>()
            .map_err(file("list", &folder))?;
        names.retain(|name| only.is_empty() || only.contains(name));
        names.sort_by(|a, b| b.cmp(a));
        Ok(Self { folder, names, open: None })
    }

    /// The next part of a file; an empty file has one, and none follows the last.
    pub(crate) fn chunk(&mut self) -> Result<Option<v1::FileChunk>, Refusal> {
        if self.open.is_none() {
            let Some(name) = self.names.pop() else { return Ok(None) };
            let path = self.folder.join(&name);
            self.open = Some((name, File::open(&path).map_err(file("open", &path))?));
        }
        let (name, source) = self.open.as_mut().expect("it was just opened");
        let (name, mut data) = (name.clone(), Vec::new());
        let path = self.folder.join(&name);
        let mut part = Read::by_ref(source).take(CHUNK_BYTES as u64);
        if part.read_to_end(&mut data).map_err(file("read", &path))? < CHUNK_BYTES {
            self.open = None;
        }
        Ok(Some(v1::FileChunk { name, data }))
    }
}

/// The last line of a finished folder's history.
fn last_event(folder: &Path) -> Option<Recorded> {
    let events = fs::read_to_string(folder.join("events.jsonl")).ok()?;
    serde_json::from_str(events.lines().next_back()?).ok()
}

fn write_events(
    reader: &Reader,
    ended: &Ended,
    mut sink: BufWriter<File>,
) -> Result<(), ResultsError> {
    let mut after = 0;
    while after < ended.end {
        let page = reader.events(&ended.summary.id, after, PAGE)?;
        let Some(last) = page.last().map(|event| event.sequence) else { break };
        // What came after the end, such as a late result, is not part of what ended.
        for event in page.iter().filter(|event| event.sequence <= ended.end) {
            let line = serde_json::to_string(event).map_err(ResultsError::Json)?;
            writeln!(sink, "{line}").map_err(ResultsError::Write)?;
        }
        after = last;
    }
    finish(sink)
}

fn remove(folder: &Path) -> Result<(), ResultsError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(file("remove", folder)(error))
        }
        _ => Ok(()),
    }
}

fn create(folder: &Path, name: &str) -> Result<BufWriter<File>, ResultsError> {
    let path = folder.join(name);
    File::create(&path).map(BufWriter::new).map_err(file("create", &path))
}

/// Makes a written file durable.
fn finish(sink: BufWriter<File>) -> Result<(), ResultsError> {
    let file = sink.into_inner().map_err(|error| ResultsError::Write(error.into_error()))?;
    file.sync_all().map_err(ResultsError::Write)
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), ResultsError> {
    let mut sink = create(folder, name)?;
    sink.write_all(bytes).map_err(ResultsError::Write)?;
    finish(sink)
}
