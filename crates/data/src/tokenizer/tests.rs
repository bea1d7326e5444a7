use std::{fs, path::PathBuf};

use serde_json::Value;

use super::*;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

fn tiny_clip() -> PathBuf {
    data().join("models/tiny-clip")
}

fn golden() -> Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ids.json");
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// Length and ids of each text, as `make_golden.py` hashes them.
fn digest(tokens: &[Tokens]) -> String {
    let mut hasher = blake3::Hasher::new();
    for Tokens { ids, .. } in tokens {
        hasher.update(&u32::try_from(ids.len()).unwrap().to_le_bytes());
        for id in ids {
            hasher.update(&id.to_le_bytes());
        }
    }
    hasher.finalize().to_string()
}

fn captions() -> Vec<String> {
    let text = fs::read_to_string(data().join("fluent/captions.jsonl")).unwrap();
    let lists = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lists
        .flat_map(|line| serde_json::from_value::<Vec<String>>(line["captions"].clone()).unwrap())
        .collect()
}

fn prompts() -> Vec<String> {
    let source = crate::dataset::Source::ImageFolder {
        root: data().join("fluent/imagefolder"),
        classes: Some(data().join("fluent/classes.json")),
    };
    crate::dataset::Manifest::open(&source).unwrap().prompts()
}

fn check_against_reference(tokenizer: &Tokenizer) {
    let golden = golden();
    for (name, texts) in [("captions", captions()), ("prompts", prompts())] {
        assert_eq!(golden[name]["count"], texts.len());
        let tokens = tokenizer.encode_batch(&texts).unwrap();
        assert_eq!(golden[name]["blake3"], digest(&tokens), "{name}");
    }
    let mut wrong = Vec::new();
    for case in golden["ugly"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let found = tokenizer.encode(text).unwrap().ids;
        if found != ids {
            wrong.push(format!("{text:?}: {found:?} instead of {ids:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn ids_are_those_of_the_reference() {
    let tokenizer = Tokenizer::open(&tiny_clip()).unwrap();
    assert_eq!(tokenizer.context(), 32);
    check_against_reference(&tokenizer);
}

#[test]
fn vocabulary_and_merges_give_the_same_ids() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt", "tokenizer_config.json"] {
        fs::copy(tiny_clip().join(name), folder.path().join(name)).unwrap();
    }
    check_against_reference(&Tokenizer::open(folder.path()).unwrap());
}

#[test]
fn ids_of_the_64_reference_texts_agree() {
    let folder = data().join("reference/tiny-clip");
    let bytes = fs::read(folder.join("reference.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let expected = tensors.tensor("input_ids").unwrap();
    let reference: Value =
        serde_json::from_slice(&fs::read(folder.join("reference.json")).unwrap()).unwrap();
    let tokenizer = Tokenizer::open(&tiny_clip()).unwrap();
    for (index, padded) in expected.data().chunks_exact(32 * 8).enumerate() {
        let text = reference["reference_images"][index]["text"].as_str().unwrap();
        let mut ids = tokenizer.encode(text).unwrap().ids;
        ids.resize(32, tokenizer.end);
        let found: Vec<u8> = ids.iter().flat_map(|&id| u64::from(id).to_le_bytes()).collect();
        assert!(found == padded, "{text}");
    }
}

#[test]
fn a_long_text_is_cut_and_still_ends() {
    let tokenizer = Tokenizer::open(&tiny_clip()).unwrap();
    let exact = tokenizer.encode(&"cat ".repeat(30)).unwrap();
    let long = tokenizer.encode(&"cat ".repeat(31)).unwrap();
    assert_eq!((exact.ids.len(), exact.truncated), (32, false));
    assert_eq!((long.ids.len(), long.truncated), (32, true));
    assert_eq!(exact.ids, long.ids);
}

/// Opens a folder of the given files; messages name them without their folder.
fn refusal(files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let error = Tokenizer::open(folder.path()).err().unwrap();
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
    let place = format!("{}/", folder.path().display());
    format!("{error}{}\n", cause.unwrap_or_default()).replace(&place, "")
}

#[test]
fn what_is_no_clip_tokenizer_is_refused() {
    let json = fs::read_to_string(tiny_clip().join("tokenizer.json")).unwrap();
    let mut bare: Value = serde_json::from_str(&json).unwrap();
    bare["post_processor"] = Value::Null;
    let cases = [
        refusal(&[]),
        refusal(&[("tokenizer.json", "{")]),
        refusal(&[("tokenizer.json", r#"{"model": {"type": "Abacus"}}"#)]),
        refusal(&[("tokenizer.json", &bare.to_string())]),
        refusal(&[
            ("tokenizer.json", &json),
            ("tokenizer_config.json", r#"{"model_max_length": 1}"#),
        ]),
        refusal(&[("vocab.json", r#"{"a": 0}"#), ("merges.txt", "")]),
        refusal(&[("vocab.json", r#"{"a": 0}"#)]),
    ];
    insta::assert_snapshot!(cases.concat());
}
