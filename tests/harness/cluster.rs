//! A cluster of real processes on this machine: one coordinator, any number of workers with their
//! executors, and clients.
//!
//! Everything is started by name, can be killed, stopped and continued at any moment, and is gone
//! when the [`Cluster`] is dropped. What the services wrote is shown when a test fails.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    io::{Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use crate::{History, Home, Lease, Outcome, child_processes, data, hosts::Network};

/// Longest that a service may take to be ready; a debug build on a busy machine takes seconds.
const READY: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(20);
/// Its service, and its host if there are several.
const COORDINATOR: &str = "coordinator";

/// How a cluster is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Silence after which a worker is lost, as `--lease` takes it.
    pub lease: String,
    /// How often workers report, as `--heartbeat` takes it.
    pub heartbeat: String,
    /// More arguments of the coordinator.
    pub coordinator: Vec<String>,
    /// More arguments of every worker.
    pub worker: Vec<String>,
    /// Whether everybody has certificates, from the folder `certs` of the home.
    pub certified: bool,
    /// More variables of the coordinator and of every worker.
    pub environment: Vec<(String, String)>,
}

impl Default for Setup {
    /// A lease of 2 s with a heartbeat of 200 ms, so that a loss is found while a test waits.
    fn default() -> Self {
        Self {
            lease: "2 s".to_owned(),
            heartbeat: "200 ms".to_owned(),
            coordinator: Vec::new(),
            worker: Vec::new(),
            certified: false,
            environment: Vec::new(),
        }
    }
}

/// A running service.
struct Service {
    child: Child,
    log: PathBuf,
    /// Where the log of this life begins.
    begin: usize,
}

/// See the module's documentation.
pub struct Cluster {
    home: Home,
    setup: Setup,
    /// The coordinator's addresses, the same over its restarts.
    grpc: String,
    http: String,
    /// Where workers look for the coordinator, if not at its own address.
    route: Option<String>,
    /// The hosts; else everything is on this one.
    network: Option<Network>,
    coordinator: Option<Service>,
    workers: BTreeMap<String, Service>,
}

impl Cluster {
    /// A coordinator that is ready, and no worker.
    pub fn start(setup: Setup) -> Self {
        let mut cluster = Self::prepare(setup);
        cluster.start_coordinator();
        cluster
    }

    /// Nobody yet.
    pub fn prepare(setup: Setup) -> Self {
        let any = "127.0.0.1:0".to_owned();
        let home = Home::default();
        if setup.certified {
            let made = home.run(&["certs", "init"]);
            assert_eq!(made.code, Some(0), "{made:#?}");
        }
        Self {
            home,
            setup,
            grpc: any.clone(),
            http: any,
            route: None,
            network: None,
            coordinator: None,
            workers: BTreeMap::new(),
        }
    }

    /// Nobody yet; the coordinator and clients will be on the host `coordinator`, and every worker
    /// on the host of its own name.
    pub fn prepare_on(network: Network, setup: Setup) -> Self {
        let grpc = format!("{}:0", network.address(COORDINATOR));
        let mut cluster = Self::prepare(setup);
        (cluster.grpc, cluster.network) = (grpc, Some(network));
        cluster
    }

    /// Workers that start from now on look for the coordinator at this URL.
    pub fn route_workers(&mut self, url: String) {
        self.route = Some(url);
    }

    /// The hosts.
    pub const fn network(&self) -> &Network {
        self.network.as_ref().expect("everything is on one host")
    }

    /// `host:port` of the coordinator.
    pub fn grpc(&self) -> &str {
        &self.grpc
    }

    /// The folder that clients work in, and everything that is kept.
    pub const fn home(&self) -> &Home {
        &self.home
    }

    /// The coordinator's URL.
    pub fn url(&self) -> String {
        let scheme = if self.setup.certified { "https" } else { "http" };
        format!("{scheme}://{}", self.grpc)
    }

    /// Arguments with which somebody of this role shows a certificate.
    fn certificate(&self, role: &str) -> Vec<String> {
        let folder = self.home.path().join("certs").join(role).display().to_string();
        if self.setup.certified { vec!["--tls".to_owned(), folder] } else { Vec::new() }
    }

    /// `host:port` of the coordinator's HTTP.
    pub fn http(&self) -> &str {
        &self.http
    }

    /// The coordinator's state folder.
    pub fn state(&self) -> PathBuf {
        self.home.path().join("coordinator")
    }

    /// Starts the coordinator, again on the addresses that it had, and waits until it is ready.
    pub fn start_coordinator(&mut self) {
        assert!(self.coordinator.is_none(), "there is a coordinator already");
        let state = self.state();
        let own = [
            ["--listen", &self.grpc],
            ["--http", &self.http],
            ["--state", state.to_str().unwrap()],
            ["--lease", &self.setup.lease],
            ["--heartbeat", &self.setup.heartbeat],
        ];
        let mut command = self.home.command(&[COORDINATOR]);
        command.args(own.as_flattened()).args(&self.setup.coordinator);
        command.args(self.certificate(COORDINATOR));
        let service = self.service(command, COORDINATOR);
        let ready = service.line("coordinator ready: ");
        let mut addresses = ready.split("://").skip(1).map(|rest| {
            let end = rest.find(|c: char| c == ',' || c.is_whitespace()).unwrap_or(rest.len());
            rest[..end].to_owned()
        });
        self.grpc = addresses.next().unwrap();
        self.http = addresses.next().unwrap();
        self.coordinator = Some(service);
    }

    /// Starts a worker with one slice of the processor and waits until it is registered. It may
    /// read the home and `tests/data`.
    pub fn start_worker(&mut self, name: &str) {
        self.start_worker_with(name, &[]);
    }

    /// As [`Cluster::start_worker`], with more arguments.
    pub fn start_worker_with(&mut self, name: &str, arguments: &[&str]) {
        let roots =
            [format!("home={}", self.home.path().display()), format!("data={}", data().display())];
        let roots = [["--data-root", &roots[0]], ["--data-root", &roots[1]]];
        self.start_bare_worker(name, &[roots.as_flattened(), arguments].concat());
    }

    /// A worker with these arguments and no data root.
    pub fn start_bare_worker(&mut self, name: &str, arguments: &[&str]) {
        let service = self.launch_worker(name, arguments);
        service.line("ready: ");
        self.workers.insert(name.to_owned(), service);
    }

    fn launch_worker(&self, name: &str, arguments: &[&str]) -> Service {
        assert!(!self.workers.contains_key(name), "there is a worker {name} already");
        let url = self.route.clone().unwrap_or_else(|| self.url());
        let own = [["--coordinator", &url], ["--name", name], ["--device", "cpu"]];
        let mut command = self.home.command(&["worker"]);
        command.args(own.as_flattened()).args(&self.setup.worker).args(arguments);
        if !arguments.contains(&"--tls") {
            command.args(self.certificate("worker"));
        }
        self.service(command, name)
    }

    /// The same command on its host.
    fn on(&self, host: &str, command: Command) -> Command {
        self.network.as_ref().map(|network| network.on(host, &command)).unwrap_or(command)
    }

    fn service(&self, command: Command, name: &str) -> Service {
        let mut command = self.on(name, command);
        let log = self.home.path().join(format!("{name}.log"));
        // One file over all lives; a new life is looked for behind the end of the last one.
        let begin = fs::read(&log).map_or(0, |log| log.len());
        let file = OpenOptions::new().create(true).append(true).open(&log).unwrap();
        command.envs(self.setup.environment.iter().cloned());
        let child = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Service { child, log, begin }
    }

    /// Process id of the coordinator.
    pub fn coordinator_pid(&self) -> i32 {
        self.coordinator.as_ref().expect("there is no coordinator").pid()
    }

    /// Process id of a worker's agent.
    pub fn worker_pid(&self, name: &str) -> i32 {
        self.worker(name).pid()
    }

    /// Process ids of a worker's executors.
    pub fn executors(&self, name: &str) -> Vec<i32> {
        child_processes(self.worker(name).child.id())
    }

    /// Starts a worker of which nobody knows yet whether it comes up. Ends with [`Cluster::let_be_ready`].
    pub fn begin_worker(&mut self, name: &str, arguments: &[&str]) {
        let service = self.launch_worker(name, arguments);
        self.workers.insert(name.to_owned(), service);
    }

    /// Waits until a worker that was begun is registered.
    pub fn let_be_ready(&self, name: &str) {
        self.worker(name).line("ready: ");
    }

    /// Where a service that has `--health` tells it.
    pub fn health(&self, name: &str) -> String {
        let service = self.workers.get(name).or(self.coordinator.as_ref()).unwrap();
        let line = service.line("health on ");
        line.trim_start_matches("health on ").to_owned()
    }

    /// Asks a worker to leave (SIGTERM) and does not wait.
    pub fn ask_worker_to_leave(&self, name: &str) {
        assert!(signal(self.worker_pid(name), Signal::SIGTERM));
    }

    /// Waits for the end of a worker that is on its way; its exit code.
    pub fn worker_left(&mut self, name: &str) -> Option<i32> {
        self.workers.remove(name).expect("there is no such worker").child.wait().unwrap().code()
    }

    fn worker(&self, name: &str) -> &Service {
        self.workers.get(name).unwrap_or_else(|| panic!("there is no worker {name}"))
    }

    /// Kills the coordinator (-9).
    pub fn kill_coordinator(&mut self) {
        self.coordinator.take().expect("there is no coordinator").end(Signal::SIGKILL);
    }

    /// Asks the coordinator to stop (SIGTERM) and waits for its end; its exit code.
    pub fn terminate_coordinator(&mut self) -> Option<i32> {
        self.coordinator.take().expect("there is no coordinator").end(Signal::SIGTERM)
    }

    /// Kills a worker's agent (-9). Its executors find out by themselves.
    pub fn kill_worker(&mut self, name: &str) {
        self.workers.remove(name).expect("there is no such worker").end(Signal::SIGKILL);
    }

    /// Asks a worker to leave (SIGTERM) and waits for its end; its exit code.
    pub fn terminate_worker(&mut self, name: &str) -> Option<i32> {
        self.workers.remove(name).expect("there is no such worker").end(Signal::SIGTERM)
    }

    /// Kills a worker's executors (-9); how many.
    pub fn kill_executors(&self, name: &str) -> usize {
        let executors = self.executors(name);
        executors.iter().filter(|pid| signal(**pid, Signal::SIGKILL)).count()
    }

    /// Stops the coordinator in mid-air (SIGSTOP); [`go_on`] continues it.
    pub fn pause_coordinator(&self) {
        assert!(signal(self.coordinator_pid(), Signal::SIGSTOP));
    }

    /// Stops a worker's agent in mid-air (SIGSTOP); its executors go on. [`go_on`] continues it.
    pub fn pause_worker(&self, name: &str) {
        assert!(signal(self.worker_pid(name), Signal::SIGSTOP));
    }

    /// A count of the coordinator, by its name with its labels, as `/metrics` tells it.
    pub fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("no metric {name} in\n{answer}"));
        value.trim().parse().unwrap()
    }

    /// Everything that a service wrote to its standard error, over all of its lives.
    pub fn log(&self, name: &str) -> String {
        fs::read_to_string(self.home.path().join(format!("{name}.log"))).unwrap_or_default()
    }

    /// Arguments of a client: these, and the coordinator.
    fn client_arguments<'a>(url: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
        [arguments, &["--coordinator", url]].concat()
    }

    fn client_command(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.command(&Self::client_arguments(&self.url(), arguments));
        if !arguments.contains(&"--tls") {
            command.args(self.certificate("client"));
        }
        self.on(COORDINATOR, command)
    }

    /// Runs a client verb to its end.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        Outcome::of(self.client_command(arguments).output().unwrap())
    }

    /// Starts a client verb and returns at once.
    pub fn client(&self, arguments: &[&str]) -> Child {
        let mut command = self.client_command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Starts `submit --json`; end it with [`document`].
    pub fn submit(&self, evaluation: &Path, arguments: &[&str]) -> Child {
        let path = evaluation.to_str().unwrap();
        self.client(&[&["submit", path, "--json"], arguments].concat())
    }

    /// What a client verb with `--json` prints; it must end well.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let outcome = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(outcome.code, Some(0), "{outcome:#?}");
        serde_json::from_str(&outcome.stdout).unwrap()
    }

    /// What has happened in the newest run; nothing while there is none.
    pub fn history(&self) -> History {
        History::parse(&self.run(&["logs", "last", "--json"]).stdout)
    }

    /// Waits until the newest run's history is one of which `reached` holds.
    pub fn wait_for_history(&self, what: &str, reached: impl Fn(&History) -> bool) -> History {
        let mut last = History::parse("");
        wait_until(what, || {
            last = self.history();
            reached(&last)
        });
        last
    }

    /// Waits until some worker encodes images; its name.
    pub fn wait_for_an_encoder(&self) -> String {
        let mut worker = None;
        self.wait_for_status("an attempt that encodes images", |status| {
            assert_ne!(status["state"], "complete", "the run ended before it was disturbed");
            let attempts = status["attempts"].as_array().unwrap();
            let encodes = attempts.iter().filter(|attempt| attempt["component"] == "vision");
            let slices = encodes.filter_map(|attempt| attempt["slice"].as_str()?.rsplit_once('.'));
            // One that died may still be expected back.
            let mut nodes = slices.map(|(node, _)| node.to_owned());
            worker = nodes.find(|node| self.workers.contains_key(node));
            worker.is_some()
        });
        worker.unwrap()
    }

    /// Kills (-9) executors, agents and coordinator at once; how many processes.
    pub fn kill_everything(&mut self) -> usize {
        let names: Vec<String> = self.workers.keys().cloned().collect();
        let mut pids: Vec<i32> = names.iter().flat_map(|name| self.executors(name)).collect();
        pids.extend(names.iter().map(|name| self.worker_pid(name)));
        pids.push(self.coordinator_pid());
        let killed = pids.iter().filter(|pid| signal(**pid, Signal::SIGKILL)).count();
        for name in names {
            self.kill_worker(&name);
        }
        self.kill_coordinator();
        killed
    }

    /// Stops (SIGSTOP) the executors of a worker while one of them encodes images, and returns that
    /// attempt. [`Cluster::continue_executors`]
    /// ends it.
    pub fn freeze_encoding(&self, worker: &str) -> Lease {
        let slice = |lease: &Lease| lease.slice.starts_with(&format!("{worker}."));
        let mut unit = None;
        self.wait_for_status("an attempt that encodes images", |status| {
            assert_ne!(status["state"], "complete", "the run ended before it was disturbed");
            let attempts = status["attempts"].as_array().unwrap();
            let encodes = attempts.iter().find(|attempt| {
                let there = attempt["slice"].as_str().unwrap();
                attempt["component"] == "vision" && there.starts_with(&format!("{worker}."))
            });
            unit = encodes.map(|attempt| attempt["unit"].as_u64().unwrap());
            unit.is_some()
        });
        self.freeze_executors(worker);
        let open = self.history().open();
        let found = open.iter().find(|lease| Some(lease.unit) == unit && slice(lease));
        found.unwrap_or_else(|| panic!("unit {unit:?} is not open any more: {open:?}")).clone()
    }

    /// Stops (SIGSTOP) the executors of a worker: what they have stays open.
    pub fn freeze_executors(&self, worker: &str) {
        for executor in self.executors(worker) {
            signal(executor, Signal::SIGSTOP);
        }
    }

    /// Continues executors that were stopped.
    pub fn continue_executors(&self, worker: &str) {
        self.executors(worker).into_iter().for_each(go_on);
    }

    /// Blobs in the coordinator's folder, by name.
    pub fn blobs(&self) -> BTreeSet<String> {
        let root = self.state().join("blobs");
        let names = |folder: PathBuf| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().into_string().unwrap())
        };
        let parts = names(root.clone()).filter(|part| part != "staging");
        parts.flat_map(|part| names(root.join(part))).collect()
    }

    /// Waits until the newest run is one of which `reached` holds, as `status --json` tells it.
    pub fn wait_for_status(&self, what: &str, mut reached: impl FnMut(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        wait_until(what, || {
            let outcome = self.run(&["status", "last", "--json"]);
            if outcome.code != Some(0) {
                return false;
            }
            last = serde_json::from_str(&outcome.stdout).unwrap();
            reached(&last)
        });
        last
    }

    /// Waits until the newest run has a committed image shard and open ones: the middle of a run.
    pub fn wait_for_the_middle(&self) -> Value {
        self.wait_for_status("the middle of a run", |status| {
            let vision = &status["components"]["vision"];
            let (committed, units) = (vision["committed"].as_u64(), vision["units"].as_u64());
            assert_ne!(status["state"], "complete", "the run ended before it was disturbed");
            committed >= Some(1) && committed < units
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let names: Vec<String> = self.workers.keys().cloned().collect();
        let executors: Vec<i32> = names.iter().flat_map(|name| self.executors(name)).collect();
        let services = std::mem::take(&mut self.workers).into_values();
        for service in services.chain(self.coordinator.take()) {
            service.end(Signal::SIGKILL);
        }
        for executor in executors {
            signal(executor, Signal::SIGKILL);
        }
        if thread::panicking() {
            for name in names.into_iter().chain(["coordinator".to_owned()]) {
                eprintln!("--- log of {name}\n{}", self.log(&name));
            }
        }
    }
}

impl Service {
    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Waits for a line of the log that contains `text`; fails the test if the service ends first.
    fn line(&self, text: &str) -> String {
        let deadline = Instant::now() + READY;
        loop {
            let log = fs::read(&self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log[self.begin.min(log.len())..]).into_owned();
            if let Some(line) = log.split_inclusive('\n').find(|line| line.contains(text))
                && line.ends_with('\n')
            {
                return line.trim_end().to_owned();
            }
            assert!(is_alive(self.pid()), "the service ended before it said `{text}`:\n{log}");
            assert!(Instant::now() < deadline, "the service did not say `{text}`:\n{log}");
            thread::sleep(LOOK);
        }
    }

    /// Sends a signal and reaps; the exit code, if it ended with one.
    fn end(mut self, how: Signal) -> Option<i32> {
        signal(self.pid(), how);
        self.child.wait().unwrap().code()
    }
}

/// Continues a stopped process.
pub fn go_on(pid: i32) {
    assert!(signal(pid, Signal::SIGCONT));
}

/// Sends a signal; whether there was somebody to take it.
pub fn signal(pid: i32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid), signal).is_ok()
}

/// Whether a process runs or is stopped; one that waits to be reaped is dead.
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Waits until `holds`; fails the test after two minutes, which is never a measure of anything.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(LOOK);
    }
}

/// Waits for the end of a client.
pub fn outcome(client: Child) -> Outcome {
    Outcome::of(client.wait_with_output().unwrap())
}

/// Waits for the end of a client with `--json`, expecting this exit code; what it printed.
pub fn document(client: Child, code: i32) -> Value {
    let outcome = outcome(client);
    assert_eq!(outcome.code, Some(code), "{outcome:#?}");
    serde_json::from_str(&outcome.stdout).unwrap()
}
