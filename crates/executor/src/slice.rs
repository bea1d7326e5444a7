//! The slice that this process computes on: its device, its book, and what the allocator may take.
//!
//! Invariants:
//! - Tensors are leased before they are made, texts as soon as their size is known, so that leases never
//!   exceed the quota; what the allocator may take is the quota less what is leased outside of it.
//! - Peaks of the allocator are reset in one place, [`Meter`], which keeps them before.

mod meter;
mod start;

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use orchestrator_footprint::Kind;
use orchestrator_ledger::{Account, AllocatorLimit, Lease, Ledger, Owner, QuotaError, Refusal};
use orchestrator_torch::{Device, TorchError, allocator, synchronise};
use orchestrator_types::{AllocatorSettings, ByteCount, DeviceId, MemoryTerms, Phase};

pub(crate) use meter::Meter;
pub use start::StartError;

use crate::attempt::Attempt;

/// The slice.
pub(crate) struct Slice {
    id: DeviceId,
    device: Device,
    /// What the worker offers at most.
    ceiling: ByteCount,
    ledger: Ledger,
    meter: Meter,
    runtime: Mutex<Runtime>,
    /// Forward passes of the attempt at hand.
    passes: AtomicU64,
}

/// Context, kernels and handles before anybody measured them, as [`AllocatorLimit`] has it.
const FIRST_OVERHEAD: ByteCount = ByteCount::mib(600);
/// Most that kernels and handles of one more tower take (measured on an H200: 80 MiB).
const MOST_GROWTH: ByteCount = ByteCount::mib(256);

/// What the device's runtime takes for itself, and what that leaves.
struct Runtime {
    /// Context, kernels and handles, once measured. Nothing on the CPU.
    overhead: Option<ByteCount>,
    /// What libraries keep for themselves, and what lies unused between weights: both are within
    /// what the allocator may take.
    workspaces: ByteCount,
    /// The lease of both and of the margin. Nothing on the CPU.
    lease: Option<Lease>,
    /// Settings of the allocator that the last run asked for.
    asked: Option<AllocatorSettings>,
}

/// Why a run's terms cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum TermsError {
    /// The quota leaves nothing.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The allocator has other settings and keeps them until the executor starts anew.
    #[error(
        "the allocator runs with `{current}` and its settings are read once, when the device is \
         first used; set PYTORCH_ALLOC_CONF for the worker, or leave memory.allocator out"
    )]
    Settled {
        /// In force.
        current: String,
    },
    /// libtorch refused.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// Something else holds the bytes.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Slice {
    pub(crate) const fn device(&self) -> Device {
        self.device
    }

    pub(crate) const fn id(&self) -> &DeviceId {
        &self.id
    }

    pub(crate) const fn kind(&self) -> Kind {
        match self.device {
            Device::Cpu => Kind::Cpu,
            Device::Cuda(_) => Kind::Cuda,
        }
    }

    pub(crate) const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Brings the terms of a run into force: the quota is theirs, or the worker's if that is lower.
    /// Whoever holds more than that has to let go before [`apply_limit`](Self::apply_limit) follows.
    pub(crate) fn adopt(&self, terms: &MemoryTerms) -> Result<(), TermsError> {
        let quota = terms.quota.unwrap_or(self.ceiling).min(self.ceiling);
        self.set_allocator(terms.allocator.as_ref())?;
        self.ledger.set_quota(quota);
        self.meter.set_quota(quota);
        Ok(())
    }

    /// Tells the allocator what it may take now. To be called when leases outside of it changed.
    pub(crate) fn apply_limit(&self) -> Result<(), TermsError> {
        let quota = self.ledger.quota();
        let limit = match self.kind() {
            Kind::Cpu => {
                let outside = self.ledger.held_by(|owner| !is_tensor(owner));
                ByteCount::bytes(quota.as_u64().saturating_sub(outside.as_u64()))
            }
            Kind::Cuda => {
                let mut runtime = self.runtime();
                let share = AllocatorLimit::derive(quota, runtime.overhead)?;
                let apart = sum(sum(share.overhead, share.margin), runtime.workspaces);
                match &mut runtime.lease {
                    Some(lease) => {
                        lease.shrink_to(apart);
                        lease.grow_to(apart)?;
                    }
                    lease => *lease = Some(self.ledger.lease(Owner::Runtime, apart)?),
                }
                share.limit
            }
        };
        Ok(allocator::set_limit(self.device, Some(limit))?)
    }

    /// Measures again what lies outside the allocator. The first forward pass loads kernels and makes
    /// handles, so this comes after it.
    pub(crate) fn measure_runtime(&self) -> Result<(), TermsError> {
        if self.kind() == Kind::Cpu {
            return Ok(());
        }
        self.give_back_cache()?;
        let outside = self.meter.outside_allocator();
        let reserved = allocator::statistics(self.device)?.reserved.current;
        // No pass runs and nothing is cached: what the allocator has and is nobody's belongs to
        // libraries, or lies between weights where nothing else fits.
        let ours = self.ledger.held_by(is_tensor);
        let mut runtime = self.runtime();
        if let Some(outside) = outside {
            // Others may have come to the device meanwhile: what is too much for kernels and handles
            // is theirs, and no reason to leave less to tensors.
            let before = runtime.overhead.unwrap_or(FIRST_OVERHEAD);
            let most = sum(before, MOST_GROWTH);
            runtime.overhead = Some(before.max(outside.min(most)));
        }
        let kept = ByteCount::bytes(reserved.as_u64().saturating_sub(ours.as_u64()));
        runtime.workspaces = kept;
        drop(runtime);
        self.apply_limit()
    }

    /// Leases bytes of the device.
    pub(crate) fn lease(&self, owner: Owner, bytes: ByteCount) -> Result<Lease, Refusal> {
        let lease = self.ledger.lease(owner, bytes)?;
        self.note_leases();
        Ok(lease)
    }

    /// Leases bytes of the device; waits for others to return theirs unless the attempt stops.
    pub(crate) fn lease_when_free(
        &self,
        owner: Owner,
        bytes: ByteCount,
        attempt: &Attempt,
    ) -> Result<Lease, Refusal> {
        let lease = self.ledger.lease_when_free(owner, bytes, &|| attempt.is_stopped())?;
        self.note_leases();
        Ok(lease)
    }

    /// Those bytes of the host that share the quota: all on the CPU, none beside a GPU.
    pub(crate) fn host_bytes(&self, bytes: ByteCount) -> ByteCount {
        match self.kind() {
            Kind::Cpu => bytes,
            Kind::Cuda => ByteCount::ZERO,
        }
    }

    /// Leases bytes that lie on the host outside of tensors. On the CPU they share the quota; beside
    /// a GPU they are host memory, which readings tell and no quota bounds.
    pub(crate) fn host_lease(
        &self,
        owner: Owner,
        bytes: ByteCount,
    ) -> Result<Option<Lease>, Refusal> {
        match self.kind() {
            Kind::Cpu => self.ledger.lease(owner, bytes).map(Some),
            Kind::Cuda => Ok(None),
        }
    }

    /// What a pass may be predicted to take of `free` bytes. On a GPU an eighth less: between blocks
    /// of different sizes the allocator has some that no tensor fits into (measured: up to 7 %).
    pub(crate) fn usable(&self, free: ByteCount) -> ByteCount {
        match self.kind() {
            Kind::Cpu => free,
            Kind::Cuda => ByteCount::bytes(free.as_u64() - free.as_u64() / 8),
        }
    }

    /// What a pass may be predicted to take now.
    pub(crate) fn room(&self) -> ByteCount {
        self.usable(self.ledger.free())
    }

    /// Returns the allocator's cache to the device.
    pub(crate) fn give_back_cache(&self) -> Result<(), TorchError> {
        if self.kind() == Kind::Cuda {
            synchronise(self.device)?;
            allocator::empty_cache(self.device)?;
        }
        Ok(())
    }

    /// Everything to tell of memory since the last account.
    pub(crate) fn account(&self, weights: ByteCount) -> Account {
        self.meter.account(&self.ledger, weights)
    }

    /// A forward pass begins.
    pub(crate) fn count_pass(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
    }

    /// Forward passes since the last time, refused ones included; warm-up apart.
    pub(crate) fn take_passes(&self) -> u64 {
        self.passes.swap(0, Ordering::Relaxed)
    }

    /// A phase begins.
    pub(crate) fn enter(&self, phase: Phase) {
        self.meter.enter(phase);
    }

    fn note_leases(&self) {
        let workspaces = self.runtime().workspaces;
        let predicted = sum(self.ledger.held_by(is_tensor), workspaces);
        self.meter.note_leases(&self.ledger, predicted);
    }

    fn runtime(&self) -> MutexGuard<'_, Runtime> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settings are applied before the device is first used; later ones must be the same.
    fn set_allocator(&self, asked: Option<&AllocatorSettings>) -> Result<(), TermsError> {
        let mut runtime = self.runtime();
        if self.kind() == Kind::Cpu || runtime.asked.as_ref() == asked {
            return Ok(());
        }
        let settings = asked.cloned().unwrap_or_else(|| self.meter.default_settings());
        if self.meter.settings() != settings {
            if allocator::statistics(self.device)?.reserved.current > ByteCount::ZERO {
                return Err(TermsError::Settled { current: self.meter.settings().to_string() });
            }
            allocator::apply(&settings)?;
            self.meter.set_settings(settings);
        }
        runtime.asked = asked.cloned();
        Ok(())
    }
}

/// Whether the bytes of an owner come from the allocator.
pub(crate) const fn is_tensor(owner: &Owner) -> bool {
    match owner {
        Owner::Weights { .. } | Owner::Activations { .. } | Owner::ScoreTiles => true,
        Owner::Staging { .. } | Owner::Texts | Owner::Runtime => false,
    }
}

pub(crate) fn sum(first: ByteCount, second: ByteCount) -> ByteCount {
    first.checked_add(second).unwrap_or(ByteCount::bytes(u64::MAX))
}
