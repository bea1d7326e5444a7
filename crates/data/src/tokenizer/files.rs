//! The files of a tokenizer: `tokenizer.json`, or the older `vocab.json` and `merges.txt`.
//!
//! Invariant: the older pair gives the same ids as the newer file would; the digest covers exactly
//! the bytes that decide the ids.

use std::{
    io,
    path::{Path, PathBuf},
};

use orchestrator_files::Files;
use orchestrator_types::{ByteCount, Digest};
use serde_json::{Value, json};

use super::TokenizerError;

/// Context of the CLIP models that were published first, for folders that do not say.
const CLIP_CONTEXT: usize = 77;

/// Larger values are transformers' way of saying "no limit".
const CONTEXT_LIMIT: u64 = 65_536;

/// Vocabularies of a quarter of a million words take 17 MB.
const SIZE_LIMIT: ByteCount = ByteCount::mib(64);

pub(super) struct Loaded {
    pub(super) path: PathBuf,
    pub(super) inner: tokenizers::Tokenizer,
    pub(super) context: usize,
    pub(super) digest: Digest,
}

pub(super) fn load(folder: &Path, files: &Files) -> Result<Loaded, TokenizerError> {
    let path = folder.join("tokenizer.json");
    let (path, document, digest) = match files.read(&path, SIZE_LIMIT) {
        Ok(bytes) => {
            let document = parse(&path, &bytes)?;
            (path, document, Digest::of(&bytes))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => from_vocabulary(folder, files)?,
        Err(source) => return Err(TokenizerError::Unreadable { path, source }),
    };
    let context = context(folder, files, &document, &path)?;
    let mut inner: tokenizers::Tokenizer = serde_json::from_value(document).map_err(|source| {
        TokenizerError::Malformed { path: path.clone(), source: source.into() }
    })?;
    // Both are ours: padding belongs to the batch, and truncation must be told to the caller.
    inner.with_padding(None);
    inner
        .with_truncation(None)
        .map_err(|source| TokenizerError::Malformed { path: path.clone(), source })?;
    Ok(Loaded { path, inner, context, digest })
}

fn read(path: &Path, files: &Files) -> Result<Vec<u8>, TokenizerError> {
    let unreadable = |source| TokenizerError::Unreadable { path: path.to_owned(), source };
    files.read(path, SIZE_LIMIT).map_err(unreadable)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Value, TokenizerError> {
    serde_json::from_slice(bytes).map_err(|source| TokenizerError::Malformed {
        path: path.to_owned(),
        source: source.into(),
    })
}

/// The longest sequence: what the tokenizer's settings say, else what its truncation says.
fn context(
    folder: &Path,
    files: &Files,
    document: &Value,
    path: &Path,
) -> Result<usize, TokenizerError> {
    let settings_path = folder.join("tokenizer_config.json");
    let settings = match files.read(&settings_path, SIZE_LIMIT) {
        Ok(bytes) => parse(&settings_path, &bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Value::Null,
        // Another length would cut texts elsewhere.
        Err(source) => return Err(TokenizerError::Unreadable { path: settings_path, source }),
    };
    let stated = |value: &Value| value.as_u64().filter(|&length| length <= CONTEXT_LIMIT);
    let length = stated(&settings["model_max_length"])
        .or_else(|| stated(&document["truncation"]["max_length"]));
    match length.map(usize::try_from) {
        None => Ok(CLIP_CONTEXT),
        Some(Ok(length)) if length >= 2 => Ok(length),
        Some(_) => Err(TokenizerError::Unsupported {
            path: path.to_owned(),
            reason: "the longest sequence has no room for a start and an end token".to_owned(),
        }),
    }
}

const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";

/// The document that transformers' converter would write for CLIP's vocabulary and merges.
fn from_vocabulary(
    folder: &Path,
    files: &Files,
) -> Result<(PathBuf, Value, Digest), TokenizerError> {
    let (path, merges_path) = (folder.join("vocab.json"), folder.join("merges.txt"));
    let (vocabulary_bytes, merges_bytes) = (read(&path, files)?, read(&merges_path, files)?);
    let vocabulary = parse(&path, &vocabulary_bytes)?;
    let id = |token: &str| {
        vocabulary[token].as_u64().ok_or_else(|| TokenizerError::Unsupported {
            path: path.clone(),
            reason: format!("no `{token}` in the vocabulary; only CLIP's is built"),
        })
    };
    let (start, end) = (id(START)?, id(END)?);
    let merges_text = std::str::from_utf8(&merges_bytes).map_err(|source| {
        TokenizerError::Malformed { path: merges_path.clone(), source: source.into() }
    })?;
    let is_merge = |line: &&str| !line.starts_with("#version") && !line.trim().is_empty();
    let merges: Vec<&str> = merges_text.lines().filter(is_merge).collect();
    let document = document(&vocabulary, &merges, start, end);
    let parts = [Digest::of(&vocabulary_bytes), Digest::of(&merges_bytes)];
    let digest = Digest::of(&parts.map(|part| *part.as_bytes()).concat());
    Ok((path, document, digest))
}

fn document(vocabulary: &Value, merges: &[&str], start: u64, end: u64) -> Value {
    let special = |id: u64, content: &str| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true })
    };
    let words = concat!(
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d",
        r"|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    );
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(start, START), special(end, END)],
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "NFC" },
            { "type": "Replace", "pattern": { "Regex": r"\s+" }, "content": " " },
            { "type": "Lowercase" },
        ] },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": words }, "behavior": "Removed", "invert": true },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        ] },
        "post_processor": { "type": "RobertaProcessing", "sep": [END, end], "cls": [START, start],
                            "trim_offsets": false, "add_prefix_space": false },
        "decoder": null,
        "model": { "type": "BPE", "dropout": null, "unk_token": END,
                   "continuing_subword_prefix": "", "end_of_word_suffix": "</w>",
                   "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                   "vocab": vocabulary, "merges": merges },
    })
}
