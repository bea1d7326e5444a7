//! A pre-norm transformer block: `h += attention(norm(h))`, then `h += perceptron(norm(h))`.

use orchestrator_model::{Activation, Blocks};
use tch::Tensor;

use super::{Linear, Norm, Pooled};
use crate::{
    EngineError,
    weights::{Reader, Weight},
};

/// One block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    norm1: Norm,
    /// Query, key and value in one product, `[3 × width, width]`.
    qkv: Linear,
    out: Linear,
    norm2: Norm,
    fc1: Linear,
    activation: Activation,
    fc2: Linear,
    heads: i64,
    causal: bool,
}

/// QuickGELU's constant.
const QUICK: f64 = 1.702;

impl Block {
    /// Reads block `index` of the tower whose tensors start with `prefix`.
    pub(crate) fn load(
        reader: &Reader<'_>,
        prefix: &str,
        index: u32,
        blocks: &Blocks,
        causal: bool,
    ) -> Result<Self, EngineError> {
        let name = |part: &str| format!("{prefix}.encoder.layers.{index}.{part}");
        let (fc1, fc2) = perceptron(reader, &name, blocks.activation)?;
        Ok(Self {
            norm1: reader.norm(&name("layer_norm1"), blocks.epsilon)?,
            qkv: qkv(reader, &name)?,
            out: reader.linear(&name("self_attn.out_proj"))?,
            norm2: reader.norm(&name("layer_norm2"), blocks.epsilon)?,
            fc1,
            activation: blocks.activation,
            fc2,
            heads: i64::from(blocks.heads),
            causal,
        })
    }

    /// All tokens: `[n, tokens, width]` → the same.
    pub(crate) fn forward(&self, hidden: Tensor) -> Result<Tensor, EngineError> {
        let normed = self.norm1.forward(&hidden)?;
        let [query, key, value] = self.split_heads(&self.qkv.forward(&normed)?)?;
        let attended = attention(&query, &key, &value, None, self.causal)?;
        self.finish(hidden, &attended)
    }

    /// The pooled token of each sequence alone: `[n, tokens, width]` → `[n, width]`.
    ///
    /// For the last block: nobody reads what it makes of the other tokens, which serve as keys and
    /// values only. Same mathematics as [`forward`](Self::forward) followed by a pick, for one
    /// sixth of the work.
    #[expect(clippy::needless_pass_by_value, reason = "overwrites what it is given")]
    pub(crate) fn forward_pooled(
        &self,
        hidden: Tensor,
        pooled: &Pooled,
    ) -> Result<Tensor, EngineError> {
        let width = self.out.weight.size()[0];
        let normed = self.norm1.forward(&hidden)?;
        let [key, value] = self.split_heads(&self.qkv.rows(width, 2 * width)?.forward(&normed)?)?;
        let query = self.qkv.rows(0, width)?.forward(&pooled.pick(&normed)?)?;
        let [query] = self.split_heads(&query.f_unsqueeze(1)?)?;
        let attended = attention(&query, &key, &value, pooled.visible(), false)?;
        self.finish(pooled.pick(&hidden)?, &attended.f_squeeze_dim(1)?)
    }

    /// `[n, tokens, N × width]` → N views `[n, heads, tokens, width of a head]`.
    fn split_heads<const N: usize>(&self, fused: &Tensor) -> Result<[Tensor; N], EngineError> {
        let (n, tokens, features) = fused.size3()?;
        let parts = i64::try_from(N).expect("one, two or three");
        let head = features / parts / self.heads;
        let split =
            fused.f_view([n, tokens, parts, self.heads, head])?.f_permute([2, 0, 3, 1, 4])?;
        let split = split.f_unbind(0)?;
        Ok(split.try_into().expect("the first axis has N parts"))
    }

    /// What follows attention, on any shape `[…, width]`.
    fn finish(&self, mut hidden: Tensor, attended: &Tensor) -> Result<Tensor, EngineError> {
        let mut hidden = hidden.f_add_(&self.out.forward(attended)?)?;
        let mut inner = self.fc1.forward(&self.norm2.forward(&hidden)?)?;
        let inner = match self.activation {
            Activation::QuickGelu => inner.f_silu_()?,
            Activation::Gelu => inner.f_gelu_("none")?,
            Activation::GeluTanh => inner.f_gelu_("tanh")?,
        };
        Ok(hidden.f_add_(&self.fc2.forward(&inner)?)?)
    }
}

/// `[n, heads, queries, head]` and keys and values `[n, heads, tokens, head]` →
/// `[n, queries, width]`.
fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    visible: Option<&Tensor>,
    causal: bool,
) -> Result<Tensor, EngineError> {
    let heads = Tensor::f_scaled_dot_product_attention(
        query, key, value, visible, 0.0, causal, None, false,
    )?;
    Ok(heads.f_transpose(1, 2)?.f_flatten(2, 3)?)
}

fn qkv(reader: &Reader<'_>, name: &impl Fn(&str) -> String) -> Result<Linear, EngineError> {
    let fused = |part: &str| -> Result<Weight, EngineError> {
        let parts = ["q_proj", "k_proj", "v_proj"]
            .map(|projection| reader.tensor(&name(&format!("self_attn.{projection}.{part}"))));
        let [query, key, value] = parts;
        Ok(Tensor::f_cat(&[query?, key?, value?], 0)?.into())
    };
    Ok(Linear { weight: fused("weight")?, bias: fused("bias")? })
}

/// QuickGELU is `x · sigmoid(c x) = silu(c x) / c`. With `c` moved into the first layer and `1 / c`
/// into the second, it is one pass over memory instead of three.
fn perceptron(
    reader: &Reader<'_>,
    name: &impl Fn(&str) -> String,
    activation: Activation,
) -> Result<(Linear, Linear), EngineError> {
    let (fc1, fc2) = (reader.linear(&name("mlp.fc1"))?, reader.linear(&name("mlp.fc2"))?);
    Ok(match activation {
        Activation::QuickGelu => (
            Linear { weight: fc1.weight.scaled(QUICK)?, bias: fc1.bias.scaled(QUICK)? },
            Linear { weight: fc2.weight.scaled(1.0 / QUICK)?, bias: fc2.bias },
        ),
        Activation::Gelu | Activation::GeluTanh => (fc1, fc2),
    })
}
