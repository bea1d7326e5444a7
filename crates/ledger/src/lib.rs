//! The book of memory: quotas, leases and readings; who holds which bytes.

mod account;
mod book;
mod ceiling;
mod life;
mod owner;
mod profile;
mod quota;
mod refusal;

pub use account::{
    Account, Breach, ForecastReading, HostReading, PhaseReading, PhaseReadings, Sample,
};
pub use book::{Lease, Ledger};
pub use ceiling::{Bound, Ceiling, DeviceRoom, slice_ceiling};
pub use life::Life;
pub use owner::{Holder, Owner};
pub use profile::{
    BestBatch, ComponentProfile, Consumer, CurvePoint, PROFILE_SCHEMA, Profile, TimelinePoint,
};
pub use quota::{AllocatorLimit, BelowCgroup, QuotaError, cgroup_allows};
pub use refusal::Refusal;
