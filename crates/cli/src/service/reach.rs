//! Who may be reached, and who may reach us, while nothing is encrypted.

use std::net::{SocketAddr, ToSocketAddrs as _};

use anyhow::{Context as _, anyhow};

use crate::exit::Failure;

/// The address behind `--listen` or `--http`. Beyond this machine only with `insecure`.
pub(super) fn listen(flag: &str, text: &str, insecure: bool) -> Result<SocketAddr, Failure> {
    let shape = || format!("`{flag} {text}` is no address; write for example 127.0.0.1:7070");
    let found = text.to_socket_addrs().with_context(shape).map_err(Failure::usage)?.next();
    let address = found.with_context(shape).map_err(Failure::usage)?;
    if address.ip().is_loopback() || insecure {
        return Ok(address);
    }
    let message = format!(
        "`{flag} {text}` can be reached from other machines, where anybody could run evaluations \
         and read their results: TLS is not built yet. Listen on 127.0.0.1 and forward the port \
         (ssh -L), or accept that with `--insecure-plaintext`"
    );
    Err(Failure::usage(anyhow!(message)))
}

/// Whether a worker may give itself to the coordinator at `address`.
pub(super) fn coordinator(address: &str, insecure: bool) -> Result<(), Failure> {
    if insecure || is_local(address) {
        return Ok(());
    }
    let message = format!(
        "the coordinator {address} is another machine, and TLS is not built yet: whoever sits \
         between could run evaluations here and read their data. Forward its port to this machine \
         (ssh -L), or accept that with `--insecure-plaintext`"
    );
    Err(Failure::usage(anyhow!(message)))
}

fn is_local(address: &str) -> bool {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default();
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.ip().is_loopback();
    }
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_taken_without_the_flag() {
        let taken = |text| listen("--listen", text, false).map_err(|failure| failure.text());
        assert_eq!(taken("127.0.0.1:0"), Ok("127.0.0.1:0".parse().unwrap()));
        assert_eq!(taken("[::1]:7070"), Ok("[::1]:7070".parse().unwrap()));
        insta::assert_snapshot!(
            [taken("0.0.0.0:7070"), taken("7070")].map(Result::unwrap_err).join("\n")
        );
        assert!(listen("--listen", "0.0.0.0:7070", true).is_ok());
    }

    #[test]
    fn a_worker_serves_other_machines_only_with_the_flag() {
        for address in ["http://127.0.0.1:7070", "http://localhost:1", "http://[::1]:1/"] {
            assert!(coordinator(address, false).is_ok(), "{address}");
        }
        for address in ["http://10.0.0.1:7070", "http://localhost.evil.example:1", "http://h"] {
            assert!(coordinator(address, false).is_err(), "{address}");
            assert!(coordinator(address, true).is_ok(), "{address}");
        }
    }
}
