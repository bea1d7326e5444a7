//! Every way not to start, with what it says, and nothing left behind.

use std::{error::Error, iter::successors, path::PathBuf, time::Duration};

use orchestrator_proto::{Refusal, RefusalCode};
use orchestrator_worker::{Agent, Config};

use crate::{
    trials,
    workplace::{Workplace, until},
};

trials![
    an_unreachable_coordinator_is_named,
    an_address_that_is_none_is_named,
    a_refused_worker_is_told_why,
    a_missing_executor_is_named,
    an_executor_that_ends_is_quoted,
    an_executor_of_another_build_is_refused,
    nothing_to_offer,
    a_scratch_folder_serves_one_agent,
    a_long_scratch_path_is_refused,
];

/// The error and its causes, with places replaced by words.
async fn told(workplace: &Workplace, config: Config) -> String {
    let error = Agent::start(config).await.unwrap_err();
    until("the executors' end", || workplace.executors().is_empty()).await;
    let chain = successors(Some(&error as &dyn Error), |&error| error.source());
    let text = chain.map(ToString::to_string).collect::<Vec<_>>().join("\n  because ");
    let program = std::env::current_exe().unwrap();
    text.replace(program.to_str().unwrap(), "[executor]")
        .replace(workplace.scratch().to_str().unwrap(), "[scratch]")
        .replace(&workplace.coordinator.address(), "[address]")
}

async fn an_unreachable_coordinator_is_named() {
    let mut workplace = Workplace::new().await;
    workplace.coordinator.crash();
    let mut config = workplace.config(2);
    config.limits.first_contact = Duration::from_millis(700);
    let text = told(&workplace, config).await;
    insta::assert_snapshot!(text, @r"
    no coordinator answered at [address] within 0.7 s; is it running, and is the address right?
      because no answer from [address]
      because transport error
      because tcp connect error
      because tcp connect error
      because Connection refused (os error 111)
    ");
}

async fn an_address_that_is_none_is_named() {
    let workplace = Workplace::new().await;
    let config = Config { coordinator: "not an address".into(), ..workplace.config(1) };
    insta::assert_snapshot!(told(&workplace, config).await, @"`not an address` is not an address; write for example http://127.0.0.1:7070");
}

async fn a_refused_worker_is_told_why() {
    let workplace = Workplace::new().await;
    let refusal = Refusal::new(RefusalCode::Stale, "protocol 1 is too old, 2 is spoken here");
    workplace.coordinator.change(|notes| notes.refuses = Some(refusal));
    insta::assert_snapshot!(told(&workplace, workplace.config(1)).await, @r"
    the coordinator at [address] refuses this worker
      because protocol 1 is too old, 2 is spoken here
    ");
}

async fn a_missing_executor_is_named() {
    let workplace = Workplace::new().await;
    let config = Config { executor: PathBuf::from("/nowhere/executor"), ..workplace.config(1) };
    insta::assert_snapshot!(told(&workplace, config).await, @r"
    the executor of slice here.0 does not start
      because cannot start /nowhere/executor
      because No such file or directory (os error 2)
    ");
}

async fn an_executor_that_ends_is_quoted() {
    let workplace = Workplace::new().await;
    workplace.mode("ends");
    // Either of the two may be the first to end.
    let text = told(&workplace, workplace.config(2)).await.replace("here.1", "here.0");
    insta::assert_snapshot!(text, @r"
    the executor of slice here.0 does not start
      because [executor] exited with code 3 before it answered; it wrote:
    libtorch_cpu.so: cannot open shared object file
    ");
}

async fn an_executor_of_another_build_is_refused() {
    let workplace = Workplace::new().await;
    workplace.mode("other build");
    insta::assert_snapshot!(told(&workplace, workplace.config(1)).await, @r"
    the executor of slice here.0 does not start
      because [executor] is build other, protocol 3, and this is build test, protocol 3; install both programs from one build
    ");
}

async fn nothing_to_offer() {
    let workplace = Workplace::new().await;
    insta::assert_snapshot!(told(&workplace, workplace.config(0)).await, @"there is no slice to offer; give the worker at least one");
}

async fn a_scratch_folder_serves_one_agent() {
    let workplace = Workplace::new().await;
    let agent = workplace.agent(1).await;
    let error = Agent::start(workplace.config(1)).await.unwrap_err().to_string();
    let error = error.replace(workplace.scratch().to_str().unwrap(), "[scratch]");
    insta::assert_snapshot!(error, @"[scratch] is in use by another worker; give each worker a scratch folder of its own");
    agent.shutdown().await;
    workplace.agent(1).await.shutdown().await;
}

async fn a_long_scratch_path_is_refused() {
    let workplace = Workplace::new().await;
    let scratch = workplace.scratch().join("x".repeat(100));
    let text = told(&workplace, Config { scratch, ..workplace.config(1) }).await;
    let length = text.split_whitespace().find_map(|word| word.parse::<usize>().ok()).unwrap();
    assert!(length > 107);
    let text = text.replace(&length.to_string(), "[length]").replace(&"x".repeat(100), "[x]");
    insta::assert_snapshot!(text, @"the socket [scratch]/[x]/0.sock has [length] bytes in its path, and Linux takes at most 107; choose a scratch folder with a shorter path");
}
