//! CPU milliseconds of one thread per image and per text, for several tile sizes.
//!
//! `cargo run --release -p orchestrator-engine --example encode_speed -- MODEL-FOLDER`

use std::{error::Error, path::Path};

use orchestrator_engine::{Pixels, Placement, TextEncoder, VisionEncoder};
use orchestrator_model::{ModelFolder, TextPooling};
use orchestrator_types::Precision;

const TILES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Tiles of one size run for at least this long.
const SECONDS: f64 = 1.0;

#[expect(clippy::print_stdout, reason = "prints its measurements")]
fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("give a model folder")?;
    let folder = ModelFolder::open(Path::new(&path))?;
    let vision = VisionEncoder::load(&folder, Placement::cpu(Precision::Fp32))?;
    let text = TextEncoder::load(&folder, Placement::cpu(Precision::Fp32))?;
    println!("{path}\ntile  ms/image  ms/text (16 tokens)");
    for tile in TILES {
        let pixels = vec![0.5; tile * vision.pixels()];
        let mut out = vec![0.0; tile * vision.width()];
        let images =
            measure(tile, || Ok(vision.encode(Pixels::Numbers(&pixels), tile, &mut out)?))?;
        let end = match folder.config().text.pooling {
            TextPooling::FirstOf(id) => id,
            TextPooling::LargestId => i64::from(folder.config().text.vocab) - 1,
        };
        let mut ids = vec![1; tile * 16];
        ids.chunks_mut(16).for_each(|ids| ids[15] = end);
        let mut out = vec![0.0; tile * text.width()];
        let texts = measure(tile, || Ok(text.encode(&ids, tile, 16, &mut out)?))?;
        println!("{tile:4}  {images:8.3}  {texts:8.3}");
    }
    Ok(())
}

/// Milliseconds per sample, in time on a core.
fn measure(
    samples: usize,
    mut call: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    call()?;
    let (start, mut spent, mut calls) = (seconds_on_core()?, 0.0, 0);
    while spent < SECONDS {
        call()?;
        calls += 1;
        spent = seconds_on_core()? - start;
    }
    Ok(spent * 1000.0 / (calls * samples) as f64)
}

/// Time that this thread has spent on a core, so that a busy machine does not disturb. The kernel
/// counts in steps of a few milliseconds.
fn seconds_on_core() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = text.split(' ').next().ok_or("an empty schedstat")?.parse()?;
    Ok(nanoseconds / 1e9)
}
