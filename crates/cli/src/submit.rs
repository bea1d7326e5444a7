//! `orchestrator submit` and `orchestrator resume`, embedded.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, anyhow};
use orchestrator_plan::Inventory;
use orchestrator_proto::{
    Refusal, RefusalCode,
    v1::{ResumeRequest, SubmitRequest, coordinator_client::CoordinatorClient},
};
use orchestrator_report::{Report, json, text};
use orchestrator_run::RunState;
use orchestrator_types::RunId;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tonic::transport::Channel;

use crate::{
    args,
    embedded::Embedded,
    evaluation::{self, Checked},
    exit::{Exit, Failure},
    folder, follow, local, print_line,
    state::State,
};

/// Runs an evaluation from its file to its run folder.
pub(crate) fn submit(arguments: &args::Submit) -> Result<Exit, Failure> {
    let checked = evaluation::load(&arguments.evaluation)?;
    checked.warn();
    let run: RunId = ulid::Ulid::generate()
        .to_string()
        .to_lowercase()
        .parse()
        .context("failed to name the run")?;
    let request = submission(&run, &checked, arguments.embeddings)?;
    let session = Session::new(run, arguments.local.local_slices, &arguments.output)?;
    session.run_to_end(async move |client| {
        let reply = client.submit(request).await.map_err(Refusal::from)?.into_inner();
        Ok(format!("run {}: {} units", reply.run, reply.units))
    })
}

/// Goes on with a run whose state is on this machine.
pub(crate) fn resume(arguments: &args::Resume) -> Result<Exit, Failure> {
    let stored = State::of_user()?.find(&arguments.run)?;
    let run = stored.summary.id.clone();
    if stored.reader.is_live() {
        let message = format!("run {run} is still going on in another process");
        return Err(Failure::internal(anyhow!(message)));
    }
    drop(stored);
    let session = Session::new(run.clone(), arguments.local.local_slices, &arguments.output)?;
    session.run_to_end(async move |client| {
        let request = ResumeRequest { run: run.to_string() };
        let reply = client.resume(request).await.map_err(Refusal::from)?.into_inner();
        Ok(format!("run {run}: {} of {} units are there already", reply.committed, reply.units))
    })
}

fn submission(run: &RunId, checked: &Checked, embeddings: bool) -> anyhow::Result<SubmitRequest> {
    let base = checked.base.to_str().with_context(|| {
        format!("the folder {} has a name that is not UTF-8; move it", checked.base.display())
    })?;
    Ok(SubmitRequest {
        request_id: run.to_string(),
        eval_yaml: checked.text.clone(),
        evaluation: serde_json::to_vec(&checked.evaluation).context("failed to encode")?,
        facts: serde_json::to_vec(&checked.facts).context("failed to encode")?,
        keep_embeddings: embeddings,
        base: base.to_owned(),
    })
}

/// One run on this machine's slices.
struct Session<'a> {
    run: RunId,
    state: PathBuf,
    inventory: Inventory,
    output: &'a args::Output,
}

impl<'a> Session<'a> {
    fn new(run: RunId, slices: u32, output: &'a args::Output) -> anyhow::Result<Self> {
        let state = State::of_user()?.of_run(&run);
        Ok(Self { run, state, inventory: local::inventory(slices)?, output })
    }

    /// Starts the embedded cluster, begins the run with `begin`, follows it and writes its folder.
    fn run_to_end(
        self,
        begin: impl AsyncFnOnce(&mut CoordinatorClient<Channel>) -> Result<String, Refusal>,
    ) -> Result<Exit, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("failed to start the runtime")?;
        runtime.block_on(async {
            let mut stop = Interrupt::new()?;
            eprintln!("no coordinator is set: running embedded on {}", describe(&self.inventory));
            let mut embedded = tokio::select! {
                started = Embedded::start(self.state.clone(), self.inventory.clone()) => started?,
                () = stop.asked() => return Ok(Exit::Cancelled),
            };
            let mut client = embedded.client();
            let outcome = tokio::select! {
                outcome = self.drive(&mut client, begin) => outcome,
                error = embedded.worker_lost() => Err(error.into()),
                () = stop.asked() => Ok(self.interrupted()),
            };
            // A second Ctrl-C does not wait; the executors end with their pipes.
            tokio::select! {
                () = embedded.stop() => {}
                () = stop.asked() => std::process::exit(Exit::Cancelled as i32),
            }
            outcome
        })
    }

    async fn drive(
        &self,
        client: &mut CoordinatorClient<Channel>,
        begin: impl AsyncFnOnce(&mut CoordinatorClient<Channel>) -> Result<String, Refusal>,
    ) -> Result<Exit, Failure> {
        let announced = begin(client).await.map_err(refused)?;
        eprintln!("{announced}");
        let end = follow::follow(client, &self.run, 0).await?;
        let folder = folder::fetch(client, &self.run, &self.output.output).await?;
        let text = fs::read_to_string(folder.join("report.json"))
            .with_context(|| format!("failed to read the report in {}", folder.display()))?;
        let report = json::read(&text).context("failed to read the report")?;
        self.print(&text, &report, &folder.display().to_string())?;
        Ok(match end {
            RunState::Cancelled => Exit::Cancelled,
            // A run whose every unit is committed may still have set samples aside.
            RunState::Complete if report.complete => Exit::Complete,
            RunState::Complete | RunState::Incomplete | RunState::Running => Exit::Incomplete,
        })
    }

    fn print(&self, text: &str, report: &Report, folder: &str) -> Result<Exit, Failure> {
        if self.output.json {
            let report: serde_json::Value =
                serde_json::from_str(text).context("failed to read the report")?;
            let document = serde_json::json!({
                "schema": "orchestrator.submit/1",
                "run": self.run,
                "folder": folder,
                "report": report,
            });
            return print_line(&format!("{document:#}"));
        }
        print_line(text::render(report).trim_end())?;
        print_line(folder)
    }

    fn interrupted(&self) -> Exit {
        eprintln!("stopped; finished work is kept. Go on with: orchestrator resume {}", self.run);
        Exit::Cancelled
    }
}

fn refused(refusal: Refusal) -> Failure {
    let exit = match refusal.code {
        RefusalCode::DoesNotFit => Exit::DoesNotFit,
        RefusalCode::Invalid => Exit::BadEvaluation,
        RefusalCode::NotFound
        | RefusalCode::Stale
        | RefusalCode::Unavailable
        | RefusalCode::TooSlow
        | RefusalCode::Internal => Exit::Internal,
    };
    Failure::new(exit, refusal)
}

fn describe(inventory: &Inventory) -> String {
    let threads: u32 = inventory.slices.iter().map(|slice| slice.threads).sum();
    let memory = inventory.slices.first().map(|slice| slice.memory_bytes).unwrap_or_default();
    match inventory.slices.len() {
        1 => format!("1 slice: cpu, {threads} threads, {memory}"),
        count => format!("{count} slices: cpu, {threads} threads in all, {memory} each"),
    }
}

/// Ctrl-C and SIGTERM.
struct Interrupt {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupt {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
