//! Both towers against transformers (fp32 on the CPU) on the same stored weights: embeddings,
//! and hidden states layer by layer. Largest differences allowed are 1e-4, as the project promises.

use std::path::{Path, PathBuf};

use orchestrator_model::ModelFolder;
use orchestrator_types::Precision;
use safetensors::SafeTensors;

use crate::{Pixels, Placement, Scorer, TextEncoder, VisionEncoder};

const ALLOWED: f32 = 1e-4;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

pub(crate) fn folder() -> ModelFolder {
    ModelFolder::open(&data().join("models/tiny-clip")).unwrap()
}

pub(crate) fn vision() -> VisionEncoder {
    VisionEncoder::load(&folder(), Placement::cpu(Precision::Fp32)).unwrap()
}

pub(crate) fn text() -> TextEncoder {
    TextEncoder::load(&folder(), Placement::cpu(Precision::Fp32)).unwrap()
}

/// The reference's tensors, by name.
pub(crate) struct Reference(Vec<u8>);

impl Reference {
    pub(crate) fn open() -> Self {
        Self(std::fs::read(data().join("reference/tiny-clip/reference.safetensors")).unwrap())
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().data().to_vec()
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        let bytes = self.bytes(name);
        bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        let bytes = self.bytes("input_ids");
        bytes.as_chunks().0.iter().map(|&eight| i64::from_le_bytes(eight)).collect()
    }
}

pub(crate) fn largest_difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn assert_close(what: &str, found: &[f32], expected: &[f32]) {
    let difference = largest_difference(found, expected);
    println!("{what}: largest difference {difference:e}");
    assert!(difference <= ALLOWED, "{what}: {difference:e}");
}

/// Encodes in tiles of `tile` images.
pub(crate) fn encode_images(encoder: &VisionEncoder, pixels: &[f32], tile: usize) -> Vec<f32> {
    let mut out = vec![0.0; pixels.len() / encoder.pixels() * encoder.width()];
    let inputs = pixels.chunks(tile * encoder.pixels());
    for (pixels, out) in inputs.zip(out.chunks_mut(tile * encoder.width())) {
        encoder.encode(Pixels::Numbers(pixels), pixels.len() / encoder.pixels(), out).unwrap();
    }
    out
}

pub(crate) fn encode_texts(
    encoder: &TextEncoder,
    ids: &[i64],
    length: usize,
    tile: usize,
) -> Vec<f32> {
    let mut out = vec![0.0; ids.len() / length * encoder.width()];
    for (ids, out) in ids.chunks(tile * length).zip(out.chunks_mut(tile * encoder.width())) {
        encoder.encode(ids, ids.len() / length, length, out).unwrap();
    }
    out
}

#[test]
fn image_embeddings_equal_the_references() {
    let (reference, encoder) = (Reference::open(), vision());
    let expected = &reference.floats("image_embeds")[..16 * 256];
    for tile in [1, 3, 4, 16] {
        let found = encode_images(&encoder, &reference.floats("pixel_values"), tile);
        assert_close(&format!("images, tile of {tile}"), &found, expected);
    }
}

#[test]
fn text_embeddings_equal_the_references() {
    let (reference, encoder) = (Reference::open(), text());
    let expected = reference.floats("text_embeds");
    for tile in [1, 5, 32, 64] {
        let found = encode_texts(&encoder, &reference.ids(), 32, tile);
        assert_close(&format!("texts, tile of {tile}"), &found, &expected);
    }
}

#[test]
fn vision_hidden_states_equal_the_references_layer_by_layer() {
    let reference = Reference::open();
    let pixels = &reference.floats("pixel_values")[..2 * 3 * 112 * 112];
    for (layer, hidden) in vision().trace(pixels, 2).unwrap().iter().enumerate() {
        let name = format!("vision_hidden.{layer}");
        let found = Vec::<f32>::try_from(hidden.flatten(0, -1)).unwrap();
        assert_close(&name, &found, &reference.floats(&name));
    }
}

/// Up to the end of each text: the reference hides padding from padding, which nobody reads.
#[test]
fn text_hidden_states_equal_the_references_layer_by_layer() {
    let (reference, width) = (Reference::open(), 192);
    let ids = &reference.ids()[..2 * 32];
    for (layer, hidden) in text().trace(ids, 32).unwrap().iter().enumerate() {
        let name = format!("text_hidden.{layer}");
        let found = Vec::<f32>::try_from(hidden.flatten(0, -1)).unwrap();
        let expected = reference.floats(&name);
        for (text, ids) in ids.chunks(32).enumerate() {
            let end = ids.iter().position(|&id| id == 4095).unwrap() + 1;
            let read = text * 32 * width..(text * 32 + end) * width;
            assert_close(&name, &found[read.clone()], &expected[read]);
        }
    }
}

#[test]
fn scores_equal_the_references_up_to_the_logit_scale() {
    let reference = Reference::open();
    let (images, texts) = (reference.floats("image_embeds"), reference.floats("text_embeds"));
    let mut scores = vec![0.0; 64 * 64];
    Scorer::new(256).scores(&images, &texts, &mut scores).unwrap();
    let logits = reference.floats("logits_per_image");
    let scale = logits[0] / scores[0];
    let expected: Vec<f32> = logits.iter().map(|logit| logit / scale).collect();
    assert_close("scores", &scores, &expected);
}

#[test]
fn a_text_cut_after_its_end_gives_the_same_embedding() {
    let (reference, encoder) = (Reference::open(), text());
    let (ids, whole) = (reference.ids(), reference.floats("text_embeds"));
    for (row, expected) in ids.chunks(32).zip(whole.chunks(256)) {
        let end = row.iter().position(|&id| id == 4095).unwrap() + 1;
        let found = encode_texts(&encoder, &row[..end], end, 1);
        let difference = largest_difference(&found, expected);
        assert!(difference <= ALLOWED, "{difference:e}");
    }
}
