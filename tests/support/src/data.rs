//! Locates golden data: small trained models, and the outputs of an independent implementation for these
//! models.

use std::path::{Path, PathBuf};

/// Returns the path of a golden model. `tales-q8_0` and `tales-bitnet-tq2_0` are bundled with the program.
/// `tales-q4_0` and `tales-q4_k_m` are part of this crate.
///
/// # Panics
/// Panics if the model does not exist.
#[track_caller]
pub fn model(name: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = format!("{name}.gguf");
    let folders = [own.join("models"), own.join("../../examples/models")];
    let found = folders.iter().map(|folder| folder.join(&file)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("cannot find {file} in {folders:?}"))
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

#[cfg(test)]
mod tests {
    #[test]
    fn all_four_models_are_found() {
        for name in ["tales-bitnet-tq2_0", "tales-q8_0", "tales-q4_0", "tales-q4_k_m"] {
            assert!(super::model(name).metadata().unwrap().len() > 1 << 20, "{name}");
        }
    }
}
