//! Reading a store that another process may be writing.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use orchestrator_ledger::Account;
use orchestrator_types::{Digest, RunId, SliceId};
use rusqlite::{Connection, OpenFlags};

use super::{
    DATABASE, Documents, RunSummary, SliceRow, Store, StoreError, UnitRow, lock, newer, query,
    schema,
};
use crate::event::Recorded;

/// A read-only view. Each call sees one committed state; two calls may see two.
pub struct Reader {
    connection: Connection,
    state: PathBuf,
}

impl Reader {
    /// Opens the store in the state folder `state`.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if there is none, [`StoreError::Newer`] if it cannot be read. An
    /// older one is brought up to date first, which fails while another process works with it.
    pub fn open(state: &Path) -> Result<Self, StoreError> {
        let path = state.join(DATABASE);
        if !path.is_file() {
            return Err(StoreError::Missing { path: state.to_owned() });
        }
        let fail = || StoreError::database("open its file");
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(fail())?;
        connection.execute_batch("PRAGMA busy_timeout = 5000").map_err(fail())?;
        match schema::format(&connection).map_err(fail())? {
            // Made, and its tables not committed yet.
            0 => Err(StoreError::Missing { path: state.to_owned() }),
            found if found > schema::FORMAT => Err(newer(state, found)),
            found if found < schema::FORMAT => {
                drop(connection);
                Store::upgrade(state)?;
                Self::open(state)
            }
            _ => Ok(Self { connection, state: state.to_owned() }),
        }
    }

    /// Whether a coordinator works with the store now; if not, a run that is `Running` was
    /// interrupted.
    pub fn is_live(&self) -> bool {
        lock::is_held(&self.state)
    }

    /// Every run, oldest first.
    pub fn runs(&self) -> Result<Vec<RunSummary>, StoreError> {
        query::summaries(&self.connection)
    }

    /// One run.
    pub fn run(&self, run: &RunId) -> Result<Option<RunSummary>, StoreError> {
        query::find(&self.connection, run)
    }

    /// What a run was made from.
    pub fn documents(&self, run: &RunId) -> Result<Option<Documents>, StoreError> {
        query::documents(&self.connection, run)
    }

    /// Units of a run that were leased at least once, in order.
    pub fn units(&self, run: &RunId) -> Result<Vec<UnitRow>, StoreError> {
        self.of_run(run, query::units)
    }

    /// A blob that is stored with the result of an encoding.
    pub(crate) fn input(&self, digest: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        query::input(&self.connection, digest)
    }

    /// Shows `take` every blob that a committed unit of any run names; some of them twice.
    pub(crate) fn blobs(&self, take: impl FnMut(Digest)) -> Result<(), StoreError> {
        query::blobs(&self.connection, take)
    }

    /// Slices that worked on a run.
    pub fn slices(&self, run: &RunId) -> Result<Vec<SliceRow>, StoreError> {
        self.of_run(run, query::slices)
    }

    /// The accounts of the executors that worked on a run, by slice: of each executor the newest, with all
    /// readings over time, and the most of every figure, with the time at which they came.
    pub(crate) fn accounts(
        &self,
        run: &RunId,
    ) -> Result<BTreeMap<SliceId, Vec<(i64, Account)>>, StoreError> {
        self.of_run(run, query::accounts_of_slices)
    }

    /// At most `limit` events of a run after number `after`.
    pub fn events(&self, run: &RunId, after: u64, limit: u32) -> Result<Vec<Recorded>, StoreError> {
        self.of_run(run, |connection, key| query::events(connection, key, after, limit))
    }

    /// The event with which the present life of a run began: one that was resumed has the end of
    /// an earlier life before it.
    pub fn begun(&self, run: &RunId) -> Result<u64, StoreError> {
        self.of_run(run, query::begun)
    }

    fn of_run<T: Default>(
        &self,
        run: &RunId,
        read: impl FnOnce(&Connection, super::RunKey) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match query::run_state(&self.connection, run)? {
            Some((key, _)) => read(&self.connection, key),
            None => Ok(T::default()),
        }
    }
}
