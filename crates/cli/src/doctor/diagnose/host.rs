//! The processor, host memory, and folders.

use orchestrator_types::ByteCount;

use super::COMPUTING;
use crate::{
    doctor::{
        facts::{Facts, Folder, Processors, Purpose},
        finding::{Finding, Role},
    },
    host,
};

/// A volume with less than this is as good as full.
const FULL: ByteCount = ByteCount::mib(64);
/// Blobs in transit and decoded samples take this much and more where they can.
const LITTLE: ByteCount = ByteCount::gib(1);
/// `sun_path` of `sockaddr_un` has 108 bytes, and the last one is zero.
const SOCKET_PATH_BYTES: usize = 107;

/// Threads, and the memory beside them.
pub(crate) fn processor(facts: &Facts) -> Vec<Finding> {
    let Processors { online, usable, cgroup_millis } = facts.processors;
    let plural = if usable == 1 { "" } else { "s" };
    let limited = match cgroup_millis {
        Some(millis) => {
            format!(" of {online} (a cgroup's quota of {}.{:03})", millis / 1_000, millis % 1_000)
        }
        None if usable < online => format!(" of {online} (affinity)"),
        None => String::new(),
    };
    let threads = Finding::ok("processor", format!("{usable} thread{plural}{limited}"));
    let memory = match host::offer(&facts.memory, 1) {
        Ok((offered, why)) => Finding::ok("memory", format!("{offered} for a slice: {why}")),
        Err(failure) => {
            let text = failure.text();
            let fix = "raise the container's memory limit (resources.limits.memory)";
            let finding = Finding::problem("memory", text, &COMPUTING).split();
            finding.fix(fix)
        }
    };
    vec![threads, memory]
}

/// Whether the folders can be written to, and have room.
pub(crate) fn folders(facts: &Facts) -> Vec<Finding> {
    facts.folders.iter().map(folder).collect()
}

fn folder(folder: &Folder) -> Finding {
    const TOPIC: &str = "folder";
    let (whose, moved, needed_by): (&str, &str, &[Role]) = match folder.purpose {
        Purpose::Runs => ("runs on this machine", "set XDG_STATE_HOME", &[Role::Submit]),
        Purpose::Coordinator => {
            ("the coordinator's state", "`--state DIR`, ORCHESTRATOR_STATE", &[Role::Coordinator])
        }
        Purpose::Cache => ("cache", "set XDG_CACHE_HOME", &COMPUTING),
        Purpose::Scratch => {
            ("a worker's scratch", "`--scratch DIR`, ORCHESTRATOR_SCRATCH", &[Role::Worker])
        }
        Purpose::Temporary => ("scratch of runs on this machine", "set TMPDIR", &[Role::Submit]),
    };
    let what = if folder.path.as_os_str().is_empty() {
        whose.to_owned()
    } else {
        format!("{} ({whose})", folder.path.display())
    };
    let fix = format!("put it on a volume that can be written to and has room: {moved}");
    if let Some(why) = &folder.refused {
        return Finding::problem(TOPIC, format!("{what}: {why}"), needed_by).fix(fix);
    }
    let Some(free) = folder.free else { return Finding::ok(TOPIC, format!("{what}: writable")) };
    let of = folder.total.map(|total| format!(" of {total}")).unwrap_or_default();
    let text = format!("{what}: {free}{of} free");
    if free < FULL {
        Finding::problem(TOPIC, text, needed_by).fix(fix)
    } else if free < LITTLE {
        Finding::note(TOPIC, text).fix(fix)
    } else {
        Finding::ok(TOPIC, text)
    }
}

/// A socket's path has few bytes.
pub(crate) fn socket(facts: &Facts) -> Option<Finding> {
    let bytes = facts.socket_bytes;
    (bytes > SOCKET_PATH_BYTES).then(|| {
        let text = format!(
            "a worker's sockets would have paths of {bytes} bytes, and {SOCKET_PATH_BYTES} are \
             possible"
        );
        let fix = "give it a shorter folder: `--scratch DIR`, ORCHESTRATOR_SCRATCH";
        Finding::problem("folder", text, &[Role::Worker]).fix(fix)
    })
}
