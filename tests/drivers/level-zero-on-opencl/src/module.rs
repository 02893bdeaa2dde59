//! Modules and kernels.

use crate::calls::{entries, lock};
use crate::cl::{Argument, Cl, Kernel as ClKernel, Program, cl};
use crate::device::{Context, Device, MAX_GROUP};
use crate::faults::misuse;
use crate::handles::{describe, described, find, give, list, put, put_bytes, take, text_at};
use crate::memory::check_argument;
use crate::spirv::{Parameter, Signature, kernels};
use crate::types::code::{
    INVALID_ARGUMENT, INVALID_ENUMERATION, INVALID_GROUP_SIZE_DIMENSION, INVALID_KERNEL_ARGUMENT_INDEX,
    INVALID_KERNEL_ARGUMENT_SIZE, INVALID_KERNEL_NAME, INVALID_NATIVE_BINARY, INVALID_NULL_POINTER,
    INVALID_SIZE, MODULE_BUILD_FAILURE,
};
use crate::types::*;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// First bytes of a native binary.
const MARK: &[u8; 8] = b"ZE-ON-CL";
/// Build options that have no equivalent in OpenCL and no effect here.
const IGNORED: [&str; 5] = [
    "-ze-opt-greater-than-4GB-buffer-required",
    "-ze-opt-large-register-file",
    "-ze-opt-level",
    "-ze-intel-greater-than-4GB-buffer-required",
    "-ze-opt-has-buffer-offset-arg",
];

/// Code of a module, shared by all modules with the same source.
struct Code {
    program: Program,
    spirv: Vec<u8>,
    kernels: Vec<Signature>,
}

/// SPIR-V, options and constants of a program.
type ProgramText = (Vec<u8>, String, Vec<(u32, Vec<u8>)>);

/// Compiled programs. All devices share the OpenCL device, so each source is compiled once.
static COMPILED: Mutex<Option<HashMap<ProgramText, Arc<Code>>>> = Mutex::new(None);

/// A module, with its kernels' names as C strings.
struct Module {
    device: Arc<Device>,
    code: Arc<Code>,
    names: Vec<CString>,
}

/// Log of a build.
struct Log(CString);

/// OpenCL's kernel. A launch locks it until it has set the arguments and enqueued the kernel.
pub struct KernelCode {
    pub kernel: Mutex<ClKernel>,
    signature: Signature,
    max_group: u32,
}

/// Settings that a launch captures.
struct State {
    arguments: Vec<Option<Argument>>,
    group: Option<[u32; 3]>,
}

/// A kernel.
pub struct Kernel {
    pub code: Arc<KernelCode>,
    state: Mutex<State>,
    indirect: AtomicU32,
    module: Arc<Module>,
}

/// Converts Level Zero's build options to OpenCL's.
///
/// # Errors
/// Returns a build log if an option is unknown.
fn options(flags: &str) -> std::result::Result<String, String> {
    let option = |flag: &str| match flag {
        "-ze-opt-disable" => Ok("-cl-opt-disable ".into()),
        _ if IGNORED.iter().any(|ignored| flag.starts_with(ignored)) => Ok(String::new()),
        _ if flag.starts_with("-cl-") => Ok(format!("{flag} ")),
        _ => Err(format!("unknown build option {flag:?}")),
    };
    flags.split_ascii_whitespace().map(option).collect()
}

/// Compiles SPIR-V, or returns the program that was compiled before.
///
/// # Errors
/// Returns the build log.
fn compiled(cl: &Cl, source: ProgramText) -> std::result::Result<Arc<Code>, String> {
    let mut all = lock(&COMPILED);
    let all = all.get_or_insert_default();
    if let Some(code) = all.get(&source) {
        return Ok(Arc::clone(code));
    }
    let (spirv, flags, constants) = &source;
    let kernels = kernels(spirv).ok_or("the input is not a valid SPIR-V module")?;
    let program = Program::from_spirv(cl, spirv, &options(flags)?, constants)?;
    let code = Arc::new(Code { program, spirv: spirv.clone(), kernels });
    all.insert(source, Arc::clone(&code));
    Ok(code)
}

/// Loads a native binary. Returns `None` if the bytes are not a native binary.
fn loaded(cl: &Cl, binary: &[u8]) -> Option<Arc<Code>> {
    let (length, rest) = binary.strip_prefix(MARK)?.split_first_chunk::<8>()?;
    let (spirv, binary) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let program = Program::from_binary(cl, binary).ok()?;
    Some(Arc::new(Code { program, spirv: spirv.to_vec(), kernels: kernels(spirv)? }))
}

/// Reads the specialisation constants. Level Zero does not pass their sizes; Ragtag's have 32 bits.
///
/// # Safety
/// The pointer must be null or point to valid constants.
unsafe fn constants(from: *const Constants) -> Vec<(u32, Vec<u8>)> {
    // SAFETY: the caller guarantees the structure and its lists.
    unsafe {
        let Some(all) = from.as_ref() else { return Vec::new() };
        let value = |at: usize| (*all.values.add(at)).cast::<[u8; 4]>().read().to_vec();
        (0..all.count as usize).map(|at| (*all.ids.add(at), value(at))).collect()
    }
}

/// Builds a module.
///
/// # Errors
/// Returns the code and the build log.
///
/// # Safety
/// The description must be valid.
unsafe fn build(desc: &ModuleDesc) -> std::result::Result<Arc<Code>, (u32, String)> {
    let failed = |code: u32| (code, String::new());
    let cl = cl().map_err(failed)?;
    if desc.code.is_null() {
        return Err(failed(INVALID_NULL_POINTER));
    }
    if desc.bytes == 0 {
        return Err(failed(INVALID_SIZE));
    }
    // SAFETY: the caller guarantees the description.
    let (input, flags, constants) = unsafe {
        let input = std::slice::from_raw_parts(desc.code, desc.bytes);
        (input, text_at(desc.flags).map_err(failed)?, constants(desc.constants))
    };
    match desc.format {
        0 => compiled(cl, (input.to_vec(), flags, constants)).map_err(|log| (MODULE_BUILD_FAILURE, log)),
        1 => loaded(cl, input).ok_or((INVALID_NATIVE_BINARY, "not a native binary".into())),
        _ => Err(failed(INVALID_ENUMERATION)),
    }
}

impl Module {
    fn new(device: Arc<Device>, code: Arc<Code>) -> Self {
        let name = |kernel: &Signature| CString::new(kernel.name.as_str()).unwrap_or_default();
        let names = code.kernels.iter().map(name).collect();
        Self { device, code, names }
    }

    fn kernel(self: &Arc<Self>, name: &str) -> Result<Kernel> {
        let (cl, code) = (cl()?, &self.code);
        let signature = code.kernels.iter().find(|kernel| kernel.name == name).ok_or(INVALID_KERNEL_NAME)?;
        let kernel = ClKernel::new(cl, &code.program, name).ok_or(INVALID_KERNEL_NAME)?;
        let max_group = (kernel.max_group(cl) as u32).min(MAX_GROUP);
        let (kernel, signature) = (Mutex::new(kernel), signature.clone());
        let state = State { arguments: vec![None; signature.parameters.len()], group: signature.group };
        Ok(Kernel {
            code: Arc::new(KernelCode { kernel, signature, max_group }),
            state: Mutex::new(state),
            indirect: AtomicU32::new(0),
            module: Arc::clone(self),
        })
    }
}

impl Kernel {
    /// Returns the arguments and the group size for a launch.
    pub fn captured(&self) -> Result<(Vec<Argument>, [u32; 3])> {
        let state = lock(&self.state);
        let arguments = state.arguments.iter().cloned().collect::<Option<Vec<_>>>();
        let arguments = arguments.ok_or_else(|| misuse(INVALID_ARGUMENT, "a launch lacks an argument"))?;
        let group = state.group.ok_or_else(|| misuse(INVALID_ARGUMENT, "a launch has no group size"))?;
        Ok((arguments, group))
    }

    fn set_group(&self, group: [u32; 3]) -> Result<()> {
        let items = group.iter().try_fold(1u32, |all, items| all.checked_mul(*items)).unwrap_or(u32::MAX);
        let fits = items > 0 && items <= self.code.max_group;
        if !fits || self.code.signature.group.is_some_and(|required| required != group) {
            return Err(INVALID_GROUP_SIZE_DIMENSION);
        }
        lock(&self.state).group = Some(group);
        Ok(())
    }

    /// Sets an argument.
    ///
    /// # Safety
    /// `value` must be null or point to `bytes` bytes.
    unsafe fn set(&self, at: u32, bytes: usize, value: *const u8) -> Result<()> {
        let parameter = self.code.signature.parameters.get(at as usize);
        let parameter = parameter.ok_or(INVALID_KERNEL_ARGUMENT_INDEX)?;
        let argument = match parameter {
            Parameter::Local if bytes > 0 && value.is_null() => Argument::Local(bytes),
            Parameter::Local => return Err(INVALID_ARGUMENT),
            Parameter::Address if bytes != size_of::<usize>() => return Err(INVALID_KERNEL_ARGUMENT_SIZE),
            Parameter::Address if value.is_null() => Argument::Null,
            Parameter::Address => {
                // SAFETY: the caller guarantees the value.
                let address = unsafe { value.cast::<usize>().read_unaligned() };
                check_argument(address, self.module.device.number)?;
                Argument::Address(address)
            }
            Parameter::Value(Some(size)) if *size != bytes => return Err(INVALID_KERNEL_ARGUMENT_SIZE),
            Parameter::Value(_) if value.is_null() => return Err(INVALID_ARGUMENT),
            // SAFETY: the caller guarantees the value.
            Parameter::Value(_) => unsafe {
                Argument::Value(std::slice::from_raw_parts(value, bytes).to_vec())
            },
        };
        lock(&self.state).arguments[at as usize] = Some(argument);
        Ok(())
    }

    /// Returns a group size for a launch of this many work items. Divides each axis without remainder.
    fn suggested(&self, items: [u32; 3]) -> [u32; 3] {
        let mut left = self.code.max_group.min(256);
        items.map(|items| {
            let side = (1..=left).rev().find(|side| items.is_multiple_of(*side)).unwrap_or(1);
            left /= side;
            side
        })
    }

    fn properties(&self, head: Head) -> Result<KernelProperties> {
        let (cl, signature) = (cl()?, &self.code.signature);
        let kernel = lock(&self.code.kernel);
        let group = lock(&self.state).group.unwrap_or([64, 1, 1]).map(|items| items as usize);
        let sub_group = kernel.sub_group(cl, group) as u32;
        Ok(KernelProperties {
            head,
            arguments: signature.parameters.len() as u32,
            group: signature.group.unwrap_or_default(),
            sub_groups: 0,
            sub_group: signature.sub_group,
            max_sub_group: sub_group,
            max_sub_groups: self.code.max_group.checked_div(sub_group).unwrap_or(0),
            local_bytes: kernel.local_bytes(cl) as u32,
            private_bytes: 0,
            spill_bytes: 0,
            uuid: [0; 32],
        })
    }
}

entries! {
    fn zeModuleCreate(
        context: Handle,
        device: Handle,
        desc: *const ModuleDesc,
        to: *mut Handle,
        log: *mut Handle,
    ) {
        find::<Context>(context)?;
        let (device, desc) = (find::<Device>(device)?, described(desc)?);
        let built = build(&desc);
        let text = built.as_ref().err().map_or("", |(_, log)| log);
        if !log.is_null() {
            put(log, give(Log(CString::new(text.replace('\0', " ")).unwrap_or_default())))?;
        }
        let code = built.map_err(|(code, _)| code)?;
        put(to, give(Module::new(device, code)))
    }
    fn zeModuleDestroy(module: Handle) {
        take::<Module>(module).map(drop)
    }
    fn zeModuleGetNativeBinary(module: Handle, bytes: *mut usize, to: *mut u8) {
        let module = find::<Module>(module)?;
        let spirv = &module.code.spirv;
        let length = (spirv.len() as u64).to_le_bytes();
        let binary = module.code.program.binary(cl()?)?;
        put_bytes(bytes, to, &[&MARK[..], &length, spirv, &binary].concat())
    }
    fn zeModuleGetKernelNames(module: Handle, count: *mut u32, to: *mut *const c_char) {
        list(count, to, &find::<Module>(module)?.names, |to, name| {
            // Names live as long as the module, and a copy would not.
            let module = find::<Module>(module)?;
            let kept = module.names.iter().find(|kept| **kept == name);
            put(to, kept.map_or(std::ptr::null(), |kept| kept.as_ptr()))
        })
    }
    fn zeModuleGetProperties(module: Handle, to: *mut ModuleProperties) {
        find::<Module>(module)?;
        describe(to, ModuleProperties { head: described(to)?.head, flags: 0 })
    }
    fn zeModuleBuildLogDestroy(log: Handle) {
        take::<Log>(log).map(drop)
    }
    fn zeModuleBuildLogGetString(log: Handle, bytes: *mut usize, to: *mut u8) {
        put_bytes(bytes, to, find::<Log>(log)?.0.as_bytes_with_nul())
    }

    fn zeKernelCreate(module: Handle, desc: *const KernelDesc, to: *mut Handle) {
        let module = find::<Module>(module)?;
        let name = described(desc)?.name;
        if name.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        put(to, give(module.kernel(&text_at(name)?)?))
    }
    fn zeKernelDestroy(kernel: Handle) {
        take::<Kernel>(kernel).map(drop)
    }
    fn zeKernelSetCacheConfig(kernel: Handle, _flags: u32) {
        find::<Kernel>(kernel).map(drop)
    }
    fn zeKernelSetGroupSize(kernel: Handle, x: u32, y: u32, z: u32) {
        find::<Kernel>(kernel)?.set_group([x, y, z])
    }
    fn zeKernelSuggestGroupSize(
        kernel: Handle,
        x: u32,
        y: u32,
        z: u32,
        to_x: *mut u32,
        to_y: *mut u32,
        to_z: *mut u32,
    ) {
        let [x, y, z] = find::<Kernel>(kernel)?.suggested([x, y, z]);
        put(to_x, x)?;
        put(to_y, y)?;
        put(to_z, z)
    }
    fn zeKernelSuggestMaxCooperativeGroupCount(kernel: Handle, to: *mut u32) {
        find::<Kernel>(kernel)?;
        put(to, 1)
    }
    fn zeKernelSetArgumentValue(kernel: Handle, at: u32, bytes: usize, value: *const c_void) {
        find::<Kernel>(kernel)?.set(at, bytes, value.cast())
    }
    fn zeKernelSetIndirectAccess(kernel: Handle, flags: u32) {
        find::<Kernel>(kernel)?.indirect.store(flags, Ordering::Relaxed);
        Ok(())
    }
    fn zeKernelGetIndirectAccess(kernel: Handle, to: *mut u32) {
        put(to, find::<Kernel>(kernel)?.indirect.load(Ordering::Relaxed))
    }
    fn zeKernelGetProperties(kernel: Handle, to: *mut KernelProperties) {
        let kernel = find::<Kernel>(kernel)?;
        describe(to, kernel.properties(described(to)?.head)?)
    }
    fn zeKernelGetName(kernel: Handle, bytes: *mut usize, to: *mut u8) {
        let kernel = find::<Kernel>(kernel)?;
        put_bytes(bytes, to, format!("{}\0", kernel.code.signature.name).as_bytes())
    }
}
