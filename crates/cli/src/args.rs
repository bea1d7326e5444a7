//! The command line.

pub(crate) mod service;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use orchestrator_spec::Override;
use orchestrator_tls::Role;
use orchestrator_worker::DataRoot;

use crate::devices::DeviceChoice;

const EXIT_CODES: &str = "\
Exit codes:
  0    complete: every sample was evaluated
  1    internal error
  2    wrong usage
  3    bad eval.yaml, or data that does not match it
  4    incomplete: samples are quarantined or units failed; the report says which
  5    does not fit the slices
  6    the coordinator cannot be reached
  130  cancelled";

/// Evaluate multimodal models, with the reference's numbers and every sample accounted for
#[derive(Debug, Parser)]
#[command(name = "orchestrator", version = orchestrator_proto::BUILD, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    /// Log to stderr; twice for more. `ORCHESTRATOR_LOG` takes a filter instead
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run an evaluation and print its results
    ///
    /// Validates eval.yaml, plans, runs, shows progress on stderr, writes the run folder and prints
    /// the result table. The last line of stdout names the run folder.
    ///
    /// Without a coordinator it runs on this machine: Ctrl-C stops cleanly, and `orchestrator resume
    /// RUN` goes on without repeating finished work. With `--coordinator` the cluster runs it:
    /// Ctrl-C only stops looking, and `orchestrator watch RUN` looks again.
    #[command(after_help = EXIT_CODES)]
    Submit(Submit),
    /// Say everything that is wrong with an eval.yaml, without running it
    Check(Check),
    /// Show what a run would do: placement, predicted bytes, batches, and why
    Plan(Plan),
    /// Show where the memory of each tower goes, and which batch is best
    ///
    /// Runs each tower of each model in each precision of the sweep on synthetic input of the real
    /// shape. Prints memory by operator, module and phase and the batch curve; writes profile.json,
    /// profile.svg and profile.txt into a new folder. The last line of stdout names it.
    #[command(after_help = EXIT_CODES)]
    Profile(Profile),
    /// Show what this machine, or each worker of a cluster, offers, and who holds which bytes of it
    Nodes(Nodes),
    /// Say what this machine offers, what is missing, and what to do
    ///
    /// Looks at the executor, the processor, memory, GPUs and MIG instances with their driver,
    /// folders, variables, and with `--coordinator` whether it answers. Changes nothing. Exit code 0:
    /// this machine can compute, if only on its processor; 1: it cannot; 6: the coordinator does not
    /// answer.
    Doctor(Doctor),
    /// Follow a run to its end, and print its results
    ///
    /// Ctrl-C stops looking; the run goes on. The exit code is that of the run.
    #[command(after_help = EXIT_CODES)]
    Watch(Watch),
    /// Print what happened in a run, one line an event
    Logs(Logs),
    /// End a run; what it has finished is kept
    Cancel(Cancel),
    /// Go on with a run that was interrupted, cancelled or left incomplete
    Resume(Resume),
    /// List past and current runs
    Runs(Runs),
    /// Show how far a run is, and what went wrong in it
    Status(Status),
    /// Print a finished run's result table again
    Report(Report),
    /// Run the service that plans, hands out work and keeps results
    ///
    /// Workers and clients connect to it. It keeps everything in its state folder: killed and
    /// started again, it goes on with every run that had not ended, and repeats nothing that was
    /// finished. SIGTERM and Ctrl-C stop it cleanly. Settings come from flags, then the environment,
    /// then `--config`, then the defaults.
    Coordinator(service::Coordinator),
    /// Offer this machine's devices to a coordinator
    ///
    /// Runs one executor process for each slice: a GPU, or a part of the processor. Outlives
    /// restarts of the coordinator for 10 minutes. SIGTERM takes no new work, finishes what it has
    /// within `--grace`, and leaves; a second signal leaves at once. Settings come from flags, then
    /// the environment, then `--config`, then the defaults.
    #[command(after_help = EXIT_CODES)]
    Worker(service::Worker),
    /// Make certificates, for development and for clusters without an authority of their own
    #[command(subcommand)]
    Certs(Certs),
    /// Print the JSON schema of eval.yaml, for editors
    Schema,
    /// Print a completion script for a shell
    Completion {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
    /// Print the version
    Version,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Certs {
    /// Make an authority and certificates for a coordinator, workers, clients and admins
    ///
    /// Writes DIR/ca and DIR/coordinator, DIR/worker, DIR/client, DIR/admin; each of the four is what
    /// `--tls` takes. Keys are for their owner only. Keep DIR/ca away from the cluster: who has it
    /// can make certificates.
    Init {
        /// A new folder
        #[arg(value_name = "DIR", default_value = "certs")]
        folder: PathBuf,
        /// A name or address by which the coordinator is called, beside those of this machine; may
        /// repeat
        #[arg(long = "host", value_name = "NAME")]
        hosts: Vec<String>,
        /// For how many days the certificates hold; the authority holds ten times as long
        #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
    },
    /// Make one more certificate, or renew one in its place
    ///
    /// The role is coordinator, worker, client or admin. Services read a renewed certificate without
    /// a restart, and keep their sessions: those belong to the role and name, not to the key.
    Issue {
        /// The folder that `certs init` made, with the authority in DIR/ca
        #[arg(long, value_name = "DIR", default_value = "certs")]
        authority: PathBuf,
        /// coordinator, worker, client or admin
        role: Role,
        /// Whose certificate it is, for example alice
        name: String,
        /// Folder of the three files [default: DIR/NAME]
        #[arg(long, value_name = "DIR")]
        output: Option<PathBuf>,
        /// A name or address by which a coordinator is called; may repeat
        #[arg(long = "host", value_name = "NAME")]
        hosts: Vec<String>,
        /// For how many days it holds
        #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
        days: u32,
        /// Put it into the place of an older one of the same role and name
        #[arg(long)]
        replace: bool,
    },
}

/// An evaluation file and what the command line changes in it.
#[derive(Args, Debug)]
pub(crate) struct EvaluationFile {
    /// The evaluation, usually eval.yaml
    #[arg(value_name = "EVAL_YAML")]
    pub(crate) file: PathBuf,
    /// Set a key of the evaluation, for example `--set sweep.batch=[64]`; may repeat
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<Override>,
    #[command(flatten)]
    pub(crate) data: Data,
}

/// How this machine is used.
#[derive(Args, Debug)]
pub(crate) struct Local {
    /// Cut this machine's processor into N slices, one executor process each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) local_slices: u32,
    #[command(flatten)]
    pub(crate) device: Device,
}

/// Which devices are used.
#[derive(Args, Debug)]
pub(crate) struct Device {
    /// auto, gpu, cpu, GPU-… or MIG-…; gpu uses every GPU that can be used, auto the processor
    /// where there is none
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: DeviceChoice,
}

/// Which coordinator is asked.
#[derive(Args, Clone, Debug)]
pub(crate) struct Cluster {
    /// Ask this coordinator, for example http://127.0.0.1:7070 or https://HOST:7070, and not this
    /// machine
    #[arg(long, value_name = "URL", env = "ORCHESTRATOR_COORDINATOR", hide_env_values = true)]
    pub(crate) coordinator: Option<String>,
    /// Folder with tls.crt, tls.key and ca.crt, for a coordinator at https://…
    #[arg(long, value_name = "DIR", env = "ORCHESTRATOR_TLS", hide_env_values = true)]
    pub(crate) tls: Option<PathBuf>,
}

/// Where data lies.
#[derive(Args, Debug, Default)]
pub(crate) struct Data {
    /// Where paths of the form NAME:path start on this machine; may repeat
    #[arg(long = "data-root", value_name = "NAME=DIR")]
    pub(crate) data_roots: Vec<DataRoot>,
}

/// Where results go.
#[derive(Args, Debug)]
pub(crate) struct Output {
    /// Folder that gets the folder of the results
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub(crate) output: PathBuf,
    /// Print one JSON document instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Submit {
    #[command(flatten)]
    pub(crate) evaluation: EvaluationFile,
    #[command(flatten)]
    pub(crate) local: Local,
    #[command(flatten)]
    pub(crate) output: Output,
    /// Profile the towers first, and write the profile into the run folder
    #[arg(long)]
    pub(crate) profile: bool,
    /// Also write embeddings.parquet
    #[arg(long)]
    pub(crate) embeddings: bool,
    /// Return once the coordinator has accepted the run, and print its id
    #[arg(long)]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) evaluation: EvaluationFile,
}

#[derive(Args, Debug)]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) evaluation: EvaluationFile,
    #[command(flatten)]
    pub(crate) local: Local,
    /// Plan for the slices in this JSON file instead of this machine
    ///
    /// For example {"slices": [{"id": "host.0", "device": "cpu", "threads": 2, "memory": "2
    /// GiB"}]}.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["local_slices", "device"])]
    pub(crate) inventory: Option<PathBuf>,
    /// Print the whole plan as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Profile {
    #[command(flatten)]
    pub(crate) evaluation: EvaluationFile,
    #[command(flatten)]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Args, Debug)]
pub(crate) struct Nodes {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// Print JSON: the findings, and the facts that they come from
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Args, Debug)]
pub(crate) struct Resume {
    /// The run, or `last`
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) local: Local,
    #[command(flatten)]
    pub(crate) data: Data,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Args, Debug)]
pub(crate) struct Runs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Args, Debug)]
pub(crate) struct Status {
    /// The run, or `last`
    pub(crate) run: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Args, Debug)]
pub(crate) struct Report {
    /// The run, or `last`
    pub(crate) run: String,
    /// Print report.json instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Watch {
    /// The run, or `last`
    pub(crate) run: String,
    /// Also write the run folder into this folder at the end
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Args, Debug)]
pub(crate) struct Logs {
    /// The run, or `last`
    pub(crate) run: String,
    /// Print one JSON object a line, as in events.jsonl
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}

#[derive(Args, Debug)]
pub(crate) struct Cancel {
    /// The run, or `last`
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) cluster: Cluster,
}
