//! Writes a run folder: all of it, or nothing.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write as _,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, bail};
use orchestrator_proto::v1::{FileChunk, ResultsRequest, coordinator_client::CoordinatorClient};
use orchestrator_types::RunId;
use tonic::transport::Channel;

use crate::cluster::CallError;

/// A folder that is not finished yet.
const WRITING: &str = ".writing-";

/// Finds out whether `output` can be written, so that nobody waits for results in vain.
pub(crate) fn probe(output: &Path) -> anyhow::Result<()> {
    let tried = fs::create_dir_all(output)
        .and_then(|()| tempfile::Builder::new().prefix(WRITING).tempdir_in(output))
        .and_then(|folder| {
            // On a full volume folders can still be made.
            fs::write(folder.path().join("probe"), vec![0; 64 << 10])?;
            folder.close()
        });
    tried.with_context(|| {
        format!("cannot write into {}; name another folder with `--output`", output.display())
    })
}

/// Fetches the files of `run` into `output/<run>` and returns that folder. An older copy of the
/// same run's folder is replaced.
pub(crate) async fn fetch(
    client: &mut CoordinatorClient<Channel>,
    run: &RunId,
    output: &Path,
) -> anyhow::Result<PathBuf> {
    crate::state::create(output)?;
    let partial = tempfile::Builder::new()
        .prefix(WRITING)
        .tempdir_in(output)
        .with_context(|| format!("failed to write into {}", output.display()))?;
    let request = ResultsRequest { run: run.to_string(), files: Vec::new() };
    let refused =
        |status| anyhow::Error::new(CallError::from(status)).context("failed to fetch the results");
    let mut chunks = client.results(request).await.map_err(refused)?.into_inner();
    let mut files: BTreeMap<String, File> = BTreeMap::new();
    while let Some(FileChunk { name, data }) = chunks.message().await.map_err(refused)? {
        if !files.contains_key(&name) {
            let file = create(partial.path(), &name)?;
            files.insert(name.clone(), file);
        }
        let file = files.get_mut(&name).expect("it was just inserted");
        file.write_all(&data).with_context(|| format!("failed to write {name}"))?;
    }
    let target = output.join(run.as_str());
    if target.exists() {
        fs::remove_dir_all(&target)
            .with_context(|| format!("failed to replace {}", target.display()))?;
    }
    publish(partial, &target)?;
    Ok(target)
}

/// Moves the finished folder to its name, readable like any folder that a user makes.
fn publish(partial: tempfile::TempDir, target: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = partial.keep();
    let moved = fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
        .and_then(|()| fs::rename(&path, target));
    moved.with_context(|| format!("failed to create {}", target.display()))
}

fn create(folder: &Path, name: &str) -> anyhow::Result<File> {
    // The name comes over the wire: it must not leave the folder.
    let mut parts = Path::new(name).components();
    let (Some(Component::Normal(_)), None) = (parts.next(), parts.next()) else {
        bail!("the coordinator sent a file with the name `{name}`, which is no plain name");
    };
    File::create(folder.join(name)).with_context(|| format!("failed to create {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_cannot_be_written_is_found_at_once() {
        let home = tempfile::tempdir().unwrap();
        let output = home.path().join("a/b");
        probe(&output).unwrap();
        assert_eq!(fs::read_dir(&output).unwrap().count(), 0, "nothing is left there");
        let file = home.path().join("file");
        fs::write(&file, "").unwrap();
        let error = format!("{:#}", probe(&file.join("below")).unwrap_err());
        assert!(error.contains("--output"), "{error}");
    }
}
