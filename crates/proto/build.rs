//! Compiles `proto/` without a system `protoc`.

use std::{error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let files = ["orchestrator/v1/coordinator.proto", "orchestrator/v1/executor.proto"];
    let descriptors = protox::compile(files, [&root])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
