//! The renderers and validators: Python packages with pinned digests, in the cache.

use crate::checkout::Checkout;
use crate::{packages, setup};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

/// Oldest Python that the pinned packages take.
const PYTHON: (u32, u32) = (3, 11);

/// Objects of a folder of Kustomize, or of a values file.
type Objects = BTreeMap<String, Vec<Value>>;

/// What the adapter rendered.
#[derive(Deserialize)]
pub(super) struct Rendered {
    pub(super) kustomize: Objects,
    pub(super) helm: Objects,
    pub(super) examples: Objects,
    /// Wrong values, and Helm's message; none if they were taken.
    pub(super) refused: BTreeMap<String, Option<String>>,
    lint: Lint,
}

#[derive(Deserialize)]
struct Lint {
    messages: Vec<LintMessage>,
}

#[derive(Deserialize)]
struct LintMessage {
    /// Helm's scale: 1 tells, 2 warns, 3 is an error.
    severity: u32,
    path: String,
    error: String,
}

impl Rendered {
    /// What is applied together.
    pub(super) fn sets(&self) -> impl Iterator<Item = (String, &[Value])> {
        let named = |tool: &'static str| {
            move |(name, set): (&String, _)| -> (String, &[Value]) {
                (format!("{tool}/{name}"), set)
            }
        };
        let kustomize = self.kustomize.iter().map(|(name, set)| (name, &set[..]));
        let helm = self.helm.iter().map(|(name, set)| (name, &set[..]));
        kustomize.map(named("overlays")).chain(helm.map(named("values")))
    }

    pub(super) fn lint_problems(&self) -> Vec<String> {
        let serious = self.lint.messages.iter().filter(|message| message.severity > 1);
        serious.map(|message| format!("helm lint: {}: {}", message.path, message.error)).collect()
    }
}

pub(super) struct Tools {
    python: &'static str,
    packages: PathBuf,
    deploy: PathBuf,
}

impl Tools {
    /// Installs the pinned packages into the cache, unless they are there.
    pub(super) fn prepare(checkout: &Checkout) -> Result<Self> {
        let deploy = checkout.root().join("deploy");
        let python = setup::python_with_pip()?;
        let version = python_version(python)?;
        if version < PYTHON {
            bail!(
                "the manifests' validators need Python {}.{}; {python} is {}.{}",
                PYTHON.0,
                PYTHON.1,
                version.0,
                version.1
            );
        }
        let name = format!("manifests-python{}.{}", version.0, version.1);
        let packages = packages::install(python, &name, &deploy.join("check/requirements.txt"))?;
        Ok(Self { python, packages, deploy })
    }

    /// A program that a package brought.
    pub(super) fn program(&self, name: &str) -> Command {
        Command::new(self.packages.join("bin").join(name))
    }

    /// A module that a package brought, as a command.
    pub(super) fn module(&self, name: &str) -> Command {
        let mut command = self.python();
        command.args(["-m", name]);
        command
    }

    fn python(&self) -> Command {
        let mut command = Command::new(self.python);
        command.env("PYTHONPATH", &self.packages).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn adapter(&self) -> Command {
        let mut command = self.python();
        command.arg(self.deploy.join("check/adapter.py"));
        command
    }

    pub(super) fn render(&self) -> Result<Rendered> {
        let mut command = self.adapter();
        command.arg("render").arg(self.packages.join("bin/kubectl"));
        command.arg(self.deploy.join("kubernetes")).arg(self.deploy.join("helm/orchestrator"));
        let said = output(&mut command, "")?;
        serde_json::from_str(&said).context("the adapter's answer is not what it should be")
    }

    /// The errors of each object.
    pub(super) fn validate(
        &self,
        versions: &[&str],
        objects: &[&Value],
    ) -> Result<Vec<Vec<String>>> {
        let asked = serde_json::to_string(objects).context("objects are JSON")?;
        let said = output(self.adapter().arg("validate").args(versions), &asked)?;
        let errors: Vec<Vec<String>> =
            serde_json::from_str(&said).context("the adapter's answer is not what it should be")?;
        if errors.len() != objects.len() {
            bail!("{} objects were given and {} answered", objects.len(), errors.len());
        }
        Ok(errors)
    }
}

/// What a command prints on stdout, given `input`; stderr is the user's.
pub(super) fn output(command: &mut Command, input: &str) -> Result<String> {
    let program = command.get_program().display().to_string();
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {program}"))?;
    let mut stdin = child.stdin.take().context("stdin is a pipe")?;
    let output = thread::scope(|scope| {
        // A child that ends early closes its end; its status tells why.
        scope.spawn(move || _ = stdin.write_all(input.as_bytes()));
        child.wait_with_output()
    });
    let output = output.with_context(|| format!("cannot wait for {program}"))?;
    if !output.status.success() {
        bail!("{program} failed ({}); its own message is above", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{program} printed no text"))
}

fn python_version(python: &str) -> Result<(u32, u32)> {
    let script = "import sys; print(*sys.version_info[:2])";
    let said = output(Command::new(python).args(["-c", script]), "")?;
    let numbers: Vec<u32> = said.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let [major, minor] = numbers[..] else { bail!("{python} does not tell its version") };
    Ok((major, minor))
}
