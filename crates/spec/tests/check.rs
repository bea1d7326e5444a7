//! An evaluation against what was found on disk.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use insta::assert_snapshot;
use orchestrator_spec::{
    DatasetFacts, DatasetKey, DatasetProblem, Facts, Findings, ModelFacts, Problem, TowerFacts,
    check, examine, parse,
};
use orchestrator_types::{ByteCount, Digest};

const EVALUATION: &str = "\
version: 1
name: check
models: [{ path: good }, { path: bad }]
datasets:
  photos: { format: imagefolder, path: photos }
  texts: { format: captions, path: texts.jsonl }
  spare: { format: captions, path: spare.jsonl }
tasks:
  - zero_shot: { dataset: photos, top_k: [1, 5] }
  - retrieval: { dataset: texts, recall_at: [1, 10] }
";

fn model() -> ModelFacts {
    let tower = TowerFacts {
        layers: 6,
        width: 256,
        heads: 4,
        mlp: 1024,
        tokens: 50,
        weights_bytes: ByteCount::mib(7),
    };
    ModelFacts {
        architecture: "CLIPModel".to_owned(),
        weights_bytes: ByteCount::mib(15),
        parameters: 7_640_000,
        weights_blake3: Digest::of(b"weights"),
        tokenizer_blake3: Digest::of(b"tokenizer"),
        preprocess: "resize 112, crop 112".to_owned(),
        crop: "resize 112, crop 112".to_owned(),
        image_size: 112,
        context: 32,
        embedding_width: 256,
        vision: tower,
        text: tower,
    }
}

fn dataset() -> DatasetFacts {
    DatasetFacts {
        samples: 100,
        labelled: true,
        classes: 10,
        templates: 6,
        captions_first: 100,
        captions_all: 500,
        manifest_digest: Digest::of(b"manifest"),
        templates_digest: None,
        warnings: Vec::new(),
    }
}

/// Facts under which nothing is wrong.
fn facts() -> Facts {
    let datasets = ["photos", "texts", "spare"];
    Facts {
        models: vec![Ok(model()), Ok(model())],
        datasets: datasets.map(|name| (name.parse().unwrap(), Ok(dataset()))).into(),
    }
}

fn findings(edit: impl FnOnce(&mut Facts)) -> Findings {
    let mut facts = facts();
    edit(&mut facts);
    check(&parse("eval.yaml", EVALUATION, &[]).unwrap(), &facts)
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn edit(facts: &mut Facts, name: &str, edit: impl FnOnce(&mut DatasetFacts)) {
    edit(facts.datasets.get_mut(&name.parse().unwrap()).unwrap().as_mut().unwrap());
}

#[test]
fn good_facts_leave_only_the_unused_dataset() {
    let findings = findings(|_| {});
    assert!(findings.errors.is_empty());
    assert_snapshot!(lines(&findings.warnings));
}

#[test]
fn what_cannot_be_used_is_reported_at_its_path() {
    let findings = findings(|facts| {
        facts.models[1] = Err(vec!["bad/config.json: no such file".to_owned()]);
        let problem = |key, message: &str| DatasetProblem { key, message: message.to_owned() };
        let texts = ["texts.jsonl:3: not JSON", "texts.jsonl:9: no image"]
            .map(|message| problem(DatasetKey::Path, message));
        facts.datasets.insert("texts".parse().unwrap(), Err(texts.to_vec()));
        let spare = problem(DatasetKey::Classes, "classes.json: no such file");
        facts.datasets.insert("spare".parse().unwrap(), Err(vec![spare]));
        edit(facts, "photos", |photos| photos.samples = 0);
    });
    assert_snapshot!(findings.errors);
}

#[test]
fn tasks_that_a_dataset_cannot_serve_are_refused() {
    let findings = findings(|facts| {
        edit(facts, "photos", |photos| (photos.labelled, photos.classes) = (false, 0));
        edit(facts, "texts", |texts| (texts.captions_first, texts.captions_all) = (0, 0));
    });
    assert_snapshot!(findings.errors);
}

#[test]
fn more_than_there_is_cannot_be_asked() {
    let findings = findings(|facts| {
        edit(facts, "photos", |photos| (photos.classes, photos.templates) = (4, 0));
        edit(facts, "texts", |texts| texts.captions_first = 10);
        edit(facts, "photos", |photos| photos.warnings.push("class `cat` has no images".into()));
    });
    assert_snapshot!(findings.errors);
    assert_snapshot!(lines(&findings.warnings));
}

#[test]
fn facts_that_nobody_gathered_are_errors() {
    let findings = findings(|facts| *facts = Facts::default());
    assert_snapshot!(findings.errors);
}

#[test]
fn an_evaluation_without_its_file_is_checked_without_places() {
    let evaluation = parse("eval.yaml", EVALUATION, &[]).unwrap();
    let json = serde_json::to_string(&evaluation).unwrap();
    let mut facts = facts();
    facts.models[0] = Err(vec!["gone".to_owned()]);
    assert_snapshot!(check(&serde_json::from_str(&json).unwrap(), &facts).errors);
}

#[test]
fn a_default_that_does_not_fit_is_told_as_one() {
    let text = EVALUATION.replace(", top_k: [1, 5]", "");
    let mut facts = facts();
    edit(&mut facts, "photos", |photos| photos.classes = 2);
    let found = |overrides: &[&str]| {
        let overrides: Vec<_> = overrides.iter().map(|set| set.parse().unwrap()).collect();
        check(&parse("eval.yaml", &text, &overrides).unwrap(), &facts).errors.to_string()
    };
    assert_snapshot!([found(&[]), found(&["tasks[0].zero_shot.top_k=[3]"])].join("\n"));
}

#[test]
fn files_are_looked_at_in_spite_of_other_mistakes() {
    let text = EVALUATION
        .replace("name: check", "nam: check")
        .replace("format: captions, path: spare.jsonl", "format: caption, path: spare.jsonl")
        .replace("recall_at: [1, 10]", "recall_at: [0]");
    let rejected = examine("eval.yaml", &text, &[]).unwrap_err();
    let sound = rejected.sound.unwrap();
    assert_eq!((sound.models.len(), sound.datasets.len()), (2, 2));
    let mut facts = facts();
    facts.models[1] = Err(vec!["bad/config.json: no such file".to_owned()]);
    edit(&mut facts, "photos", |photos| photos.classes = 4);
    assert_snapshot!(rejected.problems.and(check(&sound, &facts).errors));
}

#[test]
fn nothing_is_sound_by_unknown_rules_and_one_mistake_is_told_once() {
    let text = EVALUATION.replace("version: 1", "version: 2");
    assert!(examine("eval.yaml", &text, &[]).unwrap_err().sound.is_none());
    let text = EVALUATION.replace("path: bad", "path: s3://bucket/model");
    let rejected = examine("eval.yaml", &text, &[]).unwrap_err();
    let mut facts = facts();
    facts.models[1] = Err(vec!["s3: no such folder".to_owned()]);
    let problems = rejected.problems.and(check(&rejected.sound.unwrap(), &facts).errors);
    assert_eq!(problems.iter().count(), 1, "{problems}");
}
