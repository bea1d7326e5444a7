//! Predicted beside measured peaks, by the counting allocator.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use orchestrator_ledger::ComponentProfile;
use orchestrator_tests::models::{Shape, Stored};
use orchestrator_types::ByteCount;
use tempfile::TempDir;

use crate::fixtures::data;

const SEED: u64 = 3;

fn tiny() -> PathBuf {
    data().join("models/tiny-clip")
}

/// A folder with a model of this shape.
pub(crate) fn made(shape: &Shape) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    shape.write(folder.path(), Stored::Bf16, SEED);
    folder
}

/// `orchestrator-executor profile`, with 4 GiB to use.
fn profile(model: &Path, component: &str, arguments: &[&str]) -> ComponentProfile {
    let quota = ByteCount::gib(4).as_u64().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchestrator-executor"));
    command.arg("profile").arg("--model").arg(model).args(["--component", component]);
    command.args(["--device", "cpu", "--quota", &quota]).args(arguments);
    let output = command.env("RUST_LOG", "warn").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Largest and mean error in per cent of what was measured, over (precision, batches).
fn check(model: &Path, component: &str, points: &[(&str, &str)]) {
    let mut errors = Vec::new();
    for (precision, rows) in points {
        let found = profile(model, component, &["--precision", precision, "--rows", rows]);
        for point in &found.curve {
            let predicted = point.predicted_bytes.as_u64() as f64;
            let measured = point.measured_bytes.expect("it fits 4 GiB").as_u64() as f64;
            let error = 100.0 * (predicted - measured) / measured;
            println!("{component} {precision} {}: {predicted} {measured} {error:.2} %", point.rows);
            errors.push(error.abs());
        }
    }
    let largest = errors.iter().copied().fold(0.0, f64::max);
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(largest <= 5.0 && mean <= 3.0, "at most {largest:.2} %, mean {mean:.2} %");
}

#[test]
fn tiny_clips_vision_peaks_are_predicted_within_five_per_cent() {
    check(&tiny(), "vision", &[("fp32", "1,2,8,16"), ("bf16", "1,3,8"), ("fp16", "2,4,8")]);
}

#[test]
fn tiny_clips_text_peaks_are_predicted_within_five_per_cent() {
    check(&tiny(), "text", &[("fp32", "1,2,8,64"), ("bf16", "1,3,8"), ("fp16", "2,4,8")]);
}

#[test]
fn peaks_at_the_width_of_b32_are_predicted_within_five_per_cent() {
    let model = made(&Shape::vit_b32(2));
    check(model.path(), "vision", &[("fp32", "1,4,16"), ("bf16", "1,4")]);
    check(model.path(), "text", &[("fp32", "1,4,16"), ("fp16", "1,4")]);
}

#[test]
fn peaks_at_the_width_of_l14_are_predicted_within_five_per_cent() {
    let model = made(&Shape::vit_l14(2));
    check(model.path(), "vision", &[("fp32", "1,2,4"), ("bf16", "1,2")]);
    check(model.path(), "text", &[("fp32", "1,8")]);
}

/// The naive way holds all scores and their softmax: the profile must name softmax and the two
/// products first, with the bytes that arithmetic gives. ViT-B/16 at 512 pixels, where they outweigh
/// the products of the layers.
#[test]
fn a_profile_of_naive_attention_names_softmax_and_the_products_with_their_bytes() {
    let model = made(&Shape { image_size: 512, ..Shape::vit_b16(2) });
    let found = profile(model.path(), "vision", &["--rows", "2", "--math-attention"]);
    let (rows, tokens, heads, width) = (2, 1025, 12, 768);
    assert_eq!((found.rows, u64::from(found.tokens)), (2, tokens));
    let mut first: Vec<&str> = found.operators.iter().map(|user| &*user.name).take(2).collect();
    first.sort_unstable();
    assert_eq!(first, ["aten::_softmax", "aten::bmm"], "{:#?}", found.operators);
    // The last block computes one query for each row: scores of its own.
    let queries = tokens + 1;
    let scores = rows * heads * queries * tokens * 4;
    let mix = rows * queries * width * 4;
    let whole = rows * heads * tokens * tokens * 4;
    for (name, expected) in [("aten::_softmax", scores), ("aten::bmm", scores + mix)] {
        let user = found.operators.iter().find(|user| user.name == name).expect(name);
        for (bytes, expected) in [
            (user.allocated_bytes, expected),
            (user.largest_bytes, whole),
            (user.at_peak_bytes, whole),
        ] {
            let off = bytes.as_u64().abs_diff(expected);
            assert!(100 * off <= expected, "{bytes}, expected {expected}: {user:?}");
        }
    }
}
