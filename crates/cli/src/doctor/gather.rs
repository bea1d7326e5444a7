//! Looks at the machine. What cannot be looked at is a fact, too.

use std::{
    collections::BTreeMap,
    env, fs, io,
    num::NonZero,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use orchestrator_host::{cpu_limit, host_memory};
use orchestrator_proto::RefusalCode;
use orchestrator_tls::Credentials;
use orchestrator_types::ByteCount;

use super::facts::{
    Certificates, Coordinator, Executor, Facts, Folder, Processors, Purpose, Reached, TlsFolder,
};
use crate::{
    args,
    cluster::{self, failed},
    devices::{Answer, driver_has_traces},
    executor::{self, NoAnswer},
    local, state,
};

/// How long the executor may look for devices: loading CUDA from a cold disk takes most of a minute.
const PATIENCE: Duration = Duration::from_mins(2);
/// What we, CUDA and those who share GPUs out read.
const PREFIXES: [&str; 4] = ["ORCHESTRATOR_", "CUDA_", "NVIDIA_", "PYTORCH_ALLOC_CONF"];
const OTHERS: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "XDG_STATE_HOME"];
/// Parts of names whose values are nobody's business.
const SECRETS: [&str; 4] = ["TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"];
const SECONDS_A_DAY: i64 = 86_400;

/// Everything that can be known of this machine.
pub(crate) fn gather(arguments: &args::Doctor) -> Facts {
    let variables = variables();
    let name = variables.get("ORCHESTRATOR_NAME").cloned();
    let name = name.unwrap_or_else(|| local::node_name().to_string());
    let cache = state::cache_folder();
    let named = |variable: &str| env::var_os(variable).filter(|value| !value.is_empty());
    let scratch = match named("ORCHESTRATOR_SCRATCH") {
        Some(folder) => Ok(folder.into()),
        None => state::cache_folder().map(|cache| cache.join("workers").join(name)),
    };
    let coordinator = match named("ORCHESTRATOR_STATE") {
        Some(folder) => Ok(folder.into()),
        None => state::coordinator_folder(),
    };
    // There may be as many slices.
    let socket = |scratch: &PathBuf| scratch.join("63.sock").as_os_str().as_bytes().len();
    let socket_bytes = scratch.as_ref().map(socket).unwrap_or_default();
    let folders = vec![
        folder(Purpose::Runs, state::State::of_user().map(|state| state.folder().to_owned())),
        folder(Purpose::Coordinator, coordinator),
        folder(Purpose::Cache, cache),
        folder(Purpose::Scratch, scratch),
        folder(Purpose::Temporary, Ok(env::temp_dir())),
    ];
    Facts {
        build: orchestrator_proto::BUILD.to_owned(),
        executor: executor(),
        driver_traces: driver_has_traces(),
        processors: processors(),
        memory: host_memory(),
        folders,
        socket_bytes,
        coordinator: reach(&arguments.cluster),
        tls: arguments.cluster.tls.as_deref().filter(|it| !it.as_os_str().is_empty()).map(tls),
        variables,
    }
}

fn variables() -> BTreeMap<String, String> {
    let told = |name: &str| {
        PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || OTHERS.contains(&name)
    };
    let secret = |name: &str| SECRETS.iter().any(|part| name.contains(part));
    // One that is not text is not one that anybody reads.
    let all = env::vars_os().filter_map(|(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        let value = if secret(&name) { "…".to_owned() } else { value };
        told(&name).then_some((name, value))
    });
    all.collect()
}

fn executor() -> Executor {
    let path = match executor::program() {
        Ok(path) => path,
        Err(error) => return Executor::Missing { why: format!("{error:#}") },
    };
    match ask(path.clone(), PATIENCE) {
        Ok(answer) => Executor::Answers { path, answer },
        Err(why) => Executor::Silent { path, why },
    }
}

/// Asks a program that may wait for a driver for ever. It is not killed then: in the middle of a
/// driver's call that may take the GPU with it.
fn ask(program: PathBuf, patience: Duration) -> Result<Answer, String> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let answer = executor::ask(&program, &["devices"]).map_err(NoAnswer::into_error);
        // Nobody may listen any more.
        drop(tell.send(answer.map_err(|error| format!("{error:#}"))));
    });
    told.recv_timeout(patience).unwrap_or_else(|_| {
        Err(format!(
            "nothing within {} s; it waits for the driver, see the kernel's log",
            patience.as_secs()
        ))
    })
}

fn processors() -> Processors {
    let usable = thread::available_parallelism().map_or(1, NonZero::get);
    let usable = u32::try_from(usable).unwrap_or(u32::MAX);
    let listed = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let online = listed.lines().filter(|line| line.starts_with("processor")).count();
    let online = u32::try_from(online).unwrap_or(u32::MAX).max(usable);
    Processors { online, usable, cgroup_millis: cpu_limit() }
}

/// Tries to make a file in the folder, or in the nearest one above it that is there.
fn folder(purpose: Purpose, path: anyhow::Result<PathBuf>) -> Folder {
    let path = match path {
        Ok(path) => path,
        Err(error) => {
            let refused = Some(format!("{error:#}"));
            return Folder { purpose, path: PathBuf::new(), refused, free: None, total: None };
        }
    };
    let there = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let volume = nix::sys::statvfs::statvfs(there).ok();
    let bytes = |blocks: u64| {
        let block = volume.as_ref().map_or(1, nix::sys::statvfs::Statvfs::fragment_size);
        ByteCount::bytes(blocks.saturating_mul(block))
    };
    let refused = writable(there).err().map(|error| {
        let at = if there == path { String::new() } else { format!("{}: ", there.display()) };
        format!("{at}{error}")
    });
    Folder {
        purpose,
        path,
        refused,
        free: volume.as_ref().map(|volume| bytes(volume.blocks_available())),
        total: volume.as_ref().map(|volume| bytes(volume.blocks())),
    }
}

/// Leaves nothing behind, also if this process is killed: the file has no name.
fn writable(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    tempfile::tempfile_in(folder).map(drop)
}

fn reach(cluster: &args::Cluster) -> Option<Coordinator> {
    let url = cluster.coordinator.clone().filter(|url| !url.is_empty())?;
    let answer = cluster::target(cluster).and_then(|target| {
        let ask = |target| {
            cluster::ask(&target, async |it| match it.nodes().await {
                // It has answered whether it speaks our protocol; a worker may ask no more.
                Err(error) if error.refusal.code == RefusalCode::Denied => Ok(None),
                view => view.map(Some).map_err(failed),
            })
        };
        target.map(ask).transpose()
    });
    let reached = match answer {
        Ok(Some(None)) => Reached::Greets,
        Ok(view) => {
            let workers = view.flatten().unwrap_or_default().workers;
            Reached::Answers {
                workers: workers.len(),
                slices: workers.iter().map(|worker| worker.slices.len()).sum(),
            }
        }
        Err(failure) => {
            Reached::Fails { why: failure.text(), advice: failure.advice().map(str::to_owned) }
        }
    };
    Some(Coordinator { url, reached })
}

fn tls(path: &Path) -> TlsFolder {
    let content = match Credentials::open(path.to_owned()) {
        Ok(credentials) => {
            let until = credentials.until();
            let left = until.unix_timestamp() - jiff::Timestamp::now().as_second();
            Certificates::Good {
                identity: credentials.identity().short().to_owned(),
                until: orchestrator_tls::moment(&until),
                days: left / SECONDS_A_DAY,
            }
        }
        Err(error) => Certificates::Bad { why: format!("{:#}", anyhow::Error::from(error)) },
    };
    TlsFolder { path: path.to_owned(), content }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_program_that_does_not_answer_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, "#!/bin/sh\nexec sleep 5\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let why = ask(program, Duration::from_millis(10)).unwrap_err();
        assert!(why.starts_with("nothing within 0 s; it waits for the driver"), "{why}");
    }

    #[test]
    fn a_folder_is_looked_at_where_it_would_be_and_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let found = super::folder(Purpose::Cache, Ok(path.clone()));
        assert_eq!((found.refused, path.exists()), (None, false));
        assert!(found.free.unwrap() <= found.total.unwrap());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let found = super::folder(Purpose::Cache, Ok(file.join("below")));
        assert!(found.refused.unwrap().ends_with("file: not a directory"));
        let unknown = super::folder(Purpose::Cache, Err(anyhow::anyhow!("set HOME")));
        assert_eq!(unknown.refused.as_deref(), Some("set HOME"));
    }
}
