//! Where embedded runs live: one state folder each, so that runs of several terminals do not meet.
//!
//! `$XDG_STATE_HOME/orchestrator/runs/<run>` holds the store, the blobs and the finished files.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use orchestrator_coordinator::{Reader, RunLine, RunSummary, StoreError};
use orchestrator_run::RunState;
use orchestrator_types::RunId;

use crate::{exit::Failure, say};

/// A name that nobody else has: a lower-case ULID.
pub(crate) fn fresh_name<T>() -> anyhow::Result<T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    ulid::Ulid::generate().to_string().to_lowercase().parse().context("failed to make a name")
}

/// The folder of all embedded runs.
pub(crate) struct State {
    root: PathBuf,
}

/// One embedded run, as its store tells.
pub(crate) struct Stored {
    pub(crate) summary: RunSummary,
    pub(crate) reader: Reader,
    /// Its state folder.
    pub(crate) folder: PathBuf,
}

impl State {
    /// The user's state folder. Creates nothing.
    pub(crate) fn of_user() -> anyhow::Result<Self> {
        let home = base_folder("XDG_STATE_HOME", ".local/state")?;
        Ok(Self { root: home.join("orchestrator/runs") })
    }

    /// Where the runs are.
    pub(crate) fn folder(&self) -> &Path {
        &self.root
    }

    /// The state folder of one run.
    pub(crate) fn of_run(&self, run: &RunId) -> PathBuf {
        self.root.join(run.as_str())
    }

    /// Every run, oldest first. A folder without a readable store is named on stderr and left out.
    pub(crate) fn runs(&self) -> anyhow::Result<Vec<Stored>> {
        let mut names = Vec::new();
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => {
                entries.with_context(|| format!("failed to list {}", self.root.display()))?
            }
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("failed to list {}", self.root.display()))?;
            let name = entry.file_name();
            names.extend(name.to_str().and_then(|name| name.parse::<RunId>().ok()));
        }
        names.sort();
        let mut runs = Vec::with_capacity(names.len());
        for name in names {
            match self.open(&name) {
                Ok(Some(stored)) => runs.push(stored),
                // Submitted a moment ago, or refused before it was stored.
                Ok(None) => {}
                Err(error) => say(format_args!("warning: run {name} cannot be read: {error:#}")),
            }
        }
        Ok(runs)
    }

    /// The run that the user means: an id, or `last`.
    pub(crate) fn find(&self, run: &str) -> Result<Stored, Failure> {
        let missing = |text: String| Failure::usage(anyhow!(text));
        if run == "last" {
            let last = self.runs()?.pop();
            return last.ok_or_else(|| {
                missing(
                    "there is no run yet; start one with `orchestrator submit eval.yaml`".into(),
                )
            });
        }
        let found = run.parse().ok().map(|id: RunId| self.open(&id)).transpose()?.flatten();
        found.ok_or_else(|| {
            missing(format!(
                "there is no run `{run}`; `orchestrator runs` lists them, `last` is the newest"
            ))
        })
    }

    fn open(&self, run: &RunId) -> anyhow::Result<Option<Stored>> {
        let folder = self.of_run(run);
        let reader = match Reader::open(&folder) {
            Err(StoreError::Missing { .. }) => return Ok(None),
            reader => reader.with_context(|| format!("failed to open {}", folder.display()))?,
        };
        let summary = reader.run(run).context("failed to read the run")?;
        Ok(summary.map(|summary| Stored { summary, reader, folder }))
    }
}

impl Stored {
    /// Where the coordinator that works on it listens, if there is one.
    pub(crate) fn address(&self) -> Option<String> {
        // A file of an earlier life means nothing.
        self.reader.is_live().then(|| fs::read_to_string(self.folder.join(ADDRESS)).ok())?
    }

    /// Whether some process works on it now.
    pub(crate) fn is_going_on(&self) -> bool {
        self.summary.state == RunState::Running && self.reader.is_live()
    }

    /// As documents show it.
    pub(crate) fn line(&self) -> RunLine {
        RunLine::new(self.summary.clone(), self.reader.is_live())
    }

    /// Where the run stands, in one word. A run that is running without a process was interrupted.
    pub(crate) fn state_word(&self) -> &'static str {
        match self.summary.state {
            RunState::Running if !self.reader.is_live() => "interrupted",
            state => state.name(),
        }
    }
}

/// Where the coordinator that is a service keeps its state.
pub(crate) fn coordinator_folder() -> anyhow::Result<PathBuf> {
    Ok(base_folder("XDG_STATE_HOME", ".local/state")?.join("orchestrator/coordinator"))
}

/// File in the state folder of a run with the address of the coordinator that works on it.
const ADDRESS: &str = "address";

/// Leaves the address of an embedded coordinator for other terminals.
pub(crate) fn announce(state: &Path, address: &str) -> anyhow::Result<()> {
    let path = state.join(ADDRESS);
    fs::write(&path, address).with_context(|| format!("failed to write {}", path.display()))
}

/// What is kept between runs and can be had again: embeddings of texts, measured batches.
pub(crate) fn cache_folder() -> anyhow::Result<PathBuf> {
    Ok(base_folder("XDG_CACHE_HOME", ".cache")?.join("orchestrator"))
}

fn base_folder(variable: &str, below_home: &str) -> anyhow::Result<PathBuf> {
    // The base directory specification ignores relative values.
    if let Some(folder) = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
    {
        return Ok(folder);
    }
    let home = env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    home.map(|home| home.join(below_home))
        .ok_or_else(|| anyhow!("neither {variable} nor HOME names a folder; set one of them"))
}

/// Creates `folder` and its parents.
pub(crate) fn create(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))
}
