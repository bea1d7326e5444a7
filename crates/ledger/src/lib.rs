//! The book of memory: quotas, leases and readings; who holds which bytes.

mod account;
mod owner;
mod profile;

pub use account::{
    Account, Breach, ForecastReading, HostReading, PhaseReading, PhaseReadings, Sample,
};
pub use owner::{Holder, Owner};
pub use profile::{
    BestBatch, ComponentProfile, Consumer, CurvePoint, PROFILE_SCHEMA, Profile, TimelinePoint,
};
