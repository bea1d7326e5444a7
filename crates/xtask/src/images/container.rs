//! One container without an engine: namespaces of its own, a read-only root, the image's user, no
//! capabilities, and the few writable folders that its manifest mounts. Its process is PID 1.

use super::engine::Image;
use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything here may take; far beyond what it takes.
const PATIENCE: Duration = Duration::from_mins(5);

/// A network of loopback alone, which containers share as if they stood in one pod.
pub(super) struct Network {
    name: String,
}

impl Network {
    pub(super) fn create() -> Result<Self> {
        let name = format!("orchestrator-images-{}", std::process::id());
        super::engine::succeed(Command::new("ip").args(["netns", "add", &name]))?;
        let network = Self { name };
        let mut up = Command::new("ip");
        up.args(["-n", &network.name, "link", "set", "lo", "up"]);
        super::engine::succeed(&mut up)?;
        Ok(network)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

/// What is mounted where.
pub(super) enum Mount {
    /// A folder or file of this machine, not writable.
    ReadOnly(PathBuf, String),
    /// A folder of this machine that belongs to the image's user.
    Writable(PathBuf, String),
}

/// How a container is to run.
pub(super) struct Spec<'a> {
    pub(super) name: &'a str,
    pub(super) image: &'a Image,
    pub(super) mounts: Vec<Mount>,
    pub(super) environment: Vec<(String, String)>,
    /// In place of the image's entry point, if any.
    pub(super) entry_point: Option<Vec<String>>,
    pub(super) arguments: Vec<String>,
}

pub(super) struct Container {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Container {
    /// Starts it; both of its streams go to `log`.
    pub(super) fn start(network: &Network, spec: &Spec<'_>, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let script = script(spec)?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.name]);
        command.args(["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]);
        command.args(["sh", "-euc", &script]);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().context("cannot start ip")?;
        Ok(Self { name: spec.name.to_owned(), child, log: log.to_path_buf() })
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until its log holds `text`.
    pub(super) fn wait_for(&mut self, text: &str) -> Result<Duration> {
        let start = Instant::now();
        while !self.log().contains(text) {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended ({status})\n{}", self.name, self.log());
            }
            if start.elapsed() > PATIENCE {
                bail!("{} did not say `{text}`\n{}", self.name, self.log());
            }
            sleep(Duration::from_millis(5));
        }
        Ok(start.elapsed())
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > PATIENCE {
                bail!("{} does not end\n{}", self.name, self.log());
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// The signal that the image asks for, to its first process, as an engine sends it. Returns how
    /// long it took to end; the exit code must be 0.
    pub(super) fn stop(mut self, signal: Signal) -> Result<Duration> {
        let start = Instant::now();
        kill(self.first_process()?, signal)
            .with_context(|| format!("cannot stop {}", self.name))?;
        let status = self.wait()?;
        if !status.success() {
            bail!("{} ended with {status} after {signal}\n{}", self.name, self.log());
        }
        Ok(start.elapsed())
    }

    /// PID 1 of the container is the only child of `unshare`.
    fn first_process(&self) -> Result<Pid> {
        let id = self.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.with_context(|| format!("{} is gone", self.name))?;
        let pid = children.split_whitespace().next().and_then(|word| word.parse().ok());
        pid.map(Pid::from_raw).with_context(|| format!("{} has no process", self.name))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Mounts, then gives up everything that a container does not get, and becomes its process.
fn script(spec: &Spec<'_>) -> Result<String> {
    let root = quoted(&spec.image.root.display().to_string());
    let mut lines = format!("mount --bind {root} {root}\nmount -t proc proc {root}/proc\n");
    let mut line = |text: String| writeln!(lines, "{text}").expect("strings take text");
    line(format!("mount --rbind /dev {root}/dev"));
    line(format!("mount -t tmpfs -o mode=1777,size=256m tmp {root}/tmp"));
    for mount in &spec.mounts {
        let (Mount::ReadOnly(from, to) | Mount::Writable(from, to)) = mount;
        mount_point(from, &spec.image.root.join(to.trim_start_matches('/')))?;
        let (from, to) = (quoted(&from.display().to_string()), quoted(to));
        line(format!("mount --bind {from} {root}{to}"));
        if matches!(mount, Mount::ReadOnly(..)) {
            line(format!("mount -o remount,bind,ro {root}{to}"));
        }
    }
    line(format!("mount -o remount,bind,ro {root}"));
    let (user, group) = spec.image.config.user.split_once(':').context("the image has a user")?;
    let variables = spec.image.config.environment.iter().cloned();
    let more = spec.environment.iter().map(|(name, value)| format!("{name}={value}"));
    let entry_point = spec.entry_point.as_ref().unwrap_or(&spec.image.config.entry_point);
    let words: Vec<String> = variables
        .chain(more)
        .chain(["setpriv".into(), format!("--reuid={user}"), format!("--regid={group}")])
        .chain(["--clear-groups".into(), "--bounding-set=-all".into(), "--inh-caps=-all".into()])
        .chain(["--no-new-privs".into()])
        .chain(entry_point.iter().cloned())
        .chain(spec.arguments.iter().cloned())
        .map(|word| quoted(&word))
        .collect();
    line(format!("exec chroot {root} /usr/bin/env --ignore-environment {}", words.join(" ")));
    Ok(lines)
}

/// Engines make what a mount needs in the image.
fn mount_point(from: &Path, to: &Path) -> Result<()> {
    let made = if from.is_dir() {
        fs::create_dir_all(to)
    } else if to.exists() {
        Ok(())
    } else {
        fs::create_dir_all(to.parent().unwrap_or(to)).and_then(|()| File::create(to).map(drop))
    };
    made.with_context(|| format!("cannot make {}", to.display()))
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_shell_as_they_are() {
        assert_eq!(quoted("--grace=60 s"), "'--grace=60 s'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
