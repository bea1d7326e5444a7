//! The identity of a dataset: what two machines compare to know that they evaluate the same.
//!
//! Invariant: fields are length-prefixed, so that no two different contents give the same bytes.
//! Sizes stand for contents: no picture is read.

use blake3::Hasher;
use orchestrator_types::Digest;

use super::Manifest;

impl Manifest {
    /// Digest of everything that a result depends on: sample ids, file sizes, labels, class names
    /// and captions in order, and [`Self::templates_digest`], because texts that change between
    /// plan and execution make as wrong a figure as samples that do.
    pub fn digest(&self) -> Digest {
        let mut hasher = Hasher::new();
        text(&mut hasher, "orchestrator dataset 2");
        count(&mut hasher, self.samples.len());
        for sample in &self.samples {
            text(&mut hasher, &sample.id.0);
            hasher.update(&sample.bytes.as_u64().to_le_bytes());
            hasher.update(&sample.label.map_or(u64::MAX, u64::from).to_le_bytes());
        }
        list(&mut hasher, self.classes.iter().map(|class| class.name.as_str()));
        count(&mut hasher, self.captions.len());
        for captions in &self.captions {
            list(&mut hasher, captions.iter().map(String::as_str));
        }
        hasher.update(self.templates_digest().as_bytes());
        hasher.finalize().into()
    }

    /// Digest of the class labels and prompt templates, in order: what decides the prompts.
    pub fn templates_digest(&self) -> Digest {
        let mut hasher = Hasher::new();
        text(&mut hasher, "orchestrator templates 1");
        list(&mut hasher, self.classes.iter().map(|class| class.label.as_str()));
        list(&mut hasher, self.templates.iter().map(String::as_str));
        hasher.finalize().into()
    }
}

fn list<'a>(hasher: &mut Hasher, texts: impl ExactSizeIterator<Item = &'a str>) {
    count(hasher, texts.len());
    texts.for_each(|item| text(hasher, item));
}

fn text(hasher: &mut Hasher, text: &str) {
    count(hasher, text.len());
    hasher.update(text.as_bytes());
}

fn count(hasher: &mut Hasher, count: usize) {
    hasher.update(&(count as u64).to_le_bytes());
}
