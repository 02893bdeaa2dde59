//! HIP's libraries. They are looked up at run time, loaded once and never unloaded.

use super::symbols::Handle;
use ragtag_stream::{Library, functions, places};
use std::ffi::c_char;
use std::fmt;

/// Names of the runtime library: for versions 7, 6 and 5, then the name without a version.
const RUNTIME: &[&str] = if cfg!(windows) {
    &["amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"]
} else {
    &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"]
};
/// Installation folder of AMD's packages.
const ROCM: &str = "/opt/rocm";

macro_rules! tables {
    (hip { $(fn $hip:ident($($_h:ident: $hip_type:ty),* $(,)?);)* }
     hip_optional { $(fn $optional:ident($($_o:ident: $optional_type:ty),* $(,)?);)* }
     hiprtc { $(fn $rtc:ident($($_r:ident: $rtc_type:ty),* $(,)?);)* }
     rocblas { $(fn $blas:ident($($_b:ident: $blas_type:ty),* $(,)?);)* }) => {
        functions! {
            /// Functions of the HIP runtime.
            Functions { $($hip($($hip_type),*) -> i32;)* } optional { $($optional($($optional_type),*) -> i32;)* }
        }
        functions! {
            /// Functions of hiprtc.
            CompilerFunctions { $($rtc($($rtc_type),*) -> i32;)* }
        }
        functions! {
            /// Functions of rocBLAS.
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
    /// Unpacks a version number that `hipRuntimeGetVersion` returned.
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

/// Tries the libraries in the list in order. Returns the first that can be loaded, and its name.
///
/// # Errors
/// Returns the names of the libraries that were tried. If a library exists but cannot be loaded, the error
/// includes the loader's message.
fn load(names: &[&str]) -> Result<(Library, String), NotLoaded> {
    let mut not = NotLoaded { tried: Vec::new(), broken: None };
    for place in places(names, &["ROCM_PATH"], ROCM, "lib") {
        let name = place.to_string_lossy().into_owned();
        // SAFETY: the initialisers of these libraries run in every program that uses HIP.
        match unsafe { Library::load(&place) } {
            Ok(library) => return Ok((library, name)),
            Err(said) => {
                // If a library exists but lacks a dependency, the message about it is more useful than a
                // message about a missing library.
                if is_broken(&said, &name) {
                    not.broken.get_or_insert(said);
                }
                not.tried.push(name);
            }
        }
    }
    Err(not)
}

/// Reason why no library was loaded.
#[derive(Debug)]
pub(crate) struct NotLoaded {
    /// Library names that were tried.
    pub(crate) tried: Vec<String>,
    /// Loader's message about a library that exists but cannot be loaded.
    pub(crate) broken: Option<String>,
}

/// Returns true if the loader's message `said` is about a library that exists but cannot be loaded. On Linux,
/// the message about a missing library starts with `name`. On other systems, the two cases cannot be
/// distinguished, and the result is false.
fn is_broken(said: &str, name: &str) -> bool {
    cfg!(target_os = "linux") && !said.starts_with(&format!("{name}: cannot open shared object file"))
}

/// The loaded HIP runtime.
pub(crate) struct Runtime {
    pub(crate) functions: Functions,
    /// Name under which the library was loaded.
    pub(crate) name: String,
}

/// Loads the HIP runtime.
///
/// # Errors
/// Returns the library names that were tried and a description of the cause.
pub(crate) fn runtime() -> Result<Runtime, (Vec<String>, String)> {
    let (library, name) = load(RUNTIME).map_err(|not| {
        let cause = match &not.broken {
            Some(said) => format!("cannot load HIP's library: {said}"),
            None => "HIP's library is not installed".into(),
        };
        (not.tried, cause)
    })?;
    let functions = Functions::of(library).map_err(|missing| {
        (vec![name.clone()], format!("{name} has no {missing}: HIP 5 or newer is needed"))
    })?;
    Ok(Runtime { functions, name })
}

/// Returns the rocBLAS library names to try with a HIP runtime of `version`. rocBLAS links to the runtime of
/// its own version, so a different version of rocBLAS would load a second runtime.
fn blas_names(version: Version) -> &'static [&'static str] {
    match version.major {
        _ if cfg!(windows) => &["rocblas.dll"],
        7 => &["librocblas.so.5"],
        6 => &["librocblas.so.4"],
        5 => &["librocblas.so.3", "librocblas.so.0"],
        _ => &[],
    }
}

/// Loads rocBLAS and returns its functions and its name. Returns `None` if it is not installed or lacks a
/// function.
pub(crate) fn blas(version: Version) -> Option<(BlasFunctions, String)> {
    let (library, name) = load(blas_names(version)).ok()?;
    BlasFunctions::of(library)
        .inspect_err(|missing| tracing::debug!(name, missing, "ignoring a rocBLAS that lacks a function"))
        .ok()
        .map(|functions| (functions, name))
}

/// The loaded hiprtc.
pub(crate) struct CompilerLibrary {
    pub(crate) functions: CompilerFunctions,
    /// Name under which the library was loaded.
    pub(crate) name: String,
}

/// Returns the names of libraries that may contain the compiler for a version of the runtime. The matching
/// hiprtc comes first. The runtime itself comes second, because it contained the compiler up to HIP 6. Other
/// versions of hiprtc come last.
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

/// Loads the first library in `names` that contains a compiler.
///
/// # Errors
/// Returns the names that were tried.
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
    fn a_broken_library_is_distinguished_from_a_missing_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libbroken.so");
        std::fs::write(&path, "not a library").unwrap();
        let not = |name: &str| load(&[name]).err().unwrap();
        assert!(not(path.to_str().unwrap()).broken.is_some_and(|said| said.contains("libbroken.so")));
        assert!(not(folder.path().join("libmissing.so").to_str().unwrap()).broken.is_none());
        assert!(not("libragtag-has-no-such-library.so").broken.is_none());
    }
}
