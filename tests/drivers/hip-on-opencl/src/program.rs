//! Compiles HIP C++ as OpenCL C, loads the programs and looks up their kernels.

use crate::engine::{OpenedDevice, lock, unknown};
use crate::work::Argument;
use hip_shim::symbols::Handle;
use hip_shim::symbols::code::{INVALID_IMAGE, INVALID_VALUE, NOT_FOUND};
use hip_shim::{Result, Shape, Signature};
use opencl3::command_queue::CommandQueue;
use opencl3::device::{Device, cl_device_id};
use opencl3::kernel::{self, CL_KERNEL_ARG_ADDRESS_GLOBAL, create_program_kernels};
use opencl3::program::Program;
use std::sync::{Arc, Mutex};

/// Prelude of OpenCL C. It replaces everything in a source up to [`END`].
const PRELUDE: &str = include_str!("../../../../kernels/src/c_family/prelude.cl");
/// Definition of `logf`, which OpenCL C lacks. The definition uses a function instead of a macro that expands
/// to `log`, because kernels redefine `log` and some drivers define it as a macro.
const LOGARITHM: &str = "static inline float logarithm(float x) { return log(x); }\n#define logf logarithm";
/// Emulation of AMD's matrix instructions.
const MATRIX_UNITS: &str = include_str!("matrix_units.cl");
/// Last line of a source's prelude.
const END: &str = "// == end of the prelude ==";
/// Compiler options for every source.
const OPTIONS: &str = "-cl-std=CL3.0 -cl-kernel-arg-info";

/// Returns the compiler options for a device. Enables f16 arithmetic where the device supports it, because
/// Intel's CPU runtime loads f16 values from private memory incorrectly.
fn options(device: &Device) -> String {
    let half =
        device.extensions().unwrap_or_default().split_ascii_whitespace().any(|one| one == "cl_khr_fp16");
    format!("{OPTIONS}{}", if half { " -DRT_FP16" } else { "" })
}

/// Returns a compiler option that defines the same architecture macro as AMD's compilers for the architecture
/// in `options`. Covers only the macros that sources test after the prelude.
fn generation(options: &[String]) -> &'static str {
    let is_rdna3 = options.iter().any(|option| option.starts_with("--offload-arch=gfx11"));
    if is_rdna3 { " -D__GFX11__=1" } else { "" }
}

/// Translates the source `text` from HIP C++ to OpenCL C.
///
/// # Errors
/// Returns an error if the source has no prelude to replace.
fn translated(text: &str) -> std::result::Result<String, String> {
    let at = text.find(END).ok_or_else(|| format!("the source has no line {END:?}"))?;
    // OpenCL's prelude may contain the end line as well.
    Ok(format!("{PRELUDE}\n{LOGARITHM}\n{MATRIX_UNITS}\n{}", &text[at + END.len()..]))
}

/// Compiles the source `text` with the HIP compiler options in `options`. The returned code object contains
/// binaries for all `devices`.
///
/// # Errors
/// Returns the compiler's log, or an error if the source has no prelude to replace.
pub(crate) fn compile(
    places: &[OpenedDevice],
    devices: &[usize],
    text: &str,
    hip_options: &[String],
) -> std::result::Result<(Vec<Signature>, Vec<u8>), String> {
    let (text, generation) = (translated(text)?, generation(hip_options));
    let (mut signatures, mut binaries) = (Vec::new(), Vec::new());
    for (number, place) in places.iter().enumerate() {
        if !devices.contains(&number) {
            binaries.push(Vec::new());
            continue;
        }
        let options = format!("{}{generation}", options(&place.device));
        let program = Program::create_and_build_from_source(&place.context, &text, &options)?;
        let said = |error: opencl3::error_codes::ClError| error.to_string();
        signatures = create_program_kernels(&program)
            .map_err(said)?
            .iter()
            .map(signature)
            .collect::<Result<_>>()
            .map_err(|code| format!("cannot query the kernels' parameters (code {code})"))?;
        let mut binary = program.get_binaries().map_err(said)?;
        binaries.push(binary.pop().ok_or("the compiler returned no binary")?);
    }
    let part = |binary: Vec<u8>| [&(binary.len() as u64).to_le_bytes()[..], &binary].concat();
    Ok((signatures, binaries.into_iter().flat_map(part).collect()))
}

fn signature(kernel: &kernel::Kernel) -> Result<Signature> {
    let address = |at| {
        let space = kernel.get_arg_address_qualifier(at).map_err(unknown)?;
        Ok(space == CL_KERNEL_ARG_ADDRESS_GLOBAL)
    };
    let parameters = kernel.num_args().map_err(unknown)?;
    let name = kernel.function_name().map_err(unknown)?;
    Ok(Signature { name, addresses: (0..parameters).map(address).collect::<Result<_>>()? })
}

/// Returns the binary of device `number` from the concatenated binaries.
fn part(mut binaries: &[u8], number: usize) -> Option<&[u8]> {
    for at in 0.. {
        let (length, rest) = binaries.split_first_chunk::<8>()?;
        let (binary, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        if at == number {
            return Some(binary);
        }
        binaries = rest;
    }
    None
}

/// Program that is loaded on a device.
pub(crate) struct Module {
    program: Program,
    signatures: Vec<Signature>,
    device: DeviceId,
}

/// OpenCL device handle that threads may share.
#[derive(Clone, Copy)]
struct DeviceId(cl_device_id);

// SAFETY: device handles are valid on every thread for the life of the process.
unsafe impl Send for DeviceId {}
// SAFETY: as for `Send`.
unsafe impl Sync for DeviceId {}

impl Module {
    pub(crate) fn new(
        place: &OpenedDevice,
        number: usize,
        signatures: Vec<Signature>,
        binaries: &[u8],
    ) -> Result<Self> {
        let device = place.device.id();
        let binary = part(binaries, number).ok_or(INVALID_IMAGE)?;
        // SAFETY: the same driver made the binary for this device.
        let program = unsafe { Program::create_from_binary(&place.context, &[device], &[binary]) };
        let mut program = program.map_err(|_| INVALID_IMAGE)?;
        program.build(&[device], "").map_err(|_| INVALID_IMAGE)?;
        Ok(Self { program, signatures, device: DeviceId(device) })
    }

    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel> {
        let signature = self.signatures.iter().find(|one| one.name == name).ok_or(NOT_FOUND)?;
        let kernel = kernel::Kernel::create(&self.program, name).map_err(|_| NOT_FOUND)?;
        Ok(Kernel {
            kernel: Arc::new(Mutex::new(kernel)),
            addresses: signature.addresses.clone().into(),
            device: self.device,
        })
    }
}

/// Kernel function with the positions of its address parameters.
#[derive(Clone)]
pub(crate) struct Kernel {
    /// OpenCL kernel object. A launch locks it until it has set all arguments and enqueued the kernel.
    kernel: Arc<Mutex<kernel::Kernel>>,
    /// Whether each parameter is an address, in order.
    addresses: Arc<[bool]>,
    device: DeviceId,
}

impl Kernel {
    pub(crate) fn max_items(&self) -> Result<i32> {
        let items = lock(&self.kernel).get_work_group_size(self.device.0).map_err(unknown)?;
        Ok(i32::try_from(items).unwrap_or(i32::MAX))
    }

    /// Reads the arguments of a launch from the values to which `pointers` points.
    ///
    /// # Safety
    /// There must be one pointer per parameter, and each must point to a value of the parameter's type.
    pub(crate) unsafe fn arguments(&self, pointers: *const Handle) -> Vec<Argument> {
        let argument = |(at, address): (usize, &bool)| {
            // SAFETY: the caller guarantees the pointers.
            unsafe {
                let pointer = *pointers.add(at);
                if *address {
                    Argument::Address(pointer.cast::<u64>().read_unaligned())
                } else {
                    Argument::Word(pointer.cast::<u32>().read_unaligned())
                }
            }
        };
        self.addresses.iter().enumerate().map(argument).collect()
    }

    pub(crate) fn launch(&self, queue: &CommandQueue, arguments: &[Argument], shape: &Shape) -> Result<()> {
        let kernel = lock(&self.kernel);
        for (at, argument) in (0..).zip(arguments) {
            // SAFETY: each argument has its parameter's type.
            unsafe {
                match argument {
                    Argument::Address(address) => {
                        kernel.set_arg_svm_pointer(at, *address as usize as *const _)
                    }
                    Argument::Word(word) => kernel.set_arg(at, word),
                }
            }
            .map_err(|_| INVALID_VALUE)?;
        }
        let local = shape.block.map(|side| side as usize);
        let global = [0, 1, 2].map(|axis| shape.grid[axis] as usize * local[axis]);
        // SAFETY: the kernel has all its arguments, and the caller of the launch guarantees that their
        // addresses are valid.
        let launched = unsafe {
            queue.enqueue_nd_range_kernel(
                kernel.get(),
                3,
                std::ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                &[],
            )
        };
        launched.map(drop).map_err(|_| INVALID_VALUE)
    }
}
