//! `orchestrator watch` and `orchestrator cancel`.
//!
//! An embedded run that is going on in another process has its own coordinator, whose address lies
//! in its state folder: it is asked as any other.

use anyhow::{Context as _, anyhow};
use orchestrator_coordinator::{Config, Coordinator};
use orchestrator_report::{json, text};
use orchestrator_run::RunState;

use crate::{
    args,
    cluster::{self, Cluster},
    exit::{Exit, Failure},
    finish, print_line, runs, runtime, say,
    state::{State, Stored},
    target::Target,
};

pub(crate) fn watch(arguments: &args::Watch) -> Result<Exit, Failure> {
    if let Some(target) = cluster::target(&arguments.cluster)? {
        return cluster::run::watch(arguments, &target);
    }
    let state = State::of_user()?;
    let stored = state.find(&arguments.run)?;
    if stored.is_going_on() {
        let run = args::Watch { run: stored.summary.id.to_string(), ..arguments.clone() };
        return cluster::run::watch(&run, &Target::local(address(&stored)?));
    }
    let (run, end) = (&stored.summary.id, stored.summary.state);
    if end == RunState::Running {
        let message = format!("run {run} was interrupted, and nothing goes on");
        return Err(Failure::usage(anyhow!(message))
            .advise(format!("go on with: orchestrator resume {run}")));
    }
    let report = json::read(&runs::stored_report(&state, &stored)?)
        .context("the report is none of this version")?;
    print_line(text::render(&report).trim_end())?;
    Ok(finish::exit(end))
}

pub(crate) fn cancel(arguments: &args::Cancel) -> Result<Exit, Failure> {
    if let Some(target) = cluster::target(&arguments.cluster)? {
        return cluster::ask(&target, async |cluster| {
            cluster::run::cancel(cluster, &arguments.run).await
        });
    }
    let stored = State::of_user()?.find(&arguments.run)?;
    let run = stored.summary.id.to_string();
    if stored.is_going_on() {
        let target = Target::local(address(&stored)?);
        return cluster::ask(&target, async |cluster| cluster::run::cancel(cluster, &run).await);
    }
    if stored.summary.state != RunState::Running {
        say(format_args!("run {run} has ended already: {}", stored.line().state));
        return Ok(Exit::Complete);
    }
    runtime::run(cancel_interrupted(stored))
}

/// A run that nobody works on: a coordinator is started for as long as it takes to end it.
async fn cancel_interrupted(stored: Stored) -> Result<Exit, Failure> {
    let Stored { summary, folder, reader: _ } = stored;
    let coordinator = Coordinator::start(Config::local(folder)).await;
    let coordinator = coordinator.context("failed to open the run's store")?;
    let target = Target::local(format!("http://{}", coordinator.address()));
    let cancelled = async {
        let cluster = Cluster::reach(&target).await?;
        cluster::run::cancel(cluster, summary.id.as_str()).await
    };
    let cancelled = cancelled.await;
    coordinator.shutdown().await;
    cancelled
}

fn address(stored: &Stored) -> Result<String, Failure> {
    stored.address().ok_or_else(|| {
        let run = &stored.summary.id;
        let message = format!(
            "run {run} is going on in another process of this machine that does not say where; \
             look at its terminal, and stop it there with Ctrl-C"
        );
        Failure::usage(anyhow!(message))
    })
}
