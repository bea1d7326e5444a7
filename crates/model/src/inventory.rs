//! Which tensors a configuration calls for, and which layer of which component each belongs to.
//!
//! Names are those of transformers' CLIPModel (its spelling `pre_layrnorm` included).

use orchestrator_types::Component;

use crate::config::{Blocks, ClipConfig};

/// A layer of a tower, in the order of computation. Towers are cut, streamed and quantised by
/// layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerKey {
    /// Input → hidden states.
    Embeddings,
    /// Hidden states → hidden states; numbered from 0.
    Block(u32),
    /// Pooled hidden state → embedding.
    Head,
}

/// A tensor that the configuration calls for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The component that needs it.
    pub component: Component,
    /// The layer that needs it.
    pub layer: LayerKey,
}

impl TensorSpec {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }
}

/// All tensors of both towers, component by component in the order of the layers.
pub(crate) fn inventory(config: &ClipConfig) -> Vec<TensorSpec> {
    let mut specs = text(config);
    specs.extend(vision(config));
    specs
}

/// Whether a file may hold this tensor although no layer needs it. The logit scale turns cosines
/// into logits and changes no ranking; position ids are 0, 1, 2 … and were once written out.
pub(crate) fn is_harmless_extra(name: &str) -> bool {
    name == "logit_scale" || name.ends_with(".position_ids")
}

/// Collects the tensors of one component.
struct Listing {
    component: Component,
    specs: Vec<TensorSpec>,
}

impl Listing {
    fn push(&mut self, layer: LayerKey, name: String, shape: &[u32]) {
        let shape = shape.iter().map(|&size| size as usize).collect();
        self.specs.push(TensorSpec { name, shape, component: self.component, layer });
    }

    /// A weight of `shape` and a bias along its first axis.
    fn affine(&mut self, layer: LayerKey, name: &str, shape: &[u32]) {
        self.push(layer, format!("{name}.weight"), shape);
        self.push(layer, format!("{name}.bias"), &shape[..1]);
    }

    fn blocks(&mut self, prefix: &str, blocks: &Blocks) {
        let (width, mlp) = (blocks.width, blocks.mlp);
        for index in 0..blocks.count {
            let layer = LayerKey::Block(index);
            let name = |part: &str| format!("{prefix}.encoder.layers.{index}.{part}");
            self.affine(layer, &name("layer_norm1"), &[width]);
            for projection in ["q_proj", "k_proj", "v_proj", "out_proj"] {
                self.affine(layer, &name(&format!("self_attn.{projection}")), &[width, width]);
            }
            self.affine(layer, &name("layer_norm2"), &[width]);
            self.affine(layer, &name("mlp.fc1"), &[mlp, width]);
            self.affine(layer, &name("mlp.fc2"), &[width, mlp]);
        }
    }
}

fn text(config: &ClipConfig) -> Vec<TensorSpec> {
    let tower = &config.text;
    let width = tower.blocks.width;
    let mut list = Listing { component: Component::Text, specs: Vec::new() };
    let embeddings = "text_model.embeddings";
    let tokens = format!("{embeddings}.token_embedding.weight");
    list.push(LayerKey::Embeddings, tokens, &[tower.vocab, width]);
    let positions = format!("{embeddings}.position_embedding.weight");
    list.push(LayerKey::Embeddings, positions, &[tower.context, width]);
    list.blocks("text_model", &tower.blocks);
    list.affine(LayerKey::Head, "text_model.final_layer_norm", &[width]);
    let projection = "text_projection.weight".to_owned();
    list.push(LayerKey::Head, projection, &[config.embedding_width, width]);
    list.specs
}

fn vision(config: &ClipConfig) -> Vec<TensorSpec> {
    let tower = &config.vision;
    let width = tower.blocks.width;
    let mut list = Listing { component: Component::Vision, specs: Vec::new() };
    let embeddings = "vision_model.embeddings";
    list.push(LayerKey::Embeddings, format!("{embeddings}.class_embedding"), &[width]);
    let patches = format!("{embeddings}.patch_embedding.weight");
    list.push(LayerKey::Embeddings, patches, &[width, tower.channels, tower.patch, tower.patch]);
    let positions = format!("{embeddings}.position_embedding.weight");
    list.push(LayerKey::Embeddings, positions, &[tower.tokens(), width]);
    list.affine(LayerKey::Embeddings, "vision_model.pre_layrnorm", &[width]);
    list.blocks("vision_model", &tower.blocks);
    list.affine(LayerKey::Head, "vision_model.post_layernorm", &[width]);
    let projection = "visual_projection.weight".to_owned();
    list.push(LayerKey::Head, projection, &[config.embedding_width, width]);
    list.specs
}
