//! Ragtag as its users meet it: golden outputs, cuts and micro-batches that must agree, the command, and bad input.

mod bad_input;
mod command;
mod golden;
mod pipelines;
mod support;
