//! Tests that bad model files are refused.

use super::*;
use crate::support::{metadata_value, patch, tensor_data, tensor_info};

/// Folder with corrupted copies of a model.
pub(super) struct CorruptModels {
    pub(super) folder: TempDir,
    pub(super) sound: Vec<u8>,
}

impl CorruptModels {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), sound: support::model_bytes(LLAMA) }
    }

    pub(super) fn write(&self, name: &str, content: &[u8]) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        text(&path).to_string()
    }

    /// Writes a copy of model `name` in which `with` overwrites the bytes from position `at` on. Returns the
    /// path of the copy.
    fn patched(&self, name: &str, at: usize, with: &[u8]) -> String {
        let mut bytes = self.sound.clone();
        patch(&mut bytes, at, with);
        self.write(name, &bytes)
    }

    fn refused(&self, path: &str, words: &[&str]) {
        refused(&["run", path, "-n", "1"], MODEL, words);
    }
}

/// Checks that Ragtag rejects a model file whose header contains a count that is far too large. Returns the
/// message. On Linux, the test limits the address space, so that the process aborts if it allocates memory
/// for this count.
fn refused_in_little_memory(path: &str) -> String {
    let mut command = if cfg!(target_os = "linux") {
        support::shell("ulimit -v 1000000 && exec \"$0\" \"$@\"", &[])
    } else {
        ragtag()
    };
    let output = command.args(["run", path, "-n", "1"]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(MODEL), "{:?}\n{err}", output.status);
    assert!(output.stdout.is_empty() && !err.contains("panicked"), "{err}");
    assert!(err.contains("lie.gguf"), "{err}");
    err
}

#[test]
fn refuses_files_that_are_no_model() {
    let corrupt = CorruptModels::new();
    let tale = corrupt.write("tale.gguf", b"Once upon a time there was no model.\n");
    for command in ["run", "inspect", "plan", "bench"] {
        refused(&[command, &tale], MODEL, &["tale.gguf is not a GGUF file"]);
    }
    corrupt.refused(&corrupt.write("zeros.gguf", &[0; 4096]), &["is not a GGUF file"]);
    let mut swapped = corrupt.sound[..4096].to_vec();
    patch(&mut swapped, 4, &3u32.to_be_bytes());
    corrupt.refused(&corrupt.write("big.gguf", &swapped), &["big-endian"]);
    corrupt
        .refused(&corrupt.patched("old.gguf", 4, &1u32.to_le_bytes()), &["GGUF version 1; versions 2 and 3"]);

    let run = |path: &str, words: &str| refused(&["run", path], FILE, &["cannot read", path, words]);
    for command in ["run", "inspect"] {
        let empty = corrupt.write("empty.gguf", b"");
        refused(&[command, &empty], MODEL, &["empty.gguf ends at byte 0, but the magic number"]);
    }
    corrupt.refused(text(corrupt.folder.path()), &["has no config.json"]);
    run(text(&corrupt.folder.path().join("missing.gguf")), "No such file");
    run(&format!("{tale}/within.gguf"), "Not a directory");
}

#[test]
fn refuses_truncated_models() {
    let corrupt = CorruptModels::new();
    let sound = &corrupt.sound;
    let architecture = metadata_value(sound, "general.architecture");
    let tokens = metadata_value(sound, "tokenizer.ggml.tokens");
    let query = tensor_info(sound, "blk.0.attn_q.weight");
    let data = tensor_data(sound, "blk.5.ffn_up.weight");
    let cuts = [
        (2, "the magic number"),
        (4, "the version"),
        (7, "the version"),
        (8, "the number of tensors"),
        (16, "the number of metadata entries"),
        (24, "the length of the key of metadata entry 0"),
        (30, "the length of the key of metadata entry 0"),
        (34, "the key of metadata entry 0"),
        (architecture - 4, "the value type of metadata"),
        (architecture + 3, "the length of the value of metadata"),
        (architecture + 9, "the value of metadata"),
        (tokens + 6, "tokenizer.ggml.tokens"),
        (tokens + 5000, "tokenizer.ggml.tokens"),
        (query, "the number of dimensions of tensor"),
        (query + 6, "dimension 0 of tensor"),
        (query + 22, "the type of tensor"),
        (query + 30, "the offset of tensor"),
        (data.start, "the data of tensor"),
        (data.end - 1, "the data of tensor"),
        (sound.len() - 1, "the data of tensor"),
    ];
    for (bytes, words) in cuts {
        let path = corrupt.write("cut.gguf", &sound[..bytes]);
        corrupt
            .refused(&path, &[words, &format!("ends at byte {bytes}"), "the file is truncated or corrupt"]);
    }
}

#[test]
fn refuses_false_counts_lengths_and_offsets() {
    let corrupt = CorruptModels::new();
    let sound = &corrupt.sound;
    let architecture = metadata_value(sound, "general.architecture");
    let tokens = metadata_value(sound, "tokenizer.ggml.tokens");
    let query = tensor_info(sound, "blk.0.attn_q.weight");
    let lies = [1 << 32, (1 << 32) - 1, 1 << 63, (1 << 63) - 1, u64::MAX, u64::MAX - 31];
    let places = [
        ("the number of tensors", 8),
        ("the number of metadata entries", 16),
        ("the length of a key", 24),
        ("the length of a value", architecture),
        ("the length of an array", tokens + 4),
        ("the length of a string in an array", tokens + 12),
        ("an extent", query + 4),
        ("the other extent", query + 12),
        ("an offset", query + 24),
    ];
    let reasons = [
        "the file is truncated or corrupt",
        "is larger than any file",
        "not whole blocks",
        "not a multiple of the alignment",
    ];
    for (what, at) in places {
        for lie in lies {
            let path = corrupt.patched("lie.gguf", at, &u64::to_le_bytes(lie));
            let err = refused_in_little_memory(&path);
            assert!(reasons.iter().any(|reason| err.contains(reason)), "{what} is {lie}: {err}");
        }
    }
    // A plan needs no data, but data at offsets beyond any file is rejected.
    let path = corrupt.patched("lie.gguf", query + 24, &(u64::MAX - 31).to_le_bytes());
    let words = [
        "the data of tensor blk.0.attn_q.weight",
        "bytes from offset 18446744073709551584: that is larger than any file",
    ];
    refused(&["inspect", &path], MODEL, &words);
    for dimensions in [0, 5, u32::MAX] {
        let path = corrupt.patched("lie.gguf", query, &dimensions.to_le_bytes());
        corrupt.refused(&path, &[&format!("{dimensions} is not 1 to 4")]);
    }
}

#[test]
fn refuses_false_hyperparameters() {
    let corrupt = CorruptModels::new();
    let keys = [
        "embedding_length",
        "block_count",
        "attention.head_count",
        "attention.head_count_kv",
        "feed_forward_length",
    ];
    let reasons =
        ["is not in 1 …", "the hyperparameters ask for", "is missing", "is not part of", "cannot share"];
    for key in keys {
        let key = format!("llama.{key}");
        let at = metadata_value(&corrupt.sound, &key);
        for lie in [0, 1, 3, 255, u32::MAX] {
            let path = corrupt.patched("lie.gguf", at, &u32::to_le_bytes(lie));
            let err = refused_in_little_memory(&path);
            assert!(reasons.iter().any(|reason| err.contains(reason)), "{key} is {lie}: {err}");
        }
    }
    let heads = metadata_value(&corrupt.sound, "llama.attention.head_count_kv");
    let path = corrupt.patched("heads.gguf", heads, &3u32.to_le_bytes());
    corrupt.refused(&path, &["llama.attention.head_count_kv: ", "cannot share 3 key-value heads"]);
    let context = metadata_value(&corrupt.sound, "llama.context_length");
    corrupt.refused(&corrupt.patched("context.gguf", context, &[0; 4]), &["context"]);
    let epsilon = metadata_value(&corrupt.sound, "llama.attention.layer_norm_rms_epsilon");
    for lie in [f32::NAN, f32::INFINITY, -1.0] {
        corrupt.refused(
            &corrupt.patched("epsilon.gguf", epsilon, &lie.to_le_bytes()),
            &["layer_norm_rms_epsilon"],
        );
    }
}

#[test]
fn refuses_unknown_architectures_types_and_tensors() {
    let corrupt = CorruptModels::new();
    let at = metadata_value(&corrupt.sound, "general.architecture") + 8;
    let path = corrupt.patched("mamba.gguf", at, b"mamba");
    corrupt.refused(
        &path,
        &["mamba.gguf", "architecture \"mamba\" is not supported", "supported are llama, bitnet"],
    );

    let query = tensor_info(&corrupt.sound, "blk.0.attn_q.weight");
    for (id, name) in [(2u32, None), (21, Some("IQ3_S")), (16, Some("IQ2_XXS")), (9999, Some("number 9999"))]
    {
        let path = corrupt.patched("type.gguf", query + 20, &id.to_le_bytes());
        match name {
            Some(name) => {
                let words =
                    format!("blk.0.attn_q.weight has type {name}, which is not supported; supported are");
                corrupt.refused(
                    &path,
                    &[&words.replace("blk.0.attn_q.weight", ""), "blk.0.attn_q.weight", "Q8_0"],
                );
            }
            // This type is supported, but its values have a different size. The command reads wrong values,
            // but stays within the tensor's bytes.
            None => drop(ragtag().args(["inspect", &path]).assert().success()),
        }
    }

    let name = "blk.0.attn_q.weight";
    let path = corrupt.patched("renamed.gguf", query - name.len(), b"blk.0.attn_x.weight");
    corrupt.refused(&path, &["tensor", "blk.0.attn_"]);
    let path = corrupt.write("more.gguf", &with_another_tensor(&corrupt.sound, "blk.0.moustache.weight"));
    corrupt.refused(&path, &["blk.0.moustache.weight"]);
    let path = corrupt.patched("twice.gguf", query - name.len(), b"blk.1.attn_q.weight");
    corrupt.refused(&path, &["duplicate tensor", "blk.1.attn_q.weight"]);
    let path = corrupt.patched(
        "key.gguf",
        metadata_value(&corrupt.sound, "llama.block_count") - 4,
        &6u32.to_le_bytes(),
    );
    corrupt.refused(&path, &["llama.block_count", "should be"]);
}

/// Returns a copy of a model file with one more tensor. The new tensor is named `name` and refers to the data
/// of the first tensor.
fn with_another_tensor(sound: &[u8], name: &str) -> Vec<u8> {
    let model = ragtag::Model::from_bytes("copy", sound.to_vec()).unwrap();
    let tensors = model.graph().weights().tensors();
    let data = tensors.iter().map(|t| t.offset).min().unwrap() as usize;
    let info_end = |t: &ragtag_graph::TensorInfo| tensor_info(sound, &t.name) + 4 + 8 * t.shape.len() + 4 + 8;
    let end = tensors.iter().map(info_end).max().unwrap();
    let mut bytes = sound[..end].to_vec();
    let count = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    patch(&mut bytes, 8, &(count + 1).to_le_bytes());
    bytes.extend((name.len() as u64).to_le_bytes());
    bytes.extend(name.as_bytes());
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(32u64.to_le_bytes());
    // The tensor type is F32, and the data starts at offset 0.
    bytes.extend([0; 4]);
    bytes.extend([0; 8]);
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(&sound[data..]);
    bytes
}

#[test]
fn refuses_split_models_with_mismatched_files() {
    let corrupt = CorruptModels::new();
    let whole = ragtag::Model::from_bytes("whole", corrupt.sound.clone()).unwrap();
    let folder = corrupt.folder.path();
    let names = support::split(&whole, folder, 3);
    let [first, second, third] = [0, 1, 2].map(|part| folder.join(&names[part]));
    let parts = [&first, &second, &third].map(|path| std::fs::read(path).unwrap());

    for (missing, opened) in [(&second, &first), (&first, &third)] {
        let kept = std::fs::read(missing).unwrap();
        std::fs::remove_file(missing).unwrap();
        refused(&["run", text(opened)], FILE, &["cannot read", text(missing), "No such file"]);
        std::fs::write(missing, kept).unwrap();
    }
    let changed = |path: &Path, bytes: &[u8], words: &[&str]| {
        let kept = std::fs::read(path).unwrap();
        std::fs::write(path, bytes).unwrap();
        corrupt.refused(text(&first), words);
        std::fs::write(path, kept).unwrap();
    };
    changed(&second, &parts[2], &["shard 3 of 3 is given twice"]);
    changed(&third, &parts[1], &["shard 2 of 3 is given twice"]);
    changed(&third, &corrupt.sound, &["belongs to a model of 1 files"]);
    let patched = |part: usize, key: &str, value: &[u8]| {
        let mut bytes = parts[part].clone();
        let at = metadata_value(&bytes, key);
        patch(&mut bytes, at, value);
        bytes
    };
    changed(&second, &patched(1, "split.count", &[4, 0]), &["belongs to a model of 4 files"]);
    changed(&second, &patched(1, "split.no", &[9, 0]), &["split.no is 9, but there are 3 files"]);
    changed(&first, &patched(0, "split.tensors.count", &[7, 0, 0, 0]), &["is 7, but the files hold"]);
    let name = whole.graph().weights().tensors()[0].name.clone();
    let twice = ["blk.0.attn_norm.weight", "blk.0.attn_k.weight"].into_iter().find(|n| *n != name).unwrap();
    let other = whole.graph().weights().tensors().iter().find(|t| {
        t.name.len() == twice.len() && parts[2].windows(t.name.len()).any(|w| w == t.name.as_bytes())
    });
    let other = other.expect("a name of that length").name.clone();
    let mut bytes = parts[2].clone();
    let at = tensor_info(&bytes, &other) - twice.len();
    patch(&mut bytes, at, twice.as_bytes());
    changed(&third, &bytes, &["duplicate tensor", twice]);

    // One file is a part of a split model under an unrelated name. The other is a complete model under the
    // name of a part.
    let alone = corrupt.write("alone.gguf", &parts[0]);
    corrupt.refused(&alone, &["is missing: it is shard 2 of 3"]);
    let first = corrupt.write("part-00001-of-00003.gguf", &corrupt.sound);
    refused(&["run", &first], FILE, &["cannot read", "part-00002-of-00003.gguf"]);
}
