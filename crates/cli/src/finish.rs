//! What is left to do when a run has ended: fetch its folder, print its results.

use std::fs;

use anyhow::Context as _;
use orchestrator_ledger::Profile;
use orchestrator_proto::v1::coordinator_client::CoordinatorClient;
use orchestrator_report::{Report, json, profile_text, text};
use orchestrator_run::RunState;
use orchestrator_types::RunId;
use tonic::transport::Channel;

use crate::{
    args,
    cluster::reconnect::Reconnect,
    exit::{Exit, Failure},
    folder, print_line, profile, say,
};

/// Writes the folder of an ended run and prints its results.
pub(crate) async fn finish(
    client: &mut CoordinatorClient<Channel>,
    run: &RunId,
    output: &args::Output,
    measured: Option<&Profile>,
    reconnect: &mut Reconnect,
) -> Result<(), Failure> {
    let folder = loop {
        match folder::fetch(client, run, &output.output).await {
            Ok(folder) => break folder,
            Err(error) => reconnect.wait(error, |line| say(line)).await.map_err(|error| {
                Failure::from(error).advise(format!(
                    "the results are kept; write them with: orchestrator resume {run} --output DIR"
                ))
            })?,
        }
    };
    if let Some(measured) = measured {
        profile::write(measured, &folder)?;
    }
    let document = fs::read_to_string(folder.join("report.json"))
        .with_context(|| format!("failed to read the report in {}", folder.display()))?;
    let report = json::read(&document).context("failed to read the report")?;
    let folder = folder.display().to_string();
    print(run, output, measured, &document, &report, &folder)
}

fn print(
    run: &RunId,
    output: &args::Output,
    measured: Option<&Profile>,
    document: &str,
    report: &Report,
    folder: &str,
) -> Result<(), Failure> {
    if output.json {
        let report: serde_json::Value =
            serde_json::from_str(document).context("failed to read the report")?;
        let document = serde_json::json!({
            "schema": "orchestrator.submit/1",
            "run": run,
            "folder": folder,
            "report": report,
        });
        return print_line(&format!("{document:#}")).map(drop);
    }
    if let Some(measured) = measured {
        print_line(&format!("{}\n", profile_text(measured)))?;
    }
    print_line(text::render(report).trim_end())?;
    print_line(folder).map(drop)
}

/// The exit code of a run that ended so.
pub(crate) const fn exit(end: RunState) -> Exit {
    match end {
        RunState::Cancelled => Exit::Cancelled,
        RunState::Complete => Exit::Complete,
        RunState::Incomplete | RunState::Running => Exit::Incomplete,
    }
}
