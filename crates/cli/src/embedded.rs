//! A whole cluster inside `submit`: coordinator and agent in this process, executors as children.
//!
//! There is no second code path: everything goes through the same services as on many machines.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, anyhow};
use orchestrator_coordinator::{Config as CoordinatorConfig, Coordinator};
use orchestrator_host::host_memory;
use orchestrator_plan::Inventory;
use orchestrator_proto::{Blocking, Dial, v1::coordinator_client::CoordinatorClient};
use orchestrator_types::NodeName;
use orchestrator_worker::{Agent, Config as AgentConfig, DataAccess, Limits, Processes};
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::{executor, host, scratch, state};

/// A running coordinator with one worker.
pub(crate) struct Embedded {
    coordinator: Coordinator,
    agent: Agent,
    client: CoordinatorClient<Channel>,
    /// Sockets and inputs of the executors; removed with this value.
    scratch: TempDir,
}

impl Embedded {
    /// Starts on `inventory`, with the state of one run in the folder `state`. Whoever looks from
    /// another terminal finds the coordinator's address there.
    pub(crate) async fn start(
        state: &Path,
        inventory: Inventory,
        data: DataAccess,
    ) -> anyhow::Result<Self> {
        let executor = executor::program()?;
        let cache = state::cache_folder()?;
        state::create(&cache)?;
        let scratch = scratch::create()?;
        let config = CoordinatorConfig {
            expected_slices: inventory.slices.len(),
            build: orchestrator_proto::BUILD.to_owned(),
            ..CoordinatorConfig::local(state.to_owned())
        };
        let coordinator =
            Coordinator::start(config).await.context("failed to start the coordinator")?;
        let address = format!("http://{}", coordinator.address());
        state::announce(state, &address)?;
        let node = node_of(&inventory)?;
        let config = AgentConfig {
            dial: Dial::Tcp,
            session: state::fresh_name()?,
            launch: Arc::new(Processes),
            blocking: Blocking::Threads,
            coordinator: address.clone(),
            node,
            slices: inventory.slices,
            executor,
            scratch: scratch.path().to_owned(),
            cache,
            data,
            build: orchestrator_proto::BUILD.to_owned(),
            limits: Limits { decoded: host::decoded(&host_memory()), ..Limits::default() },
        };
        let agent = match Agent::start(config).await {
            Ok(agent) => agent,
            Err(error) => {
                coordinator.shutdown().await;
                return Err(anyhow::Error::new(error).context("failed to start the worker"));
            }
        };
        let channel = orchestrator_proto::connect(&address).await?;
        let client = CoordinatorClient::new(channel)
            .max_decoding_message_size(orchestrator_proto::MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(orchestrator_proto::MESSAGE_LIMIT_BYTES);
        Ok(Self { coordinator, agent, client, scratch })
    }

    /// A client of the coordinator.
    pub(crate) fn client(&self) -> CoordinatorClient<Channel> {
        self.client.clone()
    }

    /// Where sockets and inputs of the executors are.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Resolves if the worker or the coordinator gives up, with the reason. Nothing would go on
    /// then.
    pub(crate) async fn lost(&mut self) -> anyhow::Error {
        tokio::select! {
            ended = self.agent.ended() => match ended {
                Ok(()) => anyhow!("the worker ended before the run did"),
                Err(error) => anyhow::Error::new(error).context("the worker gave up"),
            },
            ended = self.coordinator.ended() => match ended {
                Ok(()) => anyhow!("the coordinator ended before the run did"),
                Err(error) => error.into(),
            },
        }
    }

    /// Stops everything and waits for every child process to be gone.
    pub(crate) async fn stop(self) {
        self.agent.shutdown().await;
        drop(self.client);
        self.coordinator.shutdown().await;
    }
}

fn node_of(inventory: &Inventory) -> anyhow::Result<NodeName> {
    let first = inventory.slices.first().ok_or_else(|| anyhow!("there is no slice to run on"))?;
    Ok(first.node.clone())
}
