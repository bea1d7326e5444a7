//! The checks from outside, after every step that stored or told something: the store keeps its
//! promises, what was told is kept (I5), and a submission that was repeated is one run.

use std::{
    collections::BTreeSet,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use orchestrator_coordinator::{Reader, UnitStage, check_store};

use crate::{job, user::Seen};

/// What SQLite keeps of its log's state in the first bytes of `-shm`: they change with each
/// transaction.
const HEAD_BYTES: u64 = 48;

/// See the module's documentation.
pub(crate) struct Onlooker {
    seed: u64,
    state: PathBuf,
    /// What was seen last: the state of the log, if there is one, and the number of units told.
    seen: Option<(Vec<u8>, usize)>,
}

impl Onlooker {
    pub(crate) fn new(seed: u64, state: &Path) -> Self {
        Self { seed, state: state.to_owned(), seen: None }
    }

    pub(crate) fn look(&mut self, told: &Seen) {
        let committed = told.story().committed.len();
        let now = self.log().map(|log| (log, committed));
        // Without a log nobody writes; a store that was closed is looked at once.
        if now == self.seen || !self.state.join("store.sqlite").is_file() {
            return;
        }
        self.seen = now;
        self.check(told);
    }

    fn log(&self) -> Option<Vec<u8>> {
        let mut head = Vec::new();
        let file = File::open(self.state.join("store.sqlite-shm")).ok()?;
        file.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
        Some(head)
    }

    fn check(&self, told: &Seen) {
        let seed = self.seed;
        // It is being made.
        let Ok(violations) = check_store(&self.state) else { return };
        assert!(violations.is_empty(), "seed {seed}: {violations:?}");
        let reader = Reader::open(&self.state).expect("a store that was checked");
        let runs = reader.runs().expect("its runs are read").len();
        assert!(runs <= 1, "seed {seed}: {runs} runs of one submission");
        let run = job::RUN.parse().expect("a legal name");
        let units = reader.units(&run).expect("its units are read");
        let kept: BTreeSet<u32> = units
            .iter()
            .filter(|row| row.stage == UnitStage::Committed)
            .map(|row| row.unit.0)
            .collect();
        let told = &told.story().committed;
        assert!(told.is_subset(&kept), "I5: seed {seed}: told and lost: {:?}", told - &kept);
    }
}
