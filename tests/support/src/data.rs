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

/// Returns the path of a file or folder of golden data, such as `tales-q8_0.logits.npy`.
///
/// # Panics
/// Panics if the file or folder does not exist.
#[track_caller]
pub fn golden(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    assert!(path.exists(), "{} does not exist", path.display());
    path
}

/// Returns the text of a file that `zstd` has compressed. Long golden data are packed, because the repository has a limit.
///
/// # Panics
/// Panics if there is no such file, or it is damaged.
#[track_caller]
pub fn unpacked(path: &Path) -> String {
    let file = std::fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let decoder = ruzstd::decoding::StreamingDecoder::new(file);
    let mut decoder = decoder.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    decoder.read_to_string(&mut text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn bundled_models_are_found() {
        for name in ["tales-bitnet-tq2_0", "tales-q8_0"] {
            assert!(super::model(name).metadata().unwrap().len() > 1 << 20, "{name}");
        }
    }
}
