//! HIP's libraries: found when the program runs, loaded once, never unloaded.
//!
//! This module must not know what the functions are called for.

use super::symbols::Handle;
use ragtag_stream::{Library, functions, places};
use std::ffi::c_char;
use std::fmt;

/// The library of the runtime: version 7, 6 or 5, else whichever there is.
const RUNTIME: &[&str] = if cfg!(windows) {
    &["amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"]
} else {
    &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"]
};
/// Where AMD's packages put everything.
const ROCM: &str = "/opt/rocm";

macro_rules! tables {
    (hip { $(fn $hip:ident($($_h:ident: $hip_type:ty),* $(,)?);)* }
     hip_optional { $(fn $optional:ident($($_o:ident: $optional_type:ty),* $(,)?);)* }
     hiprtc { $(fn $rtc:ident($($_r:ident: $rtc_type:ty),* $(,)?);)* }
     rocblas { $(fn $blas:ident($($_b:ident: $blas_type:ty),* $(,)?);)* }) => {
        functions! {
            /// The functions of the runtime.
            Functions { $($hip($($hip_type),*) -> i32;)* } optional { $($optional($($optional_type),*) -> i32;)* }
        }
        functions! {
            /// The functions of the compiler.
            CompilerFunctions { $($rtc($($rtc_type),*) -> i32;)* }
        }
        functions! {
            /// The functions of the library of matrix products.
            BlasFunctions { $($blas($($blas_type),*) -> i32;)* }
        }
    };
}
crate::hip_functions!(tables);

/// A version of HIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) patch: u32,
}

impl Version {
    /// From the number that HIP packs it in.
    pub(super) fn of(number: i32) -> Self {
        let number = number.unsigned_abs();
        Self { major: number / 10_000_000, minor: number / 100_000 % 100, patch: number % 100_000 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Loads the first of some libraries that is there, with its name.
///
/// # Errors
/// What was tried, and what the loader says about those that are there and cannot be loaded.
fn load(names: &[&str]) -> Result<(Library, String), NotLoaded> {
    let mut not = NotLoaded { tried: Vec::new(), broken: None };
    for place in places(names, &["ROCM_PATH"], ROCM, "lib") {
        let name = place.to_string_lossy().into_owned();
        // SAFETY: what these libraries do when they are loaded is what every program that uses HIP does.
        match unsafe { Library::load(&place) } {
            Ok(library) => return Ok((library, name)),
            Err(said) => {
                // A library that is there but lacks another one is worth more words than one that is not there.
                if is_broken(&said, &name) {
                    not.broken.get_or_insert(said);
                }
                not.tried.push(name);
            }
        }
    }
    Err(not)
}

/// Why no library was loaded.
#[derive(Debug)]
pub(crate) struct NotLoaded {
    /// The names that were tried.
    pub(crate) tried: Vec<String>,
    /// What the loader says about one that is there.
    pub(crate) broken: Option<String>,
}

/// Whether the loader complains of something else than that this very file is not there. On Linux it says which file it
/// misses first.
fn is_broken(said: &str, name: &str) -> bool {
    cfg!(target_os = "linux") && !said.starts_with(&format!("{name}: cannot open shared object file"))
}

/// The runtime's library.
pub(crate) struct Runtime {
    pub(crate) functions: Functions,
    /// Whether it takes memory of other APIs.
    pub(crate) imports_memory: bool,
    /// The name that it was found by.
    pub(crate) name: String,
}

/// Loads the runtime.
///
/// # Errors
/// What was tried, and what is wrong, in words.
pub(crate) fn runtime() -> Result<Runtime, (Vec<String>, String)> {
    let (library, name) = load(RUNTIME).map_err(|not| {
        let cause = match &not.broken {
            Some(said) => format!("HIP's library does not load: {said}"),
            None => "HIP's library is not installed".into(),
        };
        (not.tried, cause)
    })?;
    let functions = Functions::of(library).map_err(|missing| {
        (vec![name.clone()], format!("{name} has no {missing}: HIP 5 or newer is needed"))
    })?;
    // SAFETY: nobody calls it; only whether it is there is asked.
    let imports_memory = unsafe { library.symbol::<Handle>("hipImportExternalMemory") }.is_some();
    Ok(Runtime { functions, imports_memory, name })
}

/// Names of rocBLAS's library for a version of the runtime, which it is linked to: another would bring in another runtime.
fn blas_names(version: Version) -> &'static [&'static str] {
    match version.major {
        _ if cfg!(windows) => &["rocblas.dll"],
        7 => &["librocblas.so.5"],
        6 => &["librocblas.so.4"],
        5 => &["librocblas.so.3", "librocblas.so.0"],
        _ => &[],
    }
}

/// Loads rocBLAS, if it is there with all that is needed of it, and says by which name.
pub(crate) fn blas(version: Version) -> Option<(BlasFunctions, String)> {
    let (library, name) = load(blas_names(version)).ok()?;
    BlasFunctions::of(library)
        .inspect_err(|missing| tracing::debug!(name, missing, "this rocBLAS is not used"))
        .ok()
        .map(|functions| (functions, name))
}

/// The compiler's library.
pub(crate) struct CompilerLibrary {
    pub(crate) functions: CompilerFunctions,
    /// The name that it was found by.
    pub(crate) name: String,
}

/// Names of the compiler's library for a version of the runtime: its own first, then the runtime itself, which had the
/// compiler in it up to HIP 6, then others.
pub(crate) fn compiler_names(runtime: &str, version: Version) -> Vec<String> {
    let Version { major, minor, .. } = version;
    if cfg!(windows) {
        return vec![format!("hiprtc{major:02}{minor:02}.dll"), runtime.into()];
    }
    let others = [7, 6, 5].into_iter().filter(|other| *other != major);
    [format!("libhiprtc.so.{major}"), runtime.into()]
        .into_iter()
        .chain(others.map(|other| format!("libhiprtc.so.{other}")))
        .chain(["libhiprtc.so".into()])
        .collect()
}

/// Loads the first of these libraries that has a compiler in it.
///
/// # Errors
/// What was tried.
pub(crate) fn compiler(names: &[String]) -> Result<CompilerLibrary, Vec<String>> {
    let mut tried = Vec::new();
    for name in names {
        match load(&[name]) {
            Err(not) => tried.extend(not.tried),
            Ok((library, name)) => match CompilerFunctions::of(library) {
                Ok(functions) => return Ok(CompilerLibrary { functions, name }),
                Err(missing) => tried.push(format!("{name} (no {missing})")),
            },
        }
    }
    Err(tried)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_unpacked() {
        let version = Version::of(50_221_153);
        assert_eq!(version, Version { major: 5, minor: 2, patch: 21_153 });
        assert_eq!(version.to_string(), "5.2.21153");
    }

    #[test]
    fn the_compiler_of_the_same_version_comes_first() {
        let version = Version { major: 6, minor: 2, patch: 0 };
        let names = compiler_names("libamdhip64.so.6", version);
        if cfg!(windows) {
            assert_eq!(names, ["hiprtc0602.dll", "libamdhip64.so.6"]);
        } else {
            let wanted =
                ["libhiprtc.so.6", "libamdhip64.so.6", "libhiprtc.so.7", "libhiprtc.so.5", "libhiprtc.so"];
            assert_eq!(names, wanted);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_that_is_there_and_does_not_load_is_told_from_one_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libbroken.so");
        std::fs::write(&path, "not a library").unwrap();
        let not = |name: &str| load(&[name]).err().unwrap();
        assert!(not(path.to_str().unwrap()).broken.is_some_and(|said| said.contains("libbroken.so")));
        assert!(not(folder.path().join("libmissing.so").to_str().unwrap()).broken.is_none());
        assert!(not("libragtag-has-no-such-library.so").broken.is_none());
    }
}
