//! config.json of a CLIPModel (Hugging Face layout) as a typed architecture.
//!
//! Invariant: a [`ClipConfig`] describes a model that can be built: every size is at least one and
//! small enough that products of sizes cannot overflow, and heads divide widths.
//!
//! Rules of the format that files in the wild rely on: a missing key takes `CLIPConfig`'s default
//! (ViT-B/32); unknown keys are ignored; where `text_config_dict` (or `vision_config_dict`) is
//! present it alone decides, defaults included; and `eos_token_id: 2` marks files written before
//! the id was corrected, which pool at the largest id (transformers, pull request 24773).

mod raw;

use std::path::Path;

use orchestrator_types::wording::shown;

use crate::ModelError;

use raw::{RawConfig, RawText, RawVision};

/// The non-linearity of a block's perceptron.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(1.702 x)`.
    QuickGelu,
    /// Exact GELU, with the error function.
    Gelu,
    /// GELU approximated with a hyperbolic tangent.
    GeluTanh,
}

/// The repeated part of a tower.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocks {
    /// Number of blocks.
    pub count: u32,
    /// Size of a token's hidden state.
    pub width: u32,
    /// Attention heads; divides `width`.
    pub heads: u32,
    /// Size of the perceptron's hidden state.
    pub mlp: u32,
    /// Non-linearity between the perceptron's two layers.
    pub activation: Activation,
    /// Added to the variance in each layer norm.
    pub epsilon: f64,
}

/// Which token's hidden state becomes the text's embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPooling {
    /// The first token with this id (end of text).
    FirstOf(i64),
    /// The first token with the largest id of its sequence.
    LargestId,
}

/// Token ids → text embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextTower {
    /// The repeated part.
    pub blocks: Blocks,
    /// Most tokens of one text.
    pub context: u32,
    /// Number of token ids.
    pub vocab: u32,
    /// Which token is pooled.
    pub pooling: TextPooling,
}

/// Pixels → image embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VisionTower {
    /// The repeated part.
    pub blocks: Blocks,
    /// Height and width of the input, in pixels.
    pub image_size: u32,
    /// Height and width of a patch, in pixels.
    pub patch: u32,
    /// Colour channels of the input; always 3.
    pub channels: u32,
}

/// A CLIPModel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipConfig {
    /// Text tower.
    pub text: TextTower,
    /// Vision tower.
    pub vision: VisionTower,
    /// Size of the embeddings that both towers end in.
    pub embedding_width: u32,
}

impl VisionTower {
    /// Patches along one side; pixels beyond the last whole patch are not looked at.
    pub const fn grid(&self) -> u32 {
        self.image_size / self.patch
    }

    /// Tokens of one image: the patches and the class token.
    pub const fn tokens(&self) -> u32 {
        self.grid() * self.grid() + 1
    }
}

/// Largest width, perceptron or image side; far above any model, far below overflow.
const MOST_WIDTH: u32 = 1 << 16;
const MOST_LAYERS: u32 = 1 << 10;
const MOST_VOCAB: u32 = 1 << 24;

/// Reads the text of `file`, a config.json.
pub(crate) fn parse(file: &Path, text: &[u8]) -> Result<ClipConfig, ModelError> {
    let raw: RawConfig = serde_json::from_slice(text)
        .map_err(|source| ModelError::ConfigSyntax { path: file.to_owned(), source })?;
    check_architecture(file, &raw)?;
    let text = raw.text_config_dict.or(raw.text_config).unwrap_or_default();
    let vision = raw.vision_config_dict.or(raw.vision_config).unwrap_or_default();
    Ok(ClipConfig {
        text: text_tower(&Keys { file, section: "text_config." }, &text)?,
        vision: vision_tower(&Keys { file, section: "vision_config." }, &vision)?,
        embedding_width: Keys { file, section: "" }.size(
            "projection_dim",
            raw.projection_dim.unwrap_or(512),
            MOST_WIDTH,
        )?,
    })
}

fn check_architecture(file: &Path, raw: &RawConfig) -> Result<(), ModelError> {
    let architecture = raw.architectures.as_deref().and_then(<[String]>::first);
    let known = match (architecture, raw.model_type.as_deref()) {
        (Some(name), _) => name == "CLIPModel",
        (None, family) => family == Some("clip"),
    };
    if known {
        return Ok(());
    }
    let found = architecture.or(raw.model_type.as_ref()).map_or("(none named)", String::as_str);
    Err(ModelError::UnknownArchitecture { path: file.to_owned(), found: shown(found) })
}

fn text_tower(keys: &Keys<'_>, raw: &RawText) -> Result<TextTower, ModelError> {
    let blocks = Blocks {
        count: keys.size("num_hidden_layers", raw.num_hidden_layers, MOST_LAYERS)?,
        width: keys.size("hidden_size", raw.hidden_size, MOST_WIDTH)?,
        heads: keys.heads(raw.num_attention_heads, raw.hidden_size)?,
        mlp: keys.size("intermediate_size", raw.intermediate_size, MOST_WIDTH)?,
        activation: keys.activation(&raw.hidden_act)?,
        epsilon: keys.epsilon(raw.layer_norm_eps)?,
    };
    let vocab = keys.size("vocab_size", raw.vocab_size, MOST_VOCAB)?;
    let pooling = match raw.eos_token_id {
        Some(2) => TextPooling::LargestId,
        Some(id) if (0..i64::from(vocab)).contains(&id) => TextPooling::FirstOf(id),
        // A B/32 default left in place of a smaller vocabulary's id must not pool silently at 0.
        Some(id) => {
            let expected = format!("a token id from 0 to {}", vocab - 1);
            return Err(keys.value("eos_token_id", &id.to_string(), &expected));
        }
        None => return Err(keys.value("eos_token_id", "null", "the id of the end-of-text token")),
    };
    let context = keys.size("max_position_embeddings", raw.max_position_embeddings, MOST_WIDTH)?;
    Ok(TextTower { blocks, context, vocab, pooling })
}

fn vision_tower(keys: &Keys<'_>, raw: &RawVision) -> Result<VisionTower, ModelError> {
    let blocks = Blocks {
        count: keys.size("num_hidden_layers", raw.num_hidden_layers, MOST_LAYERS)?,
        width: keys.size("hidden_size", raw.hidden_size, MOST_WIDTH)?,
        heads: keys.heads(raw.num_attention_heads, raw.hidden_size)?,
        mlp: keys.size("intermediate_size", raw.intermediate_size, MOST_WIDTH)?,
        activation: keys.activation(&raw.hidden_act)?,
        epsilon: keys.epsilon(raw.layer_norm_eps)?,
    };
    if raw.num_channels != 3 {
        return Err(keys.value("num_channels", &raw.num_channels.to_string(), "3"));
    }
    let image_size = keys.size("image_size", raw.image_size, 1 << 12)?;
    let patch = keys.size("patch_size", raw.patch_size, image_size)?;
    Ok(VisionTower { blocks, image_size, patch, channels: 3 })
}

/// One section of one file, for messages.
struct Keys<'a> {
    file: &'a Path,
    section: &'static str,
}

impl Keys<'_> {
    fn value(&self, key: &str, found: &str, expected: &str) -> ModelError {
        ModelError::ConfigValue {
            path: self.file.to_owned(),
            key: format!("{}{key}", self.section),
            found: found.to_owned(),
            expected: expected.to_owned(),
        }
    }

    fn size(&self, key: &str, found: u64, most: u32) -> Result<u32, ModelError> {
        u32::try_from(found).ok().filter(|size| (1..=most).contains(size)).ok_or_else(|| {
            self.value(key, &found.to_string(), &format!("a whole number from 1 to {most}"))
        })
    }

    fn heads(&self, heads: u64, width: u64) -> Result<u32, ModelError> {
        let size = self.size("num_attention_heads", heads, MOST_WIDTH)?;
        if width.is_multiple_of(heads) {
            return Ok(size);
        }
        let expected = format!("a divisor of `{}hidden_size`, which is {width}", self.section);
        Err(self.value("num_attention_heads", &heads.to_string(), &expected))
    }

    fn activation(&self, name: &str) -> Result<Activation, ModelError> {
        match name {
            "quick_gelu" => Ok(Activation::QuickGelu),
            "gelu" => Ok(Activation::Gelu),
            "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
            _ => Err(self.value(
                "hidden_act",
                &format!("`{}`", shown(name)),
                "quick_gelu, gelu, gelu_new or gelu_pytorch_tanh",
            )),
        }
    }

    fn epsilon(&self, found: Option<f64>) -> Result<f64, ModelError> {
        let epsilon = found.unwrap_or(1e-5);
        if epsilon.is_finite() && epsilon > 0.0 && epsilon < 1.0 {
            return Ok(epsilon);
        }
        Err(self.value("layer_norm_eps", &epsilon.to_string(), "a number between 0 and 1"))
    }
}

#[cfg(test)]
mod tests;
