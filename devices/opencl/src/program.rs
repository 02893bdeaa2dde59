//! Programs. Each program is compiled once per source, options and device, and cached in memory and on disk.
//!
//! This module does not depend on kernel arguments.

use crate::api::{Kernel, Program};
use crate::context::Context;
use crate::probe::Found;
use ragtag_hal::cache::{Compiled, Key, key};
use ragtag_hal::{
    DeviceFunction, EntryAbi, Error, KernelLanguage, Module, ModuleSource, Result, is_whole_spir_v,
};
use rayon::prelude::*;
use std::ffi::CString;
use std::sync::Arc;

/// Code of a module in OpenCL C or SPIR-V.
#[derive(Clone, Copy, Debug)]
enum ProgramSource<'a> {
    OpenClC(&'a str),
    SpirV(&'a [u8]),
}

impl ProgramSource<'_> {
    fn language(&self) -> &'static str {
        match self {
            ProgramSource::OpenClC(_) => "OpenCL C",
            ProgramSource::SpirV(_) => "SPIR-V",
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            ProgramSource::OpenClC(text) => text.as_bytes(),
            ProgramSource::SpirV(binary) => binary,
        }
    }

    /// Returns the compiler options. They are empty for SPIR-V.
    fn options(&self, found: &Found) -> Result<CString> {
        let options = match self {
            ProgramSource::OpenClC(_) => found.options.as_str(),
            ProgramSource::SpirV(_) => "",
        };
        CString::new(options).map_err(|_| Error::invalid("compiler options contain a zero byte"))
    }

    /// Returns the cache key. Programs with equal keys have the same code, options, device and driver.
    fn key(&self, found: &Found) -> Key {
        key([
            found.fingerprint.as_bytes(),
            found.options.as_bytes(),
            self.language().as_bytes(),
            self.bytes(),
        ])
    }
}

/// A function of a module and its launch parameters.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) work_group: [usize; 3],
    program: Arc<Program>,
    name: CString,
}

impl Entry {
    /// Creates a kernel whose arguments are not set.
    pub(crate) fn kernel(&self) -> Result<Kernel> {
        Kernel::new(&self.program, &self.name)
    }
}

/// Returns the program for a source. The program is compiled on first use.
fn get(context: &Context, found: &Found, source: ProgramSource<'_>) -> Result<Arc<Program>> {
    let load = |binary: &[u8]| {
        let program = Program::from_binary(context.api(), found.device, binary)?;
        program.build(found.device, &source.options(found)?)?;
        Ok(Arc::new(program))
    };
    let compile = || compile(context, found, source);
    context.programs().get(source.key(found), found.device.id() as usize, load, compile)
}

fn compile(context: &Context, found: &Found, source: ProgramSource<'_>) -> Result<Compiled<Arc<Program>>> {
    let program = match source {
        ProgramSource::OpenClC(text) => Program::from_source(context.api(), text)?,
        ProgramSource::SpirV(binary) => {
            if !is_whole_spir_v(binary) {
                return Err(Error::Compile { log: "the SPIR-V binary is truncated or damaged".into() });
            }
            let refused = || Error::Unsupported { what: format!("SPIR-V on {}", found.adapter.label()) };
            Program::from_spir_v(context.api(), found.spir_v.ok_or_else(refused)?, binary)?
        }
    };
    program.build(found.device, &source.options(found)?)?;
    let binary = program.binary(found.device).unwrap_or_else(|error| {
        tracing::debug!(%error, "the driver provides no binary");
        None
    });
    Ok((Arc::new(program), binary))
}

/// Returns the entries of a module. Compiles distinct programs in parallel.
///
/// # Errors
/// Returns one of these errors:
/// - [`Error::Compile`] with the log, if a program does not compile;
/// - [`Error::Unsupported`], if the device does not accept the language, or if a function needs larger groups
///   than the device supports;
/// - [`Error::Invalid`], if a function does not match its ABI.
pub(crate) fn entries(context: &Context, found: &Found, module: &Module) -> Result<Vec<Entry>> {
    let functions: Vec<(ProgramSource<'_>, &DeviceFunction)> = match &module.source {
        ModuleSource::Text { language: KernelLanguage::OpenClC, entries } => {
            entries.iter().map(|entry| (ProgramSource::OpenClC(&entry.text), &entry.function)).collect()
        }
        ModuleSource::SpirV { entries } => {
            entries.iter().map(|entry| (ProgramSource::SpirV(&entry.binary), &entry.function)).collect()
        }
        ModuleSource::Host(_) | ModuleSource::Text { .. } | ModuleSource::Linked { .. } => {
            return Err(Error::Unsupported { what: format!("module {} on an OpenCL device", module.name) });
        }
    };
    let mut sources: Vec<ProgramSource<'_>> = Vec::new();
    for (source, _) in &functions {
        if !sources.iter().any(|other| other.bytes() == source.bytes()) {
            sources.push(*source);
        }
    }
    let programs: Vec<Arc<Program>> =
        sources.par_iter().map(|&source| get(context, found, source)).collect::<Result<_>>()?;
    let entry = |((source, function), &abi): (&(ProgramSource<'_>, &DeviceFunction), &&'static EntryAbi)| {
        let at = sources.iter().position(|other| other.bytes() == source.bytes());
        let program = at.and_then(|at| programs.get(at)).map(Arc::clone);
        let program = program.ok_or_else(|| Error::invalid("a function without a program"))?;
        checked(program, function, abi, found)
    };
    functions.iter().zip(&module.entries).map(entry).collect()
}

/// Looks up a function and checks it against its ABI.
fn checked(
    program: Arc<Program>,
    function: &DeviceFunction,
    abi: &'static EntryAbi,
    found: &Found,
) -> Result<Entry> {
    let DeviceFunction { name, work_group, .. } = function;
    let c_name =
        CString::new(name.as_str()).map_err(|_| Error::invalid(format!("invalid function name {name:?}")))?;
    let entry = Entry { work_group: work_group.map(|side| side as usize), program, name: c_name };
    let kernel =
        entry.kernel().map_err(|error| Error::Compile { log: format!("function {name}: {error}") })?;
    let (has, wanted) = (kernel.parameters()?, abi.bindings.len() + abi.constants);
    if has != wanted {
        return Err(Error::invalid(format!("function {name} has {has} parameters, its ABI {wanted}")));
    }
    // The compiler accepted the work group size that the source requires, so the function can run with it
    // even if the driver reports a smaller limit.
    if kernel.required_group(found.device)? == entry.work_group {
        return Ok(entry);
    }
    let (limit, items) = (kernel.group_limit(found.device)?, entry.work_group.iter().product::<usize>());
    if items > limit {
        let what = format!("{items} work items per group in {name} (this device's limit is {limit})");
        return Err(Error::Unsupported { what });
    }
    Ok(entry)
}
