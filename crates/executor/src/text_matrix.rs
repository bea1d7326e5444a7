//! The embeddings of a whole set of texts, put together from the blobs of its parts.

use std::sync::{Arc, OnceLock};

use orchestrator_tasks::class_embeddings;
use orchestrator_types::{ByteCount, Digest};

use crate::{blobs::BlobFolder, embeddings::TextEmbeddings, error::ExecuteError};

/// One row per distinct text, and each text's row.
#[derive(Debug)]
pub(crate) struct TextMatrix {
    pub(crate) width: usize,
    pub(crate) rows: Vec<f32>,
    pub(crate) row_of: Vec<u32>,
    /// Class embeddings, with the number of templates they were made for.
    classes: OnceLock<(usize, Arc<[f32]>)>,
}

impl TextMatrix {
    /// Reads the parts, in order.
    pub(crate) fn read(blobs: &BlobFolder, parts: &[Digest]) -> Result<Self, ExecuteError> {
        let mut whole: Option<TextEmbeddings> = None;
        for &digest in parts {
            let wrong = |problem| ExecuteError::Blob { digest, problem };
            let part = TextEmbeddings::from_bytes(&blobs.read(digest)?).map_err(wrong)?;
            match &mut whole {
                None if part.first_row == 0 => whole = Some(part),
                None => return Err(wrong(format!("the first part starts at {}", part.first_row))),
                Some(whole) => append(whole, part).map_err(wrong)?,
            }
        }
        let nothing = || ExecuteError::Mismatch("no text embeddings are given".to_owned());
        let whole = whole.ok_or_else(nothing)?;
        if whole.count() != whole.unique {
            return Err(ExecuteError::Mismatch(format!(
                "the text embeddings end at row {} of {}",
                whole.count(),
                whole.unique
            )));
        }
        let TextEmbeddings { width, rows, row_of, .. } = whole;
        Ok(Self { width, rows, row_of, classes: OnceLock::new() })
    }

    /// What it occupies on the host; class embeddings, made from it, are fewer than its rows.
    pub(crate) fn bytes(&self) -> ByteCount {
        ByteCount::bytes((4 * (self.rows.len() + self.row_of.len())) as u64)
    }

    /// The embedding of a distinct text.
    pub(crate) fn row(&self, row: u32) -> &[f32] {
        &self.rows[row as usize * self.width..][..self.width]
    }

    /// The embedding of each class, where the texts are prompts: `templates` for each class.
    pub(crate) fn classes(&self, templates: usize) -> Result<Arc<[f32]>, ExecuteError> {
        if let Some((known, classes)) = self.classes.get()
            && *known == templates
        {
            return Ok(Arc::clone(classes));
        }
        let prompts = self.row_of.iter().map(|&row| self.row(row));
        let classes: Arc<[f32]> = class_embeddings(prompts, templates, self.width)?.into();
        let (_, kept) = self.classes.get_or_init(|| (templates, Arc::clone(&classes)));
        debug_assert!(kept.len() == classes.len(), "one set of prompts has one class list");
        Ok(classes)
    }
}

fn append(whole: &mut TextEmbeddings, part: TextEmbeddings) -> Result<(), String> {
    if part.first_row != whole.count() || part.width != whole.width {
        return Err(format!(
            "it starts at row {} with width {}, expected row {} with width {}",
            part.first_row,
            part.width,
            whole.count(),
            whole.width
        ));
    }
    if part.unique != whole.unique || part.row_of != whole.row_of {
        return Err("it belongs to other texts than the part before it".to_owned());
    }
    whole.rows.extend(part.rows);
    Ok(())
}
