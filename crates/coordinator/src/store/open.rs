//! What happens before a store is used: settings, tables, checks, and a new epoch.

use std::path::Path;

use rusqlite::{Connection, params};

use super::{StoreError, schema};

/// Settings and tables; checks what an unclean stop or a later release left.
pub(super) fn prepare(connection: &mut Connection, state: &Path) -> Result<(), StoreError> {
    let setup = StoreError::database("set its file up");
    let settings = "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 4000;";
    let format = schema::format(connection).map_err(StoreError::database("read its format"))?;
    if format > schema::FORMAT {
        return Err(newer(state, format));
    }
    connection.execute_batch(settings).map_err(setup)?;
    connection.set_prepared_statement_cache_capacity(32);
    if format == 0 {
        return schema::create(connection).map_err(StoreError::database("create its tables"));
    }
    if format < schema::FORMAT {
        schema::upgrade(connection, format).map_err(StoreError::database("upgrade its tables"))?;
    }
    if meta(connection, "clean")? == 1 {
        return Ok(());
    }
    let check = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    match check.map_err(StoreError::database("check its pages"))? {
        finding if finding == "ok" => Ok(()),
        finding => Err(StoreError::Damaged { path: state.to_owned(), finding }),
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
