//! `preprocessor_config.json` as transformers writes it, new (`"size": {"shortest_edge": 224}`) and
//! old (`"size": 224`).
//!
//! Invariant: a key that could change a pixel is either honoured or refused by name; a missing key
//! has the default of the processor that the file names (CLIP's if it names none).

use std::{
    io,
    path::{Path, PathBuf},
};

use orchestrator_files::Files;
use orchestrator_types::{ByteCount, wording::shown};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Geometry, Recipe};

/// Why a model's preprocessing cannot be reproduced.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The file cannot be read.
    #[error("cannot read {}; a model folder in Hugging Face layout has this file", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The file is not a JSON object.
    #[error("{} is not a JSON object", path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// The parser's reason, with line and column.
        #[source]
        source: serde_json::Error,
    },
    /// A key has a value that makes no sense or is not built.
    #[error("{}: `{key}` is {found}; {expected}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value, as JSON.
        found: String,
        /// What would be accepted.
        expected: String,
    },
}

/// Keys that say nothing about pixels.
const SILENT: [&str; 12] = [
    "_valid_processor_keys",
    "auto_map",
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "do_convert_rgb",
    "image_processor_type",
    "feature_extractor_type",
    "input_data_format",
    "processor_class",
    "return_tensors",
];

/// The largest side that is taken for a size and not for a mistake.
const SIDE_LIMIT: u32 = 4096;

/// A file of a few lines.
const SIZE_LIMIT: ByteCount = ByteCount::mib(1);

pub(super) fn read(path: &Path, files: &Files) -> Result<Recipe, RecipeError> {
    let bytes = files
        .read(path, SIZE_LIMIT)
        .map_err(|source| RecipeError::Unreadable { path: path.to_owned(), source })?;
    let keys = serde_json::from_slice(&bytes)
        .map_err(|source| RecipeError::NotJson { path: path.to_owned(), source })?;
    Keys { path, keys }.recipe()
}

/// What a processor does where its file says nothing.
struct Defaults {
    size: Size,
    crops: bool,
    mean: [f64; 3],
    std: [f64; 3],
}

const CLIP: Defaults = Defaults {
    size: Size::ShortestEdge { shortest_edge: 224 },
    crops: true,
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    std: [0.268_629_54, 0.261_302_58, 0.275_777_11],
};

const SIGLIP: Defaults = Defaults {
    size: Size::Exact { height: 224, width: 224 },
    crops: false,
    mean: [0.5; 3],
    std: [0.5; 3],
};

#[derive(Clone, Copy, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Size {
    Side(u32),
    ShortestEdge { shortest_edge: u32 },
    Exact { height: u32, width: u32 },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PerChannel {
    All(f64),
    Each([f64; 3]),
}

struct Keys<'a> {
    path: &'a Path,
    keys: Map<String, Value>,
}

impl Keys<'_> {
    /// Takes each key that is honoured out of the map, and refuses the file for what remains.
    fn recipe(mut self) -> Result<Recipe, RecipeError> {
        let defaults = self.defaults()?;
        let geometry = self.geometry(&defaults)?;
        let factor: Option<f64> = self.take("rescale_factor", "a positive number is expected")?;
        let factor = factor.unwrap_or(1.0 / 255.0);
        self.check("rescale_factor", factor, factor.is_finite() && factor > 0.0)?;
        let rescales = self.flag("do_rescale", true)?;
        let mean = self.per_channel("image_mean", defaults.mean)?;
        let std = self.per_channel("image_std", defaults.std)?;
        self.check("image_std", std, std.iter().all(|&value| value > 0.0))?;
        let normalises = self.flag("do_normalize", true)?;
        self.refuse_the_rest()?;
        Ok(Recipe::new(geometry, rescales.then_some(factor), normalises.then_some([mean, std])))
    }

    fn defaults(&self) -> Result<Defaults, RecipeError> {
        for key in ["image_processor_type", "feature_extractor_type"] {
            match self.keys.get(key) {
                None | Some(Value::Null) => {}
                Some(Value::String(name)) if name.starts_with("CLIP") => return Ok(CLIP),
                Some(Value::String(name)) if name.starts_with("Siglip") && !name.contains('2') => {
                    return Ok(SIGLIP);
                }
                Some(other) => {
                    return Err(self.error(key, other, "only CLIP's and SigLIP's are built"));
                }
            }
        }
        Ok(CLIP)
    }

    fn geometry(&mut self, defaults: &Defaults) -> Result<Geometry, RecipeError> {
        let bicubic = 3;
        let resample = self.take("resample", "the number 3 (bicubic) is expected")?;
        let resample = resample.unwrap_or(bicubic);
        let resizes = self.flag("do_resize", true)?;
        if resizes && resample != bicubic {
            let found = Value::from(resample);
            return Err(self.error("resample", &found, "only 3 (bicubic) is built"));
        }
        let sizes = "a side, {\"shortest_edge\"} or {\"height\", \"width\"} is expected";
        let size = self.take("size", sizes)?.unwrap_or(defaults.size);
        let crop =
            self.take::<Size>("crop_size", "a side or {\"height\", \"width\"} is expected")?;
        let crops = self.flag("do_center_crop", defaults.crops)?;
        let crop = match crop {
            None => (224, 224),
            Some(Size::Side(both)) => (both, both),
            Some(Size::Exact { height, width }) => (width, height),
            Some(Size::ShortestEdge { shortest_edge }) => {
                let found = serde_json::json!({ "shortest_edge": shortest_edge });
                return Err(self.error("crop_size", &found, "{\"height\", \"width\"} is expected"));
            }
        };
        let geometry = match (resizes, size, crops) {
            (true, Size::Exact { height, width }, false) => Geometry::Exact { width, height },
            (true, Size::Side(both), false) => Geometry::Exact { width: both, height: both },
            (true, Size::Side(edge) | Size::ShortestEdge { shortest_edge: edge }, true) => {
                self.check("size", edge, (1..=SIDE_LIMIT).contains(&edge))?;
                Geometry::ShortestEdge { edge, width: crop.0, height: crop.1 }
            }
            (true, Size::Exact { height, width }, true) if (width, height) == crop => {
                Geometry::Exact { width, height }
            }
            (false, _, true) => Geometry::CropOnly { width: crop.0, height: crop.1 },
            (true, _, true) => {
                let found = Value::Bool(true);
                let expected = "a crop after a resize to a fixed size is not built";
                return Err(self.error("do_center_crop", &found, expected));
            }
            (_, _, false) => {
                let found = Value::Bool(false);
                let expected = "without it pictures would differ in size, which is not built";
                return Err(self.error("do_center_crop", &found, expected));
            }
        };
        let (width, height) = geometry.size();
        let sound = |side| (1..=SIDE_LIMIT).contains(&side);
        let key = if crops { "crop_size" } else { "size" };
        self.check(key, [width, height], sound(width) && sound(height))?;
        Ok(geometry)
    }

    fn refuse_the_rest(&self) -> Result<(), RecipeError> {
        let idle = |value: &Value| matches!(value, Value::Null | Value::Bool(false));
        match self.keys.iter().find(|(key, value)| !SILENT.contains(&key.as_str()) && !idle(value))
        {
            None => Ok(()),
            Some((key, value)) => Err(self.error(key, value, "this key is not built")),
        }
    }

    fn flag(&mut self, key: &str, default: bool) -> Result<bool, RecipeError> {
        Ok(self.take(key, "true or false is expected")?.unwrap_or(default))
    }

    fn per_channel(&mut self, key: &str, default: [f64; 3]) -> Result<[f64; 3], RecipeError> {
        let value = self.take(key, "a number or a list of three numbers is expected")?;
        Ok(match value {
            None => default,
            Some(PerChannel::All(value)) => [value; 3],
            Some(PerChannel::Each(values)) => values,
        })
    }

    /// The value of a key, which is then dealt with; `None` if it is missing or null.
    fn take<'de, T: Deserialize<'de>>(
        &mut self,
        key: &str,
        expected: &str,
    ) -> Result<Option<T>, RecipeError> {
        match self.keys.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match T::deserialize(value.clone()) {
                Ok(read) => Ok(Some(read)),
                Err(_) => Err(self.error(key, &value, expected)),
            },
        }
    }

    fn check(&self, key: &str, found: impl Into<Found>, sound: bool) -> Result<(), RecipeError> {
        if sound {
            return Ok(());
        }
        let Found(found) = found.into();
        Err(self.error(key, &found, "a positive number of sensible size is expected"))
    }

    fn error(&self, key: &str, found: &Value, expected: &str) -> RecipeError {
        RecipeError::Key {
            path: self.path.to_owned(),
            key: shown(key),
            found: shown(&found.to_string()),
            expected: expected.to_owned(),
        }
    }
}

/// A value for a message.
struct Found(Value);

impl<T: Into<Value>> From<T> for Found {
    fn from(value: T) -> Self {
        Self(value.into())
    }
}
