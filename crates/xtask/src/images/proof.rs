//! What the images are proved to do: start as the manifests start them, register over TLS, evaluate,
//! drain, and write nowhere else.

use super::asks::Asker;
use super::container::{Container, Mount, Network, Spec};
use super::engine::{Built, Image};
use crate::checkout::Checkout;
use crate::manifests::{Shipped, shipped};
use crate::setup;
use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, chown};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Of the image's user and group.
const USER: u32 = 65532;
const SERVICE: &str = "orchestrator-coordinator";
/// Of `tests/data/README.md`, and how far off it may be.
const ACC1: f64 = 0.708_098;
const TOLERANCE: f64 = 1e-6;

pub(super) fn run(checkout: &Checkout, built: &Built, work: &Path) -> Result<()> {
    let shipped = shipped(checkout)?;
    let place = Place::prepare(checkout, work)?;
    let scene = Scene { network: Network::create()?, built, place, shipped };
    scene.is_locked_down()?;
    scene.make_certificates()?;
    let mut coordinator = scene.coordinator()?;
    let ready = coordinator.wait_for("coordinator ready")?;
    tell(&format!("coordinator ready after {} ms", ready.as_millis()));
    let mut first = scene.worker("worker-a", 17072)?;
    let mut second = scene.worker("worker-b", 27072)?;
    for worker in [&mut first, &mut second] {
        worker.wait_for(" ready: ")?;
    }
    tell("two workers registered over TLS");
    let asker = Asker {
        network: &scene.network,
        script: checkout.root().join("deploy/check/client.py"),
        python: setup::python_with_pip()?,
    };
    for (name, port) in [("coordinator", 7072), ("worker-a", 17072), ("worker-b", 27072)] {
        asker.probe(name, port)?;
    }
    tell("the probes of all three are answered SERVING");
    let certificates = scene.place.secret("client")?;
    asker.scrape(SERVICE, &certificates)?;
    tell("metrics are told over TLS with the client's certificate, and not without one");
    scene.doctor()?;
    let mut job = scene.submit("first")?;
    scene.judge(&mut job, "first")?;
    let mut job = scene.submit("second")?;
    asker.wait_for_units(SERVICE, &certificates, 2)?;
    let drained = first.stop(Signal::SIGTERM)?;
    tell(&format!("a worker with work drained on SIGTERM in {}, exit code 0", seconds(drained)));
    scene.judge(&mut job, "second")?;
    tell(&format!("the other worker drained in {}", seconds(second.stop(Signal::SIGTERM)?)));
    let stopped = coordinator.stop(Signal::SIGTERM)?;
    tell(&format!("the coordinator stopped on SIGTERM in {}, exit code 0", seconds(stopped)));
    Ok(())
}

fn tell(text: &str) {
    eprintln!("proved: {text}");
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Folders of this machine that stand for volumes.
struct Place {
    folder: PathBuf,
    data: PathBuf,
}

impl Place {
    fn prepare(checkout: &Checkout, work: &Path) -> Result<Self> {
        let folder = work.join("proof");
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(folder.join("logs"))
            .with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(folder.join("hosts"), format!("127.0.0.1 localhost {SERVICE}\n"))?;
        Ok(Self { folder, data: checkout.root().join("tests/data") })
    }

    /// An empty volume of the image's user.
    fn volume(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        own(&folder, USER)?;
        Ok(folder)
    }

    /// A secret as the kubelet mounts it: root's, readable by the pod's group.
    fn secret(&self, role: &str) -> Result<PathBuf> {
        let (from, to) =
            (self.folder.join("ca/certs").join(role), self.folder.join("tls").join(role));
        fs::create_dir_all(&to).with_context(|| format!("cannot make {}", to.display()))?;
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            let target = to.join(name);
            fs::copy(from.join(name), &target)
                .with_context(|| format!("`certs init` made no {role}/{name}"))?;
            own(&target, 0)?;
            fs::set_permissions(&target, Permissions::from_mode(0o440))?;
        }
        Ok(to)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join("logs").join(name)
    }
}

fn own(path: &Path, user: u32) -> Result<()> {
    chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(USER)))
        .with_context(|| format!("cannot give {} away", path.display()))
}

struct Scene<'a> {
    network: Network,
    built: &'a Built,
    place: Place,
    shipped: Shipped,
}

impl Scene<'_> {
    fn spec<'a>(&self, name: &'a str, image: &'a Image, mounts: Vec<Mount>) -> Spec<'a> {
        let mut all = vec![Mount::ReadOnly(self.place.folder.join("hosts"), "/etc/hosts".into())];
        all.extend(mounts);
        Spec {
            name,
            image,
            mounts: all,
            environment: Vec::new(),
            entry_point: None,
            arguments: Vec::new(),
        }
    }

    fn start(&self, spec: &Spec<'_>) -> Result<Container> {
        let log = self.place.log(spec.name);
        Container::start(&self.network, spec, &log)
    }

    fn data(&self) -> [Mount; 2] {
        [
            Mount::ReadOnly(self.place.data.clone(), "/data".into()),
            Mount::ReadOnly(self.place.data.join("models"), "/models".into()),
        ]
    }

    /// A shell in each image: who it is, and what it cannot write.
    fn is_locked_down(&self) -> Result<()> {
        for image in [&self.built.coordinator, &self.built.worker] {
            ensure!(image.config.stop_signal == "SIGTERM", "{}: no SIGTERM", image.name);
            let mut spec = self.spec("shell", image, Vec::new());
            let test = "[ $(id -u):$(id -g):$(id -G) = 65532:65532:65532 ] || exit 10; \
                        grep -q '^CapEff:\t0000000000000000$' /proc/self/status || exit 11; \
                        grep -q '^CapBnd:\t0000000000000000$' /proc/self/status || exit 12; \
                        [ $$ = 1 ] || exit 13; touch /tmp/x || exit 14; \
                        for folder in / /opt/orchestrator/bin /var/lib/orchestrator /etc; do \
                            if touch $folder/x 2> /dev/null; then exit 15; fi; \
                        done; exit 0";
            spec.entry_point = Some(vec!["/bin/sh".into(), "-c".into(), test.into()]);
            let mut shell = self.start(&spec)?;
            let status = shell.wait()?;
            ensure!(status.success(), "{}: {status}\n{}", image.name, shell.log());
        }
        tell("both run as 65532 and PID 1, without capabilities, on a read-only root");
        Ok(())
    }

    fn make_certificates(&self) -> Result<()> {
        let volume = Mount::Writable(self.place.volume("ca")?, "/var/lib/orchestrator".into());
        let mut spec = self.spec("certs", &self.built.coordinator, vec![volume]);
        let words = ["certs", "init", "/var/lib/orchestrator/certs", "--host", SERVICE];
        spec.arguments = words.map(str::to_owned).to_vec();
        let mut certs = self.start(&spec)?;
        let status = certs.wait()?;
        ensure!(status.success(), "`certs init` ended with {status}\n{}", certs.log());
        Ok(())
    }

    fn coordinator(&self) -> Result<Container> {
        let mounts = vec![
            Mount::Writable(self.place.volume("state")?, "/var/lib/orchestrator".into()),
            Mount::ReadOnly(self.place.secret("coordinator")?, "/etc/orchestrator/tls".into()),
        ];
        let mut spec = self.spec("coordinator", &self.built.coordinator, mounts);
        spec.arguments.clone_from(&self.shipped.coordinator);
        self.start(&spec)
    }

    /// Containers share one network here, so each needs a health port of its own.
    fn worker(&self, name: &str, health: u16) -> Result<Container> {
        let mut mounts = vec![
            Mount::Writable(self.place.volume(name)?, "/var/cache/orchestrator".into()),
            Mount::ReadOnly(self.place.secret("worker")?, "/etc/orchestrator/tls".into()),
        ];
        mounts.extend(self.data());
        let mut spec = self.spec(name, &self.built.worker, mounts);
        spec.environment = vec![("ORCHESTRATOR_NAME".into(), name.into())];
        let arguments = self.shipped.worker.iter();
        spec.arguments =
            arguments.map(|word| word.replace(":7072", &format!(":{health}"))).collect();
        self.start(&spec)
    }

    /// As `kubectl exec` in a worker's pod.
    fn doctor(&self) -> Result<()> {
        let mounts = vec![
            Mount::Writable(self.place.volume("doctor")?, "/var/cache/orchestrator".into()),
            Mount::ReadOnly(self.place.secret("worker")?, "/etc/orchestrator/tls".into()),
        ];
        let mut spec = self.spec("doctor", &self.built.worker, mounts);
        spec.arguments = vec!["doctor".into(), "--tls=/etc/orchestrator/tls".into()];
        let mut doctor = self.start(&spec)?;
        let status = doctor.wait()?;
        ensure!(status.success(), "`doctor` ended with {status}\n{}", doctor.log());
        ensure!(doctor.log().contains("no problems"), "`doctor` finds problems\n{}", doctor.log());
        tell("`doctor` finds no problem in the worker's image");
        Ok(())
    }

    fn submit(&self, name: &str) -> Result<Container> {
        let evaluation = self.place.folder.join("evaluation");
        fs::create_dir_all(&evaluation)?;
        fs::write(evaluation.join("eval.yaml"), &self.shipped.evaluation)?;
        let mut mounts = vec![
            Mount::ReadOnly(evaluation, "/etc/orchestrator/evaluation".into()),
            Mount::Writable(self.place.volume(&format!("results-{name}"))?, "/results".into()),
            Mount::Writable(self.place.volume("client-cache")?, "/var/cache/orchestrator".into()),
            Mount::ReadOnly(self.place.secret("client")?, "/etc/orchestrator/tls".into()),
        ];
        mounts.extend(self.data());
        let mut spec = self.spec("submit", &self.built.coordinator, mounts);
        spec.arguments.clone_from(&self.shipped.submit);
        self.start(&spec)
    }

    /// The exit code and the number of an evaluation.
    fn judge(&self, job: &mut Container, name: &str) -> Result<()> {
        let status = job.wait()?;
        ensure!(status.success(), "the evaluation ended with {status}\n{}", job.log());
        let results = self.place.folder.join(format!("results-{name}"));
        let mut runs = fs::read_dir(&results)?;
        let run = runs.next().with_context(|| format!("no run in {}", results.display()))??;
        let report = fs::read_to_string(run.path().join("report.json"))?;
        let report: Value = serde_json::from_str(&report)?;
        let acc1 = report.pointer("/trials/0/tasks/0/metrics/acc1").and_then(Value::as_f64);
        let acc1 = acc1.context("the report has no acc1")?;
        if (acc1 - ACC1).abs() > TOLERANCE {
            bail!("acc1 is {acc1}, and should be {ACC1}");
        }
        tell(&format!("the {name} evaluation ended with exit code 0 and acc1 {acc1:.6}"));
        Ok(())
    }
}
