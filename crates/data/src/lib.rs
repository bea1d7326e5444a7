//! Datasets, pictures and texts: from files to what a model takes in.
//!
//! ```text
//! Source → Manifest (samples, classes, captions) → file → image::decode → Recipe::crop → normalise
//!                                                  text → Tokenizer::encode
//! ```
//!
//! Invariant: what comes out is what the reference in Python computes from the same bytes — the
//! pixels of Pillow, the ids of transformers — and no input, however broken, panics. There is no
//! torch, no thread and no network here: the caller decides where and how often this runs.

pub mod dataset;
pub mod image;
pub mod preprocess;
pub mod tokenizer;
