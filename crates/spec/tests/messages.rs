//! Every mistake has a file and, beside it, the message that a person gets for it.
//!
//! `yaml-…`: refused before any key is looked at. `shape-…`: the JSON schema refuses it too.
//! `meaning-…`: beyond what a schema can say.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{fs, path::Path};

use insta::{assert_snapshot, with_settings};
use orchestrator_spec::{Override, parse, schema};

/// The fixtures of a folder: name without ending, text.
fn fixtures(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(folder);
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

fn follows_schema(text: &str) -> bool {
    let value: serde_json::Value = serde_yaml::from_str(text).unwrap();
    jsonschema::validator_for(&schema()).unwrap().is_valid(&value)
}

fn message(text: &str, flags: &[&str]) -> String {
    let overrides: Vec<Override> = flags.iter().map(|flag| flag.parse().unwrap()).collect();
    parse("eval.yaml", text, &overrides).unwrap_err().to_string()
}

const GOOD: &str = include_str!("../fixtures/valid/everything.yaml");

#[test]
fn each_mistake_has_its_message() {
    for (name, text) in fixtures("invalid") {
        let message = message(&text, &[]);
        with_settings!({
            snapshot_path => "../fixtures/invalid",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, { assert_snapshot!(name, message) });
    }
}

#[test]
fn the_schema_refuses_each_mistake_of_shape() {
    for (name, text) in fixtures("invalid") {
        match name.split_once('-').unwrap().0 {
            "shape" => assert!(!follows_schema(&text), "{name}"),
            "meaning" => assert!(follows_schema(&text), "{name}"),
            kind => assert_eq!(kind, "yaml", "{name}"),
        }
    }
}

#[test]
fn what_is_valid_parses_and_follows_the_schema() {
    for (name, text) in fixtures("valid") {
        let evaluation = parse(&name, &text, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert!(follows_schema(&text), "{name}");
        with_settings!({
            snapshot_path => "../fixtures/valid",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, { assert_snapshot!(name, serde_json::to_string_pretty(&evaluation).unwrap()) });
    }
}

#[test]
fn the_example_and_the_demo_are_valid() {
    for path in ["../../eval.yaml", "../../tests/data/eval.yaml"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let evaluation = parse(path, &text, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert!(follows_schema(&text), "{path}");
        assert_eq!(evaluation.trials().len(), 1, "{path}");
    }
}

#[test]
fn the_schema_is_the_one_that_was_reviewed() {
    assert_snapshot!(serde_json::to_string_pretty(&schema()).unwrap());
}

#[test]
fn every_default_and_every_example_follows_the_schema() {
    fn visit(schema: &serde_json::Value, count: &mut usize) {
        if schema.get("examples").is_some() {
            let validator = jsonschema::validator_for(schema).unwrap();
            let examples = schema["examples"].as_array().unwrap().iter();
            for value in examples.chain(schema.get("default")) {
                assert!(validator.is_valid(value), "{value} at {}", schema["title"]);
                *count += 1;
            }
        }
        let children: Vec<_> = match schema {
            serde_json::Value::Object(entries) => entries.values().collect(),
            serde_json::Value::Array(items) => items.iter().collect(),
            _ => return,
        };
        for child in children {
            visit(child, count);
        }
    }
    let mut count = 0;
    visit(&schema(), &mut count);
    assert!(count > 20, "{count}");
}

#[test]
fn an_evaluation_survives_json() {
    let mut evaluation = parse("eval.yaml", GOOD, &[]).unwrap();
    let json = serde_json::to_string(&evaluation).unwrap();
    evaluation.places = orchestrator_spec::Places::default();
    assert_eq!(serde_json::from_str::<orchestrator_spec::Evaluation>(&json).unwrap(), evaluation);
}

#[test]
fn a_file_of_another_kind_is_refused_by_its_size() {
    assert_snapshot!(message(&"#".repeat(257 << 10), &[]));
}

#[test]
fn overrides_replace_add_and_come_in_order() {
    let flags = [
        "models[1].path=other",
        "sweep.batch=[7]",
        "sweep.batch=[8, 9]",
        "datasets[\"photos-v2.1\"].path=elsewhere",
        "name=new name",
    ];
    let overrides: Vec<Override> = flags.iter().map(|flag| flag.parse().unwrap()).collect();
    let evaluation = parse("eval.yaml", GOOD, &overrides).unwrap();
    assert_eq!(evaluation.name, "new name");
    assert_eq!(evaluation.models[1].path, "other");
    assert_eq!(evaluation.datasets[0].path(), "elsewhere");
    assert_eq!(
        serde_json::to_value(&evaluation.batches).unwrap().to_string(),
        r#"[{"fixed":8},{"fixed":9}]"#
    );

    let smallest = include_str!("../fixtures/valid/smallest.yaml");
    let added = parse("eval.yaml", smallest, &["sweep.batch=[1, 2]".parse().unwrap()]).unwrap();
    assert_eq!(added.trials().len(), 2);
}

#[test]
fn mistakes_in_overrides_name_the_flag() {
    assert_snapshot!(message(
        GOOD,
        &[
            "models[2].path=third",
            "models.path=x",
            "name.first=x",
            "sweep.precison=[fp32]",
            "sweep.batch=[*a]",
            "on_bad_sample=",
            "name=[",
            "tasks[0].zero_shot.top_k=5",
            "datasets.photos.path=x",
            "version[0]=1",
        ],
    ));
}

#[test]
fn text_that_is_no_override_is_refused() {
    let message = |text: &str| text.parse::<Override>().unwrap_err().to_string();
    for text in ["models", "=x", "a..b=1", "a[x]=1", "a[0=1", ".a=1", "a.=1", "a b=1"] {
        assert!(
            message(text).ends_with("write for example `models[0].path=other/model`"),
            "{text}"
        );
    }
    assert_snapshot!(message("models\u{1b}[31m"));
}
