//! Tests in processes of their own in which Vulkan's devices are lost, or refuse memory, when the test says so.
//!
//! The process finds a layer that stands between the loader and whatever driver there is. The test holds the same library as
//! the loader, and tells it what to do.

use crate::{folder, in_own_process, library};
use libloading::{Library, Symbol};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The layer's package.
const PACKAGE: &str = "vulkan-faults";
/// The layer's name.
const LAYER: &str = "VK_LAYER_RAGTAG_faults";

/// What a device is lost at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostAt {
    /// `vkQueueSubmit` and its like.
    Submit,
    /// `vkWaitSemaphores` and its like.
    Wait,
}

/// What tells the layer. Devices have numbers, in the order in which this process opens them.
#[derive(Debug)]
pub struct VulkanFaults(Library);

/// Runs the body of a test in a process of its own whose Vulkan devices all have the layer, with these variables set besides.
/// `test` is the test's full name in its binary.
///
/// # Panics
/// If the layer cannot be built, or the test fails there.
#[track_caller]
pub fn with_vulkan_faults(test: &str, variables: &[(&str, &str)], body: impl FnOnce(&VulkanFaults)) {
    let prepare = || {
        let folder = described().to_str().expect("a path in UTF-8");
        vec![("VK_ADD_LAYER_PATH".into(), folder.into()), ("VK_INSTANCE_LAYERS".into(), LAYER.into())]
    };
    in_own_process(test, variables, prepare, || body(&VulkanFaults::load()));
}

/// The folder with what the loader reads of the layer.
fn described() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = folder(PACKAGE);
        // Tests of several processes write it at the same time.
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
        // SAFETY: the library that was built for this; nothing runs when it is loaded.
        Self(unsafe { Library::new(library(PACKAGE)) }.expect("the layer is built"))
    }

    /// How many devices this process has opened so far: the number of the next.
    pub fn opened(&self) -> u32 {
        // SAFETY: as it is declared there.
        unsafe {
            let opened: Symbol<'_, unsafe extern "C" fn() -> u32> = self.function("faults_opened");
            opened()
        }
    }

    /// Loses a device at a call, after so many more of its kind that go well.
    pub fn lose(&self, device: u32, at: LostAt, passes: u64) {
        // SAFETY: as it is declared there.
        unsafe {
            let lose: Symbol<'_, unsafe extern "C" fn(u32, u32, u64)> = self.function("faults_lose");
            lose(device, at as u32, passes);
        }
    }

    /// Has a device hold no more than so many bytes from now on, whatever it says. With 0 there is no memory for commands and
    /// pipelines either.
    pub fn limit(&self, device: u32, bytes: u64) {
        // SAFETY: as it is declared there.
        unsafe {
            let limit: Symbol<'_, unsafe extern "C" fn(u32, u64)> = self.function("faults_limit");
            limit(device, bytes);
        }
    }

    /// The bytes that are allocated on a device. If it is closed: those that were left.
    pub fn held(&self, device: u32) -> u64 {
        // SAFETY: as it is declared there.
        unsafe {
            let held: Symbol<'_, unsafe extern "C" fn(u32) -> u64> = self.function("faults_held");
            held(device)
        }
    }

    /// Whether a device was opened, and not closed yet.
    pub fn is_open(&self, device: u32) -> bool {
        // SAFETY: as it is declared there.
        unsafe {
            let is_open: Symbol<'_, unsafe extern "C" fn(u32) -> bool> = self.function("faults_is_open");
            is_open(device)
        }
    }

    /// # Safety
    /// The layer's function of this name has this type.
    unsafe fn function<F>(&self, name: &str) -> Symbol<'_, F> {
        // SAFETY: by the caller's promise.
        unsafe { self.0.get(name) }.expect("the layer has its functions")
    }
}
