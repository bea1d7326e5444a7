//! Which coordinator is called, and how: encrypted, or in plaintext on this machine.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::anyhow;
use orchestrator_proto::Dial;
use orchestrator_tls::{Credentials, Identity, Role};

use crate::exit::Failure;

/// A coordinator's address, and what it takes to be let in.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// With its scheme.
    pub(crate) address: String,
    pub(crate) tls: Option<Tls>,
}

/// The certificates of one party.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) folder: PathBuf,
    pub(crate) credentials: Credentials,
}

impl Tls {
    /// Those in `folder`.
    pub(crate) fn open(folder: &Path) -> Result<Self, Failure> {
        let credentials = Credentials::open(folder.to_owned()).map_err(Failure::usage)?;
        Ok(Self { folder: folder.to_owned(), credentials })
    }

    /// Refuses certificates of somebody else's.
    pub(crate) fn require(&self, role: Role) -> Result<(), Failure> {
        let found: Identity = self.credentials.identity();
        if found.role() == role {
            return Ok(());
        }
        let message = format!(
            "{} holds the certificate of {found}, and this is a {role}: give it a {role}'s \
             (`orchestrator certs issue {role} NAME`)",
            self.folder.display()
        );
        Err(Failure::usage(anyhow!(message)))
    }
}

impl Target {
    /// The coordinator of an embedded run, in another process of this machine.
    pub(crate) const fn local(address: String) -> Self {
        Self { address, tls: None }
    }

    /// The one at `url`, with the certificates in `tls`.
    pub(crate) fn new(url: &str, tls: Option<&Path>) -> Result<Self, Failure> {
        let address = address(url, tls.is_some())?;
        let encrypted = address.starts_with("https://");
        let tls = tls.filter(|_| encrypted).map(Tls::open).transpose()?;
        Ok(Self { address, tls })
    }

    /// How it is reached.
    pub(crate) fn dial(&self) -> Dial {
        self.tls.as_ref().map_or(Dial::Tcp, |tls| orchestrator_tls::dial(tls.credentials.clone()))
    }

    /// The flags that name it, for commands that are shown.
    pub(crate) fn flags(&self) -> String {
        let tls = self.tls.as_ref().map(|tls| format!(" --tls {}", tls.folder.display()));
        format!("--coordinator {}{}", self.address, tls.unwrap_or_default())
    }
}

/// The address with its scheme.
fn address(url: &str, certified: bool) -> Result<String, Failure> {
    let url = url.trim_end_matches('/');
    let refuse = |message: String| Err(Failure::usage(anyhow!(message)));
    match url.split_once("://") {
        Some(("https", _)) if certified => Ok(url.to_owned()),
        Some(("https", _)) => refuse(format!(
            "{url} takes certificates: give a folder of them with `--tls DIR` or ORCHESTRATOR_TLS; \
             `orchestrator certs init` makes some"
        )),
        Some(("http", _)) if certified && !is_local(url) => refuse(format!(
            "{url} is not encrypted, and `--tls` is given: write https://, or leave `--tls` out"
        )),
        Some(("http", _)) => Ok(url.to_owned()),
        Some((scheme, _)) => refuse(format!("{scheme}:// is not spoken here; write https://")),
        None if certified => Ok(format!("https://{url}")),
        None if is_local(url) => Ok(format!("http://{url}")),
        None => refuse(format!(
            "{url} is another machine: write https://{url} and give certificates with `--tls DIR`, \
             or http://{url} to send everything unencrypted"
        )),
    }
}

/// Whether this address leads to this machine only.
pub(crate) fn is_local(address: &str) -> bool {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default();
    // What stands before an `@` is a user, and looks like a host.
    if host.contains('@') {
        return false;
    }
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.ip().is_loopback();
    }
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_encrypted_or_says_that_it_is_not() {
        let shown = |url, certified| address(url, certified).map_err(|failure| failure.text());
        assert_eq!(shown("127.0.0.1:7070", false), Ok("http://127.0.0.1:7070".to_owned()));
        assert_eq!(shown("127.0.0.1:7070", true), Ok("https://127.0.0.1:7070".to_owned()));
        assert_eq!(shown("http://host:7070/", false), Ok("http://host:7070".to_owned()));
        assert_eq!(shown("host:7070", true), Ok("https://host:7070".to_owned()));
        assert_eq!(shown("http://localhost:1", true), Ok("http://localhost:1".to_owned()));
        let wrong = [
            shown("https://host", false),
            shown("http://host", true),
            shown("host:7070", false),
            shown("ftp://host", false),
        ];
        insta::assert_snapshot!(wrong.map(Result::unwrap_err).join("\n"));
    }

    #[test]
    fn only_loopback_is_local() {
        for address in ["http://127.0.0.1:7070", "http://localhost:1", "[::1]:1", "http://[::1]:1/"]
        {
            assert!(is_local(address), "{address}");
        }
        for address in [
            "http://10.0.0.1:7070",
            "http://localhost.evil.example:1",
            "http://h",
            "http://localhost:x@h:1",
        ] {
            assert!(!is_local(address), "{address}");
        }
    }
}
