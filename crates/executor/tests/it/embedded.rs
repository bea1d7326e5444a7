//! Embeddings of a blob, and how far two of them are apart.

use orchestrator_proto::domain::UnitResult;
use safetensors::SafeTensors;

use crate::{bench::Bench, reference::floats};

/// Rows of equal width.
#[derive(Clone, Debug)]
pub(crate) struct Embedded {
    pub(crate) width: usize,
    pub(crate) rows: Vec<f32>,
}

impl Embedded {
    pub(crate) fn of(bench: &Bench, result: &UnitResult) -> Self {
        let bytes = bench.blob(result.blob.digest);
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let view = tensors.tensor("embeddings").unwrap();
        Self { width: view.shape()[1], rows: floats(view.data()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len() / self.width
    }

    /// `count` rows from `start` on.
    pub(crate) fn part(&self, start: usize, count: usize) -> Self {
        let rows = self.rows[start * self.width..][..count * self.width].to_vec();
        Self { width: self.width, rows }
    }

    /// Without what all rows share: embeddings of random towers differ by little else.
    fn centred(&self) -> Vec<f32> {
        if self.len() <= 1 {
            return self.rows.clone();
        }
        let count = self.len() as f32;
        let mut mean = vec![0.0_f32; self.width];
        for row in self.rows.chunks_exact(self.width) {
            mean.iter_mut().zip(row).for_each(|(sum, number)| *sum += number / count);
        }
        let rows = self.rows.chunks_exact(self.width);
        rows.flat_map(|row| row.iter().zip(&mean).map(|(number, mean)| number - mean)).collect()
    }

    /// Largest difference, mean-centred. Fails where rows are too alike for that to say anything; one
    /// row, or none, is compared as it is.
    pub(crate) fn distance(&self, other: &Self) -> f32 {
        assert_eq!((self.width, self.len()), (other.width, other.len()));
        let (mine, others) = (self.centred(), other.centred());
        let spread = others.iter().map(|number| number.abs()).fold(0.0, f32::max);
        assert!(self.len() <= 1 || spread > 1e-2, "the rows are all alike: {spread}");
        mine.iter().zip(&others).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }
}
