//! Reports of made-up runs, and what a report must never claim.

use std::time::Duration;

use indexmap::IndexMap;
use orchestrator_ledger::{
    Account, Breach, ForecastReading, Holder, HostReading, Owner, PhaseReading, PhaseReadings,
    Sample,
};
use orchestrator_tasks::{Direction, Partial, Ranked, TaskKind};
use orchestrator_types::{
    ByteCount, CaptionChoice, Component, DatasetName, DeviceId, Digest, FailureClass, Phase,
    Precision, SampleId, TrialId, UnitId,
};
use proptest::prelude::*;

use super::*;

/// Rankings with these ranks, of alternating classes.
fn ranked(ranks: &[u32]) -> Vec<Ranked> {
    let queries = ranks.iter().zip(0..);
    queries
        .map(|(&rank, query)| Ranked {
            query,
            rank,
            best: query % 2,
            best_score: 0.5,
            top: Vec::new(),
        })
        .collect()
}

fn name(text: &str) -> DatasetName {
    text.parse().unwrap()
}

fn zero_shot(partials: &[&[u32]]) -> TaskEvidence {
    TaskEvidence {
        kind: TaskKind::ZeroShot { top_k: vec![1, 5] },
        dataset: name("fluent"),
        samples: 6,
        partials: partials.iter().map(|ranks| Partial::zero_shot(&ranked(ranks))).collect(),
    }
}

fn retrieval(images: &[u32], texts: &[u32]) -> TaskEvidence {
    TaskEvidence {
        kind: TaskKind::Retrieval { recall_at: vec![1, 5, 10], captions: CaptionChoice::First },
        dataset: name("captions"),
        samples: 6,
        partials: vec![
            Partial::retrieval(Direction::TextToImage, &ranked(texts)),
            Partial::retrieval(Direction::ImageToText, &ranked(images)),
        ],
    }
}

fn trial(number: u32, precision: Precision) -> TrialEvidence {
    TrialEvidence {
        trial: TrialId(number),
        model: "tests/data/models/tiny-clip".to_owned(),
        precision,
        batch: Batch { vision: 256, text: 512 },
        tasks: vec![
            zero_shot(&[&[1, 2, 1], &[1, 7, 1]]),
            retrieval(&[1, 1, 1, 4, 2, 30], &[1, 3, 1, 2, 12, 1]),
        ],
        elapsed: Duration::from_millis(12_300),
        images: 6,
    }
}

fn slice(number: u32, components: &[Component], memory: MemoryEvidence) -> NodeEvidence {
    NodeEvidence {
        node: "laptop".parse().unwrap(),
        slice: format!("laptop.{number}").parse().unwrap(),
        device: DeviceId::Cpu,
        quota: Some(ByteCount::gib(2)),
        components: components.to_vec(),
        memory,
        images: if components.contains(&Component::Vision) { images() } else { Images::default() },
    }
}

fn images() -> Images {
    Images {
        decoded: 6,
        from_cache: 18,
        cache_peak_bytes: ByteCount::kib(220),
        cache_limit_bytes: ByteCount::gib(1),
    }
}

fn dataset(seed: &str, templates: bool) -> DatasetEvidence {
    DatasetEvidence {
        samples: Digest::of(seed.as_bytes()),
        templates: templates.then(|| Digest::of(b"templates")),
    }
}

/// An account of the executor that started at `started`, after so many refusals.
fn account(started: i64, ooms: u64) -> Account {
    let phase = |seconds, mib| PhaseReading {
        seconds,
        allocated_peak_bytes: ByteCount::mib(mib),
        reserved_peak_bytes: ByteCount::mib(mib + 2),
        device_peak_bytes: None,
        host_peak_bytes: ByteCount::mib(100 + mib),
    };
    let forecast = |component, rows, measured: Option<u64>| ForecastReading {
        component,
        model: "tiny-clip".to_owned(),
        precision: Precision::Fp32,
        rows,
        tokens: 50,
        predicted_bytes: ByteCount::mib(40),
        measured_bytes: measured.map(ByteCount::mib),
        probes: 2,
        reason: "the smallest within 2 % of the best rate".to_owned(),
    };
    let owner = Owner::Weights {
        model: "tiny-clip".to_owned(),
        component: Component::Vision,
        precision: Precision::Fp32,
    };
    Account {
        started_at_unix_ms: started,
        device: DeviceId::Cpu,
        driver: None,
        quota_bytes: ByteCount::mib(1500),
        allocator: "counting, quota 1.46 GiB".to_owned(),
        baseline_bytes: None,
        weights_bytes: ByteCount::mib(29),
        predicted_peak_bytes: ByteCount::mib(61),
        allocated_peak_bytes: ByteCount::mib(60 + ooms),
        reserved_peak_bytes: ByteCount::mib(64 + ooms),
        device_peak_bytes: None,
        outside_allocator_bytes: None,
        host: HostReading {
            resident_peak_bytes: ByteCount::mib(180),
            anonymous_bytes: ByteCount::mib(90),
            mapped_bytes: ByteCount::mib(70),
            cgroup_limit_bytes: Some(ByteCount::gib(4)),
            cgroup_used_bytes: Some(ByteCount::gib(1)),
            ..HostReading::default()
        },
        fragmentation: Some(0.0625),
        ooms,
        retries: 0,
        splits: ooms,
        phases: PhaseReadings {
            load: phase(0.25, 30),
            warm_up: phase(0.5, 40),
            run: phase(1.0 + ooms as f64, 60),
        },
        forecasts: vec![
            forecast(Component::Vision, 64, Some(39 + ooms)),
            forecast(Component::Text, 512, None),
        ],
        holders: vec![Holder { owner, bytes: ByteCount::mib(15) }],
        peak_holders: Vec::new(),
        breaches: Vec::new(),
        samples: vec![reading(started + i64::try_from(ooms).unwrap())],
    }
}

fn reading(at_unix_ms: i64) -> Sample {
    Sample {
        at_unix_ms,
        phase: Phase::Run,
        allocated_bytes: ByteCount::mib(50),
        reserved_bytes: ByteCount::mib(52),
        device_bytes: None,
        leased_bytes: ByteCount::mib(51),
        resident_bytes: ByteCount::mib(170),
        anonymous_bytes: ByteCount::mib(95),
        mapped_bytes: ByteCount::mib(70),
        cgroup_used_bytes: None,
    }
}

/// Two executors, one after the other; the first gave two accounts.
fn measured() -> MemoryEvidence {
    let accounts = [(10, 1, 0), (20, 1, 2), (30, 25, 1)];
    let accounts = accounts.map(|(committed_unix_ms, started, ooms)| AccountEvidence {
        committed_unix_ms,
        account: account(started, ooms),
    });
    MemoryEvidence {
        planned_peak: Some(ByteCount::mib(50)),
        weights: Some(ByteCount::mib(30)),
        host_peak: Some(ByteCount::mib(170)),
        accounts: accounts.to_vec(),
    }
}

/// A complete run of one trial.
fn complete() -> Evidence {
    Evidence {
        run: "01k0complete".parse().unwrap(),
        name: "tiny-clip on emoji".to_owned(),
        trials: vec![trial(0, Precision::Fp32)],
        nodes: vec![slice(0, &[Component::Text, Component::Vision], measured())],
        models: IndexMap::from([(
            "tests/data/models/tiny-clip".to_owned(),
            ModelEvidence {
                weights: Digest::of(b"weights"),
                tokenizer: Digest::of(b"tokenizer"),
                preprocess: "RGB, bicubic resize 112, centre crop 112".to_owned(),
            },
        )]),
        datasets: IndexMap::from([
            (name("fluent"), dataset("images", true)),
            (name("captions"), dataset("captions", false)),
        ]),
        orchestrator: "0.1.0".to_owned(),
        libtorch: Some("2.11.0".to_owned()),
        quarantined: Vec::new(),
        unfinished: Vec::new(),
    }
}

/// Two trials, a broken sample with a hostile name, two slices.
fn quarantined() -> Evidence {
    let mut evidence = complete();
    evidence.trials = vec![trial(1, Precision::Bf16), trial(0, Precision::Fp32)];
    for trial in &mut evidence.trials {
        trial.tasks[0] = zero_shot(&[&[1, 2], &[1, 7, 1]]);
    }
    evidence.nodes.push(slice(1, &[Component::Score], MemoryEvidence::default()));
    let mut other = account(7, 3);
    other.device = DeviceId::Gpu("GPU-8f6a1c52-17ab-4c1f-9a3e-0123456789ab".to_owned());
    other.driver = Some("550.90.07".to_owned());
    other.device_peak_bytes = Some(ByteCount::mib(2100));
    other.outside_allocator_bytes = Some(ByteCount::mib(420));
    other.breaches = vec![Breach {
        at_unix_ms: 8,
        quota_bytes: ByteCount::mib(1500),
        used_bytes: ByteCount::mib(2100),
        by: "other processes\u{1b} on the device".to_owned(),
    }];
    let accounts = vec![AccountEvidence { committed_unix_ms: 9, account: other.clone() }];
    let memory = MemoryEvidence { accounts, ..MemoryEvidence::default() };
    evidence.nodes.push(NodeEvidence { device: other.device, ..slice(2, &[], memory) });
    evidence.quarantined = vec![QuarantinedSample {
        dataset: name("fluent"),
        sample: SampleId("cat|dog/\u{1b}[2Jx.jpg".to_owned()),
        reason: "premature end of <data>".to_owned(),
    }];
    evidence
}

/// A run that was cancelled before retrieval had any result.
fn cancelled() -> Evidence {
    let mut evidence = complete();
    evidence.trials[0].tasks = vec![zero_shot(&[&[1, 2, 1]]), retrieval(&[], &[])];
    evidence.trials[0].images = 0;
    evidence.libtorch = None;
    let unit = |unit: u32, outcome, class, reason: &str| UnfinishedUnit {
        unit: UnitId(unit),
        trial: Some(TrialId(0)),
        what: format!("encode images {}..{} of fluent", unit * 3, unit * 3 + 3),
        outcome,
        class,
        reason: reason.to_owned(),
    };
    evidence.unfinished = (2..9)
        .map(|number| unit(number, UnitOutcome::Cancelled, None, "cancelled by the user"))
        .chain([unit(
            1,
            UnitOutcome::Failed,
            Some(FailureClass::Resource),
            "the quota of 2.00 GiB is reached",
        )])
        .collect();
    evidence
}

fn report(evidence: Evidence) -> Report {
    fold(evidence).unwrap()
}

#[test]
fn renderings_of_a_complete_run() {
    let report = report(complete());
    assert!(report.complete);
    insta::assert_snapshot!("complete_text", text::render(&report));
    insta::assert_snapshot!("complete_markdown", markdown::write(&report));
    insta::assert_snapshot!("complete_json", json::write(&report));
}

#[test]
fn renderings_of_a_run_with_a_quarantined_sample() {
    let report = report(quarantined());
    assert!(!report.complete);
    insta::assert_snapshot!("quarantined_text", text::render(&report));
    insta::assert_snapshot!("quarantined_markdown", markdown::write(&report));
    insta::assert_snapshot!("quarantined_json", json::write(&report));
}

#[test]
fn renderings_of_a_cancelled_run() {
    let report = report(cancelled());
    assert!(!report.complete);
    insta::assert_snapshot!("cancelled_text", text::render(&report));
    insta::assert_snapshot!("cancelled_markdown", markdown::write(&report));
    insta::assert_snapshot!("cancelled_json", json::write(&report));
}

/// The first captions, and all of them, of one dataset.
#[test]
fn two_retrievals_on_one_dataset_are_told_apart() {
    let mut evidence = complete();
    let mut all = retrieval(&[1, 1, 1, 1, 2, 3], &[1, 1, 1, 2, 2, 1]);
    all.kind = TaskKind::Retrieval { recall_at: vec![1, 5, 10], captions: CaptionChoice::All };
    evidence.trials[0].tasks.push(all);
    let report = report(evidence);
    let tasks = serde_json::to_value(&report.trials[0].tasks).unwrap();
    assert_eq!(tasks[0].get("captions"), None);
    assert_eq!((&tasks[1]["captions"], &tasks[2]["captions"]), (&"first".into(), &"all".into()));
    let markdown = markdown::write(&report);
    let headings: Vec<&str> = markdown.lines().filter(|line| line.contains(" on ")).collect();
    let expected = [
        "# tiny-clip on emoji",
        "## zero_shot on fluent",
        "## retrieval on captions, first captions",
        "## retrieval on captions, all captions",
    ];
    assert_eq!(headings, expected);
    insta::assert_snapshot!("retrievals_text", text::render(&report));
}

#[test]
fn the_tables_fit_their_width() {
    for width in [80, 120] {
        let table = text::render_within(&report(quarantined()), width);
        let prose = ["samples", "time", "warning", "incomplete", "  "];
        let widest = table
            .lines()
            .filter(|line| !prose.iter().any(|start| line.starts_with(start)))
            .map(|line| line.chars().count());
        assert!(widest.max().unwrap() <= usize::from(width), "{table}");
    }
}

#[test]
fn json_is_read_back() {
    for evidence in [complete(), quarantined(), cancelled()] {
        let report = report(evidence);
        assert_eq!(json::read(&json::write(&report)).unwrap(), report);
    }
    let other = json::read(r#"{"schema": "orchestrator.report/9"}"#).unwrap_err();
    assert_eq!(
        other.to_string(),
        "the report has the schema `orchestrator.report/9`; this version reads `orchestrator.report/1`"
    );
}

#[test]
fn the_order_of_evidence_does_not_matter() {
    let mut shuffled = quarantined();
    shuffled.trials.reverse();
    shuffled.nodes.reverse();
    shuffled.nodes.iter_mut().for_each(|node| node.memory.accounts.reverse());
    shuffled.quarantined.push(shuffled.quarantined[0].clone());
    for task in shuffled.trials.iter_mut().flat_map(|trial| &mut trial.tasks) {
        task.partials.reverse();
    }
    assert_eq!(json::write(&report(shuffled)), json::write(&report(quarantined())));
}

#[test]
fn counters_add_up_over_executors_and_peaks_do_not() {
    let memory = report(complete()).nodes.remove(0).memory;
    // The first executor told of 0, then of 2; the second of 1.
    assert_eq!((memory.ooms, memory.splits, memory.retries), (Some(3), Some(3), Some(0)));
    assert_eq!(memory.phases.run.seconds, Some(3.0 + 2.0));
    assert_eq!(memory.phases.load.seconds, Some(0.25 + 0.25));
    assert_eq!(memory.allocated_peak_bytes, Some(ByteCount::mib(62)));
    assert_eq!(memory.predicted_peak_bytes, Some(ByteCount::mib(61)), "the executor knows better");
    assert_eq!(memory.weights_bytes, Some(ByteCount::mib(30)));
    assert_eq!(memory.host.anonymous_bytes, Some(ByteCount::mib(95)), "readings count too");
    let vision = &memory.forecasts[1];
    assert_eq!(vision.measured_bytes, Some(ByteCount::mib(41)), "the largest");
    assert_eq!(vision.error_percent, Some(-2.44));
    assert_eq!((memory.forecasts.len(), memory.forecasts[0].error_percent), (2, None));
}

#[test]
fn readings_come_by_time_and_once() {
    let mut accounts = measured().accounts;
    accounts.push(accounts[1].clone());
    accounts.reverse();
    let times: Vec<i64> = samples(&accounts).iter().map(|sample| sample.at_unix_ms).collect();
    assert_eq!(times, [1, 3, 26]);
    assert_eq!(newest(&accounts).unwrap().started_at_unix_ms, 25);
}

#[test]
fn the_driver_is_that_of_each_slices_newest_account() {
    assert_eq!(report(complete()).provenance.driver, None, "no GPU");
    let mut evidence = quarantined();
    let told = |committed_unix_ms, driver: Option<&str>| AccountEvidence {
        committed_unix_ms,
        account: Account { driver: driver.map(str::to_owned), ..account(1, 1) },
    };
    evidence.nodes[1].memory.accounts = vec![told(5, Some("570.1")), told(2, Some("510.4"))];
    let driver = report(evidence.clone()).provenance.driver;
    assert_eq!(driver.as_deref(), Some("550.90.07, 570.1"), "an update between is not told");
    evidence.nodes[1].memory.accounts.push(told(6, None));
    assert_eq!(report(evidence).provenance.driver.as_deref(), Some("550.90.07"));
}

/// A report of before memory was measured.
#[test]
fn reports_without_memory_are_read() {
    let mut report: serde_json::Value =
        serde_json::from_str(&json::write(&report(complete()))).unwrap();
    let memory = report["nodes"][0]["memory"].as_object_mut().unwrap();
    for key in ["allocator", "retries", "splits", "host", "forecasts", "holders", "breaches"] {
        memory.remove(key).unwrap();
    }
    memory["phases"] = serde_json::json!({"load": {}, "warm_up": {}, "run": {}});
    let memory = json::read(&report.to_string()).unwrap().nodes.remove(0).memory;
    assert_eq!((memory.splits, memory.phases.run.seconds), (None, None));
}

#[test]
fn amounts_take_three_digits() {
    let amounts = [0, 999, 1000, 10_189, 1_048_575, 1_048_576, 1 << 33, 130_023_424, u64::MAX];
    let short: Vec<String> =
        amounts.iter().map(|&amount| rows::short(Some(ByteCount::bytes(amount)))).collect();
    let expected = [
        "0 B",
        "999 B",
        "0.98 KiB",
        "9.95 KiB",
        "1.00 MiB",
        "1.00 MiB",
        "8.00 GiB",
        "124 MiB",
        "16777216 TiB",
    ];
    assert_eq!(short, expected);
}

#[test]
fn samples_that_do_not_add_up_are_not_complete() {
    let mut evidence = complete();
    evidence.trials[0].tasks[0].samples = 7;
    let report = report(evidence);
    assert!(!report.complete);
    assert!(text::render(&report).contains("incomplete: not every sample was evaluated"));
}

#[test]
fn a_direction_without_results_is_not_complete() {
    let mut evidence = complete();
    evidence.trials[0].tasks[1].partials.truncate(1);
    assert!(!report(evidence).complete);
}

#[test]
fn results_of_another_task_are_refused() {
    let mut evidence = complete();
    let foreign = evidence.trials[0].tasks[1].partials[0].clone();
    evidence.trials[0].tasks[0].partials.push(foreign);
    assert_eq!(
        fold(evidence).unwrap_err().to_string(),
        "the results of zero_shot on fluent in trial 0 do not belong together"
    );
}

#[test]
fn several_models_have_one_joint_digest_each() {
    let mut evidence = complete();
    let mut other = evidence.models[0].clone();
    other.weights = Digest::of(b"other");
    other.preprocess = "RGB, bicubic resize 224".to_owned();
    evidence.models.insert("models/other".to_owned(), other);
    let provenance = report(evidence).provenance;
    let lines = format!(
        "{} tests/data/models/tiny-clip\n{} models/other\n",
        Digest::of(b"weights"),
        Digest::of(b"other")
    );
    assert_eq!(provenance.weights_blake3, Some(Digest::of(lines.as_bytes())));
    assert_eq!(
        provenance.preprocess.unwrap(),
        "tests/data/models/tiny-clip: RGB, bicubic resize 112, centre crop 112; models/other: RGB, bicubic resize 224"
    );
    assert_eq!(provenance.templates_blake3, Some(Digest::of(b"templates")));
}

/// An account with figures of its own, as an executor that started at 5 would give it.
fn any_account() -> impl Strategy<Value = Account> {
    let figures = prop::collection::vec(0..9_u64, 12);
    (figures, 0..3_u64, any::<bool>()).prop_map(|(figures, ooms, measured)| {
        let mib = |at: usize| ByteCount::mib(figures[at]);
        let mut account = account(5, ooms);
        account.weights_bytes = mib(0);
        account.predicted_peak_bytes = mib(1);
        account.allocated_peak_bytes = mib(2);
        account.reserved_peak_bytes = mib(3);
        account.fragmentation = Some(figures[3] as f64 / 16.0);
        account.device_peak_bytes = measured.then_some(mib(4));
        account.host.resident_peak_bytes = mib(5);
        account.host.anonymous_bytes = mib(6);
        account.host.cgroup_used_bytes = measured.then_some(mib(7));
        account.phases.run.seconds = figures[8] as f64;
        account.phases.load.host_peak_bytes = mib(9);
        account.forecasts[0].measured_bytes = measured.then_some(mib(10));
        account.forecasts[0].rows = u32::try_from(figures[11]).unwrap() % 3;
        account.breaches = vec![Breach {
            at_unix_ms: i64::try_from(figures[8]).unwrap(),
            quota_bytes: mib(0),
            used_bytes: mib(1),
            by: "others".to_owned(),
        }];
        account.samples = vec![reading(i64::try_from(figures[0]).unwrap())];
        account
    })
}

proptest! {
    #[test]
    fn a_life_in_two_accounts_reads_as_all_its_accounts(
        mut accounts in prop::collection::vec(any_account(), 1..8),
    ) {
        // An executor's counters only grow.
        accounts.sort_by_key(|it| {
            let counters = (it.ooms, it.retries, it.splits);
            (counters, it.host.resident_peak_bytes, it.reserved_peak_bytes)
        });
        let evidence = |accounts: Vec<(i64, Account)>| MemoryEvidence {
            accounts: accounts
                .into_iter()
                .map(|(committed_unix_ms, account)| AccountEvidence { committed_unix_ms, account })
                .collect(),
            ..MemoryEvidence::default()
        };
        let all = evidence((1..).zip(accounts.clone()).collect());
        let mut life = orchestrator_ledger::Life::of(accounts[0].clone());
        accounts[1..].iter().for_each(|account| life.add(account.clone()));
        let samples = crate::samples(&all.accounts);
        let newest = Account { samples: samples.clone(), ..life.newest };
        let folded = evidence(vec![(0, life.most), (9, newest)]);
        prop_assert_eq!(crate::samples(&folded.accounts), samples);
        prop_assert_eq!(crate::memory::fold(folded), crate::memory::fold(all));
    }
}

/// What a rendered report consists of: headings of tables, and labels of lines with figures.
fn parts(rendered: &str) -> Vec<String> {
    let part = |line: &str| match line.split_once(": ") {
        Some((label, _)) => Some(label.to_owned()),
        None if line.contains(|c: char| c.is_ascii_digit()) => None,
        None => Some(line.split_whitespace().collect::<Vec<_>>().join(" ")),
    };
    let is_rule = |part: &String| part.contains(['─', '═']) || part.is_empty();
    rendered.lines().filter_map(part).filter(|part| !is_rule(part)).collect()
}

#[test]
fn the_readme_shows_what_a_report_consists_of() {
    let readme = include_str!("../../../README.md");
    let (_, sample) = readme.split_once("```text\n").unwrap();
    let (sample, _) = sample.split_once("```").unwrap();
    assert_eq!(parts(sample), parts(&text::render(&report(complete()))));
}
