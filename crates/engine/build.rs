//! Lets this crate's own tests and examples find libtorch where it was linked.

fn main() {
    println!("cargo::rerun-if-env-changed=DEP_ORCHESTRATOR_TORCH_LIBTORCH_LIB");
    let lib = std::env::var("DEP_ORCHESTRATOR_TORCH_LIBTORCH_LIB")
        .expect("crate torch says where libtorch's lib folder is");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
}
