//! Texts to token ids: CLIP's byte-pair encoding.
//!
//! Invariant: ids are those of transformers' `CLIPTokenizer` with truncation — start, tokens, end;
//! never padded; a text that is too long keeps its start and still ends with the end token. Texts
//! are encoded one by one on the caller's thread: no pool is started behind its back.

mod files;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
};

use orchestrator_files::Files;
use orchestrator_types::Digest;

/// Why texts cannot be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file cannot be read.
    #[error(
        "cannot read {}; a model folder has `tokenizer.json`, or `vocab.json` and `merges.txt`",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A file is not JSON, or not the JSON that it should be.
    #[error("{} is not a tokenizer file", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tokenizer works but not as CLIP's does.
    #[error("{}: {reason}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is different.
        reason: String,
    },
    /// A text cannot be encoded, because the vocabulary has a hole.
    #[error("cannot encode {text:?}")]
    Encode {
        /// The start of the text.
        text: String,
        /// The tokenizer's reason.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// One text as ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Start token, the text, end token; at most [`Tokenizer::context`] in all.
    pub ids: Vec<u32>,
    /// Whether the text's end had to be cut off.
    pub truncated: bool,
}

/// A model's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    context: usize,
    end: u32,
    digest: Digest,
}

impl Tokenizer {
    /// Reads the tokenizer in a model's folder.
    ///
    /// # Errors
    /// Files are missing or malformed, or the tokenizer does not frame a text in start and end.
    pub fn open(model_folder: &Path) -> Result<Self, TokenizerError> {
        Self::open_in(model_folder, &Files::anywhere())
    }

    /// As [`Tokenizer::open`], and opens no file that `files` does not admit.
    ///
    /// # Errors
    /// As [`Tokenizer::open`].
    pub fn open_in(model_folder: &Path, files: &Files) -> Result<Self, TokenizerError> {
        let files::Loaded { path, inner, context, digest } = files::load(model_folder, files)?;
        let mut tokenizer = Self { inner, context, end: 0, digest };
        match tokenizer.raw("")?.as_slice() {
            &[_, end] => tokenizer.end = end,
            frame => {
                let reason = format!(
                    "an empty text becomes {} tokens; expected a start and an end token",
                    frame.len()
                );
                return Err(TokenizerError::Unsupported { path, reason });
            }
        }
        Ok(tokenizer)
    }

    /// The most ids that a text can have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Digest of the files that define the ids.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The ids of one text.
    ///
    /// # Errors
    /// The vocabulary lacks a byte and has no unknown token either.
    pub fn encode(&self, text: &str) -> Result<Tokens, TokenizerError> {
        let mut ids = self.raw(text)?;
        let truncated = ids.len() > self.context;
        if truncated {
            ids.truncate(self.context - 1);
            ids.push(self.end);
        }
        Ok(Tokens { ids, truncated })
    }

    /// The ids of each text, in order.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`], for the first text that fails.
    pub fn encode_batch(&self, texts: &[String]) -> Result<Vec<Tokens>, TokenizerError> {
        texts.iter().map(|text| self.encode(text)).collect()
    }

    fn raw(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match self.inner.encode_fast(text, true) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(source) => {
                let text = text.chars().take(40).collect();
                Err(TokenizerError::Encode { text, source })
            }
        }
    }
}
