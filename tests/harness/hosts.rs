//! Several hosts on one machine: a network namespace each, with an address of its own, and a bridge
//! between them in the first.
//!
//! Needs root and iproute2. Everything is gone when the [`Network`] is dropped.

use std::{
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
};

/// Networks that this process has made; names must differ.
static MADE: AtomicU32 = AtomicU32::new(0);

/// See the module's documentation.
pub struct Network {
    tag: String,
    hosts: Vec<String>,
}

impl Network {
    /// Hosts of these names. The reason if that cannot be done here.
    pub fn of(hosts: &[&str]) -> Result<Self, String> {
        let number = MADE.fetch_add(1, Ordering::SeqCst);
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let network = Self { tag: format!("orch{}-{number}", process::id()), hosts };
        network.build()?;
        Ok(network)
    }

    fn build(&self) -> Result<(), String> {
        for host in &self.hosts {
            let space = self.space(host);
            ip(&format!("netns add {space}"))?;
            ip(&format!("-n {space} link set lo up"))?;
        }
        let first = self.space(&self.hosts[0]);
        ip(&format!("-n {first} link add lan type bridge"))?;
        ip(&format!("-n {first} address add {}/24 dev lan", self.address(&self.hosts[0])))?;
        ip(&format!("-n {first} link set lan up"))?;
        for host in &self.hosts[1..] {
            let (space, port) = (self.space(host), self.port(host));
            ip(&format!("-n {first} link add {port} type veth peer name eth0 netns {space}"))?;
            ip(&format!("-n {first} link set {port} master lan up"))?;
            ip(&format!("-n {space} address add {}/24 dev eth0", self.address(host)))?;
            ip(&format!("-n {space} link set eth0 up"))?;
        }
        Ok(())
    }

    fn number(&self, host: &str) -> usize {
        let number = self.hosts.iter().position(|known| known == host);
        number.unwrap_or_else(|| panic!("there is no host {host}"))
    }

    fn space(&self, host: &str) -> String {
        format!("{}-{}", self.tag, self.number(host))
    }

    /// The bridge's side of a host's cable.
    fn port(&self, host: &str) -> String {
        format!("port{}", self.number(host))
    }

    /// A host's address.
    pub fn address(&self, host: &str) -> String {
        format!("10.77.0.{}", self.number(host) + 1)
    }

    /// The same command, on a host. It keeps its process id.
    pub fn on(&self, host: &str, command: &Command) -> Command {
        let mut there = Command::new("ip");
        there.stdin(process::Stdio::null());
        there.args(["netns", "exec", &self.space(host)]);
        there.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            there.current_dir(folder);
        }
        there
    }

    /// Pulls a host's cable.
    pub fn cut_off(&self, host: &str) {
        self.cable(host, "down");
    }

    /// Puts it back.
    pub fn connect(&self, host: &str) {
        self.cable(host, "up");
    }

    fn cable(&self, host: &str, how: &str) {
        let (first, port) = (self.space(&self.hosts[0]), self.port(host));
        ip(&format!("-n {first} link set {port} {how}")).unwrap();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in &self.hosts {
            // One that was not made yet is not there.
            drop(ip(&format!("netns delete {}", self.space(host))));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("cannot start `ip` (iproute2): {error}"))?;
    let message = || format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    output.status.success().then_some(()).ok_or_else(message)
}
