//! Libraries of an API's vendor: found when the program runs, loaded once, never unloaded.
//!
//! This module must not know any library.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// A loaded library. Its threads and handlers outlive any use of it, so it is never unloaded.
#[derive(Clone, Copy, Debug)]
pub struct Library(&'static libloading::Library);

impl Library {
    /// Loads the library at a place.
    ///
    /// # Errors
    /// The loader's own words.
    ///
    /// # Safety
    /// The library's initialisers do nothing that this process cannot take.
    pub unsafe fn load(place: &OsStr) -> Result<Self, String> {
        // SAFETY: the caller's promise.
        match unsafe { libloading::Library::new(place) } {
            Ok(library) => Ok(Self(Box::leak(Box::new(library)))),
            // They stand in the error's cause.
            Err(error) => {
                Err(std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string))
            }
        }
    }

    /// A function, if the library has it.
    ///
    /// # Safety
    /// The library's header declares a function of this name like `T`.
    pub unsafe fn symbol<T: Copy>(self, name: &str) -> Option<T> {
        // SAFETY: the caller's promise; the library is never unloaded.
        unsafe { self.0.get::<T>(name.as_bytes()) }.ok().map(|found| *found)
    }
}

/// Places to try for a library of these names: as the loader finds them, then in `folder` of the homes that environment
/// variables name and, except on Windows, of the usual home.
pub fn places(names: &[&str], variables: &[&str], home: &str, folder: &str) -> Vec<OsString> {
    let told = variables.iter().filter_map(|name| std::env::var_os(name).filter(|path| !path.is_empty()));
    let homes = told.map(PathBuf::from).chain((!cfg!(windows)).then(|| home.into()));
    let folder = if cfg!(windows) { "bin" } else { folder };
    let elsewhere = homes.flat_map(|home| names.iter().map(move |name| home.join(folder).join(name)));
    names.iter().map(OsString::from).chain(elsewhere.map(PathBuf::into_os_string)).collect()
}

/// Makes a structure of functions that a library is asked for by their names, with `of`, which names a function that the library
/// lacks; those of the second list may be missing. Whoever writes such a list vouches for it: the library's header declares each
/// function as the list does.
#[macro_export]
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident {
        $($name:ident($($argument:ty),* $(,)?) -> $returned:ty;)*
    } $(optional { $($optional:ident($($taken:ty),*) -> $given:ty;)* })?) => {
        $(#[$doc])*
        #[allow(non_snake_case)] // named as the library names them
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> $returned,)*
            $($(pub(crate) $optional: Option<unsafe extern "C" fn($($taken),*) -> $given>,)*)?
        }

        impl $table {
            /// All names that the library must have, for stand-ins.
            #[cfg(test)]
            #[allow(dead_code)] // not every library has a stand-in
            pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

            pub(crate) fn of(library: $crate::Library) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: the list has the signatures of the library's header.
                    $($name: unsafe { library.symbol(stringify!($name)) }.ok_or(stringify!($name))?,)*
                    // SAFETY: as above.
                    $($($optional: unsafe { library.symbol(stringify!($optional)) },)*)?
                })
            }
        }
    };
}
