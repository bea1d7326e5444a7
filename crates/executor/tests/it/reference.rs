//! The numbers that transformers computes from the same files.

use std::{collections::BTreeMap, fs};

use safetensors::SafeTensors;
use serde_json::Value;

use crate::fixtures::data;

pub(crate) fn json(name: &str) -> Value {
    let path = data().join("reference/tiny-clip").join(name);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A row per image, by the hexadecimal part of the image's name.
pub(crate) fn rows(tensor: &str) -> BTreeMap<String, Vec<f32>> {
    let bytes = fs::read(data().join("reference/tiny-clip/embeddings.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let view = tensors.tensor(tensor).unwrap();
    let width = view.shape()[1];
    let rows = floats(view.data());
    order().into_iter().zip(rows.chunks_exact(width).map(<[f32]>::to_vec)).collect()
}

/// The five best classes of each image.
pub(crate) fn top_classes() -> BTreeMap<String, Vec<u32>> {
    let bytes = fs::read(data().join("reference/tiny-clip/embeddings.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let data = tensors.tensor("class_top5").unwrap().data();
    let indices: Vec<u32> =
        data.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    order().into_iter().zip(indices.chunks_exact(5).map(<[u32]>::to_vec)).collect()
}

fn order() -> Vec<String> {
    serde_json::from_value(json("reference.json")["test_order"].clone()).unwrap()
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The part of an image's name that the reference knows it by.
pub(crate) fn hex(sample: &str) -> &str {
    let name = sample.rsplit('/').next().unwrap();
    name.split('.').next().unwrap()
}
