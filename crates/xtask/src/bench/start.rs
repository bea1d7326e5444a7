//! `cargo xtask bench start`: how soon a coordinator answers, and what it takes while it has nothing
//! to do.
//!
//! Each start has a state folder of its own, and certificates; the clock runs from the moment before
//! the process is made until a line says that it is ready. Memory is what the kernel counts as
//! resident five seconds later.

use super::results::{self, machine};
use super::say;
use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::{demo, setup};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const STARTS: usize = 11;
const IDLE: Duration = Duration::from_secs(5);

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Asked {
    /// Binaries that are there, instead of a release build
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
}

pub(crate) fn run(checkout: &Checkout, asked: &Asked) -> Result<()> {
    let binaries = if let Some(folder) = &asked.binaries {
        folder.canonicalize().context("no such folder of binaries")?
    } else {
        setup::run(checkout, false)?;
        demo::release_binaries(&BuildCache::choose(checkout)?)?
    };
    let program = binaries.join("orchestrator");
    let scratch = tempfile::tempdir().context("no temporary folder")?;
    let certs = scratch.path().join("certs");
    let made = Command::new(&program).args(["certs", "init"]).arg(&certs).output()?;
    ensure!(made.status.success(), "certs init: {}", String::from_utf8_lossy(&made.stderr));
    let (mut ready, mut resident) = (Vec::new(), Vec::new());
    for number in 0..STARTS {
        let state = scratch.path().join(number.to_string());
        let (seconds, bytes) = start(&program, &certs.join("coordinator"), &state)?;
        ready.push(seconds);
        resident.push(bytes);
    }
    let row = |what: &str, unit: &str, values: &mut Vec<f64>, target: &str| {
        values.sort_by(f64::total_cmp);
        let [least, most] = [values[0], values[values.len() - 1]];
        let median = values[values.len() / 2];
        format!("| {what} | {median:.2} {unit} | {least:.2} to {most:.2} {unit} | {target} |")
    };
    let table = [
        "| coordinator with certificates | median | range | target |".to_owned(),
        "| --- | --- | --- | --- |".to_owned(),
        row("start to ready, empty state", "s", &mut ready, "1 s"),
        row("resident after 5 s without work", "MB", &mut resident, "30 MB"),
    ];
    let table = table.join("\n");
    say(&table)?;
    let build = asked.binaries.as_ref().map_or("release build", |_| "binaries that were given");
    let body = format!("{}; {build}; {STARTS} starts.\n\n{table}", machine()?);
    results::replace(checkout, "## `cargo xtask bench start`", &body)
}

/// Seconds until it is ready, and 10^6 bytes that are resident then.
fn start(program: &Path, tls: &Path, state: &Path) -> Result<(f64, f64)> {
    let begin = Instant::now();
    let child = Command::new(program)
        .args(["coordinator", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"])
        .arg("--tls")
        .arg(tls)
        .arg("--state")
        .arg(state)
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let mut child = Killed(child);
    let mut lines = BufReader::new(child.0.stderr.take().context("no stderr")?).lines();
    loop {
        let Some(line) = lines.next().transpose()? else { bail!("the coordinator ended") };
        if line.starts_with("coordinator ready") {
            break;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    std::thread::sleep(IDLE);
    Ok((seconds, resident(child.0.id())?))
}

/// 10^6 bytes, as the kernel counts them.
fn resident(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
    Ok(kib.parse::<f64>()? * 1024.0 / 1e6)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
