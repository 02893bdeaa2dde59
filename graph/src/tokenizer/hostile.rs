//! Tokenizer files that lie.
