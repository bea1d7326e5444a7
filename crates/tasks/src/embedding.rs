//! Rows of embeddings: L2 normalisation and the mean over a class's prompts.
//!
//! All sums are `f64`, in the order of the numbers, and rounded to `f32` once per number: the
//! result depends on the values alone, never on threads or batch sizes.

/// Embeddings without a direction, or of the wrong shape.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum EmbeddingError {
    /// The buffer is not a whole number of rows.
    #[error("{length} numbers are not rows of {width}")]
    Shape {
        /// Numbers given.
        length: usize,
        /// Numbers per row.
        width: usize,
    },
    /// The number of prompts is not a multiple of the number of templates.
    #[error("{prompts} prompts are not classes × {templates} templates")]
    Prompts {
        /// Prompts given.
        prompts: usize,
        /// Prompts per class.
        templates: usize,
    },
    /// A row is all zeros, or holds a number that is infinite or not a number.
    #[error("embedding {row} has length {norm} and cannot be normalised")]
    Norm {
        /// Position of the row.
        row: usize,
        /// Its L2 norm.
        norm: f64,
    },
    /// The prompts of a class point in opposite directions and cancel out.
    #[error("the mean of the prompts of class {class} has length {norm} and cannot be normalised")]
    Class {
        /// Position of the class.
        class: usize,
        /// The L2 norm of the mean.
        norm: f64,
    },
}

/// Divides each row of `width` numbers by its L2 norm.
pub fn normalise_rows(rows: &mut [f32], width: usize) -> Result<(), EmbeddingError> {
    if width == 0 || !rows.len().is_multiple_of(width) {
        return Err(EmbeddingError::Shape { length: rows.len(), width });
    }
    for (row, values) in rows.chunks_exact_mut(width).enumerate() {
        let norm = usable_norm(values.iter().map(|&value| f64::from(value)))
            .map_err(|norm| EmbeddingError::Norm { row, norm })?;
        for value in values {
            *value = rounded(f64::from(*value) / norm);
        }
    }
    Ok(())
}

/// The embedding of each class: the mean of its L2-normalised prompt embeddings, normalised again
/// (CLIP, Radford et al. 2021, §3.1.4). Returns classes × `width` numbers, row-major.
///
/// `prompts` yields rows of `width` numbers, normalised or not, all templates of the first class
/// first.
pub fn class_embeddings<'a>(
    prompts: impl IntoIterator<Item = &'a [f32]>,
    templates: usize,
    width: usize,
) -> Result<Vec<f32>, EmbeddingError> {
    let mut classes = Vec::new();
    let mut sum = vec![0.0_f64; width];
    let mut count = 0;
    for (row, prompt) in prompts.into_iter().enumerate() {
        if width == 0 || prompt.len() != width {
            return Err(EmbeddingError::Shape { length: prompt.len(), width });
        }
        let norm = usable_norm(prompt.iter().map(|&value| f64::from(value)))
            .map_err(|norm| EmbeddingError::Norm { row, norm })?;
        for (sum, &value) in sum.iter_mut().zip(prompt) {
            *sum += f64::from(value) / norm;
        }
        count = row + 1;
        if templates > 0 && count.is_multiple_of(templates) {
            // Normalising the sum is normalising the mean.
            let norm = usable_norm(sum.iter().copied()).map_err(|norm| EmbeddingError::Class {
                class: row / templates,
                norm: norm / templates as f64,
            })?;
            classes.extend(sum.iter().map(|&value| rounded(value / norm)));
            sum.fill(0.0);
        }
    }
    if templates == 0 || !count.is_multiple_of(templates) {
        return Err(EmbeddingError::Prompts { prompts: count, templates });
    }
    Ok(classes)
}

/// The L2 norm, or `Err` of it if nothing can be divided by it.
fn usable_norm(values: impl Iterator<Item = f64>) -> Result<f64, f64> {
    let norm = values.map(|value| value * value).sum::<f64>().sqrt();
    if norm.is_finite() && norm > 0.0 { Ok(norm) } else { Err(norm) }
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to the stored precision")]
fn rounded(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the exact number is the claim")]
mod tests {
    use super::*;

    #[test]
    fn rows_get_length_one() {
        let mut rows = [3.0, 4.0, 0.0, -2.0];
        normalise_rows(&mut rows, 2).unwrap();
        assert_eq!(rows, [0.6, 0.8, 0.0, -1.0]);
    }

    #[test]
    fn classes_are_means_of_directions() {
        let prompts = [[5.0, 0.0], [0.0, 0.1], [1.0, 0.0], [1.0, 0.0]];
        let classes = class_embeddings(prompts.iter().map(|row| &row[..]), 2, 2).unwrap();
        let half = std::f32::consts::FRAC_1_SQRT_2;
        assert_eq!(classes, [half, half, 1.0, 0.0]);
    }

    #[test]
    fn rows_without_direction_are_refused() {
        let normalised = |mut rows: Vec<f32>| normalise_rows(&mut rows, 2).unwrap_err().to_string();
        assert_eq!(
            normalised(vec![1.0, 0.0, 0.0, 0.0]),
            "embedding 1 has length 0 and cannot be normalised"
        );
        assert_eq!(
            normalised(vec![f32::NAN, 0.0]),
            "embedding 0 has length NaN and cannot be normalised"
        );
        assert_eq!(normalised(vec![1.0; 3]), "3 numbers are not rows of 2");
        let classes = |prompts: &[[f32; 1]], templates| {
            class_embeddings(prompts.iter().map(|row| &row[..]), templates, 1)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            classes(&[[1.0], [-1.0]], 2),
            "the mean of the prompts of class 0 has length 0 and cannot be normalised"
        );
        assert_eq!(classes(&[[1.0]], 2), "1 prompts are not classes × 2 templates");
    }
}
