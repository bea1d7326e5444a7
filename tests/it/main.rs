//! The product as a user meets it: real binaries, real model, real images.

mod bad_input;
mod cli;
mod invariance;
mod numbers;
mod recovery;
