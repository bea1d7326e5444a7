//! A pre-norm transformer block: `h += attention(norm(h))`, then `h += perceptron(norm(h))`.

use orchestrator_model::{Activation, Blocks};
use tch::Tensor;

use super::{Linear, Norm, Pooled, attention::attention};
use crate::{Attention, EngineError, weights::Reader};

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
    attention: Attention,
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
        let [fc1, fc2] = perceptron(reader, &name, blocks.activation)?;
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
            attention: reader.placement.attention,
        })
    }

    /// All tokens, in place: `[n, tokens, width]`. `rows` sequences at a time, so that temporaries
    /// are bounded by them and not by `n`.
    pub(crate) fn forward(&self, hidden: &Tensor, rows: i64) -> Result<(), EngineError> {
        for mut part in parts(hidden, rows)? {
            let attended = {
                let [query, key, value] =
                    self.split_heads(&self.qkv.forward(&self.norm1.forward(&part)?)?)?;
                attention(self.attention, [&query, &key, &value], None, self.causal)?
            };
            let projected = self.out.forward(&attended)?;
            drop(attended);
            drop(part.f_add_(&projected)?);
            drop(projected);
            self.perceptron(&mut part)?;
        }
        Ok(())
    }

    /// The pooled token of each sequence alone: `[n, tokens, width]` → `[n, width]`.
    ///
    /// For the last block: nobody reads what it makes of the other tokens, which serve as keys and
    /// values only. Same mathematics as [`forward`](Self::forward) followed by a pick, for one
    /// sixth of the work.
    pub(crate) fn forward_pooled(
        &self,
        hidden: &Tensor,
        pooled: &Pooled,
        rows: i64,
    ) -> Result<Tensor, EngineError> {
        let width = self.out.weight.size()[0];
        let picked = pooled.pick(hidden)?.f_contiguous()?;
        let mut start = 0;
        for (part, mut own) in parts(hidden, rows)?.zip(parts(&picked, rows)?) {
            let pooled = pooled.part(start, part.size()[0])?;
            start += part.size()[0];
            let attended = {
                let normed = self.norm1.forward(&part)?;
                let fused = self.qkv.rows(width, 2 * width)?.forward(&normed)?;
                let [key, value] = self.split_heads(&fused)?;
                let query = self.qkv.rows(0, width)?.forward(&pooled.pick(&normed)?)?;
                drop(normed);
                let [query] = self.split_heads(&query.f_unsqueeze(1)?)?;
                attention(self.attention, [&query, &key, &value], pooled.visible(), false)?
            };
            drop(own.f_add_(&self.out.forward(&attended.f_squeeze_dim(1)?)?)?);
            drop(attended);
            self.perceptron(&mut own)?;
        }
        Ok(picked)
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

    /// What follows attention, in place, on any shape `[…, width]`.
    fn perceptron(&self, hidden: &mut Tensor) -> Result<(), EngineError> {
        let mut inner = self.fc1.forward(&self.norm2.forward(hidden)?)?;
        let inner = match self.activation {
            Activation::QuickGelu => inner.f_silu_()?,
            Activation::Gelu => inner.f_gelu_("none")?,
            Activation::GeluTanh => inner.f_gelu_("tanh")?,
        };
        let out = self.fc2.forward(&inner)?;
        drop(hidden.f_add_(&out)?);
        Ok(())
    }
}

/// Views of `rows` rows each.
fn parts(tensor: &Tensor, rows: i64) -> Result<impl Iterator<Item = Tensor> + use<>, EngineError> {
    Ok(tensor.f_split(rows.max(1), 0)?.into_iter())
}

fn qkv(reader: &Reader<'_>, name: &impl Fn(&str) -> String) -> Result<Linear, EngineError> {
    let fused = |part: &str| {
        let names = ["q_proj", "k_proj", "v_proj"]
            .map(|projection| name(&format!("self_attn.{projection}.{part}")));
        reader.stacked(&names)
    };
    Ok(Linear { weight: fused("weight")?, bias: fused("bias")? })
}

/// QuickGELU is `x · sigmoid(c x) = silu(c x) / c`. With `c` moved into the first layer and `1 / c`
/// into the second, it is one pass over memory instead of three.
fn perceptron(
    reader: &Reader<'_>,
    name: &impl Fn(&str) -> String,
    activation: Activation,
) -> Result<[Linear; 2], EngineError> {
    let [first, second] = [name("mlp.fc1"), name("mlp.fc2")];
    match activation {
        Activation::QuickGelu => reader.scaled_pair([&first, &second], QUICK),
        Activation::Gelu | Activation::GeluTanh => {
            Ok([reader.linear(&first)?, reader.linear(&second)?])
        }
    }
}
