//! Locates golden data: small trained models, and the outputs of an independent implementation for these
//! models.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Returns the path of a golden model: `tales-q8_0` or `tales-bitnet-tq2_0`, which are bundled with the program.
/// The integration tests of the root package make two more from `tales-q8_0`.
///
/// # Panics
/// Panics if the model does not exist.
#[track_caller]
pub fn model(name: &str) -> PathBuf {
    let folder = if name == "tales-bitnet-tq2_0" { "engine/models" } else { "examples/models" };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder).join(format!("{name}.gguf"));
    assert!(path.exists(), "{} does not exist", path.display());
    path
}

/// Returns the path of a file or folder of golden data, such as `tales-q8_0.logits.npy`. If the weights in a folder are
/// packed, returns a copy of it beside the running program, with the unpacked files.
///
/// # Panics
/// Panics if the file or folder does not exist.
#[track_caller]
pub fn golden(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    assert!(path.exists(), "{} does not exist", path.display());
    if path.join(PACKED).exists() { unpacked_folder(name, &path) } else { path }
}

/// Returns a golden file for as long as the program runs.
///
/// # Panics
/// Panics as [`golden`] does.
#[track_caller]
pub fn golden_bytes(folder: &str, file: &str) -> &'static [u8] {
    let path = golden(folder).join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).leak()
}

/// Weights of a model as `golden/pack.py` packs them: the length of the first file in eight bytes, and both files.
const PACKED: &str = "model.zst";

/// Copies the folder `path` of a model with packed weights, and unpacks these.
fn unpacked_folder(name: &str, path: &Path) -> PathBuf {
    let program = std::env::current_exe().expect("the program has a path");
    let copy = program.with_file_name("golden").join(name);
    std::fs::create_dir_all(&copy).expect("the program's folder takes files");
    let own = path.read_dir().unwrap().map(|entry| entry.unwrap().path());
    for file in own.filter(|file| !file.ends_with(PACKED)) {
        put(&copy.join(file.file_name().unwrap()), &std::fs::read(&file).unwrap());
    }
    let content = unpacked_bytes(&path.join(PACKED));
    let (length, files) = content.split_first_chunk().expect("the length of the first file");
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
    put(&copy.join("model.safetensors"), &files[..length]);
    put(&copy.join("model.gguf"), &files[length..]);
    copy
}

/// Writes a file unless it has this content. Other tests may do the same at the same time.
fn put(path: &Path, content: &[u8]) {
    if std::fs::read(path).is_ok_and(|before| before == content) {
        return;
    }
    let file = tempfile::NamedTempFile::new_in(path.parent().unwrap()).unwrap();
    std::fs::write(file.path(), content).unwrap();
    file.persist(path).unwrap();
}

/// Returns the text of a file that `zstd` has compressed. Long golden data are packed, because the repository has a limit.
///
/// # Panics
/// Panics if there is no such file, or it is damaged.
#[track_caller]
pub fn unpacked(path: &Path) -> String {
    String::from_utf8(unpacked_bytes(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[track_caller]
fn unpacked_bytes(path: &Path) -> Vec<u8> {
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let decoder = ruzstd::decoding::StreamingDecoder::new(file);
    let mut decoder = decoder.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    decoder.read_to_end(&mut bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    bytes
}

#[cfg(test)]
mod tests {
    #[test]
    fn packed_weights_become_files() {
        for (file, start) in [("model.gguf", &b"GGUF"[..]), ("config.json", b"{"), ("tokenizer.json", b"{")] {
            assert!(super::golden_bytes("tiny-qwen2", file).starts_with(start), "{file}");
        }
        let weights = super::golden_bytes("tiny-qwen2", "model.safetensors");
        let header = u64::from_le_bytes(*weights.first_chunk().unwrap()) as usize;
        assert!(header < weights.len() && weights[8..].starts_with(b"{"));
    }

    #[test]
    fn bundled_models_are_found() {
        for name in ["tales-bitnet-tq2_0", "tales-q8_0"] {
            assert!(super::model(name).metadata().unwrap().len() > 1 << 20, "{name}");
        }
    }
}
