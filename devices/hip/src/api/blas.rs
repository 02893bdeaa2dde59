//! Detection of rocBLAS, AMD's matrix product library, and of the architectures that it supports.
//!
//! rocBLAS aborts the process if it has no kernels for an architecture. Ragtag therefore first checks the
//! names of the kernel files of rocBLAS, which contain the architectures. The files are in the folder
//! `rocblas/library` next to the library, or in the folder that `ROCBLAS_TENSILE_LIBPATH` names.

use super::library::{self, BlasFunctions, Version};
use super::text;
use ragtag_hal::{Error, Result};
use std::path::{Path, PathBuf};

/// Environment variable that names the folder that rocBLAS searches first.
const KERNELS: &str = "ROCBLAS_TENSILE_LIBPATH";

/// The loaded library.
pub(crate) struct Blas {
    pub(crate) functions: BlasFunctions,
    pub(crate) version: String,
    /// File names of its kernels.
    kernels: Vec<String>,
}

impl Blas {
    /// Loads the library that matches a version of the HIP runtime.
    pub(super) fn find(version: Version) -> Option<Self> {
        let (functions, name) = library::blas(version)?;
        let said = text::<128>(|buffer, bytes| {
            // SAFETY: the buffer has room for this many bytes.
            check("rocblas_get_version_string", unsafe {
                (functions.rocblas_get_version_string)(buffer, bytes.unsigned_abs() as usize)
            })
        });
        let variable = std::env::var_os(KERNELS).filter(|path| !path.is_empty()).map(PathBuf::from);
        let folder = variable.or_else(|| Some(place(&name)?.parent()?.join("rocblas").join("library")));
        let kernels = folder.map_or_else(Vec::new, |folder| names(&folder));
        tracing::debug!(name, ?said, files = kernels.len(), "found rocBLAS");
        Some(Self { functions, version: said.ok()?, kernels })
    }

    /// Returns true if the library has kernels for an architecture such as `gfx90a`.
    pub(crate) fn serves(&self, architecture: &str) -> bool {
        self.kernels.iter().any(|name| names_architecture(name, architecture))
    }
}

/// Converts a status code of rocBLAS to a result. rocBLAS codes differ from HIP codes.
pub(crate) fn check(function: &str, returned: i32) -> Result<()> {
    if returned == 0 { Ok(()) } else { Err(Error::Api { call: function.into(), code: returned.into() }) }
}

/// Returns the path of the loaded library `name`. If `name` is not a path, looks it up in the list of mapped
/// files that Linux reports for this process.
fn place(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.is_absolute() {
        return Some(path.to_path_buf());
    }
    let stem = name.split(".so").next()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let is_it = |path: &&Path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(stem))
    };
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    paths.into_iter().find(is_it).map(Path::to_path_buf)
}

/// Returns the file names in a folder. The list is empty if the folder does not exist.
fn names(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().filter_map(std::result::Result::ok);
    files.filter_map(|file| file.file_name().into_string().ok()).collect()
}

/// Returns true if a file name contains exactly this architecture. `gfx90a` does not match `gfx90`.
fn names_architecture(name: &str, architecture: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
    name.match_indices(architecture).any(|(at, found)| ends(&name[at + found.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_files_name_their_architectures() {
        for (name, architecture, found) in [
            ("TensileLibrary_lazy_gfx90a.dat", "gfx90a", true),
            ("TensileLibrary_Type_HS_HPA_Contraction_l_Alik_Bljk_Cijk_Dijk_gfx1030.co", "gfx1030", true),
            ("Kernels.so-000-gfx906-xnack-.hsaco", "gfx906", true),
            ("TensileLibrary_lazy_gfx90a.dat", "gfx90", false),
            ("TensileLibrary_lazy_gfx1103.dat", "gfx110", false),
            ("TensileManifest.txt", "gfx906", false),
        ] {
            assert_eq!(names_architecture(name, architecture), found, "{name}, {architecture}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn libraries_are_found_at_their_load_path() {
        // Every process has loaded the C library, directly or indirectly.
        let libc = place("libc.so.6");
        assert!(libc.is_none_or(|path| path.is_absolute() && path.exists()));
        assert_eq!(place("libragtag-has-no-such-library.so.1"), None);
        assert_eq!(place("/opt/rocm/lib/librocblas.so.4"), Some("/opt/rocm/lib/librocblas.so.4".into()));
    }
}
