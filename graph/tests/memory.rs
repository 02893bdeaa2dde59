//! Checks that memory use depends on the actual size of a file and not on the sizes that it claims. This file
//! may contain only one test, because the test measures the heap of its process.

use peak_alloc::PeakAlloc;
use ragtag_graph::gguf::Writer;
use ragtag_graph::{Directory, MemorySource, Model, ModelFile, Tokenizer};
use ragtag_kernels::TensorType;
use std::sync::Arc;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// Returns the peak heap size in bytes while a model file is opened, excluding the file's own bytes.
fn peak_bytes(file: Vec<u8>) -> usize {
    let source = Arc::new(MemorySource::new("m.gguf", file));
    peak_of(|| {
        if let Ok(model) = ModelFile::open(vec![source]) {
            _ = Tokenizer::from_metadata(&model.metadata);
        }
    })
}

fn peak_of(body: impl FnOnce()) -> usize {
    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    body();
    HEAP.peak_usage() - before
}

/// Returns the peak heap size in bytes while a directory is opened, excluding the files' own bytes.
fn peak_bytes_of_directory(files: &[(&str, &[u8])]) -> usize {
    let mut directory = Directory::new("d");
    for (name, bytes) in files {
        directory.insert(*name, Arc::new(MemorySource::new(*name, bytes.to_vec())));
    }
    peak_of(|| {
        _ = Tokenizer::from_directory(&directory);
        _ = Model::from_directory(directory);
    })
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

    // Each claim is written to every position. Most positions belong to a count, a length or a type.
    for at in 4..sound.len() - 8 {
        for claim in [1u64 << 20, 1 << 32, 1 << 62, u64::MAX, 0x0000_0009_0000_0009, 0x1000_0000_0000_0008] {
            let mut file = sound.clone();
            file[at..at + 8].copy_from_slice(&claim.to_le_bytes());
            let bytes = peak_bytes(file);
            assert!(bytes < 64 << 10, "{claim} at {at}: {bytes} bytes for a file of {}", sound.len());
        }
    }

    // The file has as many entries, tensors and tokens as its size allows.
    let mut header = Writer::new();
    (0..20_000).for_each(|n| header.put(&format!("{n:x}"), 0u8));
    (0..20_000).for_each(|n| header.tensor(&format!("{n:x}"), TensorType::F32, &[1], 0));
    let many = header.header();
    let size = many.len();
    let bytes = peak_bytes([many, vec![0; 32]].concat());
    assert!(bytes < size * 24, "{bytes} bytes for a file of {size}");

    directories();
}

/// Checks that opening a directory allocates little, even if a number in one of its files is replaced by a
/// huge one.
fn directories() {
    const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 1, "intermediate_size": 32, "rms_norm_eps": 1e-5, "vocab_size": 4,
        "max_position_embeddings": 64, "tie_word_embeddings": true}"#;
    const HEADER: &str =
        r#"{"model.embed_tokens.weight": {"dtype": "F16", "shape": [4, 32], "data_offsets": [0, 256]}}"#;
    const TOKENIZER: &str = r#"{"added_tokens": [{"id": 2, "content": "<s>", "special": true}], "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "unk_token": "a", "vocab": {"a": 0, "b": 1}, "merges": []}}"#;
    let with_length =
        |length: u64, header: &str| [&length.to_le_bytes()[..], header.as_bytes(), &[0; 256]].concat();
    let weights = |header: &str| with_length(header.len() as u64, header);
    let check = |files: &[(&str, &[u8])], what: &str| {
        let bytes = peak_bytes_of_directory(files);
        assert!(bytes < 64 << 10, "{what}: {bytes} bytes");
    };
    for claim in ["1048576", "4294967295", "4611686018427387904", "18446744073709551615", "16777216"] {
        for (name, text) in
            [("config.json", CONFIG), ("model.safetensors", HEADER), ("tokenizer.json", TOKENIZER)]
        {
            for (at, number) in numbers(text) {
                let changed = format!("{}{claim}{}", &text[..at], &text[at + number..]);
                let changed =
                    if name == "model.safetensors" { weights(&changed) } else { changed.into_bytes() };
                let sound = [("config.json", CONFIG.as_bytes()), ("model.safetensors", &weights(HEADER))];
                let others = sound.into_iter().filter(|(other, _)| *other != name);
                let files: Vec<(&str, &[u8])> = others.chain([(name, &changed[..])]).collect();
                check(&files, &format!("{claim} at {at} of {name}"));
            }
        }
        let length = claim.parse().unwrap();
        check(
            &[("config.json", CONFIG.as_bytes()), ("model.safetensors", &with_length(length, HEADER))],
            claim,
        );
    }
    // Insert a huge number at each position, so that it also becomes the length of a piece and of the text in
    // it.
    for at in 0..5 {
        let mut model = vec![0x0A, 5, 0x0A, 3, b'a', b'b', b'c'];
        model.splice(at..at, [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]);
        check(&[("tokenizer.model", &model)], "a length");
    }
}

/// Returns the start and the length of each number in `text`.
fn numbers(text: &str) -> Vec<(usize, usize)> {
    let starts =
        text.char_indices().filter(|(at, c)| c.is_ascii_digit() && text[..*at].ends_with([' ', '[']));
    starts.map(|(at, _)| (at, text[at..].chars().take_while(char::is_ascii_digit).count())).collect()
}
