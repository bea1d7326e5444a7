//! Runs on a cluster: submitted, resumed, watched, cancelled.
//!
//! Invariant: from the moment that the coordinator has taken a run in, nothing that happens to this
//! process changes it. Ctrl-C stops looking, and says how to look again.

use anyhow::{Context as _, anyhow};
use orchestrator_proto::v1::{ResumeReply, ResumeRequest, SubmitRequest};
use orchestrator_report::{json, text};
use orchestrator_types::RunId;

use super::{CallError, Cluster, failed, reconnect::Reconnect};
use crate::{
    args,
    devices::DeviceChoice,
    evaluation,
    exit::{Exit, Failure},
    finish, folder,
    follow::follow,
    interrupt::Interrupt,
    print_line, runtime, say,
    state::fresh_name,
    submit::submission,
    target::Target,
};

/// Has a cluster run an evaluation.
pub(crate) fn submit(arguments: &args::Submit, target: &Target) -> Result<Exit, Failure> {
    refuse_local(arguments)?;
    let checked = evaluation::load(&arguments.evaluation)?;
    checked.warn();
    if !arguments.detach {
        folder::probe(&arguments.output.output).map_err(Failure::usage)?;
    }
    let run: RunId = fresh_name()?;
    let request = submission(&run, &checked, arguments.embeddings)?;
    runtime::run(async {
        let mut stop = Interrupt::new()?;
        let cluster = tokio::select! {
            cluster = Cluster::reach(target) => cluster?,
            () = stop.asked() => return Ok(Exit::Cancelled),
        };
        let begun = tokio::select! {
            begun = begin(&cluster, request) => begun?,
            () = stop.asked() => {
                say(format_args!(
                    "stopped before an answer came; if the run was taken in, it is run {run}"
                ));
                return Ok(Exit::Cancelled);
            }
        };
        say(begun);
        if arguments.detach {
            say(how_on(&cluster, &run));
            return accepted(&run, arguments.output.json);
        }
        let output = Some(&arguments.output);
        look(&cluster, &run, 0, output, &mut stop).await
    })
}

/// What only makes sense on this machine.
fn refuse_local(arguments: &args::Submit) -> Result<(), Failure> {
    let local = &arguments.local;
    let flag = if arguments.profile {
        "--profile"
    } else if local.local_slices != 1 {
        "--local-slices"
    } else if local.device.device != DeviceChoice::Auto {
        "--device"
    } else {
        return Ok(());
    };
    let message =
        format!("`{flag}` is about this machine, and the cluster's workers run this; leave it out");
    Err(Failure::usage(anyhow!(message)))
}

/// Submits; the same request again where the answer was lost.
async fn begin(cluster: &Cluster, request: SubmitRequest) -> Result<String, Failure> {
    let mut reconnect = Reconnect::to(cluster.target.address.clone());
    loop {
        let mut client = cluster.client.clone();
        let error = match client.submit(request.clone()).await.map_err(CallError::from) {
            Ok(reply) => {
                let reply = reply.into_inner();
                return Ok(format!("run {}: {} units", reply.run, reply.units));
            }
            Err(error) if error.broken => error,
            Err(error) => return Err(failed(error)),
        };
        reconnect.wait(error.into(), |line| say(line)).await?;
    }
}

fn accepted(run: &RunId, as_json: bool) -> Result<Exit, Failure> {
    if as_json {
        let document = serde_json::json!({"schema": "orchestrator.submit/1", "run": run});
        return print_line(&format!("{document:#}"));
    }
    print_line(run.as_str())
}

/// Goes on with a run of a cluster.
pub(crate) fn resume(arguments: &args::Resume, target: &Target) -> Result<Exit, Failure> {
    folder::probe(&arguments.output.output).map_err(Failure::usage)?;
    runtime::run(async {
        let mut stop = Interrupt::new()?;
        let cluster = Cluster::reach(target).await?;
        let run = cluster.find(&arguments.run).await?;
        let request = ResumeRequest { run: run.to_string() };
        let reply = cluster.client.clone().resume(request).await;
        let ResumeReply { committed, units, after } =
            reply.map_err(|status| failed(status.into()))?.into_inner();
        say(format_args!("run {run}: {committed} of {units} units are there already"));
        look(&cluster, &run, after, Some(&arguments.output), &mut stop).await
    })
}

/// Follows a run of a cluster that is on its way.
pub(crate) fn watch(arguments: &args::Watch, target: &Target) -> Result<Exit, Failure> {
    if let Some(output) = &arguments.output {
        folder::probe(output).map_err(Failure::usage)?;
    }
    runtime::run(async {
        let mut stop = Interrupt::new()?;
        let cluster = Cluster::reach(target).await?;
        let run = cluster.find(&arguments.run).await?;
        let output = arguments.output.clone();
        let output = output.map(|output| args::Output { output, json: false });
        // A run that was resumed has the end of an earlier life behind it.
        let after = cluster.status(&run).await.map_err(failed)?.begun.saturating_sub(1);
        look(&cluster, &run, after, output.as_ref(), &mut stop).await
    })
}

/// Follows the run to its end and tells its results; Ctrl-C stops looking.
async fn look(
    cluster: &Cluster,
    run: &RunId,
    after: u64,
    output: Option<&args::Output>,
    stop: &mut Interrupt,
) -> Result<Exit, Failure> {
    let mut client = cluster.client.clone();
    let mut reconnect = Reconnect::to(cluster.target.address.clone());
    let looking = async {
        let end = follow(&mut client, run, after, &mut reconnect).await.map_err(lost)?;
        match output {
            Some(output) => {
                finish::finish(&mut client, run, output, None, &mut reconnect).await?;
            }
            None => print_report(cluster, run, &mut reconnect).await?,
        }
        Ok(finish::exit(end))
    };
    tokio::select! {
        end = looking => end.map_err(|failure: Failure| failure.advise(how_on(cluster, run))),
        () = stop.asked() => {
            say(format_args!("stopped looking; the run goes on. {}", how_on(cluster, run)));
            Ok(Exit::Cancelled)
        }
    }
}

/// A run whose coordinator stayed away. It was taken in, so whoever submits again for want of a
/// coordinator would have it run twice: that is another exit code.
fn lost(error: anyhow::Error) -> Failure {
    Failure::new(Exit::Internal, error)
}

async fn print_report(
    cluster: &Cluster,
    run: &RunId,
    reconnect: &mut Reconnect,
) -> Result<(), Failure> {
    let document = loop {
        match super::report(cluster, run).await {
            Ok(document) => break document,
            Err(error) => reconnect.wait(error, |line| say(line)).await?,
        }
    };
    let report = json::read(&document).context("failed to read the report")?;
    print_line(text::render(&report).trim_end()).map(drop)
}

fn how_on(cluster: &Cluster, run: &RunId) -> String {
    let flags = cluster.target.flags();
    format!(
        "watch it with: orchestrator watch {run} {flags}\ncancel it with: orchestrator cancel {run} \
         {flags}"
    )
}

/// Ends a run of a cluster.
pub(crate) async fn cancel(cluster: Cluster, run: &str) -> Result<Exit, Failure> {
    let run = cluster.find(run).await?;
    let before = cluster.status(&run).await.map_err(failed)?.line;
    if before.ended_unix_ms.is_some() {
        say(format_args!("run {run} has ended already: {}", before.state));
        return Ok(Exit::Complete);
    }
    cluster.cancel(&run).await.map_err(failed)?;
    say(format_args!("run {run} is cancelled; what it had finished is kept for `resume`"));
    Ok(Exit::Complete)
}
