//! Attempts: from lease to commit, and every way in which they end otherwise.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use orchestrator_proto::v1::FailureClass;
use orchestrator_types::Digest;

use crate::{
    executor::{ABORTS, CHATTERS, FAILS, HANGS, MUMBLES, output},
    trials,
    workplace::{Workplace, is_gone, until},
};

trials![
    units_are_computed_staged_and_committed,
    inputs_are_fetched_and_kept,
    damaged_inputs_fail_the_unit,
    missing_inputs_fail_the_unit,
    lost_answers_change_nothing,
    the_executors_own_failure_is_passed_on,
    a_dead_executor_fails_its_unit_and_the_next_one_works,
    an_executor_killed_from_outside_is_a_crash,
    an_executor_without_an_answer_is_replaced,
    an_executor_that_gets_nowhere_is_killed_whether_it_talks_or_not,
    an_executor_that_dies_idle_costs_no_attempt,
    a_revoked_attempt_stops_and_says_nothing,
];

async fn units_are_computed_staged_and_committed() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(2).await;
    for unit in 0..8 {
        workplace.hand_out(unit);
    }
    for unit in 0..8 {
        assert_eq!(workplace.committed(unit).await, output(unit));
    }
    agent.shutdown().await;
    let notes = workplace.coordinator.notes();
    assert_eq!(notes.committed.len(), 8);
    let mut staged = notes.staged.clone();
    staged.sort_unstable();
    let mut large: Vec<Digest> = [1, 3, 5, 7].map(|unit| Digest::of(&output(unit))).into();
    large.sort_unstable();
    assert_eq!(staged, large, "small ones travel with their results");
}

async fn inputs_are_fetched_and_kept() {
    let workplace = Workplace::new().await;
    let elsewhere = b"rows of another node".to_vec();
    let fetched = Digest::of(&elsewhere);
    workplace.coordinator.change(|notes| notes.blobs.insert(fetched, elsewhere.clone()));
    let agent = workplace.agent(1).await;
    workplace.hand_out(1);
    workplace.committed(1).await;
    let inputs = [fetched, Digest::of(&output(1))];
    workplace.hand_out_ranking(2, &inputs);
    let expected = [elsewhere, output(1)].concat();
    assert_eq!(workplace.committed(2).await, expected);
    // Both inputs are on this node now: the coordinator could have lost them.
    workplace.coordinator.change(|notes| inputs.map(|digest| notes.blobs.remove(&digest)));
    workplace.hand_out_ranking(3, &inputs);
    assert_eq!(workplace.committed(3).await, expected);
    agent.shutdown().await;
}

async fn damaged_inputs_fail_the_unit() {
    let workplace = Workplace::new().await;
    let digest = Digest::of(b"rows");
    workplace.coordinator.change(|notes| {
        notes.damages_blobs = true;
        notes.blobs.insert(digest, b"rows".to_vec());
    });
    let agent = workplace.agent(1).await;
    workplace.hand_out_ranking(1, &[digest]);
    let (class, message) = workplace.failed(1).await;
    assert_eq!(class, FailureClass::Infrastructure);
    let found = Digest::of(b"rows\0");
    let expected =
        format!("input blob {digest} cannot be fetched: blob {digest} arrived with digest {found}");
    assert_eq!(message, expected);
    let left = std::fs::read_dir(workplace.scratch().join("blobs")).unwrap().count();
    assert_eq!(left, 0, "nothing of it stays on the disk");
    agent.shutdown().await;
}

async fn missing_inputs_fail_the_unit() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    let digest = Digest::of(b"rows");
    workplace.hand_out_ranking(1, &[digest]);
    let (class, message) = workplace.failed(1).await;
    assert_eq!(class, FailureClass::Infrastructure);
    let expected = format!("input blob {digest} cannot be fetched: there is no such blob");
    assert_eq!(message, expected);
    agent.shutdown().await;
}

async fn lost_answers_change_nothing() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    for unit in 0..6 {
        workplace.coordinator.change(|notes| notes.lost_answers = 3);
        workplace.hand_out(unit);
        workplace.committed(unit).await;
    }
    agent.shutdown().await;
    let notes = workplace.coordinator.notes();
    let units: Vec<u32> = notes.committed.iter().map(|commit| commit.unit).collect();
    assert_eq!(units, [0, 1, 2, 3, 4, 5], "every unit once");
    assert_eq!(notes.registered.len(), 1, "the session was never given up");
}

async fn the_executors_own_failure_is_passed_on() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    workplace.hand_out(FAILS);
    let failure = (FailureClass::Invalid, "the picture is no picture".to_owned());
    assert_eq!(workplace.failed(FAILS).await, failure);
    agent.shutdown().await;
}

async fn a_dead_executor_fails_its_unit_and_the_next_one_works() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    let before = workplace.executors();
    workplace.hand_out(ABORTS);
    let (class, message) = workplace.failed(ABORTS).await;
    assert_eq!(class, FailureClass::Crash);
    assert_eq!(
        message,
        "the executor was ended by signal 6 (SIGABRT); it wrote:\n\
         terminate called after throwing an instance of 'c10::Error'"
    );
    workplace.hand_out(1);
    assert_eq!(workplace.committed(1).await, output(1));
    let after = workplace.executors();
    assert!(is_gone(before[0]) && after.len() == 1 && before != after);
    agent.shutdown().await;
}

/// Nobody's memory was short in this test.
const KILLED: &str = "the executor was ended by signal 9 (SIGKILL) by somebody else: the \
                      out-of-memory killer took nothing";

async fn an_executor_killed_from_outside_is_a_crash() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    workplace.hand_out(HANGS);
    workplace.computing(HANGS).await;
    kill(Pid::from_raw(workplace.executors()[0]), Signal::SIGKILL).unwrap();
    let failure = (FailureClass::Crash, KILLED.to_owned());
    assert_eq!(workplace.failed(HANGS).await, failure);
    workplace.hand_out(1);
    workplace.committed(1).await;
    agent.shutdown().await;
}

async fn an_executor_without_an_answer_is_replaced() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    let before = workplace.executors();
    workplace.hand_out(MUMBLES);
    let (class, message) = workplace.failed(MUMBLES).await;
    assert_eq!(class, FailureClass::Crash);
    assert_eq!(message, "the executor was killed: it ended its report without a result");
    workplace.hand_out(1);
    workplace.committed(1).await;
    assert!(is_gone(before[0]));
    agent.shutdown().await;
}

async fn an_executor_that_gets_nowhere_is_killed_whether_it_talks_or_not() {
    let workplace = Workplace::new().await;
    let mut config = workplace.config(1);
    config.limits.silence = std::time::Duration::from_millis(500);
    let agent = orchestrator_worker::Agent::start(config).await.unwrap();
    for unit in [HANGS, CHATTERS] {
        let before = workplace.executors();
        workplace.hand_out(unit);
        let (class, message) = workplace.failed(unit).await;
        assert_eq!(class, FailureClass::Crash);
        assert_eq!(message, "the executor was killed: it made no progress for 0.5 s");
        assert!(is_gone(before[0]));
        workplace.hand_out(1);
        workplace.committed(1).await;
    }
    agent.shutdown().await;
}

async fn an_executor_that_dies_idle_costs_no_attempt() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    let before = workplace.executors();
    kill(Pid::from_raw(before[0]), Signal::SIGKILL).unwrap();
    until("its end", || workplace.executors().is_empty()).await;
    workplace.hand_out(1);
    workplace.committed(1).await;
    agent.shutdown().await;
    assert!(workplace.coordinator.notes().failed.is_empty());
}

async fn a_revoked_attempt_stops_and_says_nothing() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    let before = workplace.executors();
    workplace.hand_out(HANGS);
    workplace.computing(HANGS).await;
    workplace.coordinator.change(|notes| notes.revoked = vec![HANGS.into()]);
    until("the executor to stop", || workplace.cache().join("stopped").exists()).await;
    workplace.hand_out(1);
    workplace.committed(1).await;
    assert_eq!(workplace.executors(), before, "the executor goes on");
    let coordinator = &workplace.coordinator;
    coordinator.until("heartbeats without it", |notes| notes.progress.is_empty()).await;
    agent.shutdown().await;
    let notes = coordinator.notes();
    assert!(notes.failed.is_empty() && notes.committed.len() == 1);
}
