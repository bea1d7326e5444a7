//! Who may reach us, and whom we reach, without encryption: this machine, or whom the user says.

use std::{
    net::{SocketAddr, ToSocketAddrs as _},
    path::PathBuf,
};

use anyhow::{Context as _, anyhow};

use crate::{
    exit::Failure,
    target::{Target, Tls, is_local},
};

/// What protects a service's addresses.
#[derive(Clone, Debug)]
pub(super) enum Guard {
    /// Nothing, and so only this machine may call.
    Loopback,
    /// Certificates.
    Tls(Tls),
    /// Nothing, and whoever can may call.
    Nothing,
}

impl Guard {
    /// What the flags ask for.
    pub(super) fn new(tls: Option<Tls>, insecure: bool) -> Result<Self, Failure> {
        match (tls, insecure) {
            (Some(_), true) => Err(Failure::usage(anyhow!(
                "`--tls` and `--insecure-plaintext` contradict each other; leave one out (they may \
                 also stand in the environment or in the configuration)"
            ))),
            (Some(tls), false) => Ok(Self::Tls(tls)),
            (None, true) => Ok(Self::Nothing),
            (None, false) => Ok(Self::Loopback),
        }
    }

    pub(super) fn tls(&self) -> Option<&Tls> {
        match self {
            Self::Tls(tls) => Some(tls),
            Self::Loopback | Self::Nothing => None,
        }
    }

    pub(super) const fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }
}

/// The folder of certificates; an empty flag or variable takes none.
pub(super) fn certificates(flag: Option<PathBuf>, file: Option<PathBuf>) -> Option<PathBuf> {
    flag.or(file).filter(|folder| !folder.as_os_str().is_empty())
}

/// The address behind a flag such as `--health`, whatever it is.
pub(super) fn address(flag: &str, text: &str) -> Result<SocketAddr, Failure> {
    let shape = || format!("`{flag} {text}` is no address; write for example 127.0.0.1:7070");
    let found = text.to_socket_addrs().with_context(shape).map_err(Failure::usage)?.next();
    found.with_context(shape).map_err(Failure::usage)
}

/// The address behind `--listen` or `--http`. Beyond this machine only with a guard.
pub(super) fn listen(flag: &str, text: &str, guard: &Guard) -> Result<SocketAddr, Failure> {
    let address = address(flag, text)?;
    if address.ip().is_loopback() || !matches!(guard, Guard::Loopback) {
        return Ok(address);
    }
    let message = format!(
        "`{flag} {text}` can be reached from other machines, where anybody could run evaluations \
         and read their results: give certificates with `--tls DIR` (`orchestrator certs init` \
         makes some), or accept that with `--insecure-plaintext`"
    );
    Err(Failure::usage(anyhow!(message)))
}

/// Whether a worker may give itself to this coordinator.
pub(super) fn coordinator(target: &Target, guard: &Guard) -> Result<(), Failure> {
    if target.tls.is_some() || guard.is_nothing() || is_local(&target.address) {
        return Ok(());
    }
    let message = format!(
        "the coordinator {} is another machine: whoever sits between could run evaluations here \
         and read their data. Write https:// and give certificates with `--tls DIR`, or accept that \
         with `--insecure-plaintext`",
        target.address
    );
    Err(Failure::usage(anyhow!(message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_taken_without_a_guard() {
        let taken =
            |text| listen("--listen", text, &Guard::Loopback).map_err(|failure| failure.text());
        assert_eq!(taken("127.0.0.1:0"), Ok("127.0.0.1:0".parse().unwrap()));
        assert_eq!(taken("[::1]:7070"), Ok("[::1]:7070".parse().unwrap()));
        insta::assert_snapshot!(
            [taken("0.0.0.0:7070"), taken("7070")].map(Result::unwrap_err).join("\n")
        );
        assert!(listen("--listen", "0.0.0.0:7070", &Guard::Nothing).is_ok());
    }

    #[test]
    fn a_worker_serves_other_machines_only_with_a_guard() {
        for address in ["http://127.0.0.1:7070", "http://localhost:1", "http://[::1]:1/"] {
            let target = Target::local(address.to_owned());
            assert!(coordinator(&target, &Guard::Loopback).is_ok(), "{address}");
        }
        for address in ["http://10.0.0.1:7070", "http://localhost.evil.example:1", "http://h"] {
            let target = Target::local(address.to_owned());
            assert!(coordinator(&target, &Guard::Loopback).is_err(), "{address}");
            assert!(coordinator(&target, &Guard::Nothing).is_ok(), "{address}");
        }
    }
}
