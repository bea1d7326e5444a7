//! What holds for any text and any sweep.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::LazyLock;

use orchestrator_spec::{Batch, Evaluation, Override, Places, as_run, parse, schema};
use orchestrator_types::{DatasetName, Precision};
use proptest::{collection::vec, prelude::*, sample};

static VALIDATOR: LazyLock<jsonschema::Validator> =
    LazyLock::new(|| jsonschema::validator_for(&schema()).unwrap());

const EVERYTHING: &str = include_str!("../fixtures/valid/everything.yaml");
const MISTAKES: &str = include_str!("../fixtures/invalid/shape-many-mistakes.yaml");

/// Pieces that mean something to a YAML parser or to this format.
const PIECES: [&str; 30] = [
    "\n",
    "\n  ",
    "\n- ",
    ": ",
    ", ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "!t ",
    "<<: ",
    "---\n",
    "\"",
    "'",
    "|\n",
    "# ",
    "\t",
    "\r",
    "? ",
    "null",
    "1.0",
    "-1",
    "models",
    "path",
    "s3://",
    "\u{feff}",
    "é",
    "zero_shot",
];

fn mutated() -> impl Strategy<Value = String> {
    let edit = (any::<sample::Index>(), 0..12_usize, sample::select(PIECES.to_vec()));
    (sample::select(vec![EVERYTHING, MISTAKES]), vec(edit, 1..6)).prop_map(|(text, edits)| {
        let mut chars: Vec<char> = text.chars().collect();
        for (at, cut, piece) in edits {
            let start = at.index(chars.len() + 1);
            let end = (start + cut).min(chars.len());
            chars.splice(start..end, piece.chars());
        }
        chars.into_iter().collect()
    })
}

/// A value near those that the format expects.
fn value() -> impl Strategy<Value = String> {
    let words = [
        "fp32",
        "bf16",
        "auto",
        "1",
        "1.0",
        "0",
        "-3",
        "2.5",
        "null",
        "true",
        "\"1\"",
        "photos",
        "a.csv",
        "x://y",
        "''",
        "2 GiB",
        "2.5MB",
        "-1 GiB",
        "0 B",
        ".5 kB",
        "2 gigs",
        "split",
        "fail",
        "degrade",
        "backend:native",
        "'expandable_segments:True, max_split_size_mb:64'",
        "max_split_size_mb:x",
        "per_process_memory_fraction:0.5",
    ];
    let scalar = sample::select(words.to_vec()).prop_map(str::to_owned);
    scalar.prop_recursive(3, 12, 3, |inner| {
        let keys =
            ["quota", "path", "format", "dataset", "top_k", "precision", "batch", "zero_shot", "x"];
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(", "))),
            (sample::select(keys.to_vec()), inner)
                .prop_map(|(key, value)| format!("{{{key}: {value}}}")),
        ]
    })
}

fn key() -> impl Strategy<Value = &'static str> {
    sample::select(vec![
        "version",
        "name",
        "models",
        "models[0]",
        "models[0].path",
        "datasets",
        "datasets.captions",
        "datasets.captions.path",
        "datasets.captions.format",
        "tasks",
        "tasks[0]",
        "tasks[0].zero_shot",
        "tasks[0].zero_shot.top_k",
        "tasks[1].retrieval.captions",
        "tasks[1].retrieval.recall_at[0]",
        "sweep",
        "sweep.batch",
        "sweep.batch[0]",
        "sweep.precision",
        "memory",
        "memory.quota",
        "memory.on_oom",
        "memory.allocator",
        "on_bad_sample",
        "extra",
    ])
}

/// Overrides that are right, and some of any kind.
fn flags() -> impl Strategy<Value = Vec<String>> {
    let right = [
        "name=yes",
        "name='1_000'",
        "name=\"- a: #b\"",
        "name='  '",
        "models=[{path: '~'}, {path: 0x10}]",
        "models[1].path=\"null\"",
        "datasets[\"photos-v2.1\"].path=a/ä/b c",
        "datasets.captions={format: captions, path: \"'\"}",
        "tasks=[{retrieval: {dataset: captions}}]",
        "tasks[0].zero_shot.top_k=[1, 2]",
        "sweep={precision: [fp32], batch: [7]}",
        "sweep.batch=[7]",
        "sweep.batch[0]=auto",
        "sweep=",
        "memory={quota: 2 GiB}",
        "memory.quota=64 MiB",
        "on_bad_sample=quarantine",
    ];
    let name = any::<String>().prop_map(|name| format!("name={}", serde_json::json!(name)));
    let any = (key(), value()).prop_map(|(key, value)| format!("{key}={value}"));
    let right = sample::select(right.to_vec()).prop_map(str::to_owned);
    vec(prop_oneof![8 => right, 2 => name, 1 => any], 0..4)
}

fn with_axes(models: usize, batches: usize, batch_first: bool) -> Evaluation {
    let models = (0..models).map(|index| format!("{{path: m{index}}}")).collect::<Vec<_>>();
    let batches = (1..=batches).map(|size| size.to_string()).collect::<Vec<_>>();
    let (models, batches) = (models.join(", "), batches.join(", "));
    let axes = if batch_first {
        format!("batch: [{batches}], precision: [fp32]")
    } else {
        format!("precision: [fp32], batch: [{batches}]")
    };
    let text = format!(
        "{{version: 1, name: x, models: [{models}], datasets: {{d: {{format: captions, path: d}}}}, \
         tasks: [{{retrieval: {{dataset: d}}}}], sweep: {{{axes}}}}}"
    );
    parse("eval.yaml", &text, &[]).unwrap_or_else(|error| panic!("{error}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_text_never_panics(text in any::<String>()) {
        if let Err(problems) = parse("eval.yaml", &text, &[]) {
            prop_assert!(!problems.is_empty());
        }
    }

    #[test]
    fn mutated_files_never_panic_and_problems_stand_inside_the_file(text in mutated()) {
        if let Err(problems) = parse("eval.yaml", &text, &[]) {
            prop_assert!(!problems.is_empty());
            for problem in problems.iter() {
                let Some(orchestrator_spec::Place::File { line, column, .. }) = &problem.place else {
                    panic!("no place: {problem}");
                };
                prop_assert!(*line >= 1 && *column >= 1, "{}", problem);
                prop_assert!(*line as usize <= text.split(['\n', '\r']).count() + 1, "{}", problem);
            }
        }
    }

    #[test]
    fn the_schema_accepts_what_parse_accepts(key in key(), value in value()) {
        let set: Override = format!("{key}={value}").parse().unwrap();
        let base: serde_yaml::Value = serde_yaml::from_str(EVERYTHING).unwrap();
        let Some(document) = replaced(base, key, &value) else { return Ok(()) };
        let valid = VALIDATOR.is_valid(&document);
        match parse("eval.yaml", EVERYTHING, &[set]) {
            Ok(_) => prop_assert!(valid, "parse accepts, the schema does not: {key}={value}"),
            // Missing datasets, tasks that are equal by defaults, and settings that contradict each
            // other are beyond a schema.
            Err(problems) => {
                let starts = ["no dataset", "the same entry", "`expandable_segments:True` and"];
                let beyond = |message: &str| starts.iter().any(|start| message.starts_with(start));
                let shape = problems.iter().any(|problem| !beyond(&problem.message));
                prop_assert_eq!(shape, !valid, "{}", problems);
            }
        }
    }

    #[test]
    fn a_file_as_run_needs_no_overrides(flags in flags(), folder in any::<String>()) {
        let overrides: Vec<Override> = flags.iter().map(|flag| flag.parse().unwrap()).collect();
        let Ok(text) = as_run("eval.yaml", EVERYTHING, &overrides, &folder) else {
            prop_assert!(parse("eval.yaml", EVERYTHING, &overrides).is_err());
            return Ok(());
        };
        prop_assert!(!overrides.is_empty() || text == EVERYTHING);
        let placeless = |evaluation| Evaluation { places: Places::default(), ..evaluation };
        let messages = |problems: orchestrator_spec::Problems| {
            let mut all: Vec<_> = problems.iter().map(|it| (it.key.clone(), it.message.clone())).collect();
            all.sort();
            all
        };
        let original = parse("eval.yaml", EVERYTHING, &overrides);
        prop_assert_eq!(
            parse("eval.yaml", &text, &[]).map(placeless).map_err(messages),
            original.map(placeless).map_err(messages),
            "{}", text
        );
    }

    #[test]
    fn the_schema_knows_the_rule_of_dataset_names(name in "[a-zA-Z0-9._-]{1,4}[ -~é]{0,3}|a{127,130}") {
        let document = serde_json::json!({
            "version": 1, "name": "x", "models": [{"path": "m"}],
            "datasets": {&name: {"format": "captions", "path": "d"}},
            "tasks": [{"retrieval": {"dataset": &name}}],
        });
        let valid = VALIDATOR.is_valid(&document);
        prop_assert_eq!(name.parse::<DatasetName>().is_ok(), valid);
    }

    #[test]
    fn trials_are_the_product_in_order(models in 1..6_usize, batches in 1..6_usize, first: bool) {
        let evaluation = with_axes(models, batches, first);
        let trials = evaluation.trials();
        prop_assert_eq!(trials.len(), models * batches);
        for (position, trial) in trials.iter().enumerate() {
            prop_assert_eq!(trial.id.0 as usize, position);
            prop_assert_eq!(trial.model, position / batches);
            prop_assert_eq!(trial.batch, evaluation.batches[position % batches]);
        }
    }

    #[test]
    fn the_last_axis_is_the_fastest(first: bool, precisions in 1..4_usize, batches in 1..4_usize) {
        let mut evaluation = with_axes(2, batches, first);
        let all = [Precision::Fp32, Precision::Bf16, Precision::Fp16];
        evaluation.precisions = all[..precisions].to_vec();
        let expected: Vec<(usize, Precision, Batch)> = (0..2).flat_map(|model| {
            let (slow, fast) = if first { (batches, precisions) } else { (precisions, batches) };
            let evaluation = &evaluation;
            (0..slow * fast).map(move |point| {
                let (slow, fast) = (point / fast, point % fast);
                let (precision, batch) = if first { (fast, slow) } else { (slow, fast) };
                (model, evaluation.precisions[precision], evaluation.batches[batch])
            })
        }).collect();
        let found: Vec<_> = evaluation.trials().iter().map(|trial| (trial.model, trial.precision, trial.batch)).collect();
        prop_assert_eq!(found, expected);
    }
}

/// `base` with the value at `key` replaced, as JSON; `None` if JSON cannot hold it.
fn replaced(mut base: serde_yaml::Value, key: &str, value: &str) -> Option<serde_json::Value> {
    let mut at = &mut base;
    for step in key.split(['.', '[']) {
        at = match step.strip_suffix(']') {
            Some(index) => &mut at[index.parse::<usize>().unwrap()],
            None => &mut at[step],
        };
    }
    *at = serde_yaml::from_str(value).unwrap();
    serde_json::to_value(base).ok()
}

/// Hostile sizes end quickly: no quadratic walk, no deep recursion, no expansion.
#[test]
fn large_and_deep_texts_end_soon() {
    let size = 250_000;
    let texts = [
        "[".repeat(size),
        "{a: ".repeat(size / 4),
        "- ".repeat(size / 2),
        format!("models: [{}]", "1,".repeat(size / 2 - 10)),
        format!("a: &a [{}]\nb: [{}]", "1,".repeat(50_000), "*a,".repeat(50_000)),
        format!("? {}", "? ".repeat(size / 2 - 2)),
        "x: 1\n".repeat(size / 5),
        (0..20_000).map(|n| format!("k{n}: 1")).collect::<Vec<_>>().join("\n"),
        format!("name: '{}'", "x".repeat(size)),
    ];
    for text in texts {
        let started = std::time::Instant::now();
        assert!(parse("eval.yaml", &text, &[]).is_err());
        let seconds = started.elapsed().as_secs_f64();
        // Milliseconds each when optimised; the bound catches growth with the square.
        assert!(seconds < 60.0, "{seconds} s: {}", &text[..20]);
    }
}
