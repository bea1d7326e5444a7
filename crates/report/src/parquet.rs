//! Row-by-row tables: `predictions.parquet`, `memory.parquet` and the embeddings.
//!
//! Both writers take one row at a time, from any source, and hold at most one row group
//! ([`ROWS_PER_GROUP`] rows, encoded) in memory. Compression is zstd. Rows keep the order in which
//! they were pushed; push in plan order for a file that is equal from run to run.

use std::io::Write;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    errors::ParquetError,
    file::properties::WriterProperties,
};

mod embeddings;
mod memory;
mod predictions;
#[cfg(test)]
mod tests;

pub use embeddings::{Embedding, EmbeddingKind, EmbeddingWriter};
pub use memory::{Reading, ReadingWriter};
pub use predictions::{Prediction, PredictionWriter, caption_id};

/// Rows per row group: what a writer holds in memory, and what a reader can skip.
pub const ROWS_PER_GROUP: usize = 16_384;
/// Rows collected before they are encoded.
const ROWS_PER_BATCH: usize = 1_024;

/// Rows that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The encoder or the sink failed.
    #[error("cannot write a Parquet file")]
    Parquet(#[from] ParquetError),
    /// Columns of a batch do not match; a defect of the writer.
    #[error("cannot build a batch of rows")]
    Arrow(#[from] arrow_schema::ArrowError),
    /// An embedding is wider or narrower than the file's.
    #[error(
        "the embedding of `{sample_id}` has {actual} numbers, the file holds {expected}; write embeddings of another width to a file of their own"
    )]
    Width {
        /// The sample.
        sample_id: String,
        /// Numbers per row of the file.
        expected: usize,
        /// Numbers given.
        actual: usize,
    },
    /// The file's embeddings cannot have this width.
    #[error("an embedding cannot have {width} numbers")]
    NoWidth {
        /// Numbers per row asked for.
        width: usize,
    },
}

/// A file being written in batches.
struct File<W: Write + Send> {
    schema: SchemaRef,
    writer: ArrowWriter<W>,
}

impl<W: Write + Send> File<W> {
    fn new(sink: W, schema: SchemaRef) -> Result<Self, WriteError> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROWS_PER_GROUP))
            .set_created_by(concat!("orchestrator ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let writer = ArrowWriter::try_new(sink, schema.clone(), Some(properties))?;
        Ok(Self { schema, writer })
    }

    fn append(&mut self, columns: Vec<arrow_array::ArrayRef>) -> Result<(), WriteError> {
        let batch = RecordBatch::try_new(self.schema.clone(), columns)?;
        Ok(self.writer.write(&batch)?)
    }

    fn finish(self) -> Result<W, WriteError> {
        Ok(self.writer.into_inner()?)
    }
}
