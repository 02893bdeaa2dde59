//! Checks the requirements of each API: libraries, kernel drivers, device nodes and environment variables.

use super::machine::{Access, Distribution, Fault, Gpu, Icd, Library, Machine, Node, Vendor};
use super::packages;
use super::{Finding, State};
use crate::TriedKernel;
use ragtag_devices::{BackendReport, Report, Status};
use ragtag_hal::{Adapter, KernelLanguage};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Major version of the oldest NVIDIA driver that Ragtag supports. It is the driver of CUDA 12.2.
const NVIDIA_DRIVER: u32 = 535;

const CUDA_VARIABLES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"];
const HIP_VARIABLES: [&str; 5] = [
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HSA_OVERRIDE_GFX_VERSION",
];
const LEVEL_ZERO_VARIABLES: [&str; 7] = [
    "ZE_AFFINITY_MASK",
    "ZE_FLAT_DEVICE_HIERARCHY",
    "ZE_ENABLE_ALT_DRIVERS",
    "ZE_ENABLE_VALIDATION_LAYER",
    "ZE_ENABLE_PARAMETER_VALIDATION",
    "ZES_ENABLE_SYSMAN",
    "NEOReadDebugKeys",
];
const OPENCL_VARIABLES: [&str; 6] = [
    "OCL_ICD_VENDORS",
    "OPENCL_VENDOR_PATH",
    "OCL_ICD_FILENAMES",
    "POCL_DEVICES",
    "RUSTICL_ENABLE",
    "CUDA_VISIBLE_DEVICES",
];

const VULKAN_VARIABLES: [&str; 7] = [
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_ADD_DRIVER_FILES",
    "VK_LOADER_DRIVERS_DISABLE",
    "VK_INSTANCE_LAYERS",
    "RAGTAG_VULKAN_VALIDATION",
    "RAGTAG_VULKAN_MATRICES",
];

/// Environment variables that affect wgpu.
const WGPU_VARIABLES: [&str; 3] = ["WGPU_BACKEND", "WGPU_DEBUG", "WGPU_VALIDATION"];

/// Runs all checks of one API and returns their findings.
pub(super) fn findings(backend: &BackendReport, report: &Report, machine: &Machine) -> Vec<Finding> {
    if backend.status == Status::NotCompiled {
        let found = Finding::new("build", State::Missing, "not in this build");
        return vec![found.advise(format!("build with --features {}", backend.name))];
    }
    let mut all = vec![Finding::new("build", State::Ok, "in this build")];
    if cfg!(target_os = "linux") {
        let examined = match backend.name.as_str() {
            "cuda" => cuda(backend, machine),
            "hip" => hip(backend, machine),
            "level-zero" => level_zero(machine),
            "opencl" => opencl(machine),
            "vulkan" => vulkan(machine),
            "wgpu" => [vulkan(machine), variables(machine, &WGPU_VARIABLES)].concat(),
            _ => Vec::new(),
        };
        all.extend(examined);
    }
    all.extend(devices(backend, report));
    all
}

/// Returns a note for each variable in `names` that is set. These variables change how drivers behave, and
/// users easily forget them.
pub(super) fn variables(machine: &Machine, names: &[&str]) -> Vec<Finding> {
    let set = names.iter().filter_map(|name| Some((name, machine.variable(name)?)));
    set.map(|(name, value)| Finding::new("variable", State::Note, format!("{name}={value}"))).collect()
}

/// Returns findings about variables like [`variables`]. If a value hides all GPUs, such as an empty value or
/// −1, the finding is a failure instead of a note.
fn visibility(machine: &Machine, names: &[&str]) -> Vec<Finding> {
    let hides_all = |found: &str| {
        let (name, value) = found.split_once('=').unwrap_or_default();
        name.ends_with("_VISIBLE_DEVICES") && matches!(value.trim(), "" | "-1" | "none" | "void")
    };
    let finding = |finding: Finding| match hides_all(&finding.found) {
        true => Finding { state: State::Missing, ..finding }.advise("this hides every GPU: unset it"),
        false => finding,
    };
    variables(machine, names).into_iter().map(finding).collect()
}

/// Returns a finding for each device that the probe of a backend found, or the reason why it found none.
fn devices(backend: &BackendReport, report: &Report) -> Vec<Finding> {
    match &backend.status {
        Status::NotCompiled | Status::NotProbed => Vec::new(),
        Status::Unavailable(why) => vec![Finding::new("devices", State::Missing, why.to_string())],
        Status::Found { adapters } if adapters.is_empty() => {
            vec![Finding::new("devices", State::Missing, "the driver reports no devices")]
        }
        Status::Found { adapters } => {
            let findings = |adapter| {
                [vec![device(adapter, report)], tests(adapter, &TriedKernel::all_on(adapter))].concat()
            };
            adapters.iter().flat_map(findings).collect()
        }
    }
}

fn device(adapter: &Adapter, report: &Report) -> Finding {
    let label = report.device(&adapter.label()).map_or(adapter.label(), ToString::to_string);
    let found = format!("{label}: {}, {}{}", adapter.name, adapter.driver, beyond(adapter));
    Finding::new("devices", State::Ok, found)
}

/// Returns a finding for each kernel that has failed its self-test at the first use of a device, or the number of
/// kernels that have passed.
pub(super) fn tests(adapter: &Adapter, kernels: &BTreeMap<String, TriedKernel>) -> Vec<Finding> {
    let label = adapter.label();
    let failure = |(kernel, tried): (&String, &TriedKernel)| {
        let why = tried.why.as_ref()?;
        let found = format!("{label} has failed the self-test of {kernel}: {why}");
        let advice = format!("update the driver; ragtag selftest --device {label} runs all tests");
        Some(Finding::new("self-test", State::Missing, found).advise(advice))
    };
    let failures: Vec<_> = kernels.iter().filter_map(failure).collect();
    if !failures.is_empty() || kernels.is_empty() {
        return failures;
    }
    vec![Finding::new("self-test", State::Ok, format!("{label} has passed for {} kernels", kernels.len()))]
}

/// Formats the GEMM library of a device, the peers that the device can access, and its condition.
fn beyond(adapter: &Adapter) -> String {
    let caps = &adapter.caps;
    let condition = adapter.condition.iter().map(ToString::to_string);
    let library = caps.gemm.iter().map(|library| format!("matmuls by {} {}", library.name, library.version));
    let peers = caps.sharing.peers.iter().map(|index| format!("peer access to {}:{index}", adapter.backend));
    library.chain(peers).chain(condition).map(|what| format!(", {what}")).collect()
}

fn cuda(backend: &BackendReport, machine: &Machine) -> Vec<Finding> {
    let on = machine.distribution();
    let mut all = gpus(machine, Vendor::Nvidia, &["nvidia"], &packages::nvidia_driver(on));
    let wanted = is_wanted(machine, Vendor::Nvidia);
    let module = machine.module("nvidia");
    if let Some(module) = &module {
        all.push(nvidia_module(module, on));
    }
    let library = machine.library(&["libcuda.so.1", "libcuda.so"], &[PathBuf::from("/usr/lib/wsl/lib")]);
    let advice = match &module {
        _ if machine.in_container() => {
            "start the container with --gpus all and NVIDIA's container toolkit".into()
        }
        Some(module) => packages::cuda_library(on, module),
        None => packages::nvidia_driver(on),
    };
    all.push(library_finding("library", "libcuda.so.1", library.as_ref(), wanted, &advice));
    if let (Some(module), Some(library)) = (&module, &library) {
        all.extend(mismatch(module, library));
    }
    if wanted && !machine.in_windows() {
        let modprobe = "load the module: nvidia-modprobe -u -c 0 (package nvidia-modprobe)";
        for name in ["nvidiactl", "nvidia-uvm", "nvidia0"] {
            all.extend(nodes(machine, "/dev", name, modprobe));
        }
    }
    all.push(nvrtc(backend, machine));
    all.push(products(
        machine,
        "cuBLASLt",
        &["libcublasLt.so.13", "libcublasLt.so.12"],
        &toolkit(machine),
        &packages::cublas(on),
    ));
    all.extend(visibility(machine, &CUDA_VARIABLES));
    all
}

fn nvidia_module(module: &str, on: Distribution) -> Finding {
    let major = module.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major >= NVIDIA_DRIVER) {
        return Finding::new("driver", State::Ok, format!("{module} ({NVIDIA_DRIVER} or newer is required)"));
    }
    Finding::new(
        "driver",
        State::Missing,
        format!("{module} is too old: {NVIDIA_DRIVER} (CUDA 12.2) or newer is required"),
    )
    .advise(packages::nvidia_driver(on))
}

/// Checks that the driver's library and its kernel module have the same version. After a driver update, the
/// old module is loaded until the next reboot.
fn mismatch(module: &str, library: &Library) -> Option<Finding> {
    // The library of the Windows driver has no version in its name.
    let differs = library.version.contains('.') && library.version != module;
    let found = format!("library version {} does not match kernel module version {module}", library.version);
    differs
        .then(|| Finding::new("driver", State::Missing, found).advise("reboot to load the new kernel module"))
}

fn nvrtc(backend: &BackendReport, machine: &Machine) -> Finding {
    let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
    let library = machine.library(&names, &toolkit(machine));
    let compiles = adapters(backend).iter().any(|a| a.caps.languages.contains(&KernelLanguage::CudaC));
    match library {
        Some(library) => Finding::new("compiler", State::Ok, format!("NVRTC: {}", shown(&library))),
        None if compiles => Finding::new("compiler", State::Ok, "NVRTC: found by the driver"),
        // NVRTC is optional, because kernels are built ahead of time.
        None => Finding::new("compiler", State::Note, "no NVRTC: using the prebuilt kernels")
            .advise(format!("optional: {}", packages::nvrtc(machine.distribution()))),
    }
}

/// Returns the folders that may contain the libraries of the CUDA toolkit.
fn toolkit(machine: &Machine) -> Vec<PathBuf> {
    let homes = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| machine.variable(name));
    homes.chain(["/usr/local/cuda"]).map(|home| PathBuf::from(home).join("lib64")).collect()
}

/// Checks whether the GEMM library `name` is present. The library is optional. `--gemm library` uses it.
fn products(machine: &Machine, name: &str, files: &[&str], elsewhere: &[PathBuf], package: &str) -> Finding {
    match machine.library(files, elsewhere) {
        Some(library) => Finding::new("products", State::Ok, format!("{name}: {}", shown(&library))),
        None => Finding::new("products", State::Note, format!("no {name}: using Ragtag's kernels"))
            .advise(format!("optional: {package}")),
    }
}

fn hip(backend: &BackendReport, machine: &Machine) -> Vec<Finding> {
    let on = machine.distribution();
    let kernel = "load the kernel driver: modprobe amdgpu";
    let mut all = gpus(machine, Vendor::Amd, &["amdgpu"], kernel);
    let wanted = is_wanted(machine, Vendor::Amd);
    let rocm = [PathBuf::from("/opt/rocm/lib")];
    let names = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];
    let library = machine.library(&names, &rocm);
    all.push(library_finding(
        "library",
        "libamdhip64.so.5 to .7",
        library.as_ref(),
        wanted,
        &packages::hip(on),
    ));
    if wanted {
        let container = "start the container with --device /dev/kfd --device /dev/dri";
        let advice = |other| if machine.in_container() { container } else { other };
        all.extend(nodes(machine, "/dev", "kfd", advice("the amdgpu kernel driver creates it; check dmesg")));
        all.extend(nodes(machine, "/dev/dri", "renderD128", advice(kernel)));
    }
    all.push(hiprtc(backend, machine, library.as_ref(), &rocm));
    let names = ["librocblas.so.5", "librocblas.so.4", "librocblas.so.3", "librocblas.so.0"];
    all.push(products(machine, "rocBLAS", &names, &rocm, &packages::rocblas(on)));
    all.extend(visibility(machine, &HIP_VARIABLES));
    all
}

fn hiprtc(backend: &BackendReport, machine: &Machine, hip: Option<&Library>, rocm: &[PathBuf]) -> Finding {
    let names = ["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"];
    let wanted = !adapters(backend).is_empty() || is_wanted(machine, Vendor::Amd);
    match machine.library(&names, rocm) {
        Some(library) => Finding::new("compiler", State::Ok, format!("hiprtc: {}", shown(&library))),
        None if hip.is_some_and(|hip| hip.version.starts_with('5')) => {
            Finding::new("compiler", State::Ok, "hiprtc: part of libamdhip64.so.5")
        }
        None if wanted => {
            Finding::new("compiler", State::Missing, "no libhiprtc.so: kernels cannot be compiled")
                .advise(packages::hip(machine.distribution()))
        }
        None => Finding::new("compiler", State::Note, "no libhiprtc.so"),
    }
}

fn level_zero(machine: &Machine) -> Vec<Finding> {
    let on = machine.distribution();
    let kernel = "load the kernel driver: modprobe i915, or xe for new GPUs";
    let mut all = gpus(machine, Vendor::Intel, &["i915", "xe"], kernel);
    let wanted = is_wanted(machine, Vendor::Intel);
    let loader = machine.library(&["libze_loader.so.1", "libze_loader.so"], &[]);
    let advice = packages::level_zero_loader(on);
    all.push(library_finding("library", "libze_loader.so.1", loader.as_ref(), wanted, &advice));
    let driver = machine.library(&["libze_intel_gpu.so.1"], &[]);
    let advice = packages::level_zero_driver(on);
    all.push(library_finding("driver", "libze_intel_gpu.so.1", driver.as_ref(), wanted, &advice));
    if wanted {
        let container = "start the container with --device /dev/dri";
        let advice = if machine.in_container() { container } else { kernel };
        all.extend(nodes(machine, "/dev/dri", "renderD128", advice));
    }
    all.extend(variables(machine, &LEVEL_ZERO_VARIABLES));
    all
}

fn opencl(machine: &Machine) -> Vec<Finding> {
    let on = machine.distribution();
    let library = machine.library(&["libOpenCL.so.1"], &[]);
    let mut all = vec![library_finding(
        "library",
        "libOpenCL.so.1",
        library.as_ref(),
        true,
        &packages::opencl_loader(on),
    )];
    let vendors = vendors(machine);
    let drivers = Drivers { api: "OpenCL", found: machine.icds(), drives, advice: packages::opencl_driver };
    all.extend(icds(&drivers, &vendors, on));
    all.extend(render_node(machine, &vendors));
    all.extend(visibility(machine, &OPENCL_VARIABLES));
    all
}

fn vulkan(machine: &Machine) -> Vec<Finding> {
    let on = machine.distribution();
    let library = machine.library(&["libvulkan.so.1"], &[]);
    let advice = packages::vulkan_loader(on);
    let mut all = vec![library_finding("library", "libvulkan.so.1", library.as_ref(), true, &advice)];
    let vendors = vendors(machine);
    let found = machine.vulkan_icds();
    let drivers = Drivers { api: "Vulkan", found, drives: draws, advice: packages::vulkan_driver };
    all.extend(icds(&drivers, &vendors, on));
    all.extend(render_node(machine, &vendors));
    all.extend(variables(machine, &VULKAN_VARIABLES));
    all
}

/// Returns the vendors of the machine's GPUs.
fn vendors(machine: &Machine) -> Vec<Vendor> {
    let has = |vendor: &Vendor| machine.gpus().iter().any(|gpu| gpu.vendor == *vendor);
    [Vendor::Nvidia, Vendor::Amd, Vendor::Intel].into_iter().filter(has).collect()
}

/// Checks the render nodes of the machine. The drivers of all GPUs except NVIDIA's need such a node.
fn render_node(machine: &Machine, vendors: &[Vendor]) -> Vec<Finding> {
    if vendors.iter().all(|vendor| *vendor == Vendor::Nvidia) {
        return Vec::new();
    }
    nodes(machine, "/dev/dri", "renderD128", "the GPU's kernel driver creates it; check dmesg")
}

/// Installed drivers of an API with a loader (OpenCL or Vulkan), and the functions that assess them.
struct Drivers {
    api: &'static str,
    found: Vec<Icd>,
    /// Returns whether the library with the given name is a driver for a vendor's GPUs.
    drives: fn(&str, Vendor) -> bool,
    /// Returns the command that installs a driver for a vendor's GPUs, or for the CPU if the vendor is
    /// `None`.
    advice: fn(Distribution, Option<Vendor>) -> String,
}

/// Returns a finding for each driver file, and for each vendor whose GPUs have no driver.
fn icds(drivers: &Drivers, vendors: &[Vendor], on: Distribution) -> Vec<Finding> {
    let Drivers { api, found, drives, advice } = drivers;
    let some_work = found.iter().any(|icd| icd.library.is_ok());
    let one = |icd: &Icd| driver(icd, some_work, on);
    let mut all: Vec<_> = found.iter().map(one).collect();
    for vendor in vendors.iter().filter(|vendor| !found.iter().any(|icd| drives(&icd.names, **vendor))) {
        let missing =
            Finding::new("driver", State::Missing, format!("no {api} driver for the {} GPU", vendor.name()));
        all.push(missing.advise(advice(on, Some(*vendor))));
    }
    if all.is_empty() {
        let none = format!("no {api} driver, and no GPU that needs one");
        all.push(Finding::new("driver", State::Note, none).advise(advice(on, None)));
    }
    all
}

/// Returns the finding about a driver's file. `some_work` states whether another driver of the API works.
fn driver(icd: &Icd, some_work: bool, on: Distribution) -> Finding {
    let Icd { file, names, library } = icd;
    let (file, missing) = (file.display(), |found| Finding::new("driver", State::Missing, found));
    match library {
        Ok(library) => Finding::new("driver", State::Ok, format!("{file} names {}", shown(library))),
        Err(Fault::File(why)) => missing(format!("{file} cannot be used: {why}"))
            .advise("reinstall its package, or correct the variable that names it"),
        Err(Fault::NoLibrary) => missing(format!("{file} names {names}, which does not exist"))
            .advise("reinstall its package, or remove the file"),
        Err(Fault::Bits(bits)) => {
            // A machine may have drivers for both kinds of programs.
            let state = if some_work { State::Note } else { State::Missing };
            Finding::new("driver", state, format!("{file} names {names}, which is for {bits} programs"))
                .advise("install the driver for this architecture, unless another file names it")
        }
        Err(Fault::Closed(why)) => missing(format!("{file} names {names}, which cannot be opened: {why}"))
            .advise(packages::mending(on, why)),
    }
}

/// Returns whether the library with the file name `library` is a Vulkan driver for the vendor's GPUs.
fn draws(library: &str, vendor: Vendor) -> bool {
    let own: &[&str] = match vendor {
        Vendor::Nvidia => &["libGLX_nvidia", "libEGL_nvidia", "libvulkan_nouveau"],
        Vendor::Amd => &["libvulkan_radeon", "amdvlk"],
        Vendor::Intel => &["libvulkan_intel"],
    };
    own.iter().any(|name| library.contains(name))
}

/// Returns whether the library with the file name `library` is an OpenCL driver for the vendor's GPUs.
fn drives(library: &str, vendor: Vendor) -> bool {
    let mesa = ["Rusticl", "MesaOpenCL"];
    let own: &[&str] = match vendor {
        Vendor::Nvidia => &["nvidia-opencl"],
        Vendor::Amd => &["amdocl"],
        Vendor::Intel => &["igdrcl"],
    };
    own.iter().any(|name| library.contains(name))
        || vendor != Vendor::Nvidia && mesa.iter().any(|name| library.contains(name))
}

/// Returns whether the machine has a GPU of `vendor`. Under WSL, assumes that it has an NVIDIA GPU.
fn is_wanted(machine: &Machine, vendor: Vendor) -> bool {
    machine.gpus().iter().any(|gpu| gpu.vendor == vendor) || vendor == Vendor::Nvidia && machine.in_windows()
}

/// Checks that one of the kernel drivers in `drivers` controls each GPU of `vendor`.
fn gpus(machine: &Machine, vendor: Vendor, drivers: &[&str], advice: &str) -> Vec<Finding> {
    let driver = drivers.join(" or ");
    let own: Vec<Gpu> = machine.gpus().into_iter().filter(|gpu| gpu.vendor == vendor).collect();
    if own.is_empty() && !machine.in_windows() {
        return vec![Finding::new("GPU", State::Note, format!("no {} GPU on the PCI bus", vendor.name()))];
    }
    let one = |gpu: Gpu| match gpu.driver.as_deref() {
        Some(bound) if drivers.contains(&bound) => {
            Finding::new("GPU", State::Ok, format!("{}, kernel driver {bound}", gpu.address))
        }
        Some("vfio-pci") => {
            Finding::new("GPU", State::Note, format!("{}, passed through to a virtual machine", gpu.address))
        }
        bound => {
            let bound = match bound {
                Some(bound) => format!("kernel driver {bound} instead of {driver}"),
                None => format!("no kernel driver ({driver} is required)"),
            };
            Finding::new("GPU", State::Missing, format!("{}, {bound}", gpu.address)).advise(advice)
        }
    };
    own.into_iter().map(one).collect()
}

fn library_finding(
    subject: &'static str,
    name: &str,
    library: Option<&Library>,
    wanted: bool,
    advice: &str,
) -> Finding {
    match library {
        Some(library) if library.on_path => Finding::new(subject, State::Ok, shown(library)),
        Some(library) => {
            let folder = library.path.parent().unwrap_or(&library.path).display();
            let found = format!("{}, not on the loader's search path", shown(library));
            Finding::new(subject, State::Missing, found)
                .advise(format!("add {folder} to a file in /etc/ld.so.conf.d, then run ldconfig"))
        }
        None if wanted => Finding::new(subject, State::Missing, format!("no {name}")).advise(advice),
        // The library is not needed without matching hardware.
        None => Finding::new(subject, State::Note, format!("no {name}")),
    }
}

/// Formats the path of a library, and its version if it has one.
fn shown(library: &Library) -> String {
    match library.version.as_str() {
        "" => library.path.display().to_string(),
        version => format!("{} ({version})", library.path.display()),
    }
}

/// Checks that the user can open the device nodes in `folder` whose names differ from `name` only in the
/// number. `missing` is the advice if there is no such node.
fn nodes(machine: &Machine, folder: &str, name: &str, missing: &str) -> Vec<Finding> {
    let found = machine.nodes(folder, name);
    if found.is_empty() {
        return vec![Finding::new("node", State::Missing, format!("no {folder}/{name}")).advise(missing)];
    }
    found.into_iter().map(node).collect()
}

pub(super) fn node(Node { path, access }: Node) -> Finding {
    let path = path.display();
    match access {
        Access::Granted => Finding::new("node", State::Ok, path.to_string()),
        Access::Denied { group, member: true } => {
            let found = format!("{path}: permission denied, although the user is in group {group}");
            Finding::new("node", State::Missing, found).advise("log out and in again")
        }
        // Joining the group root is never the right advice. A container without access to the node reports
        // the same state.
        Access::Denied { group, member: false } if group == "root" => {
            Finding::new("node", State::Missing, format!("{path}: permission denied"))
                .advise("ask the administrator of the machine or container for access")
        }
        Access::Denied { group, member: false } => {
            let found = format!("{path}: permission denied; its group is {group}");
            Finding::new("node", State::Missing, found)
                .advise(format!("sudo usermod -aG {group} $USER, then log out and in again"))
        }
        Access::Failed(cause) => Finding::new("node", State::Missing, format!("{path}: {cause}")),
    }
}

fn adapters(backend: &BackendReport) -> &[Adapter] {
    match &backend.status {
        Status::Found { adapters } => adapters,
        Status::NotCompiled | Status::NotProbed | Status::Unavailable(_) => &[],
    }
}
