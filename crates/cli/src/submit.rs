//! `orchestrator submit` and `orchestrator resume`, embedded; with a coordinator, see `cluster`.

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::{Context as _, anyhow};
use orchestrator_coordinator::Reader;
use orchestrator_host::host_memory;
use orchestrator_ledger::Profile;
use orchestrator_plan::{Inventory, SliceOffer};
use orchestrator_proto::v1::{
    ResumeReply, ResumeRequest, SubmitRequest, coordinator_client::CoordinatorClient,
};
use orchestrator_types::RunId;
use orchestrator_worker::DataAccess;
use tonic::transport::Channel;

use crate::{
    args,
    cluster::{self, CallError, reconnect::Reconnect},
    embedded::Embedded,
    evaluation::{self, Checked, data_access},
    executor,
    exit::{Exit, Failure},
    finish, folder, follow, host,
    interrupt::Interrupt,
    local,
    plan::{lowered, tight, warn},
    profile, runtime, say, settings,
    state::{State, fresh_name},
};

/// Runs an evaluation from its file to its run folder.
pub(crate) fn submit(arguments: &args::Submit) -> Result<Exit, Failure> {
    if let Some(target) = cluster::target(&arguments.cluster)? {
        return cluster::run::submit(arguments, &target);
    }
    if arguments.detach {
        let message = "`--detach` leaves the run to a coordinator; name one with `--coordinator`";
        return Err(Failure::usage(anyhow!(message)));
    }
    let checked = evaluation::load(&arguments.evaluation)?;
    checked.warn();
    let run: RunId = fresh_name()?;
    let mut session = Session::new(run.clone(), true, &arguments.local, &arguments.output)?;
    session.data = data_access(&arguments.evaluation.data)?;
    host::beside_gpus(&host_memory(), &session.inventory, &checked)?;
    lowered(&session.inventory, checked.evaluation.memory.quota).iter().for_each(warn);
    if arguments.profile {
        let measured = profile::measure(&executor::program()?, &checked, &session.inventory)?;
        settings::remember(&measured, &checked);
        session.profile = Some(measured);
    }
    let request = submission(&run, &checked, arguments.embeddings)?;
    session.inventory = worth_starting(session.inventory, &checked);
    let quota = checked.evaluation.memory.quota;
    let ended = session.run_to_end(async move |client| {
        let reply = client.submit(request).await.map_err(CallError::from)?.into_inner();
        let announced = format!("run {}: {} units", reply.run, reply.units);
        Ok(Begun { announced, after: 0 })
    });
    ended.map_err(|failure| match (failure.exit, quota) {
        (Exit::DoesNotFit, Some(quota)) => failure.advise(tight(quota)),
        _ => failure,
    })
}

/// The slices that a plan gives work to: the others' executors would only take time to start. All of
/// them where there is no plan; the coordinator then says why.
fn worth_starting(inventory: Inventory, checked: &Checked) -> Inventory {
    let Checked { evaluation, facts, base, .. } = checked;
    let measured = settings::measured();
    let planned = orchestrator_plan::plan(evaluation, facts, &inventory, base, &measured);
    let Ok(plan) = planned else { return inventory };
    let busy = |slice: &SliceOffer| {
        let placed = plan.placement.iter().find(|placement| placement.slice == slice.id);
        placed.is_some_and(|placement| !placement.components.is_empty())
    };
    let all = inventory.slices.len();
    let slices: Vec<SliceOffer> = inventory.slices.iter().filter(|it| busy(it)).cloned().collect();
    let light = plan.reasons.iter().filter(|reason| reason.contains("predicted to end"));
    if slices.len() < all {
        light.for_each(say);
    }
    Inventory { slices }
}

/// Goes on with a run.
pub(crate) fn resume(arguments: &args::Resume) -> Result<Exit, Failure> {
    if let Some(target) = cluster::target(&arguments.cluster)? {
        return cluster::run::resume(arguments, &target);
    }
    let stored = State::of_user()?.find(&arguments.run)?;
    let run = stored.summary.id.clone();
    if stored.reader.is_live() {
        let message = format!("run {run} is still going on in another process");
        return Err(Failure::usage(anyhow!(message)));
    }
    drop(stored);
    let mut session = Session::new(run.clone(), false, &arguments.local, &arguments.output)?;
    session.data = data_access(&arguments.data)?;
    session.run_to_end(async move |client| {
        let request = ResumeRequest { run: run.to_string() };
        let reply = client.resume(request).await.map_err(CallError::from)?.into_inner();
        let ResumeReply { committed, units, after } = reply;
        let announced = format!("run {run}: {committed} of {units} units are there already");
        Ok(Begun { announced, after })
    })
}

/// A run that was taken in.
struct Begun {
    announced: String,
    /// The event after which to follow it.
    after: u64,
}

/// What the coordinator is sent.
pub(crate) fn submission(
    run: &RunId,
    checked: &Checked,
    embeddings: bool,
) -> anyhow::Result<SubmitRequest> {
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
        measured: serde_json::to_vec(&settings::measured()).context("failed to encode")?,
    })
}

/// One run on this machine's slices.
struct Session<'a> {
    run: RunId,
    /// Whether nothing is stored of the run before this.
    new: bool,
    state: PathBuf,
    inventory: Inventory,
    /// Why the machine offers as much as it does.
    offered: Vec<String>,
    output: &'a args::Output,
    /// Measured before the run.
    profile: Option<Profile>,
    data: DataAccess,
}

/// How a session ended, apart from errors.
enum End {
    Exit(Exit),
    /// Ctrl-C.
    Interrupted,
}

impl<'a> Session<'a> {
    fn new(
        run: RunId,
        new: bool,
        local: &args::Local,
        output: &'a args::Output,
    ) -> Result<Self, Failure> {
        folder::probe(&output.output).map_err(Failure::usage)?;
        let state = State::of_user()?.of_run(&run);
        let local::Machine { inventory, reasons: offered, .. } =
            local::machine(local.local_slices, &local.device.device)?;
        let data = DataAccess::default();
        Ok(Self { run, new, state, inventory, offered, output, profile: None, data })
    }

    /// Starts the embedded cluster, begins the run with `begin`, follows it and writes its folder.
    fn run_to_end(
        self,
        begin: impl AsyncFnOnce(&mut CoordinatorClient<Channel>) -> Result<Begun, CallError>,
    ) -> Result<Exit, Failure> {
        let end = runtime::run(self.embedded(begin));
        self.leave(end)
    }

    async fn embedded(
        &self,
        begin: impl AsyncFnOnce(&mut CoordinatorClient<Channel>) -> Result<Begun, CallError>,
    ) -> Result<End, Failure> {
        let mut stop = Interrupt::new()?;
        say(format_args!(
            "no coordinator is set: running embedded on {}",
            describe(&self.inventory)
        ));
        self.offered.iter().for_each(say);
        let mut embedded = tokio::select! {
            started = Embedded::start(&self.state, self.inventory.clone(), self.data.clone()) => started?,
            () = stop.asked() => return Ok(End::Interrupted),
        };
        let mut client = embedded.client();
        let end = tokio::select! {
            end = self.drive(&mut client, begin) => end.map(End::Exit),
            error = embedded.lost() => Err(error.into()),
            () = stop.asked() => Ok(End::Interrupted),
        };
        let scratch = embedded.scratch().to_owned();
        tokio::select! {
            () = embedded.stop() => end,
            // A second Ctrl-C does not wait; the executors end with their pipes.
            () = stop.asked() => {
                drop(fs::remove_dir_all(scratch));
                std::process::exit(Exit::Cancelled as i32)
            }
        }
    }

    /// Says what is kept, and removes the state of a run that was never stored.
    fn leave(&self, end: Result<End, Failure>) -> Result<Exit, Failure> {
        let run = &self.run;
        let stored =
            matches!(Reader::open(&self.state).map(|store| store.run(run)), Ok(Ok(Some(_))));
        if self.new && !stored {
            // Nothing but an empty store is in it; the next run does not mind it.
            drop(fs::remove_dir_all(&self.state));
        }
        match end {
            Ok(End::Exit(exit)) => Ok(exit),
            Ok(End::Interrupted) => {
                say(if stored {
                    format!("stopped; finished work is kept. Go on with: orchestrator resume {run}")
                } else {
                    "stopped before the run was stored; there is nothing to resume".to_owned()
                });
                Ok(Exit::Cancelled)
            }
            Err(failure) if stored => Err(failure
                .advise(format!("finished work is kept. Go on with: orchestrator resume {run}"))),
            Err(failure) => Err(failure),
        }
    }

    async fn drive(
        &self,
        client: &mut CoordinatorClient<Channel>,
        begin: impl AsyncFnOnce(&mut CoordinatorClient<Channel>) -> Result<Begun, CallError>,
    ) -> Result<Exit, Failure> {
        let Begun { announced, after } = begin(client).await.map_err(cluster::failed)?;
        say(announced);
        let mut reconnect = Reconnect::never();
        let end = follow::follow(client, &self.run, after, &mut reconnect).await?;
        let measured = self.profile.as_ref();
        finish::finish(client, &self.run, self.output, measured, &mut reconnect).await?;
        Ok(finish::exit(end))
    }
}

fn describe(inventory: &Inventory) -> String {
    let threads: u32 = inventory.slices.iter().map(|slice| slice.threads).sum();
    let memory = inventory.slices.iter().map(|slice| slice.memory_bytes).min().unwrap_or_default();
    let devices: BTreeSet<String> =
        inventory.slices.iter().map(|slice| slice.device.to_string()).collect();
    let devices = devices.into_iter().collect::<Vec<_>>().join(", ");
    match inventory.slices.len() {
        1 => format!("1 slice: {devices}, {threads} threads, {memory}"),
        count => {
            let alike = inventory.slices.iter().all(|slice| slice.memory_bytes == memory);
            let least = if alike { "" } else { "at least " };
            format!("{count} slices: {devices}, {threads} threads in all, {least}{memory} each")
        }
    }
}
