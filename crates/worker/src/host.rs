//! What the slices of one agent share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use orchestrator_proto::Blocking;

use crate::{Config, DataAccess, Limits, blobs::Blobs, client::Client, scratch::Scratch};

/// The agent as its slices see it.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) client: Client,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) limits: Limits,
    pub(crate) data: DataAccess,
    pub(crate) blocking: Blocking,
    /// Take no new unit. Cancelled before `stopping`.
    pub(crate) draining: CancellationToken,
    /// Leave the unit that you have.
    pub(crate) stopping: CancellationToken,
}

impl Host {
    pub(crate) fn new(coordinator: Channel, scratch: &Scratch, config: &Config) -> Self {
        Self {
            client: Client::new(coordinator, config.blocking),
            blobs: Arc::clone(scratch.blobs()),
            limits: config.limits,
            data: config.data.clone(),
            blocking: config.blocking,
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
        }
    }
}
