//! `make_model SHAPE LAYERS FOLDER [bf16]`: writes a CLIP model with random weights.

use std::{env, path::Path, process::ExitCode};

use orchestrator_tests::models::{Shape, Stored};

/// Any number: the same model each time.
const SEED: u64 = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (name, layers, folder, stored) = match words[..] {
        [name, layers, folder] => (name, layers, folder, Stored::Fp32),
        [name, layers, folder, "bf16"] => (name, layers, folder, Stored::Bf16),
        _ => return usage(),
    };
    let Some(shape) = layers.parse().ok().and_then(|layers| Shape::named(name, layers)) else {
        return usage();
    };
    shape.write(Path::new(folder), stored, SEED);
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: make_model vit_b32|vit_b16|vit_l14|vit_l14_336 LAYERS FOLDER [bf16]; layers of \
         the text tower: as many, at most 12"
    );
    ExitCode::FAILURE
}
