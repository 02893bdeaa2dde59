//! Counts and logs the calls of each function, and defines the exported functions.

use crate::types::Result;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Environment variable. If it is set, failed calls and calls of missing functions are written to standard
/// error.
const LOG: &str = "RAGTAG_FAKE_LOG";

static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a call.
pub fn count(name: &'static str) {
    *lock(&CALLS).entry(name).or_default() += 1;
}

/// Returns the number of calls of a function so far.
pub fn counted(name: &str) -> u64 {
    lock(&CALLS).get(name).copied().unwrap_or_default()
}

/// Writes a failed call to standard error if the environment asks for it.
#[allow(clippy::print_stderr)] // on request
pub fn log(name: &str, code: u32) {
    if std::env::var_os(LOG).is_some() {
        eprintln!("level-zero-on-opencl: {name} returned {code:#x}");
    }
}

/// Converts the result of a call to its code. Only errors are logged.
pub fn ended(name: &'static str, result: Result<()>) -> u32 {
    let code = result.err().unwrap_or(0);
    if code > 1 {
        log(name, code);
    }
    code
}

/// Defines functions for the tables. Each function converts the result of its body to a code.
macro_rules! entries {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[allow(non_snake_case)] // Level Zero's names
            #[allow(clippy::too_many_arguments)] // Level Zero's parameters
            pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
                $crate::calls::count(stringify!($name));
                #[allow(unused_unsafe)] // some bodies have no unsafe call
                // SAFETY: the caller meets Level Zero's requirements for this function.
                unsafe {
                    let body = || -> Result<()> { $body };
                    $crate::calls::ended(stringify!($name), body())
                }
            }
        )*
    };
}

pub(crate) use entries;
