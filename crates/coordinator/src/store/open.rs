//! What happens before a store is used: place, settings, tables, checks, and a new epoch.

use std::{path::Path, time::Instant};

use nix::sys::statfs;
use rusqlite::{Connection, params};

use super::{StoreError, schema};

/// File systems whose locks and whose order of writes SQLite cannot rely on: kind and name.
const NETWORK: [(i64, &str); 9] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x5346_414F, "AFS"),
    (0x0BD0_0BD0, "Lustre"),
    (0x00C3_6400, "Ceph"),
    (0x0102_1997, "9P"),
    (0x4750_4653, "GPFS"),
];

/// Refuses a folder on a network's file system.
pub(crate) fn refuse_network(state: &Path) -> Result<(), StoreError> {
    // It may not have been made yet.
    let there = state.ancestors().find(|folder| folder.exists());
    let there = there.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = statfs::statfs(there).map_err(|error| StoreError::File {
        action: "ask for the file system of",
        path: there.to_owned(),
        source: error.into(),
    })?;
    match network(found.filesystem_type().0) {
        Some(kind) => Err(StoreError::Network { path: state.to_owned(), kind }),
        None => Ok(()),
    }
}

/// Free bytes beside the store; none if nobody says.
pub(crate) fn room_bytes(state: &Path) -> Option<u64> {
    let found = nix::sys::statvfs::statvfs(state).ok()?;
    Some(found.blocks_available().saturating_mul(found.fragment_size()))
}

fn network(kind: i64) -> Option<&'static str> {
    // Some kernels give 32 bits with a sign.
    let kind = kind & 0xFFFF_FFFF;
    NETWORK.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name)
}

/// Settings and tables; checks what an unclean stop or a later release left.
pub(super) fn prepare(connection: &mut Connection, state: &Path) -> Result<(), StoreError> {
    let unreadable = |error| match error {
        // The first page is not even SQLite's.
        rusqlite::Error::SqliteFailure(failure, Some(finding))
            if failure.code == rusqlite::ErrorCode::NotADatabase =>
        {
            StoreError::Damaged { path: state.to_owned(), finding }
        }
        error => StoreError::Database { action: "read its format", source: error },
    };
    let format = schema::format(connection).map_err(unreadable)?;
    if format > schema::FORMAT {
        return Err(newer(state, format));
    }
    let settings = "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000;
         PRAGMA cache_size = -16000;";
    connection.execute_batch(settings).map_err(StoreError::database("set its file up"))?;
    connection.set_prepared_statement_cache_capacity(32);
    if format == 0 {
        return schema::create(connection).map_err(StoreError::database("create its tables"));
    }
    if meta(connection, "clean")? == 0 {
        check_pages(connection, state)?;
    }
    if format < schema::FORMAT {
        tracing::info!(state = %state.display(), format, "the store is brought up to date");
        schema::upgrade(connection, format).map_err(StoreError::database("upgrade its tables"))?;
    }
    Ok(())
}

/// The full check: reads every page, about a second a gigabyte from a warm cache.
fn check_pages(connection: &Connection, state: &Path) -> Result<(), StoreError> {
    let started = Instant::now();
    let check = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    let damaged = |finding| StoreError::Damaged { path: state.to_owned(), finding };
    match check {
        Ok(finding) if finding == "ok" => {
            let took = started.elapsed();
            tracing::info!(?took, "the store was not closed; its pages were checked and are whole");
            Ok(())
        }
        Ok(finding) => Err(damaged(finding)),
        Err(rusqlite::Error::SqliteFailure(failure, Some(finding)))
            if failure.code == rusqlite::ErrorCode::DatabaseCorrupt =>
        {
            Err(damaged(finding))
        }
        Err(source) => Err(StoreError::Database { action: "check its pages", source }),
    }
}

pub(super) fn newer(state: &Path, found: i64) -> StoreError {
    StoreError::Newer { path: state.to_owned(), found, known: schema::FORMAT }
}

pub(super) fn start_epoch(connection: &mut Connection) -> Result<u64, StoreError> {
    let fail = || StoreError::database("start an epoch");
    let transaction = connection.transaction().map_err(fail())?;
    let epoch = meta(&transaction, "epoch")? + 1;
    set_meta(&transaction, "epoch", epoch)?;
    set_meta(&transaction, "clean", 0)?;
    transaction.commit().map_err(fail())?;
    Ok(epoch)
}

pub(super) fn meta(connection: &Connection, key: &'static str) -> Result<u64, StoreError> {
    let sql = "SELECT value FROM meta WHERE key = ?1";
    let value: rusqlite::Result<i64> = connection.query_row(sql, [key], |row| row.get(0));
    value.map(i64::cast_unsigned).map_err(StoreError::database("read its counters"))
}

pub(super) fn set_meta(
    connection: &Connection,
    key: &'static str,
    value: u64,
) -> Result<(), StoreError> {
    let sql = "UPDATE meta SET value = ?2 WHERE key = ?1";
    let done = connection.execute(sql, params![key, value.cast_signed()]);
    done.map(drop).map_err(StoreError::database("store its counters"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        assert_eq!(network(0x6969), Some("NFS"));
        assert_eq!(network(0xFF53_4D42_u32.cast_signed().into()), Some("CIFS"), "with a sign");
        // ext4, tmpfs, overlayfs.
        assert_eq!([0xEF53, 0x0102_1994, 0x794C_7630].map(network), [None; 3]);
        refuse_network(tempfile::tempdir().unwrap().path()).unwrap();
    }
}
