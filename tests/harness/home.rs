//! A user's machine: empty home, empty cache, and the two binaries.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::binary;

/// A home folder of its own. Everything that the product keeps lands inside.
pub struct Home {
    folder: TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; none after a signal.
    pub code: Option<i32>,
    /// What a script would read.
    pub stdout: String,
    /// What a person would read.
    pub stderr: String,
}

impl Default for Home {
    fn default() -> Self {
        Self { folder: TempDir::with_prefix("orchestrator-test-").unwrap() }
    }
}

impl Home {
    /// The folder; also the working directory of every command.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file into the home and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// `orchestrator` with these arguments, ready to start.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary("ORCHESTRATOR_BIN", "orchestrator"));
        command
            .args(arguments)
            .current_dir(self.path())
            .env("HOME", self.path())
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env("XDG_CACHE_HOME", self.path().join("cache"))
            .env("ORCHESTRATOR_EXECUTOR", binary("ORCHESTRATOR_EXECUTOR", "orchestrator-executor"))
            .env("TZ", "UTC")
            .env_remove("ORCHESTRATOR_LOG")
            .env_remove("ORCHESTRATOR_COORDINATOR")
            .stdin(Stdio::null());
        command
    }

    /// Runs `orchestrator` to its end.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(self.command(arguments).output().unwrap())
    }

    /// Starts `orchestrator` and returns at once.
    pub fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Submits an evaluation with `--json` and returns the document, expecting this exit code.
    pub fn submit(&self, evaluation: &Path, arguments: &[&str], code: i32) -> Value {
        let path = evaluation.to_str().unwrap();
        let outcome = self.run(&[&["submit", path, "--json"], arguments].concat());
        assert_eq!(outcome.code, Some(code), "{outcome:#?}");
        serde_json::from_str(&outcome.stdout).unwrap()
    }
}

impl Outcome {
    /// The end of a finished process.
    pub fn of(output: std::process::Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Ids of the living children of a process.
pub fn child_processes(parent: u32) -> Vec<i32> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(id) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        // A process may end while we look.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        if fields.first() != Some(&"Z") && fields.get(1) == Some(&parent.to_string().as_str()) {
            children.push(id);
        }
    }
    children
}
