//! End-to-end tests of Ragtag: golden outputs, identical results for all cuts and micro-batches, the command
//! line, and bad input.

// Skips must be visible, and measured errors are useful in the log.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bad_input;
mod binding;
mod calibrate;
mod canary;
mod changing;
mod chat;
mod checkpoint;
mod closed;
mod command;
mod docs;
mod drivers;
mod embeddings;
mod examples;
mod experts;
mod faults;
mod fleets;
mod fuzz_seeds;
mod golden;
mod gpus;
mod guard;
mod hip;
mod hybrids;
mod kv_rings;
mod kv_types;
mod level_zero;
mod links;
mod losses;
mod made;
mod measured;
mod memory;
mod models;
mod pictures;
mod pipelines;
mod plan_api;
mod recovery;
#[cfg(feature = "remote")]
mod remote;
mod requests;
mod rope_lengths;
mod row_lengths;
mod sampling;
mod serve;
mod simulation;
mod streaming;
mod support;
mod template;
mod tensor_types;
#[cfg(unix)]
mod terminal;
mod tokenize;
mod trust;
mod warmup;
