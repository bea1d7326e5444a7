//! One life of an executor: started, answering, of our build.

use std::{fs, io, path::Path, time::Duration};

use orchestrator_proto::{
    CONTROL_TIMEOUT, MESSAGE_LIMIT_BYTES, PROTOCOL_VERSION, v1, v1::executor_client::ExecutorClient,
};
use orchestrator_types::DeviceId;
use tokio::{
    process::Command,
    time::{sleep, timeout},
};
use tonic::transport::Channel;

use crate::{
    ExecutorError, death,
    launch::{Child, Launch, Recipe},
};

/// How long it may take until it answers; libtorch takes 0.3 s from a warm disk.
const ANSWER: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(20);

/// A running executor that has answered.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) process: Box<dyn Child>,
    pub(crate) client: ExecutorClient<Channel>,
    pub(crate) libtorch: String,
}

impl Executor {
    /// Starts it and waits for its first answer. Dropping the future kills it.
    pub(crate) async fn start(launch: &dyn Launch, recipe: &Recipe) -> Result<Self, ExecutorError> {
        remove_socket(&recipe.socket);
        let program = &recipe.program;
        let spawned = launch.spawn(recipe).await;
        let mut process =
            spawned.map_err(|source| ExecutorError::Spawn { program: program.clone(), source })?;
        let answer = timeout(ANSWER, first_answer(launch, &mut process, recipe)).await;
        let Ok(answer) = answer else {
            process.kill().await;
            let (program, last_words) = (program.clone(), process.last_words().await);
            return Err(ExecutorError::Silent { program, waited: ANSWER, last_words });
        };
        let (client, description) = answer?;
        if let Err(error) = recipe.check(&description) {
            process.kill().await;
            return Err(error);
        }
        tracing::info!(slice = %recipe.slice, pid = description.pid, "executor started");
        Ok(Self { process, client, libtorch: description.libtorch })
    }
}

impl Recipe {
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--socket").arg(&self.socket);
        command.arg("--blobs").arg(&self.blobs);
        command.arg("--cache").arg(&self.cache);
        command.arg("--decoded").arg(&self.decoded);
        command.arg("--decoded-bytes").arg(self.decoded_limit.as_u64().to_string());
        command.arg("--threads").arg(self.threads.to_string());
        command.arg("--device").arg(self.device.to_string());
        command.arg("--ceiling").arg(self.ceiling.as_u64().to_string());
        for root in &self.roots {
            command.arg("--data-root").arg(root);
        }
        command.arg("--agent").arg(std::process::id().to_string());
        if self.device != DeviceId::Cpu {
            // CUDA shows a process one MIG instance at most; this way it is always device 0.
            command.env("CUDA_VISIBLE_DEVICES", self.device.to_string());
        }
        command
    }

    fn check(&self, found: &v1::DescribeReply) -> Result<(), ExecutorError> {
        let described = |build: &str, protocol| format!("build {build}, protocol {protocol}");
        let expected = described(&self.build, PROTOCOL_VERSION);
        let found = described(&found.build, found.protocol_version);
        if found == expected {
            Ok(())
        } else {
            Err(ExecutorError::OtherBuild { program: self.program.clone(), found, expected })
        }
    }
}

/// Removes the socket of an earlier life, which nobody listens on.
pub(crate) fn remove_socket(socket: &Path) {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(socket = %socket.display(), %error, "cannot remove a socket");
        }
        _ => {}
    }
}

type Answer = (ExecutorClient<Channel>, v1::DescribeReply);

async fn first_answer(
    launch: &dyn Launch,
    process: &mut Box<dyn Child>,
    recipe: &Recipe,
) -> Result<Answer, ExecutorError> {
    loop {
        if let Some(answer) = ask(launch, recipe).await {
            return Ok(answer);
        }
        if let Some(status) = process.ended() {
            return Err(ExecutorError::Ended {
                program: recipe.program.clone(),
                how: death::how(status),
                last_words: process.last_words().await,
            });
        }
        sleep(LOOK).await;
    }
}

/// Asks whoever listens what it is. Any failure means: not yet.
async fn ask(launch: &dyn Launch, recipe: &Recipe) -> Option<Answer> {
    let channel = launch.connect(recipe).await?;
    let mut client = ExecutorClient::new(channel)
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
    let answer = timeout(CONTROL_TIMEOUT, client.describe(v1::DescribeRequest {})).await;
    Some((client, answer.ok()?.ok()?.into_inner()))
}

#[cfg(test)]
mod tests {
    use orchestrator_types::ByteCount;

    use super::*;

    fn recipe(device: &str) -> Recipe {
        Recipe {
            slice: "a.0".parse().unwrap(),
            program: "/bin/executor".into(),
            socket: "/s/socket".into(),
            blobs: "/s/blobs".into(),
            cache: "/c".into(),
            decoded: "/s/decoded".into(),
            decoded_limit: ByteCount::gib(1),
            threads: 2,
            device: device.parse().unwrap(),
            ceiling: ByteCount::gib(4),
            roots: Vec::new(),
            build: "1".to_owned(),
        }
    }

    #[test]
    fn an_executor_sees_the_device_of_its_slice_alone_by_its_uuid() {
        let seen = |device: &str| {
            let command = recipe(device).command();
            let mut variables = command.as_std().get_envs();
            let value = variables.find(|(name, _)| *name == "CUDA_VISIBLE_DEVICES")?.1?;
            Some(value.to_string_lossy().into_owned())
        };
        let instance = "MIG-3b7e9a10-52c4-5d6e-9f80-000000000002";
        assert_eq!(seen(instance).as_deref(), Some(instance));
        let gpu = "GPU-6f1c2d3e-0a1b-4c5d-8e9f-000000000001";
        assert_eq!(seen(gpu).as_deref(), Some(gpu));
        assert_eq!(seen("cpu"), None);
    }
}
