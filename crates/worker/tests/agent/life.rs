//! The agent's own life: sessions that end, coordinators that come back, shutdown without a trace.

use std::{
    error::Error,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_worker::{Agent, AgentError, RegisterError};

use crate::{
    executor::{ABORTS, HANGS, IS_SLOW, LIBTORCH},
    trials,
    workplace::{Workplace, config, is_gone, until},
};

trials![
    the_agent_introduces_itself,
    a_session_that_is_over_is_replaced,
    a_coordinators_restart_is_survived,
    an_agent_gives_up_in_the_end,
    an_agent_whose_heartbeats_are_not_answered_gives_up,
    an_agent_without_a_working_executor_says_so,
    a_slice_without_an_executor_is_given_up_and_the_others_go_on,
    shutdown_leaves_no_process,
    shutdown_waits_for_a_unit_within_its_grace,
    shutdown_leaves_what_its_grace_is_too_short_for,
    a_stubborn_executor_is_killed,
    shutdown_without_a_coordinator_ends_too,
    a_dropped_agent_leaves_no_process,
    executors_leave_when_their_agent_is_killed,
];

async fn the_agent_introduces_itself() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(2).await;
    assert_eq!(agent.libtorch(), LIBTORCH);
    agent.shutdown().await;
    let notes = workplace.coordinator.notes();
    let told = &notes.registered[0];
    let slices: Vec<&str> = told.slices.iter().map(|slice| slice.id.as_str()).collect();
    assert_eq!(slices, ["here.0", "here.1"]);
    let words = (told.node.as_str(), told.build.as_str(), told.libtorch.as_str());
    assert_eq!(words, ("here", "test", LIBTORCH));
}

async fn a_session_that_is_over_is_replaced() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    let before = workplace.executors();
    workplace.hand_out(HANGS);
    workplace.computing(HANGS).await;
    workplace.coordinator.change(|notes| {
        notes.session = "none".into();
        notes.forgets = true;
    });
    until("the executor to stop", || workplace.cache().join("stopped").exists()).await;
    workplace.hand_out(1);
    workplace.committed(1).await;
    assert_eq!(workplace.executors(), before, "executors outlive sessions");
    agent.shutdown().await;
    let notes = workplace.coordinator.notes();
    assert_eq!(notes.registered.len(), 2, "one more");
    assert_eq!(notes.failed, [], "a lost attempt has nobody to tell");
}

async fn a_coordinators_restart_is_survived() {
    let mut workplace = Workplace::new().await;
    let agent = workplace.agent(2).await;
    workplace.hand_out(1);
    workplace.committed(1).await;
    workplace.coordinator.crash();
    tokio::time::sleep(Duration::from_millis(300)).await;
    workplace.coordinator.listen().await;
    for unit in 2..6 {
        workplace.hand_out(unit);
    }
    for unit in 2..6 {
        workplace.committed(unit).await;
    }
    agent.shutdown().await;
}

async fn an_agent_gives_up_in_the_end() {
    let workplace = Workplace::new().await;
    let mut config = workplace.config(1);
    config.limits.reconnect = Duration::from_millis(300);
    let mut agent = Agent::start(config).await.unwrap();
    let executors = workplace.executors();
    workplace.coordinator.change(|notes| {
        notes.session.clear();
        notes.refuses = Some(Refusal::new(RefusalCode::Stale, "this coordinator is newer"));
    });
    let error = agent.ended().await.unwrap_err();
    assert!(matches!(error, AgentError::Register(RegisterError::Refused { .. })), "{error}");
    assert!(executors.into_iter().all(is_gone), "its executors went first");
}

async fn an_agent_whose_heartbeats_are_not_answered_gives_up() {
    let workplace = Workplace::new().await;
    let mut config = workplace.config(1);
    config.limits.reconnect = Duration::from_millis(300);
    let mut agent = Agent::start(config).await.unwrap();
    let executors = workplace.executors();
    workplace.coordinator.change(|notes| notes.deaf_to_heartbeats = true);
    let error = agent.ended().await.unwrap_err();
    assert!(matches!(error, AgentError::Register(RegisterError::Unreachable { .. })), "{error}");
    assert!(executors.into_iter().all(is_gone));
}

async fn an_agent_without_a_working_executor_says_so() {
    let workplace = Workplace::new().await;
    let mut agent = workplace.agent(1).await;
    workplace.hand_out(1);
    workplace.committed(1).await;
    workplace.mode("ends");
    workplace.hand_out(ABORTS);
    let ended = tokio::time::timeout(Duration::from_secs(30), agent.ended()).await;
    let error = ended.expect("the agent goes on for ever").unwrap_err();
    let chain = std::iter::successors(Some(&error as &dyn Error), |&error| error.source());
    let text = chain.map(ToString::to_string).collect::<Vec<_>>().join("\n  because ");
    let program = std::env::current_exe().unwrap();
    insta::assert_snapshot!(text.replace(program.to_str().unwrap(), "[executor]"), @r"
    no slice is left to work on: slice here.0 has no executor and gets none
      because [executor] exited with code 3 before it answered; it wrote:
    libtorch_cpu.so: cannot open shared object file
    ");
    workplace.failed(ABORTS).await;
}

async fn a_slice_without_an_executor_is_given_up_and_the_others_go_on() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(2).await;
    workplace.mode("first ends");
    kill(Pid::from_raw(workplace.executor(0)), Signal::SIGKILL).unwrap();
    let coordinator = &workplace.coordinator;
    coordinator.until("another registration", |notes| notes.registered.len() == 2).await;
    let slices: Vec<String> =
        coordinator.notes().registered[1].slices.iter().map(|slice| slice.id.clone()).collect();
    assert_eq!(slices, ["here.1"]);
    workplace.hand_out(1);
    workplace.committed(1).await;
    agent.shutdown().await;
    assert_eq!(coordinator.notes().registered.len(), 2, "it stays away");
}

async fn shutdown_leaves_no_process() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(3).await;
    let executors = workplace.executors();
    assert_eq!(executors.len(), 3);
    workplace.hand_out(HANGS);
    workplace.computing(HANGS).await;
    let started = Instant::now();
    agent.shutdown().await;
    assert!(executors.into_iter().all(is_gone));
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(workplace.coordinator.notes().failed, [], "nothing has failed");
    let sockets = std::fs::read_dir(workplace.scratch()).unwrap();
    let sockets = sockets.filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|name| name == "sock")
    });
    assert_eq!(sockets.count(), 0);
}

async fn shutdown_waits_for_a_unit_within_its_grace() {
    let workplace = Workplace::new().await;
    let mut config = workplace.config(1);
    config.limits.grace = Duration::from_secs(20);
    let agent = Agent::start(config).await.unwrap();
    workplace.hand_out(IS_SLOW);
    workplace.computing(IS_SLOW).await;
    workplace.hand_out(1);
    agent.shutdown().await;
    let notes = workplace.coordinator.notes();
    assert!(notes.committed.len() == 1 && notes.failed.is_empty());
    assert_eq!(notes.units.len(), 1, "no new unit is taken");
}

async fn shutdown_leaves_what_its_grace_is_too_short_for() {
    let workplace = Workplace::new().await;
    let mut config = workplace.config(1);
    config.limits.grace = Duration::from_millis(300);
    let agent = Agent::start(config).await.unwrap();
    let executors = workplace.executors();
    workplace.hand_out(HANGS);
    workplace.computing(HANGS).await;
    agent.shutdown().await;
    assert!(executors.into_iter().all(is_gone));
    let notes = workplace.coordinator.notes();
    assert!(notes.committed.is_empty() && notes.failed.is_empty(), "nothing has failed");
    assert_eq!(notes.goodbyes.len(), 1, "the unit is handed back");
}

async fn a_stubborn_executor_is_killed() {
    let workplace = Workplace::new().await;
    workplace.mode("stubborn");
    let agent = workplace.agent(2).await;
    let executors = workplace.executors();
    agent.shutdown().await;
    assert!(executors.len() == 2 && executors.into_iter().all(is_gone));
}

async fn shutdown_without_a_coordinator_ends_too() {
    let mut workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    let executors = workplace.executors();
    workplace.hand_out(HANGS);
    workplace.computing(HANGS).await;
    workplace.coordinator.crash();
    let started = Instant::now();
    agent.shutdown().await;
    assert!(executors.into_iter().all(is_gone));
    assert!(started.elapsed() < Duration::from_secs(10));
}

async fn a_dropped_agent_leaves_no_process() {
    let workplace = Workplace::new().await;
    workplace.mode("stubborn");
    let agent = workplace.agent(2).await;
    let executors = workplace.executors();
    workplace.hand_out(HANGS);
    workplace.computing(HANGS).await;
    drop(agent);
    until("the executors' end", || executors.iter().copied().all(is_gone)).await;
}

async fn executors_leave_when_their_agent_is_killed() {
    let workplace = Workplace::new().await;
    let mut process = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--agent", &workplace.coordinator.address()])
        .arg(workplace.folder())
        .spawn()
        .unwrap();
    workplace.hand_out(HANGS);
    workplace.computing(HANGS).await;
    assert_eq!(workplace.executors().len(), 2);
    process.kill().unwrap();
    process.wait().unwrap();
    until("the executors' end", || workplace.executors().is_empty()).await;
}

/// An agent in a process of its own, until it is killed.
pub(crate) fn main(address: &str, folder: &Path) -> ExitCode {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut agent = Agent::start(config(address, folder, 2)).await.unwrap();
        agent.ended().await.unwrap();
    });
    ExitCode::SUCCESS
}
