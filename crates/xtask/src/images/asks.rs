//! What a kubelet and a Prometheus would ask of the running containers.

use super::container::Network;
use anyhow::{Result, bail, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LEASED: &str = "orchestrator_units{state=\"leased\"}";
const PATIENCE: Duration = Duration::from_mins(2);

/// Who asks, from inside the containers' network.
pub(super) struct Asker<'a> {
    pub(super) network: &'a Network,
    pub(super) script: PathBuf,
    pub(super) python: &'static str,
}

impl Asker<'_> {
    /// As the manifests' probes do.
    pub(super) fn probe(&self, name: &str, port: u16) -> Result<()> {
        for service in ["liveness", "readiness"] {
            let said = self.ask(&["probe".as_ref(), port.to_string().as_ref(), service.as_ref()]);
            let said = said.map_err(|said| anyhow::anyhow!("{said}"))?;
            ensure!(said.trim() == "SERVING", "{name}: {service} is {said}");
        }
        Ok(())
    }

    /// As the ServiceMonitor does; and without a certificate, which must not be answered.
    pub(super) fn scrape(&self, host: &str, certificates: &Path) -> Result<()> {
        let with =
            |folder: &OsStr| self.ask(&["scrape".as_ref(), host.as_ref(), "7071".as_ref(), folder]);
        match with(certificates.as_os_str()) {
            Ok(text) if text.contains("orchestrator_sessions 2\n") => {}
            Ok(text) | Err(text) => bail!("metrics do not tell of two workers:\n{text}"),
        }
        if let Ok(text) = with("-".as_ref()) {
            bail!("metrics are told without a certificate:\n{text}");
        }
        Ok(())
    }

    /// Waits until the coordinator tells of so many units in work.
    pub(super) fn wait_for_units(&self, host: &str, certificates: &Path, count: u32) -> Result<()> {
        let wanted = |text: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(LEASED)).map(str::trim);
            line.and_then(|number| number.parse::<u32>().ok()).is_some_and(|found| found >= count)
        };
        let start = Instant::now();
        loop {
            let folder = certificates.as_os_str();
            match self.ask(&["scrape".as_ref(), host.as_ref(), "7071".as_ref(), folder]) {
                Ok(text) if wanted(&text) => return Ok(()),
                Ok(text) if start.elapsed() > PATIENCE => bail!("no work is under way:\n{text}"),
                Err(text) => bail!("{text}"),
                Ok(_) => {}
            }
        }
    }

    /// What the script prints, or why it failed.
    fn ask(&self, words: &[&OsStr]) -> Result<String, String> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.network.name(), self.python]).arg(&self.script);
        let output = command.args(words).output().map_err(|error| error.to_string())?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}
