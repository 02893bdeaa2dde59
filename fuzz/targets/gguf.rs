//! Any bytes as a GGUF file: opened, and everything in it read. Nothing may panic, overflow or allocate much.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ragtag_graph::gguf::{Array, Value};
use ragtag_graph::{MemorySource, ModelFile, Tokenizer};
use std::sync::Arc;

fuzz_target!(|data: &[u8]| {
    let source = Arc::new(MemorySource::new("fuzz.gguf", data.to_vec()));
    let model = match ModelFile::open(vec![source]) {
        Ok(model) => model,
        // A message may quote the file, but stays short and free of control characters.
        Err(error) => return assert!(short(&error.to_string())),
    };
    for (_, value) in model.metadata.iter() {
        // What opened can be read again.
        if let Value::Array(array) = value.expect("was checked") {
            read(array);
        }
    }
    for tensor in model.weights.tensors() {
        assert_eq!(model.weights.bytes(tensor).expect("was checked").len() as u64, tensor.bytes);
        assert_eq!(tensor.tensor_type.bytes(tensor.columns() * tensor.rows()), Some(tensor.bytes));
    }
    match Tokenizer::from_metadata(&model.metadata) {
        Ok(tokenizer) => _ = tokenizer.encode_with_control("Once upon a time €", true),
        Err(error) => assert!(short(&error.to_string())),
    }
});

fn short(message: &str) -> bool {
    message.len() < 4000 && !message.contains(char::is_control)
}

fn read(array: Array<'_>) {
    let count = array.count();
    let mut read_count = 0;
    match array.element_type().name() {
        "array" => array.list::<Array<'_>>().for_each(|inner| {
            read(inner.expect("was checked"));
            read_count += 1;
        }),
        "string" => array.list::<&str>().for_each(|text| {
            text.expect("was checked");
            read_count += 1;
        }),
        // Of numbers only as many as fit; an array of another type says so at its first element.
        _ => read_count = count.max(array.list::<u64>().filter(Result::is_ok).count() as u64),
    }
    assert_eq!(read_count, count);
}
