//! What a file claims is never allocated: only what it holds. (One test, alone in its process: it watches the heap.)

use peak_alloc::PeakAlloc;
use ragtag_graph::gguf::Writer;
use ragtag_graph::{MemorySource, ModelFile, Tokenizer};
use ragtag_kernels::TensorType;
use std::sync::Arc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// The most bytes that opening these needs beyond the file itself.
fn peak_bytes(file: Vec<u8>) -> usize {
    let source = Arc::new(MemorySource::new("m.gguf", file));
    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    if let Ok(model) = ModelFile::open(vec![source]) {
        _ = Tokenizer::from_metadata(&model.metadata);
    }
    HEAP.peak_usage() - before
}

#[test]
fn memory_follows_the_size_of_the_file() {
    let mut header = Writer::new();
    header.put("tokenizer.ggml.model", "llama");
    header.put("tokenizer.ggml.tokens", &["<unk>", "▁"][..]);
    header.put("tokenizer.ggml.scores", &[0f32, 0.0][..]);
    header.put("tokenizer.ggml.token_type", &[2i32, 1][..]);
    header.put("bytes", &[0u8, 1][..]);
    header.tensor("t", TensorType::Q8_0, &[32, 2], 68);
    let mut sound = header.header();
    sound.resize(sound.len() + header.data_bytes() as usize, 0);
    assert!(ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", sound.clone()))]).is_ok());

    // Claims of every size at every place; most of them hit a count, a length or a type.
    for at in 4..sound.len() - 8 {
        for claim in [1u64 << 20, 1 << 32, 1 << 62, u64::MAX, 0x0000_0009_0000_0009, 0x1000_0000_0000_0008] {
            let mut file = sound.clone();
            file[at..at + 8].copy_from_slice(&claim.to_le_bytes());
            let bytes = peak_bytes(file);
            assert!(bytes < 64 << 10, "{claim} at {at}: {bytes} bytes for a file of {}", sound.len());
        }
    }

    // As many entries, tensors and tokens as a file can hold.
    let mut header = Writer::new();
    (0..20_000).for_each(|n| header.put(&format!("{n:x}"), 0u8));
    (0..20_000).for_each(|n| header.tensor(&format!("{n:x}"), TensorType::F32, &[1], 0));
    let many = header.header();
    let size = many.len();
    let bytes = peak_bytes([many, vec![0; 32]].concat());
    assert!(bytes < size * 24, "{bytes} bytes for a file of {size}");
}
