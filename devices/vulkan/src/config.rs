//! Configuration of the Vulkan backend, with the environment variables that change it.

use ragtag_hal::cache::default_folder;
use std::path::PathBuf;

/// Name of the backend.
pub(crate) const NAME: &str = "vulkan";

/// Configuration of the Vulkan backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VulkanConfig {
    /// Folder for compiled programs. If it is `None`, programs are cached only in memory.
    pub cache_folder: Option<PathBuf>,
    /// Use of the validation layer. The backend logs the layer's messages, and
    /// [`VulkanBackend::validation_messages`](crate::VulkanBackend::validation_messages) returns them.
    pub validation: Validation,
    /// Whether to place buffers in host-visible memory, on devices whose entire memory is host-visible.
    pub direct_memory: bool,
    /// Whether to import host regions on devices that support it.
    pub import_regions: bool,
    /// Types of device on which kernels use cooperative matrices.
    pub matrices: MatrixUnits,
}

/// Use of the validation layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validation {
    /// The layer is not used.
    Off,
    /// The layer is used if it is installed.
    WhereInstalled,
    /// The layer is always used. Probing fails if it is not installed.
    On,
}

impl Validation {
    /// Parses the value of `RAGTAG_VULKAN_VALIDATION`.
    fn wanted(value: &str, debugging: bool) -> Self {
        match value {
            "1" => Self::On,
            "0" => Self::Off,
            _ if debugging => Self::WhereInstalled,
            _ => Self::Off,
        }
    }
}

/// Types of device on which kernels use cooperative matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixUnits {
    /// No device. Use this value for comparisons, or if a driver computes wrong results with matrices.
    Off,
    /// GPUs.
    Hardware,
    /// GPUs and software devices. This value is for tests: matrices make software devices slower, and a
    /// kernel with many matrices takes minutes to compile.
    Software,
}

impl MatrixUnits {
    /// Reads `RAGTAG_VULKAN_MATRICES`. Logs a warning about an unknown value, and ignores the value.
    fn wanted() -> Self {
        const VARIABLE: &str = "RAGTAG_VULKAN_MATRICES";
        let value = std::env::var_os(VARIABLE).unwrap_or_default();
        match value.to_str() {
            Some("off") => Self::Off,
            Some("software") => Self::Software,
            Some("" | "auto") => Self::Hardware,
            _ => {
                tracing::warn!(?value, "invalid {VARIABLE}: using auto (expected auto, off or software)");
                Self::Hardware
            }
        }
    }
}

impl Default for VulkanConfig {
    /// Returns the default configuration. Programs are cached in `$RAGTAG_CACHE_DIR/vulkan`, or in
    /// `ragtag/vulkan` in the user's cache folder. Two environment variables change the configuration:
    /// - `RAGTAG_VULKAN_VALIDATION=1` requires the validation layer, and `0` disables it. Without the
    ///   variable, debug builds use the layer if it is installed.
    /// - `RAGTAG_VULKAN_MATRICES=off` disables cooperative matrices, and `software` also enables them on
    ///   software devices.
    fn default() -> Self {
        let validation = std::env::var("RAGTAG_VULKAN_VALIDATION").unwrap_or_default();
        Self {
            cache_folder: default_folder(NAME),
            validation: Validation::wanted(&validation, cfg!(debug_assertions)),
            direct_memory: true,
            import_regions: true,
            matrices: MatrixUnits::wanted(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_builds_are_validated_by_default() {
        let of = |value| [true, false].map(|debugging| Validation::wanted(value, debugging));
        assert_eq!(of("1"), [Validation::On; 2]);
        assert_eq!(of("0"), [Validation::Off; 2]);
        assert_eq!(of(""), [Validation::WhereInstalled, Validation::Off]);
    }
}
