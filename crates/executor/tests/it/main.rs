//! The executor through its real service: real model, real images, a real socket.
//!
//! Tests named `slow_…` encode the whole set and take longer than 20 s in a debug build.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stdout, reason = "measured margins belong to a failing test")]

mod bad_input;
mod bench;
mod decoded;
mod embedded;
mod encodings;
mod fixtures;
mod flat;
mod jobs;
mod predictions;
mod process;
mod rankings;
mod recovery;
mod reference;
mod stopping;
