//! What a task measures: rankings of candidates, partial results that merge, metrics.
//!
//! Every task is a ranking. *Queries* (rows) are scored against *candidates* (columns), and some
//! candidates are *relevant* to a query. The rank of a query is one more than the number of
//! candidates that beat its best relevant one; on equal scores the candidate with the lower index
//! wins.
//!
//! | ranking | queries | candidates | relevant |
//! | --- | --- | --- | --- |
//! | zero-shot | images | class embeddings | the image's label |
//! | image → text | images | captions, sample by sample | every caption of that image |
//! | text → image | captions, sample by sample | images | the image of that caption |
//!
//! Texts with equal token ids share one embedding, but each caption stays a candidate and a query
//! of its own, and only an image's own captions are relevant to it. This is how `CLIP_benchmark`
//! counts, and the one rule that reproduces the reference numbers of the test set (accepting
//! another image's equal caption lifts text → image recall@1 there from 0.3130 to 0.3156).
//!
//! Scores arrive in tiles of any cut and in any order, twice: [`Ranker::observe`] finds each
//! query's best relevant score, [`Ranker::count`] counts what beats it. No matrix is ever held.
//!
//! Invariant: nothing here depends on the order of tiles, shards or partial results, to the last
//! bit: a [`Partial`] holds integers only, and each floating-point figure is made once, from the
//! merged integers, in a fixed order. Absent on purpose: tensors, files, clocks, threads.

mod embedding;
mod kind;
mod partial;
mod ranker;
mod ranks;
mod relevance;
mod scan;
mod tile;

pub use embedding::{EmbeddingError, class_embeddings, normalise_rows};
pub use kind::{Metrics, TaskKind};
pub use partial::{ClassCount, Direction, MergeError, Partial};
pub use ranker::{Excluded, RankError, Ranked, Ranker};
pub use ranks::{RankCounts, RankCountsError};
pub use relevance::{Relevance, RelevanceError};
pub use tile::{ScoreTile, TileShapeError};
