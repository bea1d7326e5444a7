//! What survives a stop, a crash and a mistake.

use orchestrator_run::{
    Blob, ExecutorReading, ImageCounts, Millis, QuarantinedSample, Terms, Timing,
};
use orchestrator_types::{ByteCount, MemoryTerms};

use super::*;

fn submission(request_id: &str) -> Submission {
    let plan = orchestrator_plan::Plan {
        schema: orchestrator_plan::PLAN_SCHEMA.into(),
        name: "p".into(),
        placement: Vec::new(),
        trials: Vec::new(),
        units: orchestrator_plan::Units::default(),
        reasons: Vec::new(),
        memory: MemoryTerms::default(),
        split: orchestrator_plan::Split::Auto,
        costs: Vec::new(),
    };
    let plan = serde_json::to_string(&plan).unwrap();
    Submission {
        id: crate::fresh_name(),
        request_id: request_id.into(),
        owner: None,
        name: "n".into(),
        build: "1".into(),
        units: 3,
        keep_embeddings: false,
        base: "/base".into(),
        eval_yaml: "version: 1".into(),
        evaluation: "{}".into(),
        facts: "{}".into(),
        plan_digest: Digest::of(plan.as_bytes()),
        plan,
    }
}

fn attempt(unit: u32, token: FencingToken) -> Attempt {
    Attempt {
        unit: UnitId(unit),
        number: 1,
        token,
        session: "s".parse().unwrap(),
        node: "n".parse().unwrap(),
        slice: "n.0".parse().unwrap(),
        started: Millis(0),
        terms: Terms::default(),
        elsewhere: false,
    }
}

fn result() -> UnitResult {
    UnitResult {
        rows: 7,
        blob: Blob { digest: Digest::of(b"blob"), size_bytes: ByteCount::bytes(4) },
        partial: String::new(),
        quarantined: Vec::new(),
        timing: Timing::default(),
        cached: false,
        reading: ExecutorReading::default(),
        samples: None,
        account: None,
        rows_per_dispatch: 0,
        inline: None,
        images: ImageCounts::default(),
    }
}

fn state_changed(state: RunState) -> String {
    serde_json::to_string(&crate::RunEvent::StateChanged { state }).unwrap()
}

/// A store that was not closed: its file handles go, as after a crash.
fn crash(store: Store) {
    drop(store);
}

#[test]
fn what_was_committed_survives_a_crash_and_nothing_else() {
    let state = tempfile::tempdir().unwrap();
    let mut store = Store::open(state.path()).unwrap();
    store.begin().unwrap();
    let run = submission("r1");
    let key = store.insert_run(&run, 1).unwrap();
    let token = store.next_token().unwrap();
    store.use_token();
    store.lease(key, &attempt(0, token), 2).unwrap();
    store.commit_unit(key, &attempt(0, token), Some(2), &result(), 3).unwrap();
    store.append(key, 1, &[state_changed(RunState::Running)], 3).unwrap();
    store.commit().unwrap();
    store.begin().unwrap();
    let second = store.next_token().unwrap();
    store.use_token();
    store.lease(key, &attempt(1, second), 4).unwrap();
    crash(store);

    let mut store = Store::open(state.path()).unwrap();
    assert_eq!(store.epoch(), 2);
    assert!(store.next_token().unwrap() > second, "tokens only grow");
    assert_eq!(store.run_of_request("r1").unwrap(), Some((run.id.clone(), 3)));
    assert_eq!(store.run_state(&run.id).unwrap(), Some((key, RunState::Running)));
    let units = store.units(key).unwrap();
    assert_eq!(units.len(), 1, "the second lease was never durable");
    assert_eq!(units[0].stage, UnitStage::Committed);
    assert_eq!(units[0].result, Some(result()));
    assert_eq!((units[0].leased_unix_ms, units[0].ended_unix_ms), (Some(2), Some(3)));
    assert_eq!(store.next_sequence(key).unwrap(), 2);
}

#[test]
fn tokens_grow_over_rollbacks_blocks_and_restarts() {
    let state = tempfile::tempdir().unwrap();
    let mut last = 0;
    for life in 0..3 {
        let mut store = Store::open(state.path()).unwrap();
        for round in 0..3 {
            store.begin().unwrap();
            for _ in 0..700 {
                let token = store.next_token().unwrap().0;
                assert!(token > last, "life {life}, round {round}");
                last = token;
                store.use_token();
            }
            if round == 1 { store.roll_back().unwrap() } else { store.commit().unwrap() }
        }
        if life == 1 { store.close().unwrap() } else { crash(store) }
    }
}

#[test]
fn ends_are_told_apart_and_a_run_opens_again() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    let key = store.insert_run(&submission("r"), 1).unwrap();
    for unit in 0..3 {
        store.lease(key, &attempt(unit, FencingToken(unit.into())), 2).unwrap();
    }
    store.fail_unit(key, UnitId(2), FailureClass::Crash, "died", false, 3).unwrap();
    store.commit_unit(key, &attempt(0, FencingToken(0)), Some(2), &result(), 3).unwrap();
    store.fail_unit(key, UnitId(1), FailureClass::Crash, "died", true, 4).unwrap();
    store.end_run(key, RunState::Incomplete, 9, 5).unwrap();
    let stages = |store: &Store| -> Vec<UnitStage> {
        store.units(key).unwrap().iter().map(|unit| unit.stage).collect()
    };
    assert_eq!(stages(&store), [UnitStage::Committed, UnitStage::Failed, UnitStage::Cancelled]);
    let failed = store.unit(key, UnitId(1)).unwrap().unwrap();
    assert_eq!(failed.failure, Some((FailureClass::Crash, "died".into())));
    store.reopen_run(key, "1", &[]).unwrap();
    assert_eq!(stages(&store), [UnitStage::Committed, UnitStage::Open, UnitStage::Open]);
    store.reopen_run(key, "1", &[UnitId(0)]).unwrap();
    assert_eq!(stages(&store), [UnitStage::Open; 3]);
    assert_eq!(store.unit(key, UnitId(0)).unwrap().unwrap().result, None);
}

#[test]
fn a_second_coordinator_is_told_which_folder_is_taken() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    let reader = Reader::open(state.path()).unwrap();
    assert!(reader.is_live());
    let error = Store::open(state.path()).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "the store in {} is in use by another process; wait until it ends, or stop it",
            state.path().display()
        )
    );
    drop(store);
    assert!(!reader.is_live());
    Store::open(state.path()).unwrap();
}

#[test]
fn a_store_of_a_later_release_is_refused_by_its_format() {
    let state = tempfile::tempdir().unwrap();
    Store::open(state.path()).unwrap().close().unwrap();
    let connection = Connection::open(state.path().join(DATABASE)).unwrap();
    connection.pragma_update(None, "user_version", schema::FORMAT + 1).unwrap();
    drop(connection);
    let expected = format!(
        "the store in {} has format {}, and this release reads format {}; use the release that \
         wrote it, or move the folder away",
        state.path().display(),
        schema::FORMAT + 1,
        schema::FORMAT
    );
    assert_eq!(Store::open(state.path()).err().unwrap().to_string(), expected);
    assert_eq!(Reader::open(state.path()).err().unwrap().to_string(), expected);
}

#[test]
fn damage_is_found_after_an_unclean_stop() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    for number in 0..200 {
        store.insert_run(&submission(&format!("r{number}")), 1).unwrap();
    }
    store.close().unwrap();
    let path = state.path().join(DATABASE);
    let connection = Connection::open(&path).unwrap();
    connection.execute("UPDATE meta SET value = 0 WHERE key = 'clean'", []).unwrap();
    drop(connection);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 4096].fill(0xAA);
    std::fs::write(&path, bytes).unwrap();
    let error = Store::open(state.path()).err().unwrap();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn a_reader_of_nothing_says_so() {
    let state = tempfile::tempdir().unwrap();
    let error = Reader::open(state.path()).err().unwrap();
    assert!(matches!(error, StoreError::Missing { .. }), "{error}");
}

#[test]
fn a_file_that_is_no_database_is_damage_too() {
    let state = tempfile::tempdir().unwrap();
    std::fs::write(state.path().join(DATABASE), [7; 8192]).unwrap();
    let error = Store::open(state.path()).err().unwrap();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

/// The tables of format 1, with one committed unit that set a sample aside.
const FORMAT_1: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE runs (key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
  request_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, build TEXT NOT NULL, state TEXT NOT NULL,
  created_unix_ms INTEGER NOT NULL, ended_unix_ms INTEGER, ended_sequence INTEGER,
  units INTEGER NOT NULL, keep_embeddings INTEGER NOT NULL, base TEXT NOT NULL,
  eval_yaml TEXT NOT NULL, evaluation TEXT NOT NULL, facts TEXT NOT NULL, plan TEXT NOT NULL,
  plan_digest TEXT NOT NULL);
CREATE TABLE units (run INTEGER NOT NULL, unit INTEGER NOT NULL, state TEXT NOT NULL,
  token INTEGER, slice TEXT, attempts INTEGER NOT NULL, leased_unix_ms INTEGER,
  ended_unix_ms INTEGER, class TEXT, message TEXT, result TEXT, PRIMARY KEY (run, unit));
CREATE TABLE slices (run INTEGER NOT NULL, slice TEXT NOT NULL, placement TEXT NOT NULL,
  libtorch TEXT NOT NULL, PRIMARY KEY (run, slice)) WITHOUT ROWID;
CREATE TABLE events (run INTEGER NOT NULL, sequence INTEGER NOT NULL,
  at_unix_ms INTEGER NOT NULL, event TEXT NOT NULL, PRIMARY KEY (run, sequence)) WITHOUT ROWID;
INSERT INTO meta (key, value) VALUES ('epoch', 4), ('clean', 1), ('token_limit', 1001);
INSERT INTO runs VALUES (1, 'old', 'r', 'n', '1', 'running', 1, NULL, NULL, 3, 0, '/', '', '{}',
  '{}', '{}', '');
PRAGMA user_version = 1;
";

#[test]
fn an_older_store_is_brought_up_to_date_also_for_a_reader() {
    let state = tempfile::tempdir().unwrap();
    let connection = Connection::open(state.path().join(DATABASE)).unwrap();
    connection.execute_batch(FORMAT_1).unwrap();
    let sample = QuarantinedSample {
        position: 3,
        sample: orchestrator_types::SampleId("3.jpg".into()),
        reason: "torn".into(),
    };
    let samples = Some(Digest::of(b"read"));
    let stored = UnitResult { quarantined: vec![sample], samples, ..result() };
    let json = serde_json::to_string(&stored).unwrap();
    let sql = "INSERT INTO units VALUES (1, 2, 'committed', 7, 'n.0', 1, 2, 3, NULL, NULL, ?1)";
    connection.execute(sql, [json]).unwrap();
    connection
        .execute_batch("INSERT INTO units (run, unit, state, attempts) VALUES (1, 0, 'open', 1)")
        .unwrap();
    connection.execute_batch(SINGLE_EVENTS).unwrap();
    drop(connection);

    let run: RunId = "old".parse().unwrap();
    let units = Reader::open(state.path()).unwrap().units(&run).unwrap();
    assert_eq!((units.len(), units[1].result.as_ref()), (2, Some(&stored)));
    let store = Store::open(state.path()).unwrap();
    let (key, _) = store.run_state(&run).unwrap().unwrap();
    let mut rows = Vec::new();
    store.committed(key, |row| rows.push(row)).unwrap();
    let expected = CommittedRow {
        unit: UnitId(2),
        token: FencingToken(7),
        blob: stored.blob.digest,
        samples,
        set_aside: true,
    };
    assert_eq!(rows, [expected]);
    assert_eq!(store.set_aside(key).unwrap(), [(UnitId(2), stored)]);
    assert_eq!(store.epoch(), 5);
    assert_eq!(events(state.path(), "old"), EVENTS);
}

/// Two events of format 1 or 2, one a row.
const SINGLE_EVENTS: &str = "
INSERT INTO events VALUES (1, 1, 10, '{\"kind\":\"state_changed\",\"state\":\"running\"}'),
  (1, 2, 20, '{\"kind\":\"late_result\",\"unit\":2,\"token\":7}');
";
const EVENTS: [(u64, i64); 2] = [(1, 10), (2, 20)];

fn events(state: &Path, run: &str) -> Vec<(u64, i64)> {
    let events = Reader::open(state).unwrap().events(&run.parse().unwrap(), 0, 9).unwrap();
    events.iter().map(|event| (event.sequence, event.at_unix_ms)).collect()
}

#[test]
fn events_of_the_format_before_are_kept() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    let run = submission("r");
    store.insert_run(&run, 1).unwrap();
    let format_2 = "ALTER TABLE runs DROP COLUMN owner; DROP TABLE events; DROP TABLE accounts; DROP TABLE readings;
        CREATE TABLE events (run INTEGER NOT NULL, sequence INTEGER NOT NULL,
          at_unix_ms INTEGER NOT NULL, event TEXT NOT NULL, PRIMARY KEY (run, sequence))
          WITHOUT ROWID;
        PRAGMA user_version = 2;";
    store.connection.execute_batch(format_2).unwrap();
    store.connection.execute_batch(SINGLE_EVENTS).unwrap();
    drop(store);
    assert_eq!(events(state.path(), run.id.as_str()), EVENTS);
    assert_eq!(check_store(state.path()).unwrap(), []);
}

#[test]
fn a_run_from_before_there_were_owners_has_none() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    let (old, new) = (submission("old"), submission("new"));
    store.insert_run(&old, 1).unwrap();
    let format_3 = "ALTER TABLE runs DROP COLUMN owner; PRAGMA user_version = 3;";
    store.connection.execute_batch(format_3).unwrap();
    drop(store);
    let store = Store::open(state.path()).unwrap();
    let new = Submission { owner: Some("client/a".to_owned()), ..new };
    store.insert_run(&new, 2).unwrap();
    assert_eq!(store.owner(&old.id).unwrap(), None);
    assert_eq!(store.owner(&new.id).unwrap(), new.owner);
}

#[test]
fn a_small_blob_is_stored_with_its_result_and_an_encoding_is_found_by_its_digest() {
    let state = tempfile::tempdir().unwrap();
    let mut store = Store::open(state.path()).unwrap();
    let run = submission("r");
    let key = store.insert_run(&run, 1).unwrap();
    let blob = |bytes: &[u8]| Blob {
        digest: Digest::of(bytes),
        size_bytes: ByteCount::bytes(bytes.len() as u64),
    };
    let commit = |store: &mut Store, unit: u32, result: &UnitResult| {
        let token = store.next_token().unwrap();
        store.use_token();
        store.lease(key, &attempt(unit, token), 2).unwrap();
        store.commit_unit(key, &attempt(unit, token), Some(2), result, 3).unwrap();
    };
    let inline = |bytes: &[u8], partial: &str| UnitResult {
        blob: blob(bytes),
        inline: Some(bytes.to_vec()),
        partial: partial.into(),
        ..result()
    };
    let results = [inline(b"rows", ""), inline(b"ranks", "{}"), result()];
    for (unit, result) in (0..).zip(&results) {
        commit(&mut store, unit, result);
    }
    let reader = Reader::open(state.path()).unwrap();
    let stored: Vec<UnitResult> =
        reader.units(&run.id).unwrap().into_iter().filter_map(|row| row.result).collect();
    assert_eq!(stored, results);
    assert_eq!(reader.input(blob(b"rows").digest).unwrap(), Some(b"rows".to_vec()));
    assert_eq!(reader.input(blob(b"ranks").digest).unwrap(), None, "nobody asks for predictions");
    let mut named = Vec::new();
    reader.blobs(|digest| named.push(digest)).unwrap();
    assert_eq!(named, results.map(|result| result.blob.digest));

    // The third blob was never staged.
    std::fs::create_dir(state.path().join("blobs")).unwrap();
    let lost = format!("blob {}", result().blob.digest);
    let found = check_store(state.path()).unwrap();
    assert_eq!(found.into_iter().map(|one| one.place).collect::<Vec<_>>(), [lost]);
}

#[test]
fn each_broken_promise_of_a_store_is_found() {
    let broken = |sql: &str| -> Vec<&'static str> {
        let state = tempfile::tempdir().unwrap();
        let mut store = Store::open(state.path()).unwrap();
        let key = store.insert_run(&Submission { units: 2, ..submission("r") }, 1).unwrap();
        store.append(key, 1, &[state_changed(RunState::Running)], 1).unwrap();
        for unit in 0..2 {
            let token = store.next_token().unwrap();
            store.use_token();
            store.lease(key, &attempt(unit, token), 2).unwrap();
            store.commit_unit(key, &attempt(unit, token), Some(2), &result(), 3).unwrap();
        }
        let noise = "{\"kind\":\"late_result\",\"unit\":0,\"token\":9}".to_owned();
        store
            .append(key, 4, &[noise.clone(), noise, state_changed(RunState::Complete)], 4)
            .unwrap();
        store.end_run(key, RunState::Complete, 4, 4).unwrap();
        store.connection.execute_batch(sql).unwrap();
        drop(store);
        check_store(state.path()).unwrap().into_iter().map(|one| one.promise).collect()
    };
    assert_eq!(broken(""), Vec::<&str>::new());
    let complete = "a complete run has every unit committed, and no sample set aside";
    assert_eq!(
        broken("UPDATE units SET token = 1"),
        ["an attempt is committed once"],
        "two units of one token"
    );
    assert_eq!(
        broken("UPDATE meta SET value = 2 WHERE key = 'token_limit'"),
        ["tokens are below their limit"]
    );
    assert_eq!(
        broken("DELETE FROM results WHERE id & 1"),
        ["a committed unit names its attempt, its blob and its result"]
    );
    assert_eq!(
        broken("UPDATE units SET state = 'open' WHERE unit = 1"),
        ["only committed units have results", "a run that has ended has no open unit", complete]
    );
    let lease = "INSERT INTO leases VALUES (7, 1, 1, 1, 's', 'n', 'n.0', 2, 0)";
    let lives = "an attempt lives in a run that goes on, of a unit that has not ended";
    assert_eq!(broken(lease), [lives]);
    let token = "a lease has a token below the limit, and none that was committed";
    for wrong in ["1", "100000"] {
        assert_eq!(broken(&lease.replacen('7', wrong, 1)), [token, lives]);
    }
    assert_eq!(broken("UPDATE runs SET units = 1"), ["a unit belongs to its run's plan", complete]);
    assert_eq!(broken("UPDATE units SET set_aside = 1"), [complete]);
    assert_eq!(
        broken("UPDATE runs SET ended_sequence = NULL"),
        ["a run has ended if and only if its last state says so"]
    );
    let gap = ["a run's history has no gap"];
    assert_eq!(broken("DELETE FROM events WHERE last = 1"), gap);
    assert_eq!(broken("UPDATE events SET events = '[{}]' WHERE last = 4"), gap);
}

#[test]
fn a_page_of_a_history_starts_and_ends_within_rows() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    let run = submission("r");
    let key = store.insert_run(&run, 1).unwrap();
    let late = |unit| crate::RunEvent::LateResult { unit: UnitId(unit), token: FencingToken(7) };
    let json = |unit| serde_json::to_string(&late(unit)).unwrap();
    store.append(key, 1, &[state_changed(RunState::Running)], 10).unwrap();
    store.append(key, 4, &[json(2), json(3), json(4)], 20).unwrap();
    store.append(key, 6, &[json(5), json(6)], 30).unwrap();
    let reader = Reader::open(state.path()).unwrap();
    let page = |after, limit| -> Vec<(u64, i64)> {
        let events = reader.events(&run.id, after, limit).unwrap();
        for event in events.iter().filter(|event| event.sequence > 1) {
            assert_eq!(event.event, late(u32::try_from(event.sequence).unwrap()));
        }
        events.iter().map(|event| (event.sequence, event.at_unix_ms)).collect()
    };
    assert_eq!(page(0, 3), [(1, 10), (2, 20), (3, 20)]);
    assert_eq!(page(3, 3), [(4, 20), (5, 30), (6, 30)]);
    assert_eq!(page(5, 3), [(6, 30)]);
    assert_eq!(page(6, 3), []);
    assert_eq!(reader.begun(&run.id).unwrap(), 1);
    let again = [json(7), state_changed(RunState::Running), state_changed(RunState::Complete)];
    store.append(key, 9, &again, 40).unwrap();
    assert_eq!(reader.begun(&run.id).unwrap(), 8, "the last beginning");
}
