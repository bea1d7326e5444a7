//! Compiles the C++ shim against the libtorch that `torch-sys` found, and passes that folder on.

use std::{env, path::PathBuf};

const SOURCES: [&str; 4] =
    ["cpp/shim.cpp", "cpp/allocator.cpp", "cpp/host_allocator.cpp", "cpp/trace.cpp"];

fn main() {
    println!("cargo::rerun-if-changed=cpp");
    println!("cargo::rerun-if-env-changed=LIBTORCH_CXX11_ABI");
    // Printed by torch-sys's own build script, for direct dependents only.
    let lib =
        env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where libtorch's lib folder is");
    let include = PathBuf::from(&lib).join("../include");
    // Where NVIDIA's wheels lie beside libtorch's; the shim does without if there is none.
    let cuda = PathBuf::from(&lib).join("../../nvidia/cu13/include");
    if cuda.exists() {
        println!("cargo::rerun-if-changed={}", cuda.display());
    }
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .define("_GLIBCXX_USE_CXX11_ABI", env::var("LIBTORCH_CXX11_ABI").as_deref().unwrap_or("1"))
        // Warnings inside libtorch's headers are not ours to mend.
        .flag("-isystem")
        .flag(include.to_str().expect("cargo passes paths as UTF-8"))
        .flag("-isystem")
        .flag(cuda.to_str().expect("cargo passes paths as UTF-8"))
        .files(SOURCES)
        .compile("orchestrator_torch_shim");
    println!("cargo::rustc-link-search=native={lib}");
    println!("cargo::rustc-link-lib=torch_cpu");
    println!("cargo::rustc-link-lib=c10");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}"); // for this crate's own tests
    println!("cargo::metadata=libtorch_lib={lib}");
}
