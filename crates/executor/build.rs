//! Where the executor looks for libtorch at run time: beside itself when installed
//! (`cargo xtask install`), else where it was built. No variable is needed on either machine.

fn main() {
    println!("cargo::rerun-if-env-changed=ORCHESTRATOR_DIST");
    println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/../lib/libtorch");
    // A distributed binary must not look into a folder of the machine that built it.
    if std::env::var("ORCHESTRATOR_DIST").as_deref() != Ok("1") {
        let lib = std::env::var("DEP_ORCHESTRATOR_TORCH_LIBTORCH_LIB")
            .expect("crate torch says where libtorch's lib folder is");
        println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    }
}
