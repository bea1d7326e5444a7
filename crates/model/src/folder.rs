//! A model folder in Hugging Face layout, opened and checked.

use std::{
    collections::BTreeSet,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use orchestrator_files::Files;
use orchestrator_types::{ByteCount, Component, Digest, Precision, wording::one_line};

use crate::{
    ClipConfig, ModelError, TensorProblem, TensorProblems, TensorSpec, config,
    inventory::{inventory, is_harmless_extra},
    weights::{Element, StoredTensor, WeightsFile},
};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const PICKLES: [&str; 3] =
    ["pytorch_model.bin", "pytorch_model.bin.index.json", "open_clip_pytorch_model.bin"];
const MOST_CONFIG: ByteCount = ByteCount::mib(1);

/// A checked model. Cloning shares the map.
#[derive(Clone)]
pub struct ModelFolder {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    config: ClipConfig,
    config_digest: Digest,
    specs: Vec<TensorSpec>,
    weights: WeightsFile,
    weights_digest: OnceLock<Digest>,
}

impl ModelFolder {
    /// Opens and checks a folder: config.json, and the header of model.safetensors. Reads no
    /// tensor.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::open_in(path, &Files::anywhere())
    }

    /// As [`ModelFolder::open`], and opens no file that `files` does not admit.
    pub fn open_in(path: &Path, files: &Files) -> Result<Self, ModelError> {
        if !path.is_dir() {
            return Err(ModelError::NoFolder { path: path.to_owned() });
        }
        let config_path = path.join(CONFIG);
        let text = read_config(path, &config_path, files)?;
        let config = config::parse(&config_path, &text)?;
        let weights_path = find_weights(path)?;
        let weights = WeightsFile::open(&weights_path, files)?;
        let specs = inventory(&config);
        if let Some(problems) = TensorProblems::of(compare(&specs, &weights)) {
            return Err(ModelError::Tensors { path: weights_path, problems });
        }
        let config_digest = Digest::of(&text);
        let weights_digest = OnceLock::new();
        let path = path.to_owned();
        let inner = Inner { path, config, config_digest, specs, weights, weights_digest };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The architecture.
    pub fn config(&self) -> &ClipConfig {
        &self.inner.config
    }

    /// Digest of model.safetensors, as `b3sum` prints it: of the file that was opened, whatever has
    /// its name now. Reads all of it on the first call, and touches no mapped byte.
    ///
    /// # Errors
    /// The file cannot be read, or is not the one any more whose header was checked.
    pub fn weights_digest(&self) -> Result<Digest, ModelError> {
        if let Some(known) = self.inner.weights_digest.get() {
            return Ok(*known);
        }
        let digest = self.inner.weights.digest()?;
        Ok(*self.inner.weights_digest.get_or_init(|| digest))
    }

    /// Finds out whether model.safetensors is as it was when it was opened. Asked after weights were
    /// copied out of the map, it tells that they are those of [`ModelFolder::weights_digest`].
    ///
    /// # Errors
    /// [`ModelError::Changed`] if somebody wrote to it.
    pub fn require_unchanged(&self) -> Result<(), ModelError> {
        self.inner.weights.require_unchanged()
    }

    /// Identity of the function that the folder describes: configuration and weights. Equal
    /// identities give equal embeddings for equal inputs.
    ///
    /// # Errors
    /// As [`ModelFolder::weights_digest`].
    pub fn identity(&self) -> Result<Digest, ModelError> {
        let mut parts = [0_u8; 64];
        parts[..32].copy_from_slice(self.inner.config_digest.as_bytes());
        parts[32..].copy_from_slice(self.weights_digest()?.as_bytes());
        Ok(Digest::of(&parts))
    }

    /// The tensors of a component, in the order of its layers.
    pub fn tensors(&self, component: Component) -> impl Iterator<Item = &TensorSpec> {
        self.inner.specs.iter().filter(move |spec| spec.component == component)
    }

    /// Number of parameters of a component.
    pub fn parameters(&self, component: Component) -> u64 {
        self.tensors(component).map(TensorSpec::elements).sum()
    }

    /// Bytes of a component's weights in the file.
    pub fn stored_bytes(&self, component: Component) -> ByteCount {
        let bytes = self.tensors(component).map(|spec| {
            let stored = self.stored(&spec.name).expect("every listed tensor was checked");
            stored.bytes.len() as u64
        });
        ByteCount::bytes(bytes.sum())
    }

    /// Bytes of a component's weights once loaded in a precision.
    pub fn weight_bytes(&self, component: Component, precision: Precision) -> ByteCount {
        ByteCount::bytes(self.parameters(component) * precision.element_bytes())
    }

    /// The stored bytes of a tensor, by the name in its [`TensorSpec`]; `None` for a name that the
    /// configuration does not call for. The bytes are read from disk when they are touched.
    pub fn stored(&self, name: &str) -> Option<StoredTensor<'_>> {
        self.inner.weights.tensor(name)
    }
}

impl fmt::Debug for ModelFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelFolder")
            .field("path", &self.inner.path)
            .field("config", &self.inner.config)
            .finish_non_exhaustive()
    }
}

fn read_config(folder: &Path, path: &Path, files: &Files) -> Result<Vec<u8>, ModelError> {
    files.read(path, MOST_CONFIG).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            ModelError::MissingFile { path: folder.to_owned(), file: CONFIG }
        }
        io::ErrorKind::FileTooLarge => {
            ModelError::ConfigTooLarge { path: path.to_owned(), limit: MOST_CONFIG }
        }
        _ => ModelError::Read { path: path.to_owned(), source },
    })
}

fn find_weights(folder: &Path) -> Result<PathBuf, ModelError> {
    let weights = folder.join(WEIGHTS);
    if weights.is_file() {
        return Ok(weights);
    }
    let index = folder.join(INDEX);
    if index.is_file() {
        return Err(ModelError::Sharded { path: index });
    }
    match PICKLES.iter().map(|name| folder.join(name)).find(|path| path.is_file()) {
        Some(path) => Err(ModelError::Pickle { path }),
        None => Err(ModelError::MissingFile { path: folder.to_owned(), file: WEIGHTS }),
    }
}

/// Everything in which the file differs from the configuration: first the called-for tensors in
/// the order of the layers, then the extra ones by name.
fn compare(specs: &[TensorSpec], weights: &WeightsFile) -> Vec<TensorProblem> {
    let called_for: BTreeSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let extra = weights
        .tensors
        .iter()
        .filter(|(name, _)| !called_for.contains(name.as_str()) && !is_harmless_extra(name))
        .map(|(name, listed)| TensorProblem::Extra {
            name: one_line(name),
            shape: listed.shape.clone(),
        });
    specs.iter().filter_map(|spec| problem(spec, weights)).chain(extra).collect()
}

fn problem(spec: &TensorSpec, weights: &WeightsFile) -> Option<TensorProblem> {
    let name = spec.name.clone();
    let Some(listed) = weights.tensors.get(&spec.name) else {
        return Some(TensorProblem::Missing { name, shape: spec.shape.clone() });
    };
    if listed.shape != spec.shape {
        let (expected, found) = (spec.shape.clone(), listed.shape.clone());
        return Some(TensorProblem::Shape { name, expected, found });
    }
    if Element::read(listed.dtype).is_none() {
        return Some(TensorProblem::Element { name, found: listed.dtype.to_string() });
    }
    None
}

#[cfg(test)]
mod tests;
