//! Runs tests in separate processes in which a test can make a Vulkan device fail: the device is lost, or its
//! allocations fail.
//!
//! Vulkan's loader puts a layer between itself and the drivers. The test opens the layer's library and
//! controls the layer through its functions.

use crate::{folder, in_own_process, library};
use libloading::{Library, Symbol};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Package of the layer.
const PACKAGE: &str = "vulkan-faults";
/// Name of the layer in Vulkan.
const LAYER: &str = "VK_LAYER_RAGTAG_faults";

/// Kind of Vulkan call at which a device is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostAt {
    /// `vkQueueSubmit` and its variants.
    Submit,
    /// `vkWaitSemaphores` and its variants.
    Wait,
}

/// Handle through which a test controls the layer. Devices are numbered in the order in which this process
/// opens them.
#[derive(Debug)]
pub struct VulkanFaults(Library);

/// Runs `body` in a separate process in which the layer intercepts the calls to all Vulkan devices. The
/// process also gets the environment variables in `variables`. `test` is the full name of the test in its
/// binary.
///
/// # Panics
/// Panics if the layer was not built, or if the test fails in the separate process.
#[track_caller]
pub fn with_vulkan_faults(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&VulkanFaults)) {
    let prepare = || {
        let folder = described().to_str().expect("a path in UTF-8");
        vec![("VK_ADD_LAYER_PATH".into(), folder.into()), ("VK_INSTANCE_LAYERS".into(), LAYER.into())]
    };
    in_own_process(test, variables, prepare, || body(&VulkanFaults::load()));
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

impl VulkanFaults {
    fn load() -> Self {
        // SAFETY: the library was built for this test and has no initialisers.
        Self(unsafe { Library::new(library(PACKAGE)) }.expect("the layer is built"))
    }

    /// Returns the number of devices that this process has opened so far, which is also the number of the
    /// next device.
    pub fn opened(&self) -> u32 {
        // SAFETY: the type is that of the declaration in the layer.
        unsafe {
            let opened: Symbol<'_, unsafe extern "C" fn() -> u32> = self.function("faults_opened");
            opened()
        }
    }

    /// Makes the layer lose a device at a call of kind `at`, after `passes` calls of this kind have
    /// succeeded.
    pub fn lose(&self, device: u32, at: LostAt, passes: u64) {
        // SAFETY: the type is that of the declaration in the layer.
        unsafe {
            let lose: Symbol<'_, unsafe extern "C" fn(u32, u32, u64)> = self.function("faults_lose");
            lose(device, at as u32, passes);
        }
    }

    /// Limits the total size of a device's allocations to `bytes` from now on, regardless of the heap size.
    /// If `bytes` is 0, the creation of command buffers and pipelines fails as well.
    pub fn limit(&self, device: u32, bytes: u64) {
        // SAFETY: the type is that of the declaration in the layer.
        unsafe {
            let limit: Symbol<'_, unsafe extern "C" fn(u32, u64)> = self.function("faults_limit");
            limit(device, bytes);
        }
    }

    /// Returns the number of bytes that are allocated on a device. If the device is closed, these bytes were
    /// leaked.
    pub fn held(&self, device: u32) -> u64 {
        // SAFETY: the type is that of the declaration in the layer.
        unsafe {
            let held: Symbol<'_, unsafe extern "C" fn(u32) -> u64> = self.function("faults_held");
            held(device)
        }
    }

    /// Returns whether a device is open.
    pub fn is_open(&self, device: u32) -> bool {
        // SAFETY: the type is that of the declaration in the layer.
        unsafe {
            let is_open: Symbol<'_, unsafe extern "C" fn(u32) -> bool> = self.function("faults_is_open");
            is_open(device)
        }
    }

    /// # Safety
    /// The layer's function of this name must have type `F`.
    unsafe fn function<F>(&self, name: &str) -> Symbol<'_, F> {
        // SAFETY: the caller guarantees the type.
        unsafe { self.0.get(name) }.expect("the layer has its functions")
    }
}
