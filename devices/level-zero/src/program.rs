//! Programs. Each program is compiled once per binary, options and device, and cached in memory and on disk.
//! Each kernel of a program is created once.
//!
//! This module does not depend on commands.

use crate::api::types::value;
use crate::api::{Argument, Kernel, Module};
use crate::context::Context;
use crate::probe::Found;
use ragtag_hal::cache::{Compiled, Key, key};
use ragtag_hal::{BinaryEntry, DeviceFunction, EntryAbi, Error, ModuleSource, Result};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A compiled module and its kernels.
pub(crate) struct Program {
    /// Kernels by name and size of the work groups.
    kernels: Mutex<HashMap<(String, [u32; 3]), Entry>>,
    module: Arc<Module>,
}

/// A kernel. The mutex is locked while a thread binds and launches it.
pub(crate) type Entry = Arc<Mutex<Kernel>>;

/// A kernel with its arguments, and the number of work groups.
pub(crate) struct Launch {
    pub(crate) kernel: Entry,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) groups: [u32; 3],
}

/// Returns the cache key. Programs with equal keys have the same code, options, device and driver.
fn cache_key(found: &Found, binary: &[u8]) -> Key {
    key([found.fingerprint.as_bytes(), found.build_flags.to_bytes(), binary])
}

/// Returns the program for a binary. The program is compiled on first use.
fn get(context: &Context, found: &Found, binary: &[u8]) -> Result<Arc<Program>> {
    let module = |format: u32, code: &[u8]| -> Result<Arc<Program>> {
        let module = Module::new(context.api(), found.device, format, code, found.build_flags)?;
        Ok(Arc::new(Program { kernels: Mutex::default(), module: Arc::new(module) }))
    };
    let load = |native: &[u8]| module(value::NATIVE, native);
    let compile = || -> Result<Compiled<Arc<Program>>> {
        let program = module(value::SPIR_V, binary)?;
        let native = program.module.native();
        Ok((program, native))
    };
    context.programs().get(cache_key(found, binary), found.device.handle.number(), load, compile)
}

/// Returns the entries of a module. Compiles distinct programs in parallel.
///
/// # Errors
/// Returns one of these errors:
/// - [`Error::Compile`] with the log, if a program does not compile;
/// - [`Error::Unsupported`], if the module is not in SPIR-V, or if a function needs larger groups than the
///   device supports;
/// - [`Error::Invalid`], if a function does not match its ABI.
pub(crate) fn entries(context: &Context, found: &Found, module: &ragtag_hal::Module) -> Result<Vec<Entry>> {
    let ModuleSource::SpirV { entries } = &module.source else {
        return Err(Error::Unsupported { what: format!("module {} on a Level Zero device", module.name) });
    };
    let mut binaries: Vec<&Arc<[u8]>> = Vec::new();
    for BinaryEntry { binary, .. } in entries {
        if !binaries.contains(&binary) {
            binaries.push(binary);
        }
    }
    if binaries.iter().any(|binary| !ragtag_hal::is_whole_spir_v(binary)) {
        return Err(Error::Compile { log: "the SPIR-V binary is truncated or damaged".into() });
    }
    let programs: Vec<Arc<Program>> =
        binaries.par_iter().map(|binary| get(context, found, binary)).collect::<Result<_>>()?;
    let entry = |(entry, &abi): (&BinaryEntry, &&'static EntryAbi)| {
        let at = binaries.iter().position(|other| **other == entry.binary);
        let program = at.and_then(|at| programs.get(at));
        let program = program.ok_or_else(|| Error::invalid("a function without a program"))?;
        kernel(program, &entry.function, abi, found)
    };
    entries.iter().zip(&module.entries).map(entry).collect()
}

/// Returns a kernel of a program, and checks it against its ABI. The kernel is created on first use.
fn kernel(
    program: &Program,
    function: &DeviceFunction,
    abi: &'static EntryAbi,
    found: &Found,
) -> Result<Entry> {
    let DeviceFunction { name, work_group, .. } = function;
    let mut kernels = program.kernels.lock().unwrap_or_else(PoisonError::into_inner);
    let name_and_group = (name.clone(), *work_group);
    let entry = match kernels.get(&name_and_group) {
        Some(known) => Arc::clone(known),
        None => {
            let created = Arc::new(Mutex::new(create(program, function, found)?));
            kernels.insert(name_and_group, Arc::clone(&created));
            created
        }
    };
    let properties = entry.lock().unwrap_or_else(PoisonError::into_inner).properties()?;
    let (has, wanted) = (properties.arguments as usize, abi.bindings.len() + abi.constants);
    if has != wanted {
        return Err(Error::invalid(format!("function {name} has {has} parameters, its ABI {wanted}")));
    }
    Ok(entry)
}

/// Creates a kernel and sets the size of its work groups.
fn create(program: &Program, function: &DeviceFunction, found: &Found) -> Result<Kernel> {
    let DeviceFunction { name, work_group, .. } = function;
    let missing = |error| match error {
        lost @ Error::Lost { .. } => lost,
        error => Error::Compile { log: format!("function {name}: {error}") },
    };
    let mut kernel = Kernel::new(&program.module, name).map_err(missing)?;
    let items = work_group.iter().fold(1u64, |items, &side| items.saturating_mul(u64::from(side)));
    let limit = found.adapter.caps.max_work_group_items;
    if items > u64::from(limit) {
        let what = format!("{items} work items per group in {name} (this device's limit is {limit})");
        return Err(Error::Unsupported { what });
    }
    kernel.set_group(*work_group)?;
    Ok(kernel)
}
