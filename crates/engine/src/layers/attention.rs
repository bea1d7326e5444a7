//! Attention of a block, fused or written out.

use tch::{Kind, Tensor};

use crate::{Attention, EngineError};

/// Query `[n, heads, queries, head]`, key and value `[n, heads, tokens, head]` →
/// `[n, queries, width]`. `visible` is true where a query looks, broadcast to
/// `[n, heads, queries, tokens]`; `causal` lets no token look at a later one.
pub(super) fn attention(
    how: Attention,
    [query, key, value]: [&Tensor; 3],
    visible: Option<&Tensor>,
    causal: bool,
) -> Result<Tensor, EngineError> {
    let heads = match how {
        Attention::Fused => Tensor::f_scaled_dot_product_attention(
            query, key, value, visible, 0.0, causal, None, false,
        )?,
        Attention::Math => written_out([query, key, value], visible, causal)?,
    };
    Ok(heads.f_transpose(1, 2)?.f_flatten(2, 3)?)
}

/// softmax(Q Kᵀ / √d) V, every step in memory.
fn written_out(
    [query, key, value]: [&Tensor; 3],
    visible: Option<&Tensor>,
    causal: bool,
) -> Result<Tensor, EngineError> {
    let head = *query.size().last().expect("four axes");
    let mut scores = query.f_matmul(&key.f_transpose(-2, -1)?)?;
    drop(scores.f_mul_scalar_(1.0 / (head as f64).sqrt())?);
    if let Some(visible) = visible {
        drop(scores.f_masked_fill_(&visible.f_logical_not()?, f64::NEG_INFINITY)?);
    }
    if causal {
        let tokens = key.size()[2];
        let later = Tensor::f_ones([tokens, tokens], (Kind::Bool, key.device()))?.f_triu(1)?;
        drop(scores.f_masked_fill_(&later, f64::NEG_INFINITY)?);
    }
    let weights = scores.f_softmax(-1, None::<Kind>)?;
    drop(scores);
    Ok(weights.f_matmul(value)?)
}
