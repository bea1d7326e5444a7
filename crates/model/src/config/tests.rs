//! What config.json may say.

use std::path::Path;

use super::*;

fn read(text: &str) -> Result<ClipConfig, ModelError> {
    parse(Path::new("m/config.json"), text.as_bytes())
}

/// The error's text with its cause, as the edge prints it.
fn message(text: &str) -> String {
    let error = read(text).unwrap_err();
    match std::error::Error::source(&error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[test]
fn missing_keys_are_those_of_vit_b_32() {
    let config = read(r#"{"architectures": ["CLIPModel"], "text_config": {}, "of_later": 1}"#);
    let config = config.unwrap();
    assert_eq!(config, read(r#"{"model_type": "clip"}"#).unwrap());
    insta::assert_debug_snapshot!(config);
    assert_eq!((config.vision.grid(), config.vision.tokens()), (7, 50));
}

#[test]
fn a_config_dict_alone_decides_for_its_tower() {
    let config = read(
        r#"{"model_type": "clip", "projection_dim": 768,
            "text_config": {"hidden_size": 64, "eos_token_id": 2, "num_attention_heads": 2},
            "text_config_dict": {"hidden_size": 768, "num_attention_heads": 12},
            "vision_config": {"hidden_size": 1024, "num_attention_heads": 16},
            "vision_config_dict": null}"#,
    )
    .unwrap();
    assert_eq!((config.text.blocks.width, config.text.blocks.heads), (768, 12));
    assert_eq!(config.text.pooling, TextPooling::FirstOf(49_407));
    assert_eq!(config.vision.blocks.width, 1024);
    assert_eq!(config.embedding_width, 768);
}

#[test]
fn the_old_end_of_text_id_pools_at_the_largest_id() {
    let config = read(r#"{"model_type": "clip", "text_config": {"eos_token_id": 2}}"#).unwrap();
    assert_eq!(config.text.pooling, TextPooling::LargestId);
}

#[test]
fn each_activation_has_its_names() {
    for (name, expected) in [
        ("quick_gelu", Activation::QuickGelu),
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
    ] {
        let text =
            format!(r#"{{"model_type": "clip", "vision_config": {{"hidden_act": "{name}"}}}}"#);
        assert_eq!(read(&text).unwrap().vision.blocks.activation, expected);
    }
}

#[test]
fn what_cannot_be_built_is_named() {
    let cases = [
        r#"{"architectures": ["SiglipModel"], "model_type": "siglip"}"#,
        r#"{"architectures": ["CLIPTextModelWithProjection"], "model_type": "clip"}"#,
        r#"{"hidden_size": 768}"#,
        r#"{"model_type": "clip", "text_config": {"hidden_size": "512"}}"#,
        r#"{"model_type": "clip", "text_config": {"hidden_size": 500}}"#,
        r#"{"model_type": "clip", "text_config": {"num_hidden_layers": 0}}"#,
        r#"{"model_type": "clip", "text_config": {"num_hidden_layers": 18446744073709551615}}"#,
        r#"{"model_type": "clip", "text_config": {"vocab_size": 4096}}"#,
        r#"{"model_type": "clip", "text_config": {"eos_token_id": null}}"#,
        r#"{"model_type": "clip", "vision_config": {"num_attention_heads": 0}}"#,
        r#"{"model_type": "clip", "vision_config": {"num_channels": 4}}"#,
        r#"{"model_type": "clip", "vision_config": {"patch_size": 225}}"#,
        r#"{"model_type": "clip", "vision_config": {"hidden_act": "relu"}}"#,
        r#"{"model_type": "clip", "vision_config": {"layer_norm_eps": -1.0}}"#,
        r#"{"model_type": "clip""#,
        "[]",
    ];
    let messages: Vec<String> =
        cases.iter().map(|text| format!("{text}\n  {}", message(text))).collect();
    insta::assert_snapshot!(messages.join("\n"));
}
