//! What this machine has: its GPUs and MIG instances, how full they are, and host memory.
//!
//! Everything that asks the machine takes its answers through a trait or a function, so that what
//! is made of the answers is tested where no GPU is.

mod answers;
mod condition;
mod environment;
mod inventory;
mod library;
mod listen;
mod requirement;
mod visible;
mod watch;
mod xid;

pub use answers::{
    Answer, DeviceMemory, DeviceProcess, Nvml, NvmlError, Place, Refused, Utilisation, Version,
    XidEvent, Xids,
};
pub use condition::{Condition, Query};
pub use environment::{EnvironmentLimits, LimitError, environment_limits};
pub use inventory::{Found, Gpu, inventory, memory, process_memory, survey, utilisation};
pub use library::Library;
pub use orchestrator_host::{HostMemory, driver_pid, host_memory, read_host_memory};
pub use requirement::{BUNDLED, OldDriver, Requirement};
pub use watch::{Pace, watch};
pub use xid::{Advice, Xid, xid};
