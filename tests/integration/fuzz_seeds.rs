//! Runs the fuzz targets on their committed seeds, without libFuzzer.

#[path = "../../fuzz/src/lib.rs"]
mod fuzz;

use fuzz::{chat, conversation, gguf, plan, safetensors, server, tokenizer};
use std::path::Path;

/// Runs a fuzz target on all its seeds. Checks that each seed is valid, because an invalid seed would not get
/// past the target's first checks.
fn replay(target: &str, run: impl Fn(&[u8]) -> bool) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let mut seeds = 0;
    for seed in std::fs::read_dir(folder).unwrap() {
        let path = seed.unwrap().path();
        assert!(run(&std::fs::read(&path).unwrap()), "{} is invalid", path.display());
        seeds += 1;
    }
    assert!(seeds > 0, "{target} has no seed");
}

#[test]
fn gguf_seeds_are_valid() {
    replay("gguf", gguf::run);
}

#[test]
fn chat_seeds_are_valid() {
    replay("chat", chat::run);
}

#[test]
fn conversation_seeds_are_valid() {
    replay("conversation", conversation::run);
}

#[cfg(feature = "remote")]
#[test]
fn message_seeds_are_valid() {
    replay("messages", fuzz::messages::run);
}

#[test]
fn plan_seeds_are_valid() {
    replay("plan", plan::run);
}

#[test]
fn checkpoint_seeds_are_valid() {
    replay("safetensors", safetensors::run);
}

#[test]
fn server_seeds_are_valid() {
    replay("server", server::run);
}

#[test]
fn tokenizer_seeds_are_valid() {
    replay("tokenizer", tokenizer::run);
}
