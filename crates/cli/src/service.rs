//! The two services: `orchestrator coordinator` and `orchestrator worker`.
//!
//! Invariant: a setting comes from the flag, else from the environment, else from the configuration
//! file, else from the documented default; what nobody knows is refused by name.

pub(crate) mod coordinator;
mod reach;
pub(crate) mod settings;
pub(crate) mod worker;
