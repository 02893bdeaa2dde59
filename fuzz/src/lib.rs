//! Implementation of the fuzz targets. An integration test runs the targets on the committed seeds, without
//! libFuzzer.

pub mod chat;
pub mod conversation;
pub mod gguf;
#[cfg(feature = "remote")]
pub mod messages;
pub mod plan;
pub mod safetensors;
pub mod server;
pub mod tokenizer;

/// Checks that an error message is short and free of control characters, even if it quotes the file. Always
/// returns false, because the input is invalid.
fn short(error: &impl std::fmt::Display) -> bool {
    let message = error.to_string();
    assert!(message.len() < 4000 && !message.contains(char::is_control), "{message}");
    false
}
