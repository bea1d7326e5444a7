//! `orchestrator certs`.

use std::path::Path;

use anyhow::anyhow;
use orchestrator_tls::{Authority, AuthorityError, Credentials, Identity, Role, Validity};

use crate::{
    args,
    exit::{Exit, Failure},
    local, print_line,
};

/// What every machine calls itself.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Its folder below that of all certificates.
const AUTHORITY: &str = "ca";

pub(crate) fn certs(arguments: &args::Certs) -> Result<Exit, Failure> {
    match arguments {
        args::Certs::Init { folder, hosts, days } => init(folder, hosts, *days),
        args::Certs::Issue { authority, role, name, output, hosts, days, replace } => {
            let output = output.clone().unwrap_or_else(|| authority.join(name));
            let identity = Identity::new(*role, name).map_err(Failure::usage)?;
            issue(&authority.join(AUTHORITY), &identity, &output, hosts, *days, *replace)
        }
    }
}

fn init(folder: &Path, hosts: &[String], days: u32) -> Result<Exit, Failure> {
    let authority = Authority::new(Validity::days(days * 10)).map_err(refused)?;
    let hosts = names(hosts);
    // Everything is made before the first file is written.
    let mut made = Vec::new();
    for role in Role::ALL {
        let identity = Identity::new(role, role.name()).expect("the name of a role is one");
        let hosts = if role == Role::Coordinator { hosts.as_slice() } else { &[] };
        let issued = authority.issue(&identity, hosts, Validity::days(days)).map_err(refused)?;
        made.push((folder.join(role.name()), issued));
    }
    authority.write(&folder.join(AUTHORITY)).map_err(refused)?;
    for (folder, issued) in made {
        issued.write(&folder).map_err(refused)?;
    }
    let shown = folder.display();
    print_line(&format!(
        "{shown}/ca           the authority; keep it away from the cluster\n\
         {shown}/coordinator  orchestrator coordinator --listen 0.0.0.0:7070 --tls {shown}/coordinator\n\
         {shown}/worker       orchestrator worker --coordinator https://HOST:7070 --tls {shown}/worker\n\
         {shown}/client       orchestrator submit eval.yaml --coordinator https://HOST:7070 --tls {shown}/client\n\
         {shown}/admin        the same, and may cancel and resume the runs of others\n\
         \n\
         They hold for {days} days. HOST is one of: {}",
        hosts.join(", ")
    ))
}

/// Names of this machine, and those that the user gives.
fn names(hosts: &[String]) -> Vec<String> {
    let mut names: Vec<String> = LOCAL.iter().map(ToString::to_string).collect();
    names.push(local::node_name().to_string());
    names.extend(hosts.iter().cloned());
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

fn issue(
    authority: &Path,
    identity: &Identity,
    output: &Path,
    hosts: &[String],
    days: u32,
    replace: bool,
) -> Result<Exit, Failure> {
    if identity.role() != Role::Coordinator && !hosts.is_empty() {
        let message = format!("`--host` is how a coordinator is called, and this is {identity}");
        return Err(Failure::usage(anyhow!(message)));
    }
    let authority = Authority::open(authority).map_err(refused)?;
    let hosts = if identity.role() == Role::Coordinator { names(hosts) } else { Vec::new() };
    let issued = authority.issue(identity, &hosts, Validity::days(days)).map_err(refused)?;
    if replace {
        let there = Credentials::identity_in(output).map_err(Failure::usage)?;
        if there != *identity {
            let message =
                format!("{} is the folder of {there}, not of {identity}", output.display());
            return Err(Failure::usage(anyhow!(message)));
        }
        issued.replace(output).map_err(refused)?;
    } else {
        let renew = "to renew one of the same role and name, add `--replace`";
        issued.write(output).map_err(|error| refused(error).advise(renew.to_owned()))?;
    }
    print_line(&format!("{}  {identity}, for {days} days", output.display()))
}

fn refused(error: AuthorityError) -> Failure {
    match error {
        AuthorityError::File { .. }
        | AuthorityError::Exists { .. }
        | AuthorityError::Library(_) => Failure::usage(error),
    }
}
