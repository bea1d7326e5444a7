//! Compiles `proto/` without a system `protoc`.

use std::{error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let files = ["orchestrator/v1/coordinator.proto", "orchestrator/v1/executor.proto"];
    let descriptors = protox::compile(files, [&root])?;
    // What gRPC reflection tells.
    let encoded = prost::Message::encode_to_vec(&descriptors);
    std::fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("descriptors.bin"), encoded)?;
    // A chunk of a blob is a part of what was received, not a copy of it.
    let shared = ".orchestrator.v1.BlobChunk.data";
    tonic_prost_build::configure().bytes(shared).compile_fds(descriptors)?;
    Ok(())
}
