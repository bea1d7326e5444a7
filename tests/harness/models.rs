//! CLIP models of any shape with seeded random weights, in the layout of Hugging Face.
//!
//! Invariant: the same shape, seed and number format give the same bytes. Weights are scaled by the
//! numbers they sum over, pixels outweigh positions, and attention is sharper than chance, so that
//! embeddings of different inputs differ; compare them mean-centred all the same.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::Path,
};

use serde_json::{Value, json};

use crate::data;

/// Numbers that weights are drawn from. A prime: no two rows of a matrix start at the same one.
const POOL: usize = 262_139;

/// The repeated part of a tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Number of blocks.
    pub layers: usize,
    /// Numbers of a token's hidden state.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Numbers inside the feed-forward part.
    pub mlp: usize,
}

impl Blocks {
    /// Heads of 64 numbers, a feed-forward part of four times the width.
    pub const fn of(layers: usize, width: usize) -> Self {
        Self { layers, width, heads: width / 64, mlp: 4 * width }
    }
}

/// The sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The vision tower's blocks.
    pub vision: Blocks,
    /// Side of an image, in pixels.
    pub image_size: usize,
    /// Side of a patch, in pixels.
    pub patch: usize,
    /// The text tower's blocks.
    pub text: Blocks,
    /// Most tokens of a text.
    pub context: usize,
    /// Number of token ids: at least those of tiny-clip's tokenizer.
    pub vocabulary: usize,
    /// Numbers of an embedding.
    pub embedding_width: usize,
}

/// The number format of the weights on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Single precision.
    Fp32,
    /// The upper half of single precision.
    Bf16,
}

/// Token ids of tiny-clip's tokenizer, whose last two begin and end a text.
const VOCABULARY: usize = 4096;
/// Layers of a text tower of any depth of CLIP.
const TEXT_LAYERS: usize = 12;

impl Shape {
    fn vit(vision: Blocks, image_size: usize, patch: usize, text: usize, width: usize) -> Self {
        let text = Blocks::of(vision.layers.min(TEXT_LAYERS), text);
        let (context, vocabulary) = (77, VOCABULARY);
        Self { vision, image_size, patch, text, context, vocabulary, embedding_width: width }
    }

    /// ViT-B/32: 50 tokens of 768 numbers.
    pub fn vit_b32(layers: usize) -> Self {
        Self::vit(Blocks::of(layers, 768), 224, 32, 512, 512)
    }

    /// ViT-B/16: 197 tokens of 768 numbers.
    pub fn vit_b16(layers: usize) -> Self {
        Self::vit(Blocks::of(layers, 768), 224, 16, 512, 512)
    }

    /// ViT-L/14: 257 tokens of 1,024 numbers.
    pub fn vit_l14(layers: usize) -> Self {
        Self::vit(Blocks::of(layers, 1024), 224, 14, 768, 768)
    }

    /// ViT-L/14 at 336 pixels: 577 tokens of 1,024 numbers.
    pub fn vit_l14_336(layers: usize) -> Self {
        Self::vit(Blocks::of(layers, 1024), 336, 14, 768, 768)
    }

    /// A shape by its name: `vit_b32`, `vit_b16`, `vit_l14` or `vit_l14_336`.
    pub fn named(name: &str, layers: usize) -> Option<Self> {
        Some(match name {
            "vit_b32" => Self::vit_b32(layers),
            "vit_b16" => Self::vit_b16(layers),
            "vit_l14" => Self::vit_l14(layers),
            "vit_l14_336" => Self::vit_l14_336(layers),
            _ => return None,
        })
    }

    /// Writes a model folder; the folder is made if it is missing.
    pub fn write(&self, folder: &Path, stored: Stored, seed: u64) {
        fs::create_dir_all(folder).unwrap();
        let tiny = data().join("models/tiny-clip");
        for file in ["tokenizer.json", "vocab.json", "merges.txt"] {
            fs::copy(tiny.join(file), folder.join(file)).unwrap();
        }
        let edited = |file: &str, edit: &dyn Fn(&mut Value)| {
            let text = fs::read_to_string(tiny.join(file)).unwrap();
            let mut document: Value = serde_json::from_str(&text).unwrap();
            edit(&mut document);
            fs::write(folder.join(file), document.to_string()).unwrap();
        };
        edited("tokenizer_config.json", &|document| {
            document["model_max_length"] = json!(self.context);
        });
        edited("preprocessor_config.json", &|document| {
            document["size"]["shortest_edge"] = json!(self.image_size);
            document["crop_size"] = json!({ "height": self.image_size, "width": self.image_size });
        });
        edited("config.json", &|document| self.describe(document, stored));
        write_tensors(&folder.join("model.safetensors"), &self.tensors(), stored, seed);
    }

    fn describe(&self, document: &mut Value, stored: Stored) {
        document["dtype"] = json!(match stored {
            Stored::Fp32 => "float32",
            Stored::Bf16 => "bfloat16",
        });
        document["projection_dim"] = json!(self.embedding_width);
        for (section, blocks) in [("vision_config", self.vision), ("text_config", self.text)] {
            let section = &mut document[section];
            section["hidden_size"] = json!(blocks.width);
            section["intermediate_size"] = json!(blocks.mlp);
            section["num_attention_heads"] = json!(blocks.heads);
            section["num_hidden_layers"] = json!(blocks.layers);
            section["projection_dim"] = json!(self.embedding_width);
        }
        document["vision_config"]["image_size"] = json!(self.image_size);
        document["vision_config"]["patch_size"] = json!(self.patch);
        document["text_config"]["max_position_embeddings"] = json!(self.context);
        document["text_config"]["vocab_size"] = json!(self.vocabulary);
    }

    fn tensors(&self) -> Vec<Tensor> {
        let Self { vision, text, patch, .. } = *self;
        let patches = (self.image_size / patch).pow(2);
        let mut tensors = vec![Tensor::constant("logit_scale", &[], 2.6592)];
        let name = |part: &str| format!("vision_model.{part}");
        let embeddings = |part: &str| format!("vision_model.embeddings.{part}");
        tensors.extend([
            Tensor::random(&embeddings("class_embedding"), &[vision.width], 0.1),
            Tensor::random(
                &embeddings("patch_embedding.weight"),
                &[vision.width, 3, patch, patch],
                1.0 / root(3 * patch * patch),
            ),
            Tensor::random(
                &embeddings("position_embedding.weight"),
                &[patches + 1, vision.width],
                0.1,
            ),
        ]);
        norm(&mut tensors, &name("pre_layrnorm"), vision.width);
        encoder(&mut tensors, "vision_model", vision);
        norm(&mut tensors, &name("post_layernorm"), vision.width);
        let width = self.embedding_width;
        let projection =
            |name: &str, from: usize| Tensor::random(name, &[width, from], 1.0 / root(from));
        tensors.push(projection("visual_projection.weight", vision.width));
        let embeddings = |part: &str| format!("text_model.embeddings.{part}_embedding.weight");
        tensors.extend([
            Tensor::random(&embeddings("token"), &[self.vocabulary, text.width], 1.0),
            Tensor::random(&embeddings("position"), &[self.context, text.width], 0.1),
        ]);
        encoder(&mut tensors, "text_model", text);
        norm(&mut tensors, "text_model.final_layer_norm", text.width);
        tensors.push(projection("text_projection.weight", text.width));
        tensors
    }
}

fn root(fan_in: usize) -> f32 {
    (fan_in as f32).sqrt()
}

fn norm(tensors: &mut Vec<Tensor>, name: &str, width: usize) {
    tensors.push(Tensor::constant(&format!("{name}.weight"), &[width], 1.0));
    tensors.push(Tensor::constant(&format!("{name}.bias"), &[width], 0.0));
}

fn encoder(tensors: &mut Vec<Tensor>, tower: &str, blocks: Blocks) {
    let Blocks { layers, width, mlp, .. } = blocks;
    for layer in 0..layers {
        let name = |part: &str| format!("{tower}.encoder.layers.{layer}.{part}");
        norm(tensors, &name("layer_norm1"), width);
        norm(tensors, &name("layer_norm2"), width);
        // Sharp attention: otherwise every image is the mean of its patches.
        for (part, [to, from], gain) in [
            ("self_attn.q_proj", [width, width], 1.6),
            ("self_attn.k_proj", [width, width], 1.6),
            ("self_attn.v_proj", [width, width], 1.0),
            ("self_attn.out_proj", [width, width], 1.0),
            ("mlp.fc1", [mlp, width], 1.0),
            ("mlp.fc2", [width, mlp], 1.0),
        ] {
            let part = name(part);
            let weight = Tensor::random(&format!("{part}.weight"), &[to, from], gain / root(from));
            tensors.extend([weight, Tensor::random(&format!("{part}.bias"), &[to], 0.02)]);
        }
    }
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    fill: Fill,
}

enum Fill {
    Constant(f32),
    /// Standard deviation around zero.
    Random(f32),
}

impl Tensor {
    fn constant(name: &str, shape: &[usize], value: f32) -> Self {
        Self { name: name.to_owned(), shape: shape.to_vec(), fill: Fill::Constant(value) }
    }

    fn random(name: &str, shape: &[usize], deviation: f32) -> Self {
        Self { name: name.to_owned(), shape: shape.to_vec(), fill: Fill::Random(deviation) }
    }

    fn numbers(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Stored {
    const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "F32",
            Self::Bf16 => "BF16",
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 => 2,
        }
    }

    fn encode(self, numbers: impl Iterator<Item = f32>) -> Vec<u8> {
        match self {
            Self::Fp32 => numbers.flat_map(f32::to_le_bytes).collect(),
            // Cut off instead of rounded: as random as before.
            Self::Bf16 => numbers
                .flat_map(|number| {
                    let [_, _, low, high] = number.to_le_bytes();
                    [low, high]
                })
                .collect(),
        }
    }
}

fn write_tensors(path: &Path, tensors: &[Tensor], stored: Stored, seed: u64) {
    let mut header =
        serde_json::Map::from_iter([("__metadata__".to_owned(), json!({ "format": "pt" }))]);
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.numbers() * stored.bytes();
        header.insert(
            tensor.name.clone(),
            json!({
                "dtype": stored.name(), "shape": tensor.shape, "data_offsets": [start, end]
            }),
        );
    }
    let mut header = Value::from(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut random = Random(seed);
    let unit: Vec<f32> = (0..POOL).map(|_| random.unit()).collect();
    // Encoded once for each deviation: writing is then copying.
    let mut pools: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for tensor in tensors {
        let numbers = tensor.numbers();
        let Fill::Random(deviation) = tensor.fill else {
            let Fill::Constant(value) = tensor.fill else { unreachable!() };
            let bytes = stored.encode(std::iter::repeat_n(value, numbers));
            file.write_all(&bytes).unwrap();
            continue;
        };
        let pool = pools
            .entry(deviation.to_bits())
            .or_insert_with(|| stored.encode(unit.iter().map(|number| number * deviation)));
        let mut at = stored.bytes() * random.below(POOL);
        let mut left = numbers * stored.bytes();
        while left > 0 {
            let piece = left.min(pool.len() - at);
            file.write_all(&pool[at..at + piece]).unwrap();
            (at, left) = (0, left - piece);
        }
    }
    file.flush().unwrap();
}

/// A small generator (splitmix64): the same numbers from the same seed, forever.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.draw() % end as u64).unwrap()
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A number of mean zero and deviation one, evenly spread.
    fn unit(&mut self) -> f32 {
        let even = (self.draw() >> 40) as f32 / (1_u64 << 24) as f32;
        (even - 0.5) * 12_f32.sqrt()
    }
}
