//! Ragtag as its users meet it: golden outputs, cuts and micro-batches that must agree, the command, and bad input.

// Skips must be seen, and measured errors are worth reading.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bad_input;
mod binding;
mod checkpoint;
mod command;
mod compute;
mod drivers;
mod faults;
mod golden;
mod gpus;
mod hip;
mod memory;
mod pipelines;
mod support;
mod tensor_types;
