//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use orchestrator_spec::Override;

use crate::devices::DeviceChoice;

const EXIT_CODES: &str = "\
Exit codes:
  0    complete: every sample was evaluated
  1    internal error
  2    wrong usage
  3    bad eval.yaml, or data that does not match it
  4    incomplete: samples are quarantined or units failed; the report says which
  5    does not fit the slices
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
    /// Validates eval.yaml, plans, runs on this machine, shows progress on stderr, writes the run
    /// folder and prints the result table. The last line of stdout names the run folder. Ctrl-C
    /// stops cleanly; `orchestrator resume RUN` goes on without repeating finished work.
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
    /// Show what this machine offers, and who holds which bytes of it
    Nodes(Nodes),
    /// Go on with a run that was interrupted, cancelled or left incomplete
    Resume(Resume),
    /// List past and current runs
    Runs(Runs),
    /// Show how far a run is, and what went wrong in it
    Status(Status),
    /// Print a finished run's result table again
    Report(Report),
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

/// An evaluation file and what the command line changes in it.
#[derive(Args, Debug)]
pub(crate) struct EvaluationFile {
    /// The evaluation, usually eval.yaml
    #[arg(value_name = "EVAL_YAML")]
    pub(crate) file: PathBuf,
    /// Set a key of the evaluation, for example `--set sweep.batch=[64]`; may repeat
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<Override>,
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
    /// auto, cpu, GPU-… or MIG-…; auto uses every GPU that can be used
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub(crate) device: DeviceChoice,
}

/// Which coordinator is asked.
#[derive(Args, Debug)]
pub(crate) struct Cluster {
    /// A cluster's coordinator (not built yet)
    #[arg(long, value_name = "URL", hide = true)]
    pub(crate) coordinator: Option<String>,
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
    /// Return once the run is accepted (not built yet)
    #[arg(long, hide = true)]
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
pub(crate) struct Resume {
    /// The run, or `last`
    pub(crate) run: String,
    #[command(flatten)]
    pub(crate) local: Local,
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
