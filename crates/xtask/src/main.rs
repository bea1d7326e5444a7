//! `cargo xtask`: everything a checkout needs besides `cargo build`.
//!
//! Purpose: set up libtorch, run the demonstration, run every check, install the binaries.
//! Invariant: this crate builds without libtorch and depends on no other crate of the workspace,
//! since it is what makes the others buildable.
//! Absent on purpose: shell scripts, and Python code but for what only Python has (`bench`, and the
//! adapter of `manifests`).

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

mod arrows;
mod bench;
mod build_cache;
mod cache;
mod checkout;
mod demo;
mod graph;
mod images;
mod install;
mod libtorch;
mod manifests;
mod packages;
mod setup;
mod suite;
mod supply;
mod tally;

use checkout::Checkout;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Tasks of this checkout")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Fetch libtorch 2.11.0 into the shared cache and point this checkout at it
    ///
    /// `LIBTORCH=DIR` uses an existing PyTorch 2.11.0 instead. `ORCHESTRATOR_CACHE` moves the cache
    /// (default `$XDG_CACHE_HOME/orchestrator` or `~/.cache/orchestrator`).
    Setup {
        /// Add the NVIDIA libraries that libtorch_cuda.so needs (some gigabytes)
        #[arg(long)]
        cuda: bool,
    },
    /// Set up, build in release mode, and evaluate a real CLIP on the images in tests/data
    Demo {
        /// Passed on to `orchestrator submit`
        #[arg(last = true)]
        submit: Vec<OsString>,
    },
    /// Set up, then run every check: format, lints, crate arrows, tests, documentation tests
    Test {
        /// Leave out the slow end-to-end tests (names that start with `slow_`)
        #[arg(long)]
        quick: bool,
    },
    /// Render and check what is shipped for Docker and Kubernetes
    ///
    /// Part of `test`. Installs renderers and validators (about 500 MB) into the cache on first use;
    /// needs Python 3.11.
    Manifests {
        /// Keep what the chart says of wrong values as the messages to expect
        #[arg(long)]
        update: bool,
    },
    /// Build the container images without a container engine, and prove that they serve
    ///
    /// Needs root on Debian or Ubuntu. Not part of `test`.
    Images(images::Asked),
    /// Copy what running needs of libtorch into DIR; a step of the Dockerfile
    #[command(hide = true)]
    Libtorch {
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Measure beside the reference implementation, on the same files and cores
    ///
    /// Installs the reference implementation (several gigabytes) into the cache on first use.
    #[command(subcommand)]
    Bench(Bench),
    /// Build in release mode and put `orchestrator` and `orchestrator-executor` under PREFIX/bin
    Install {
        /// Folder that gets bin/ and lib/
        #[arg(long, value_name = "DIR")]
        prefix: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
enum Bench {
    /// Preprocessing per core beside Pillow, and a whole job beside transformers
    Cpu,
    /// Predicted beside measured peaks of towers, by the allocator that counts
    ///
    /// Writes its table into tests/bench/RESULTS.md.
    Memory(bench::Asked),
    /// Executors, agents and coordinators killed again and again; every run is checked
    ///
    /// Can be stopped and called again. Writes its table into tests/bench/RESULTS.md.
    Chaos(bench::AskedChaos),
    /// Bugs on purpose, and the seeds with which the simulation finds them
    ///
    /// Writes its list into tests/bench/RESULTS.md.
    Planted,
    /// Units a second through the coordinator's store and protocol, beside `dask.distributed`
    ///
    /// A million units on a thousand made-up workers. Writes its table into tests/bench/RESULTS.md.
    Scheduler(bench::AskedScheduler),
    /// A light and a whole job on one slice, on two, and as the planner chooses
    ///
    /// Writes its table into tests/bench/RESULTS.md.
    Split(bench::AskedSplit),
    /// How soon a coordinator answers, and what it takes while it has nothing to do
    ///
    /// Writes its table into tests/bench/RESULTS.md.
    Start(bench::AskedStart),
    /// Large blobs over loopback gRPC beside raw TCP
    ///
    /// Writes its table into tests/bench/RESULTS.md.
    Tensors(bench::AskedTensors),
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    let checkout = Checkout::from_cargo()?;
    match verb {
        Verb::Setup { cuda } => setup::run(&checkout, cuda).map(|()| ExitCode::SUCCESS),
        Verb::Demo { submit } => demo::run(&checkout, &submit),
        Verb::Test { quick } => suite::run(&checkout, quick),
        Verb::Manifests { update } => manifests::run(&checkout, update).map(|_| ExitCode::SUCCESS),
        Verb::Images(asked) => images::run(&checkout, &asked).map(|()| ExitCode::SUCCESS),
        Verb::Libtorch { folder } => libtorch::copy(&checkout, &folder).map(|()| ExitCode::SUCCESS),
        Verb::Bench(Bench::Cpu) => bench::cpu(&checkout).map(|()| ExitCode::SUCCESS),
        Verb::Bench(Bench::Chaos(asked)) => {
            bench::chaos(&checkout, &asked).map(|()| ExitCode::SUCCESS)
        }
        Verb::Bench(Bench::Memory(asked)) => {
            bench::memory(&checkout, &asked).map(|()| ExitCode::SUCCESS)
        }
        Verb::Bench(Bench::Planted) => bench::planted(&checkout).map(|()| ExitCode::SUCCESS),
        Verb::Bench(Bench::Scheduler(asked)) => {
            bench::scheduler(&checkout, &asked).map(|()| ExitCode::SUCCESS)
        }
        Verb::Bench(Bench::Split(asked)) => {
            bench::split(&checkout, &asked).map(|()| ExitCode::SUCCESS)
        }
        Verb::Bench(Bench::Start(asked)) => {
            bench::start(&checkout, &asked).map(|()| ExitCode::SUCCESS)
        }
        Verb::Bench(Bench::Tensors(asked)) => {
            bench::tensors(&checkout, &asked).map(|()| ExitCode::SUCCESS)
        }
        Verb::Install { prefix } => install::run(&checkout, prefix).map(|()| ExitCode::SUCCESS),
    }
}
