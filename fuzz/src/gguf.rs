//! Opens arbitrary bytes as a GGUF file and reads the whole file. The reader must not panic, overflow or make
//! large allocations.

use super::short;
use ragtag_graph::gguf::{Array, Value};
use ragtag_graph::{MemorySource, ModelFile, Tokenizer};
use std::sync::Arc;

/// Returns whether the file is valid.
pub fn run(data: &[u8]) -> bool {
    let source = Arc::new(MemorySource::new("fuzz.gguf", data.to_vec()));
    let model = match ModelFile::open(vec![source]) {
        Ok(model) => model,
        Err(error) => return short(&error),
    };
    for (_, value) in model.metadata.iter() {
        // The value was checked when the file was opened.
        if let Value::Array(array) = value.expect("was checked") {
            read(array);
        }
    }
    for tensor in model.weights.tensors() {
        // Ternary weights are checked when they are read.
        if let Ok(bytes) = model.weights.bytes(tensor) {
            assert_eq!(bytes.len() as u64, tensor.bytes);
        }
        assert_eq!(tensor.tensor_type.bytes(tensor.columns() * tensor.rows()), Some(tensor.bytes));
    }
    match Tokenizer::from_metadata(&model.metadata) {
        Ok(tokenizer) => tokenizer.encode_with_control("Once upon a time €", true).is_ok(),
        Err(error) => short(&error),
    }
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
        // Count only numbers that fit in a u64. An array of a different type fails at its first element.
        _ => read_count = count.max(array.list::<u64>().filter(Result::is_ok).count() as u64),
    }
    assert_eq!(read_count, count);
}
