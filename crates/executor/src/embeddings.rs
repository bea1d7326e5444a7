//! Blobs of embeddings: images with the samples that they belong to, texts with their order.
//!
//! Invariant: reading checks that the parts of a blob fit each other, so that a row is never
//! looked up outside of it.

use orchestrator_types::{SampleId, Shard};

use crate::tensors::{TensorReader, TensorWriter};

/// Embeddings of a shard of images. Rows of images that could not be read are zero.
#[derive(Debug, PartialEq)]
pub(crate) struct ImageEmbeddings {
    pub(crate) shard: Shard,
    pub(crate) width: usize,
    /// One row per image, row-major.
    pub(crate) rows: Vec<f32>,
    /// Whether the image could be read.
    pub(crate) valid: Vec<bool>,
}

impl ImageEmbeddings {
    /// All zero and not valid.
    pub(crate) fn empty(shard: Shard, width: usize) -> Self {
        let count = shard.len() as usize;
        Self { shard, width, rows: vec![0.0; count * width], valid: vec![false; count] }
    }

    /// Adds the shard that follows.
    pub(crate) fn append(&mut self, next: Self) -> Result<(), String> {
        if next.shard.start != self.shard.end || next.width != self.width {
            return Err(format!(
                "images {} of width {} do not follow images {} of width {}",
                next.shard, next.width, self.shard, self.width
            ));
        }
        self.shard.end = next.shard.end;
        self.rows.extend(next.rows);
        self.valid.extend(next.valid);
        Ok(())
    }

    pub(crate) fn to_bytes<'a>(&self, samples: impl Iterator<Item = &'a SampleId>) -> Vec<u8> {
        let ids: serde_json::Value = samples.map(|id| id.0.as_str()).collect();
        let mut writer = TensorWriter::default();
        writer.note("first", self.shard.start.to_string());
        writer.note("samples", ids.to_string());
        writer.add_f32("embeddings", &[self.valid.len(), self.width], &self.rows);
        let valid: Vec<u8> = self.valid.iter().map(|&valid| u8::from(valid)).collect();
        writer.add_u8("valid", &valid);
        writer.finish()
    }

    /// Reads the blob of `shard`.
    pub(crate) fn from_bytes(bytes: &[u8], shard: Shard) -> Result<Self, String> {
        let reader = TensorReader::open(bytes)?;
        let (count, width, rows) = reader.matrix("embeddings")?;
        let valid: Vec<bool> = reader.list_u8("valid")?.iter().map(|&valid| valid != 0).collect();
        let first = reader.noted_number("first")?;
        if first != shard.start as usize || count != shard.len() as usize || count != valid.len() {
            return Err(format!(
                "it holds {count} images from {first} on ({} marked), not {shard}",
                valid.len()
            ));
        }
        Ok(Self { shard, width, rows, valid })
    }
}

/// Embeddings of a part of the distinct texts of a set.
#[derive(Debug, PartialEq)]
pub(crate) struct TextEmbeddings {
    /// Position of the part's first row among all distinct texts.
    pub(crate) first_row: usize,
    /// Distinct texts in all parts.
    pub(crate) unique: usize,
    /// Texts of the set that were cut to the model's context.
    pub(crate) truncated: u64,
    pub(crate) width: usize,
    /// One row per distinct text of the part, row-major.
    pub(crate) rows: Vec<f32>,
    /// For each text of the set, its row among all distinct texts.
    pub(crate) row_of: Vec<u32>,
}

impl TextEmbeddings {
    pub(crate) fn count(&self) -> usize {
        self.rows.len().checked_div(self.width).unwrap_or(0)
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut writer = TensorWriter::default();
        writer.note("first_row", self.first_row.to_string());
        writer.note("truncated", self.truncated.to_string());
        writer.note("unique", self.unique.to_string());
        writer.add_f32("embeddings", &[self.count(), self.width], &self.rows);
        writer.add_u32("row_of", &self.row_of);
        writer.finish()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let reader = TensorReader::open(bytes)?;
        let (count, width, rows) = reader.matrix("embeddings")?;
        let row_of = reader.list_u32("row_of")?;
        let (first_row, unique) =
            (reader.noted_number("first_row")?, reader.noted_number("unique")?);
        if first_row.checked_add(count).is_none_or(|end| end > unique) {
            return Err(format!("it holds rows {first_row} + {count} of {unique}"));
        }
        if let Some(row) = row_of.iter().find(|&&row| row as usize >= unique) {
            return Err(format!("a text has row {row} of {unique}"));
        }
        let truncated = reader.noted_number("truncated")? as u64;
        Ok(Self { first_row, unique, truncated, width, rows, row_of })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_come_back_and_wrong_ones_are_refused() {
        let shard = Shard { start: 4, end: 6 };
        let mut images = ImageEmbeddings::empty(shard, 2);
        images.rows[0] = 1.0;
        images.valid[0] = true;
        let ids = [SampleId("a".to_owned()), SampleId("b".to_owned())];
        let bytes = images.to_bytes(ids.iter());
        assert_eq!(ImageEmbeddings::from_bytes(&bytes, shard), Ok(images));
        let other = ImageEmbeddings::from_bytes(&bytes, Shard { start: 0, end: 2 });
        assert_eq!(other.unwrap_err(), "it holds 2 images from 4 on (2 marked), not 0..2");
        let mut texts = TextEmbeddings {
            first_row: 1,
            unique: 3,
            truncated: 0,
            width: 1,
            rows: vec![0.5, 0.25],
            row_of: vec![2, 1, 0, 2],
        };
        assert_eq!(TextEmbeddings::from_bytes(&texts.to_bytes()).as_ref(), Ok(&texts));
        texts.row_of[0] = 3;
        let outside = TextEmbeddings::from_bytes(&texts.to_bytes());
        assert_eq!(outside.unwrap_err(), "a text has row 3 of 3");
    }
}
