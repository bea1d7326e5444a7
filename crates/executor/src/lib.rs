//! The process that computes: one per slice, started and watched by a worker's agent.
//!
//! ```text
//! gRPC (tokio) → jobs → thread `attempts` → compute threads: data → engine, tasks
//!                            └→ blobs, named by their digest, in a folder shared with the agent
//! ```
//!
//! Invariants:
//! - libtorch never runs on a tokio thread, and each of its calls runs on one thread alone.
//! - On the CPU work is cut into tiles whose shape and place the assignment fixes, so that a result has
//!   the same bits for any number of threads, any batch and any order of units. The limits: on
//!   processors with other instruction sets (or with another libtorch), on GPUs, and where a quota is
//!   too small for one tile, results agree to rounding, not to the bit. Embeddings are not reused
//!   across the first two lines.
//! - Whatever is large is leased from the slice's book, and the allocator is kept within the quota.
//! - Whatever an assignment brings, a stream ends with one result or one failure, and the process
//!   stays able to take the next one.
//!
//! Absent on purpose: decisions about a run. What is decided here is how much passes at once on this
//! slice, by crate `footprint`, and that a pass whose memory was refused is run again; units are retried
//! elsewhere, and nothing here knows of other slices.

mod attempt;
mod blobs;
mod crew;
mod dataset;
mod decode;
mod decoded;
mod devices;
mod embeddings;
mod encode_images;
mod encode_texts;
mod error;
mod execute;
mod health;
mod numerics;
mod passes;
mod product;
mod profile;
mod rank;
mod recent;
mod residents;
mod roots;
mod serve;
mod service;
mod slice;
mod tensors;
mod text_cache;
mod text_matrix;
mod text_rows;
mod tower;

pub use devices::devices;
pub use execute::{DecodedFolder, Settings};
pub use health::health;
pub use profile::{ProfileError, Request, profile};
pub use serve::{ServeError, serve};
pub use slice::StartError;
