//! Opens a driver's library, to learn why a loader cannot.

/// Opens a library and closes it again. A name without a slash is searched for on the dynamic loader's path.
/// The code of the library runs and may crash, so only child processes call this function.
///
/// # Errors
/// Returns the error of the dynamic loader.
pub(crate) fn open(name: &str) -> Result<(), String> {
    // SAFETY: the library's initialisers run in a process that does nothing else.
    let library = unsafe { libloading::Library::new(name) };
    let message = |error: libloading::Error| match std::error::Error::source(&error) {
        // The loader's message is in the source of the error.
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    };
    // The library stays open until the process ends, because some drivers crash when they are unloaded.
    let keep = |library| {
        Box::leak(Box::new(library));
    };
    library.map(keep).map_err(message)
}
