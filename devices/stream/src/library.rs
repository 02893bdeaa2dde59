//! Vendor libraries. They are looked up at run time, loaded once and never unloaded.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// A loaded library. It is never unloaded, because its threads and exit handlers may outlive its last use.
#[derive(Clone, Copy, Debug)]
pub struct Library(&'static libloading::Library);

impl Library {
    /// Loads the library at a path.
    ///
    /// # Errors
    /// Returns the loader's message.
    ///
    /// # Safety
    /// The library's initialisers must be safe to run in this process.
    pub unsafe fn load(place: &OsStr) -> Result<Self, String> {
        // SAFETY: guaranteed by the caller.
        match unsafe { libloading::Library::new(place) } {
            Ok(library) => Ok(Self(Box::leak(Box::new(library)))),
            // The loader's message is in the source of the error.
            Err(error) => {
                Err(std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string))
            }
        }
    }

    /// Returns a function of the library, or `None` if the library does not export it.
    ///
    /// # Safety
    /// The library's header declares a function of this name with type `T`.
    pub unsafe fn symbol<T: Copy>(self, name: &str) -> Option<T> {
        // SAFETY: guaranteed by the caller. The library is never unloaded.
        unsafe { self.0.get::<T>(name.as_bytes()) }.ok().map(|found| *found)
    }
}

/// Returns the paths to try for a library. The list starts with the bare `names`, which the loader looks up
/// in its search path. Then follow the paths `DIRECTORY/folder/NAME`, where DIRECTORY is first the value of
/// each environment variable in `variables` and finally the default directory `home`. Windows has no default
/// directory, and uses `bin` instead of `folder`.
pub fn places(names: &[&str], variables: &[&str], home: &str, folder: &str) -> Vec<OsString> {
    let named = variables.iter().filter_map(|name| std::env::var_os(name).filter(|path| !path.is_empty()));
    let homes = named.map(PathBuf::from).chain((!cfg!(windows)).then(|| home.into()));
    let folder = if cfg!(windows) { "bin" } else { folder };
    let elsewhere = homes.flat_map(|home| names.iter().map(move |name| home.join(folder).join(name)));
    names.iter().map(OsString::from).chain(elsewhere.map(PathBuf::into_os_string)).collect()
}

/// Defines a structure of library functions that are looked up by name. If a function is missing, the
/// structure's constructor `of` returns the name of that function as an error. Functions in the second list
/// are optional. The author of the lists guarantees that the signatures match the library's header.
#[macro_export]
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident {
        $($name:ident($($argument:ty),* $(,)?) -> $returned:ty;)*
    } $(optional { $($optional:ident($($taken:ty),*) -> $given:ty;)* })?) => {
        $(#[$doc])*
        #[allow(non_snake_case)] // named as in the library
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $returned,)*
            $($(pub(crate) $optional: Option<unsafe extern "C" fn($($taken),*) -> $given>,)*)?
        }

        impl $table {
            /// Names of all required functions, for stand-in libraries.
            #[cfg(test)]
            #[allow(dead_code)] // not every library has a stand-in
            pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

            pub(crate) fn of(library: $crate::Library) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the signatures in the list match the library's header.
                    $($name: unsafe { library.symbol(stringify!($name)) }.ok_or(stringify!($name))?,)*
                    // SAFETY: as above.
                    $($($optional: unsafe { library.symbol(stringify!($optional)) },)*)?
                })
            }
        }
    };
}
