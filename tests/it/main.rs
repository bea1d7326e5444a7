//! The product as a user meets it: real binaries, real model, real images.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bad_input;
mod chaos;
mod cli;
mod cluster;
mod health;
mod hosts;
mod invariance;
mod numbers;
mod recipes;
mod recovery;
mod refusals;
mod secure;
