//! What survives a stop, a crash and a mistake.

use orchestrator_run::{Blob, ExecutorReading, ImageCounts, Timing};
use orchestrator_types::{ByteCount, MemoryTerms};

use super::*;

fn submission(request_id: &str) -> Submission {
    let plan = orchestrator_plan::Plan {
        schema: orchestrator_plan::PLAN_SCHEMA.into(),
        name: "p".into(),
        placement: Vec::new(),
        trials: Vec::new(),
        units: Vec::new(),
        reasons: Vec::new(),
        memory: MemoryTerms::default(),
        split: orchestrator_plan::Split::Auto,
        costs: Vec::new(),
    };
    let plan = serde_json::to_string(&plan).unwrap();
    Submission {
        id: crate::fresh_name(),
        request_id: request_id.into(),
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
        slice: "n.0".parse().unwrap(),
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
        images: ImageCounts::default(),
    }
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
    store.lease_unit(key, &attempt(0, token), 2).unwrap();
    store.commit_unit(key, &attempt(0, token), &result(), 3).unwrap();
    store.append(key, 1, RunEvent::StateChanged { state: RunState::Running }, 3).unwrap();
    store.commit().unwrap();
    store.begin().unwrap();
    let second = store.next_token().unwrap();
    store.use_token();
    store.lease_unit(key, &attempt(1, second), 4).unwrap();
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
        store.lease_unit(key, &attempt(unit, FencingToken(unit.into())), 2).unwrap();
    }
    store.commit_unit(key, &attempt(0, FencingToken(0)), &result(), 3).unwrap();
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
    connection.pragma_update(None, "user_version", 2).unwrap();
    drop(connection);
    let expected = format!(
        "the store in {} has format 2, and this release reads format 1; use the release that \
         wrote it, or move the folder away",
        state.path().display()
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
