//! `cargo xtask test`: every check, one headline and one time each, and a closing count.
//!
//! Invariant: the last line of stdout is `N passed, N failed`, where N counts the tests of all
//! runners and each check that failed; the exit code is zero only if nothing failed.

use crate::arrows;
use crate::build_cache::BuildCache;
use crate::checkout::Checkout;
use crate::graph::Graph;
use crate::manifests;
use crate::setup;
use crate::supply;
use crate::tally::Tally;
use anyhow::{Context, Result, bail};
use std::env;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Instant;

/// What a quick run leaves out: tests whose function name starts so.
const SLOW_PREFIX: &str = "slow_";

pub(crate) fn run(checkout: &Checkout, quick: bool) -> Result<ExitCode> {
    setup::run(checkout, false)?;
    let suite = Suite::prepare(checkout, quick)?;
    let tally = suite.run();
    writeln!(std::io::stdout(), "{} passed, {} failed", tally.passed, tally.failed)
        .context("cannot write to stdout")?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Suite<'a> {
    checkout: &'a Checkout,
    cache: BuildCache<'a>,
    graph: Graph,
    quick: bool,
}

impl<'a> Suite<'a> {
    fn prepare(checkout: &'a Checkout, quick: bool) -> Result<Self> {
        let cache = BuildCache::choose(checkout)?;
        let graph = Graph::of_workspace(cache.cargo())?;
        cache.claim(&graph)?;
        Ok(Self { checkout, cache, graph, quick })
    }

    fn run(&self) -> Tally {
        let checks = step("format", || self.check(&["fmt", "--all", "--check"]))
            + step("crate arrows", || self.check_arrows())
            + step("clippy, warnings denied", || self.check(CLIPPY))
            + step("licences, bans, sources, advisories", || self.check_supply_chain())
            + step("manifests", || manifests::run(self.checkout, false));
        let build = step("build", || self.check(&["build", "--workspace", "--all-targets"]));
        if build.failed > 0 {
            return checks + build;
        }
        checks
            + step("unit, property, snapshot and end-to-end tests", || self.run_tests())
            + step("documentation tests", || self.run_doc_tests())
    }

    fn check(&self, arguments: &[&str]) -> Result<Tally> {
        let status = self.cache.cargo().args(arguments).status().context("cannot start cargo")?;
        if !status.success() {
            bail!("`cargo {}` failed ({status})", arguments.join(" "));
        }
        Ok(Tally::default())
    }

    fn check_arrows(&self) -> Result<Tally> {
        let found = arrows::violations(&self.graph);
        if !found.is_empty() {
            bail!("the architecture forbids\n  {}", found.join("\n  "));
        }
        Ok(Tally::default())
    }

    fn check_supply_chain(&self) -> Result<Tally> {
        let path = supply::path_of_cargo_deny(self.checkout)?;
        let cargo = || {
            let mut cargo = self.cache.cargo();
            cargo.env("PATH", &path);
            cargo
        };
        supply::check(&cargo, ".deny.toml").map(|()| Tally::default())
    }

    fn run_tests(&self) -> Result<Tally> {
        let folder = self.graph.target_folder.join("debug");
        let mut command = self.cache.cargo();
        command
            .env("ORCHESTRATOR_BIN", folder.join("orchestrator"))
            .env("ORCHESTRATOR_EXECUTOR", folder.join("orchestrator-executor"))
            .args(test_arguments(self.has_subcommand("nextest"), self.quick));
        count(command)
    }

    fn run_doc_tests(&self) -> Result<Tally> {
        let mut command = self.cache.cargo();
        command.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
        count(command)
    }

    fn has_subcommand(&self, name: &str) -> bool {
        let probe = self.cache.cargo().args([name, "--version"]).output();
        probe.is_ok_and(|output| output.status.success())
    }
}

const CLIPPY: &[&str] = &["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"];

/// For cargo-nextest where it is there, else for the built-in harness.
fn test_arguments(nextest: bool, quick: bool) -> Vec<String> {
    let words = if nextest {
        "nextest run --workspace --no-fail-fast --no-tests=pass"
    } else {
        "test --workspace --lib --bins --tests --no-fail-fast"
    };
    let mut arguments: Vec<String> = words.split(' ').map(str::to_owned).collect();
    match (quick, nextest) {
        (false, _) => {}
        (true, true) => {
            let filter = format!("not test(/(^|::){SLOW_PREFIX}/)");
            arguments.extend(["--filterset".to_owned(), filter]);
        }
        (true, false) => {
            arguments.extend(["--".to_owned(), "--skip".to_owned(), SLOW_PREFIX.to_owned()]);
        }
    }
    arguments
}

/// Runs one step between its headline and its time. A step that fails without a failed test to
/// show for it (a lint, a compiler error) counts as one failure.
fn step(headline: &str, body: impl FnOnce() -> Result<Tally>) -> Tally {
    eprintln!("\n== {headline}");
    let start = Instant::now();
    let tally = body().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        Tally { passed: 0, failed: 1 }
    });
    let verdict = if tally.failed == 0 { "ok" } else { "FAILED" };
    eprintln!("== {headline}: {verdict}, {:.1} s", start.elapsed().as_secs_f64());
    tally
}

/// Runs a test runner, passes on what it prints, and counts.
fn count(command: Command) -> Result<Tally> {
    count_into(command, std::io::stdout(), std::io::stderr())
}

fn count_into(
    mut command: Command,
    output: impl Write,
    messages: impl Write + Send,
) -> Result<Tally> {
    if std::io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start cargo")?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let tally = thread::scope(|scope| {
        let stderr = scope.spawn(|| pass_on(stderr, messages));
        let stdout = pass_on(stdout, output);
        stdout + stderr.join().expect("passing on lines does not panic")
    });
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() && tally.failed == 0 {
        eprintln!("the runner ended with {status} and reported no failed test");
        return Ok(tally + Tally { passed: 0, failed: 1 });
    }
    Ok(tally)
}

fn pass_on(from: Option<impl Read>, mut to: impl Write) -> Tally {
    let Some(from) = from else { return Tally::default() };
    let mut tally = Tally::default();
    for line in BufReader::new(from).split(b'\n').map_while(std::io::Result::ok) {
        let line = String::from_utf8_lossy(&line);
        tally = tally + Tally::of_line(&line);
        // A reader that went away must not end the run; the exit code still tells.
        _ = writeln!(to, "{line}");
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without printing: a runner that runs these tests counts what it sees, too.
    fn quietly(command: Command) -> Tally {
        count_into(command, std::io::sink(), std::io::sink()).unwrap()
    }

    #[test]
    fn quick_leaves_out_slow_tests_with_either_runner() {
        assert!(test_arguments(true, true).contains(&"not test(/(^|::)slow_/)".to_owned()));
        assert!(test_arguments(false, true).ends_with(&["--skip".into(), "slow_".into()]));
        for nextest in [true, false] {
            assert!(!test_arguments(nextest, false).concat().contains(SLOW_PREFIX));
        }
    }

    #[test]
    fn a_runner_that_fails_without_a_count_is_one_failure() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; exit 101"]);
        assert_eq!(quietly(command), Tally { passed: 2, failed: 1 });
    }

    #[test]
    fn both_streams_are_counted() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "echo 'test result: ok. 2 passed; 0 failed'; \
            echo 'Summary [ 1s] 3 tests run: 3 passed, 0 skipped' >&2",
        ]);
        assert_eq!(quietly(command), Tally { passed: 5, failed: 0 });
    }

    #[test]
    fn a_failed_check_counts_once() {
        assert_eq!(step("x", || bail!("no")), Tally { passed: 0, failed: 1 });
    }
}
