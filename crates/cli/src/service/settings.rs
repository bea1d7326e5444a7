//! Configuration files: the flags' names with `_` for `-`.

use std::{collections::BTreeMap, fs, path::Path, path::PathBuf};

use anyhow::{Context as _, anyhow, ensure};
use orchestrator_coordinator::BlobPlace;
use orchestrator_types::{ByteCount, DataRootName, NodeName};
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};

use crate::{args::service::LogFormat, devices::DeviceChoice, duration::Time, inventory};

/// A file of settings is small; a larger one is not what it is meant to be.
const LIMIT_BYTES: u64 = 256 << 10;

/// What `coordinator --config` may hold.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CoordinatorFile {
    pub(crate) listen: Option<String>,
    pub(crate) http: Option<String>,
    pub(crate) state: Option<PathBuf>,
    #[serde(deserialize_with = "place")]
    pub(crate) blobs: Option<BlobPlace>,
    pub(crate) lease: Option<Time>,
    pub(crate) heartbeat: Option<Time>,
    pub(crate) no_worker: Option<Time>,
    pub(crate) straggler: Option<Time>,
    pub(crate) network_store: Option<bool>,
    pub(crate) reflection: Option<bool>,
    pub(crate) tls: Option<PathBuf>,
    pub(crate) health: Option<String>,
    pub(crate) insecure_plaintext: Option<bool>,
    pub(crate) log_format: Option<LogFormat>,
}

/// What `worker --config` may hold.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkerFile {
    pub(crate) coordinator: Option<String>,
    #[serde(deserialize_with = "devices")]
    pub(crate) device: Vec<DeviceChoice>,
    #[serde(deserialize_with = "size")]
    pub(crate) quota: Option<ByteCount>,
    pub(crate) slices: Option<u32>,
    pub(crate) name: Option<NodeName>,
    pub(crate) data_roots: BTreeMap<DataRootName, PathBuf>,
    pub(crate) scratch: Option<PathBuf>,
    pub(crate) grace: Option<Time>,
    pub(crate) tls: Option<PathBuf>,
    pub(crate) health: Option<String>,
    pub(crate) insecure_plaintext: Option<bool>,
    pub(crate) log_format: Option<LogFormat>,
}

/// Where blobs lie.
fn place<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BlobPlace>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(D::Error::custom)
}

/// A size with its unit.
fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteCount>, D::Error> {
    inventory::size(from).map(Some)
}

/// One device, or a list of them.
fn devices<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<DeviceChoice>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Named {
        One(String),
        Several(Vec<String>),
    }
    let named = match Named::deserialize(from)? {
        Named::One(name) => vec![name],
        Named::Several(names) => names,
    };
    named.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
}

/// The settings in `file`; without a file, none.
pub(crate) fn read<T: DeserializeOwned + Default>(file: Option<&Path>) -> anyhow::Result<T> {
    let Some(file) = file else { return Ok(T::default()) };
    let unreadable = || format!("failed to read the configuration {}", file.display());
    let size = fs::metadata(file).with_context(unreadable)?.len();
    ensure!(size <= LIMIT_BYTES, "{} has {size} bytes; a configuration has few", file.display());
    let text = fs::read_to_string(file).with_context(unreadable)?;
    parse(&text).with_context(|| format!("{} is not a good configuration", file.display()))
}

fn parse<T: DeserializeOwned + Default>(text: &str) -> anyhow::Result<T> {
    // An empty document is no mapping, and no mistake.
    let read: Option<T> = serde_yaml::from_str(text).map_err(|error| anyhow!("{error}"))?;
    Ok(read.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_flags_and_nothing_else() {
        let file: WorkerFile = parse(
            "coordinator: http://h:1\ndevice: [cpu]\nquota: 2 GiB\nslices: 2\nname: a\ndata_roots: \
             {data: /srv}\nscratch: /s\ngrace: 5 s\nlog_format: json\n",
        )
        .unwrap();
        assert_eq!((file.slices, file.quota), (Some(2), Some(ByteCount::gib(2))));
        assert_eq!(file.grace.map(|time| time.0.as_secs()), Some(5));
        assert!(parse::<CoordinatorFile>("").unwrap().listen.is_none());
        let wrong = [
            parse::<CoordinatorFile>("lissten: x").unwrap_err().to_string(),
            parse::<CoordinatorFile>("lease: 30").unwrap_err().to_string(),
            parse::<WorkerFile>("device: gpu0").unwrap_err().to_string(),
            parse::<WorkerFile>("quota: 5").unwrap_err().to_string(),
            parse::<WorkerFile>("data_roots: {a b: /x}").unwrap_err().to_string(),
        ];
        insta::assert_snapshot!(wrong.join("\n"));
    }
}
