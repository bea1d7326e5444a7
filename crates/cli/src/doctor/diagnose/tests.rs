//! Diagnoses of machines that are described by their facts.

use std::collections::BTreeMap;

use orchestrator_host::HostMemory;
use orchestrator_types::ByteCount;

use super::{
    super::{
        facts::{Certificates, Coordinator, Folder, Processors, Purpose, Reached, TlsFolder},
        finding::Level,
        render::{Look, render},
    },
    *,
};
use crate::devices::{Answer, Cuda, Found};

fn answer(cuda: bool) -> Answer {
    Answer {
        build: "0.1.0".to_owned(),
        libtorch: "2.11.0".to_owned(),
        cuda: Cuda { bundled: "13.0".to_owned(), loaded: cuda },
        ..Answer::default()
    }
}

fn answers(answer: Answer) -> Executor {
    Executor::Answers { path: "/opt/orchestrator-executor".into(), answer }
}

fn folder(purpose: Purpose, path: &str) -> Folder {
    let (free, total) = (Some(ByteCount::gib(60)), Some(ByteCount::gib(250)));
    Folder { purpose, path: path.into(), refused: None, free, total }
}

/// A laptop without a GPU.
fn laptop() -> Facts {
    Facts {
        build: "0.1.0".to_owned(),
        executor: answers(answer(false)),
        variables: BTreeMap::new(),
        driver_traces: false,
        processors: Processors { online: 8, usable: 8, cgroup_millis: None },
        memory: HostMemory { available: Some(ByteCount::gib(20)), ..HostMemory::default() },
        folders: vec![
            folder(Purpose::Runs, "/home/a/.local/state/orchestrator/runs"),
            folder(Purpose::Coordinator, "/home/a/.local/state/orchestrator/coordinator"),
            folder(Purpose::Cache, "/home/a/.cache/orchestrator"),
            folder(Purpose::Scratch, "/home/a/.cache/orchestrator/workers/a"),
            folder(Purpose::Temporary, "/tmp"),
        ],
        socket_bytes: 45,
        coordinator: None,
        tls: None,
    }
}

fn with(facts: Facts, variables: &[(&str, &str)]) -> Facts {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Facts { variables: variables.iter().map(pair).collect(), ..facts }
}

fn gpu(id: &str, name: &str, reason: &str) -> Found {
    Found {
        id: id.parse().unwrap(),
        older_name: None,
        name: name.to_owned(),
        total_bytes: Some(ByteCount::gib(80)),
        free_bytes: Some(ByteCount::gib(79)),
        ceiling_bytes: Some(ByteCount::gib(78)),
        reason: Some(reason.to_owned()),
        warnings: Vec::new(),
        usable: true,
    }
}

/// A server with two H200s, one of which others use.
fn server() -> Facts {
    let free = "138.97 GiB: of the device's 140.40 GiB, other processes use 1.18 GiB";
    let used = "69.33 GiB: of the device's 140.40 GiB, other processes use 70.82 GiB";
    let mut second = gpu("GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000002", "NVIDIA H200", used);
    second.warnings = vec![
        "other processes use 70.82 GiB of the device's 140.40 GiB; the slice offers 69.33 GiB, and \
         may have to be refused if they grow"
            .to_owned(),
    ];
    let first = gpu("GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000001", "NVIDIA H200", free);
    let answer = Answer {
        driver: Some("580.159.03".to_owned()),
        driver_serves_cuda: Some("13.0".to_owned()),
        devices: vec![first, second],
        ..answer(true)
    };
    Facts { executor: answers(answer), driver_traces: true, ..laptop() }
}

fn told(facts: &Facts) -> String {
    let findings = diagnose(facts);
    let possible = possible(&findings);
    format!(
        "{}\nexit {:?}",
        render(&findings, &possible, Look::default()),
        super::super::exit(facts, &possible)
    )
}

#[test]
fn a_laptop_computes_on_its_processor() {
    insta::assert_snapshot!(told(&laptop()));
}

#[test]
fn a_server_tells_its_gpus() {
    insta::assert_snapshot!(told(&server()));
}

#[test]
fn an_old_driver_leaves_the_processor() {
    let Executor::Answers { path, mut answer } = server().executor else { panic!("it answers") };
    answer.driver = Some("550.54.15".to_owned());
    answer.driver_serves_cuda = Some("12.4".to_owned());
    answer.devices.truncate(1);
    answer.devices[0].usable = false;
    answer.warnings = vec![
        "the NVIDIA driver is too old: 550.54.15 serves CUDA 12.4 at most; this build computes with \
         CUDA 13.0, which needs driver 580 or newer: update the driver of the machine"
            .to_owned(),
    ];
    let facts = Facts { executor: Executor::Answers { path, answer }, ..server() };
    insta::assert_snapshot!(told(&facts));
    // Whoever asks for that GPU is not served by the processor.
    let facts = with(facts, &[("ORCHESTRATOR_DEVICE", "GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000001")]);
    let stopped = diagnose(&facts).into_iter().find(|finding| !finding.stops.is_empty()).unwrap();
    assert_eq!((stopped.level, stopped.stops), (Level::Problem, vec![Role::Worker]));
}

#[test]
fn a_pod_without_a_device_says_what_to_ask_for() {
    let pod =
        with(laptop(), &[("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("ORCHESTRATOR_DEVICE", "gpu")]);
    insta::assert_snapshot!(told(&pod));
    let any = with(laptop(), &[("KUBERNETES_SERVICE_HOST", "10.96.0.1")]);
    let level = |facts: &Facts| {
        let findings = diagnose(facts);
        findings.iter().find(|finding| finding.topic == "kubernetes").map(|it| it.level)
    };
    assert_eq!(level(&any), Some(Level::Note));
    let cpu =
        with(laptop(), &[("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("ORCHESTRATOR_DEVICE", "cpu")]);
    assert_eq!(level(&cpu), None, "it needs none");
}

#[test]
fn a_pod_with_an_instance_and_a_read_only_root_tells_which_flags_move_what() {
    let instance = gpu(
        "MIG-3b7e9a10-52c4-5d6e-9f80-000000000002",
        "NVIDIA H200 MIG 3g.71gb",
        "69.44 GiB: of the device's 69.75 GiB, other processes use 60.00 MiB",
    );
    let answer = Answer {
        driver: Some("580.95.05".to_owned()),
        driver_serves_cuda: Some("13.0".to_owned()),
        devices: vec![instance],
        ..answer(true)
    };
    let mut facts = Facts { executor: answers(answer), driver_traces: true, ..laptop() };
    facts.processors = Processors { online: 64, usable: 4, cgroup_millis: Some(3_500) };
    facts.memory.cgroup_limit = Some(ByteCount::gib(8));
    facts.memory.cgroup_used = Some(ByteCount::mib(200));
    facts.socket_bytes = 130;
    for folder in &mut facts.folders[..3] {
        folder.refused = Some("/: Read-only file system (os error 30)".to_owned());
    }
    facts.folders[3].free = Some(ByteCount::mib(12));
    facts.folders[4].free = Some(ByteCount::mib(300));
    let facts = with(
        facts,
        &[
            ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
            ("NVIDIA_VISIBLE_DEVICES", "MIG-3b7e9a10-52c4-5d6e-9f80-000000000002"),
        ],
    );
    insta::assert_snapshot!(told(&facts));
}

#[test]
fn who_shares_gpus_out_is_named_with_what_that_means() {
    let facts = with(
        server(),
        &[
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4G"),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30"),
            ("CUDA_DEVICE_MEMORY_LIMIT", "4096m"),
            ("CUDA_VISIBLE_DEVICES", ""),
        ],
    );
    let told: Vec<String> = gpus::sharing(&facts).into_iter().map(|finding| finding.text).collect();
    insta::assert_snapshot!(told.join("\n"), @r"
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4G (MPS) bounds the memory of each process
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 (MPS) gives each process a part of a GPU's processors: slower, with the same results
    CUDA_DEVICE_MEMORY_LIMIT=4096m (HAMi) bounds the memory of this container
    CUDA_VISIBLE_DEVICES is set to nothing, which hides every GPU
    ");
}

#[test]
fn a_missing_silent_or_foreign_executor_stops_computing() {
    let missing = "no orchestrator-executor: ORCHESTRATOR_EXECUTOR is not set, and \
                   /opt/orchestrator-executor is not a program; run `cargo xtask install`, or set \
                   ORCHESTRATOR_EXECUTOR to the program's path";
    let silent = "libtorch_cpu.so: cannot open shared object file: No such file or directory";
    let foreign = Answer { build: "0.0.9".to_owned(), ..answer(false) };
    let path = "/opt/orchestrator-executor".into();
    let executors = [
        Executor::Missing { why: missing.to_owned() },
        Executor::Silent { path, why: silent.to_owned() },
        answers(foreign),
    ];
    let all: Vec<String> = executors
        .into_iter()
        .map(|executor| {
            let facts = Facts { executor, ..laptop() };
            let found = diagnose(&facts).remove(0);
            let possible = possible(&diagnose(&facts));
            assert_eq!(
                (possible.as_slice(), found.level),
                (&[Role::Coordinator][..], Level::Problem)
            );
            assert_eq!(super::super::exit(&facts, &possible), crate::exit::Exit::Internal);
            format!("{}\n→ {}", found.text, found.fix.unwrap())
        })
        .collect();
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn certificates_and_the_coordinator_are_looked_at_if_they_are_named() {
    let path = "/etc/orchestrator/tls";
    let tls = |content| Some(TlsFolder { path: path.into(), content });
    let good = |days| Certificates::Good {
        identity: "worker/gpu-7".to_owned(),
        until: "2027-01-01 00:00 UTC".to_owned(),
        days,
    };
    let level = |days| {
        let facts = Facts { tls: tls(good(days)), ..laptop() };
        network::certificates(&facts).unwrap().level
    };
    assert_eq!([level(30), level(3)], [Level::Ok, Level::Note]);
    let why = "cannot read /etc/orchestrator/tls/tls.key; a Kubernetes secret needs `fsGroup` and \
               `defaultMode: 0440`: Permission denied (os error 13)";
    let tls = tls(Certificates::Bad { why: why.to_owned() });
    let url = "http://10.0.0.1:7070".to_owned();
    let why = "no answer from http://10.0.0.1:7070 within 4.5 s".to_owned();
    let coordinator = Some(Coordinator { url, reached: Reached::Fails { why, advice: None } });
    let facts = Facts { coordinator, tls, ..laptop() };
    let facts = with(facts, &[("ORCHESTRATOR_TLS", "/etc/orchestrator/tls")]);
    insta::assert_snapshot!(told(&facts));
}

#[test]
fn no_memory_is_a_problem_with_a_remedy() {
    let mut facts = laptop();
    facts.memory.cgroup_limit = Some(ByteCount::mib(128));
    let finding = diagnose(&facts).into_iter().find(|finding| finding.topic == "memory").unwrap();
    assert_eq!(finding.stops, [Role::Submit, Role::Worker]);
    assert!(finding.fix.unwrap().contains("resources.limits.memory"));
}

#[test]
fn facts_are_read_back_as_they_were_written() {
    let written = serde_json::to_value(server()).unwrap();
    let read: Facts = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), written);
    assert_eq!(told(&read), told(&server()));
}
