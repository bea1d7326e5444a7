//! Similarity of embeddings.

use tch::Tensor;

use crate::{EngineError, error::check_length, session::Session, weights::int};

/// Dot products of embeddings, a tile at a time.
///
/// Equal tile shapes give equal bits; a caller that cuts the matrix in a fixed way gets the same
/// scores in any order and on any number of threads.
#[derive(Clone, Copy, Debug)]
pub struct Scorer {
    width: usize,
}

impl Scorer {
    /// A scorer of embeddings of this length (at least one).
    pub const fn new(width: usize) -> Self {
        Self { width }
    }

    /// `queries` is `[q, width]`, `candidates` is `[c, width]`, and `out` receives `[q, c]`: their
    /// cosines, where embeddings have length one.
    pub fn scores(
        self,
        queries: &[f32],
        candidates: &[f32],
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let rows = self.rows("queries", queries)?;
        let columns = self.rows("candidates", candidates)?;
        check_length("scores", rows * columns, out.len())?;
        if out.is_empty() {
            return Ok(());
        }
        let _session = Session::enter()?;
        let queries = Tensor::f_from_slice(queries)?.f_view([int(rows), int(self.width)])?;
        let candidates =
            Tensor::f_from_slice(candidates)?.f_view([int(columns), int(self.width)])?;
        let scores = queries.f_mm(&candidates.f_transpose(0, 1)?)?;
        Ok(scores.f_copy_data(out, rows * columns)?)
    }

    fn rows(self, what: &'static str, values: &[f32]) -> Result<usize, EngineError> {
        let rows = values.len().div_ceil(self.width.max(1));
        check_length(what, rows * self.width, values.len())?;
        Ok(rows)
    }
}
