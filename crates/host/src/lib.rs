//! Host memory as the kernel tells it: of this process, of the cgroups above it, of the machine.
//!
//! Apart from crate `device`, so that the `orchestrator` binary, which never links NVML, reads the
//! same files in the same way.

mod cgroup;
mod memory;

pub use memory::{HostMemory, cpu_limit, driver_pid, host_memory, oom_kills, read_host_memory};
