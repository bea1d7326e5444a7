//! What the cluster offers. Always possibly old.

use orchestrator_types::{ByteCount, DeviceId, NodeName, SliceId};
use serde::{Deserialize, Serialize};

/// The slices known when planning, in a stable order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inventory {
    /// One executor each.
    pub slices: Vec<SliceOffer>,
}

impl Inventory {
    /// The same slices, none of them offering more than `quota`.
    #[must_use]
    pub fn within(&self, quota: Option<ByteCount>) -> Self {
        let offer = |offer: &SliceOffer| SliceOffer {
            memory_bytes: quota.map_or(offer.memory_bytes, |quota| quota.min(offer.memory_bytes)),
            ..offer.clone()
        };
        Self { slices: self.slices.iter().map(offer).collect() }
    }
}

/// The piece of a device that one executor may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceOffer {
    /// `<node>.<number>`.
    pub id: SliceId,
    /// Host of the slice.
    pub node: NodeName,
    /// Device of the slice.
    pub device: DeviceId,
    /// Compute threads (CPU) or host threads beside the device.
    pub threads: u32,
    /// Ceiling of what the slice may hold, in bytes.
    pub memory_bytes: ByteCount,
}
