//! config.json as it is written, each missing key with the default that transformers gives it.

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(default)]
pub(super) struct RawConfig {
    pub architectures: Option<Vec<String>>,
    pub model_type: Option<String>,
    pub projection_dim: Option<u64>,
    pub text_config: Option<RawText>,
    pub vision_config: Option<RawVision>,
    pub text_config_dict: Option<RawText>,
    pub vision_config_dict: Option<RawVision>,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            architectures: None,
            model_type: None,
            projection_dim: Some(512),
            text_config: None,
            vision_config: None,
            text_config_dict: None,
            vision_config_dict: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(default)]
pub(super) struct RawText {
    pub vocab_size: u64,
    pub hidden_size: u64,
    pub intermediate_size: u64,
    pub num_hidden_layers: u64,
    pub num_attention_heads: u64,
    pub max_position_embeddings: u64,
    pub hidden_act: String,
    pub layer_norm_eps: Option<f64>,
    pub eos_token_id: Option<i64>,
}

impl Default for RawText {
    fn default() -> Self {
        Self {
            vocab_size: 49_408,
            hidden_size: 512,
            intermediate_size: 2048,
            num_hidden_layers: 12,
            num_attention_heads: 8,
            max_position_embeddings: 77,
            hidden_act: "quick_gelu".to_owned(),
            layer_norm_eps: Some(1e-5),
            eos_token_id: Some(49_407),
        }
    }
}

#[derive(Deserialize)]
#[serde(default)]
pub(super) struct RawVision {
    pub hidden_size: u64,
    pub intermediate_size: u64,
    pub num_hidden_layers: u64,
    pub num_attention_heads: u64,
    pub num_channels: u64,
    pub image_size: u64,
    pub patch_size: u64,
    pub hidden_act: String,
    pub layer_norm_eps: Option<f64>,
}

impl Default for RawVision {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            num_channels: 3,
            image_size: 224,
            patch_size: 32,
            hidden_act: "quick_gelu".to_owned(),
            layer_norm_eps: Some(1e-5),
        }
    }
}
