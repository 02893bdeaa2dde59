//! Runs tests in separate processes in which a test can make a Vulkan device fail: the device is lost, its
//! allocations fail, or a kernel computes wrong values.
//!
//! Vulkan's loader puts a layer between itself and the drivers. The test opens the layer's library and
//! controls the layer through its functions.

use crate::faults::Faults;
use crate::{folder, in_own_process, library};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Package of the layer.
const PACKAGE: &str = "vulkan-faults";
/// Name of the layer in Vulkan.
const LAYER: &str = "VK_LAYER_RAGTAG_faults";

/// Runs `body` in a separate process in which the layer intercepts the calls to all Vulkan devices. The
/// process also gets the environment variables in `variables`. `test` is the full name of the test in its
/// binary.
///
/// # Panics
/// Panics if the layer was not built, or if the test fails in the separate process.
#[track_caller]
pub fn with_vulkan_faults(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&Faults)) {
    let prepare = || {
        let folder = described().to_str().expect("a path in UTF-8");
        vec![("VK_ADD_LAYER_PATH".into(), folder.into()), ("VK_INSTANCE_LAYERS".into(), LAYER.into())]
    };
    in_own_process(PACKAGE, test, variables, prepare, || body(&Faults::load(PACKAGE)));
}

/// Writes the layer's manifest for Vulkan's loader, and returns the folder with the manifest.
fn described() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = folder(PACKAGE);
        // Several test processes write the manifest concurrently.
        let passing = folder.join(format!("{}.new", std::process::id()));
        std::fs::write(&passing, description(&library(PACKAGE))).expect("the layer's description");
        std::fs::rename(passing, folder.join("layer.json")).expect("the description takes its name");
        folder
    })
}

fn description(library: &Path) -> String {
    format!(
        r#"{{
    "file_format_version": "1.2.0",
    "layer": {{
        "name": "{LAYER}",
        "type": "GLOBAL",
        "library_path": "{}",
        "api_version": "1.3.239",
        "implementation_version": "1",
        "description": "Faults on demand, for tests"
    }}
}}
"#,
        library.display()
    )
}
