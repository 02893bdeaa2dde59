//! Commands that install drivers and libraries, for each Linux distribution.
//!
//! The package names for Debian 12 and 13 come from Debian's archive. For an unknown distribution, the
//! functions describe the content of the package instead.

use super::machine::{Distribution, Vendor};
use Distribution::{Debian, Fedora, Other, Ubuntu};

/// Returns the command that installs NVIDIA's driver with its kernel module.
pub(super) fn nvidia_driver(on: Distribution) -> String {
    match on {
        Debian(_) => "apt install nvidia-driver libcuda1 (component non-free)".into(),
        Ubuntu => "ubuntu-drivers install".into(),
        Fedora => "dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda (from RPM Fusion)".into(),
        Other => "install NVIDIA's driver, 535 or newer".into(),
    }
}

/// Returns the command that installs the CUDA library for a kernel module of version `module`.
pub(super) fn cuda_library(on: Distribution, module: &str) -> String {
    let major = module.split('.').next().unwrap_or_default();
    match on {
        Debian(_) => "apt install libcuda1 (component non-free)".into(),
        Ubuntu => format!("apt install libnvidia-compute-{major}"),
        Fedora => "dnf install xorg-x11-drv-nvidia-cuda (from RPM Fusion)".into(),
        Other => format!("install libcuda.so.1 of driver {module}"),
    }
}

/// Returns the command that installs NVRTC, NVIDIA's kernel compiler.
pub(super) fn nvrtc(on: Distribution) -> String {
    match on {
        Debian(13..) => "apt install libnvrtc12 (component non-free)".into(),
        _ => "install cuda-nvrtc-12-9, or another version from 12 on, from NVIDIA's repository".into(),
    }
}

/// Returns the command that installs cuBLAS, NVIDIA's GEMM library.
pub(super) fn cublas(on: Distribution) -> String {
    match on {
        Debian(13..) => "apt install libcublaslt12 (component non-free)".into(),
        _ => "install libcublas-12-9, or another version from 12 on, from NVIDIA's repository".into(),
    }
}

/// Returns the command that installs rocBLAS, AMD's GEMM library.
pub(super) fn rocblas(on: Distribution) -> String {
    match on {
        Debian(13..) => "apt install librocblas0".into(),
        Fedora => "dnf install rocblas".into(),
        _ => "install rocblas from AMD's repository".into(),
    }
}

/// Returns the command that installs AMD's HIP runtime.
pub(super) fn hip(on: Distribution) -> String {
    let amd = "rocm-hip-runtime from AMD's repository";
    match on {
        Debian(_) => format!("apt install libamdhip64-5; for newer GPUs, {amd}"),
        Ubuntu => format!("install {amd}; Ubuntu 24.04 has libamdhip64-5 as well"),
        Fedora => "dnf install rocm-hip".into(),
        Other => format!("install libamdhip64.so, as in {amd}"),
    }
}

/// Returns the command that installs Level Zero's loader.
pub(super) fn level_zero_loader(on: Distribution) -> String {
    match on {
        Debian(_) | Ubuntu => "apt install libze1".into(),
        Fedora => "dnf install oneapi-level-zero".into(),
        Other => "install the package that holds libze_loader.so.1".into(),
    }
}

/// Returns the command that installs Intel's Level Zero driver.
pub(super) fn level_zero_driver(on: Distribution) -> String {
    match on {
        Debian(..13) => "apt install intel-opencl-icd".into(),
        Ubuntu => "apt install libze-intel-gpu1; before Ubuntu 24.10, intel-opencl-icd".into(),
        Fedora => "dnf install intel-level-zero".into(),
        _ => "install libze-intel-gpu1 from Intel's compute-runtime releases".into(),
    }
}

/// Returns the command that installs the OpenCL loader.
pub(super) fn opencl_loader(on: Distribution) -> String {
    match on {
        Debian(_) | Ubuntu => "apt install ocl-icd-libopencl1".into(),
        Fedora => "dnf install 'libOpenCL.so.1()(64bit)'".into(),
        Other => "install the package that holds libOpenCL.so.1".into(),
    }
}

/// Returns the command that installs an OpenCL driver for a vendor's GPUs, or for the CPU if `vendor` is
/// `None`.
pub(super) fn opencl_driver(on: Distribution, vendor: Option<Vendor>) -> String {
    match (vendor, on) {
        (Some(Vendor::Nvidia), Debian(_)) => "apt install nvidia-opencl-icd (component non-free)".into(),
        (Some(Vendor::Nvidia), Ubuntu) => "part of NVIDIA's driver: ubuntu-drivers install".into(),
        (Some(Vendor::Nvidia), Fedora) => "dnf install xorg-x11-drv-nvidia-cuda (from RPM Fusion)".into(),
        (Some(Vendor::Amd), Debian(13..)) => "apt install rocm-opencl-icd".into(),
        (Some(Vendor::Amd), Fedora) => "dnf install rocm-opencl".into(),
        (Some(Vendor::Amd), _) => "install rocm-opencl-runtime from AMD's repository".into(),
        (Some(Vendor::Intel), Debian(..13) | Ubuntu) => "apt install intel-opencl-icd".into(),
        (Some(Vendor::Intel), Fedora) => "dnf install intel-opencl".into(),
        (Some(Vendor::Intel), _) => "install intel-opencl-icd from Intel's compute-runtime releases".into(),
        (None, Debian(_) | Ubuntu) => "to use the CPU: apt install pocl-opencl-icd".into(),
        (None, Fedora) => "to use the CPU: dnf install pocl".into(),
        (Some(Vendor::Nvidia), Other) => "install NVIDIA's driver with its OpenCL part".into(),
        (None, Other) => "to use the CPU: install PoCL".into(),
    }
}

/// Returns the command that installs the Vulkan loader.
pub(super) fn vulkan_loader(on: Distribution) -> String {
    match on {
        Debian(_) | Ubuntu => "apt install libvulkan1".into(),
        Fedora => "dnf install vulkan-loader".into(),
        Other => "install the package that holds libvulkan.so.1".into(),
    }
}

/// Returns the command that installs a Vulkan driver for a vendor's GPUs, or for the CPU if `vendor` is
/// `None`.
pub(super) fn vulkan_driver(on: Distribution, vendor: Option<Vendor>) -> String {
    let mesa = match on {
        Debian(_) | Ubuntu => "apt install mesa-vulkan-drivers",
        Fedora => "dnf install mesa-vulkan-drivers",
        Other => "install Mesa's Vulkan drivers",
    };
    match (vendor, on) {
        (Some(Vendor::Nvidia), Debian(_)) => "apt install nvidia-vulkan-icd (component non-free)".into(),
        (Some(Vendor::Nvidia), Ubuntu) => "part of NVIDIA's driver: ubuntu-drivers install".into(),
        (Some(Vendor::Nvidia), Fedora) => "dnf install xorg-x11-drv-nvidia-libs (from RPM Fusion)".into(),
        (Some(Vendor::Nvidia), Other) => "install NVIDIA's driver with its Vulkan part".into(),
        (Some(_), _) => mesa.into(),
        (None, _) => format!("to use the CPU: {mesa}"),
    }
}

/// Libraries on which drivers depend, by the start of their names, and the packages of Debian and Ubuntu that
/// hold them.
const DEPENDENCIES: [(&str, &str); 24] = [
    ("libGLdispatch.so.0", "libglvnd0"),
    ("libGLX.so.0", "libglx0"),
    ("libEGL.so.1", "libegl1"),
    ("libGL.so.1", "libgl1"),
    ("libX11.so.6", "libx11-6"),
    ("libX11-xcb.so.1", "libx11-xcb1"),
    ("libXext.so.6", "libxext6"),
    ("libxcb.so.1", "libxcb1"),
    ("libxcb-dri3.so.0", "libxcb-dri3-0"),
    ("libxcb-present.so.0", "libxcb-present0"),
    ("libxcb-randr.so.0", "libxcb-randr0"),
    ("libxcb-shm.so.0", "libxcb-shm0"),
    ("libxcb-sync.so.1", "libxcb-sync1"),
    ("libxcb-xfixes.so.0", "libxcb-xfixes0"),
    ("libxshmfence.so.1", "libxshmfence1"),
    ("libwayland-client.so.0", "libwayland-client0"),
    ("libdrm.so.2", "libdrm2"),
    ("libdrm_amdgpu.so.1", "libdrm-amdgpu1"),
    ("libdrm_intel.so.1", "libdrm-intel1"),
    ("libz3.so.4", "libz3-4"),
    ("libhwloc.so.15", "libhwloc15"),
    ("libpocl.so.2", "libpocl2"),
    ("libigdgmm.so.12", "libigdgmm12"),
    ("libigc.so.1", "libigc1"),
];

/// Returns the advice for a driver's library that the dynamic loader refuses with the error `why`.
pub(super) fn mending(on: Distribution, why: &str) -> String {
    let missing = why.split_once(": cannot open shared object file").map(|(library, _)| library);
    let Some(library) = missing.filter(|library| !library.contains('/')) else {
        return "reinstall the driver's package and the packages on which it depends".into();
    };
    // A container sees only the parts of NVIDIA's driver that it asks for.
    if library.starts_with("libnvidia-") || library.starts_with("libcuda.so") {
        return format!(
            "{library} is part of NVIDIA's driver: reinstall it, or start the container with \
             NVIDIA_DRIVER_CAPABILITIES=all"
        );
    }
    let known = DEPENDENCIES.iter().find(|(name, _)| *name == library).map(|(_, package)| *package);
    // LLVM's library has the version in its name: libLLVM-15.so.1, and libLLVM.so.19.1 from version 18 on.
    let llvm = library.strip_prefix("libLLVM").map(|rest| {
        let version = rest.trim_start_matches(|c: char| !c.is_ascii_digit());
        let major = version.split(['.', '-']).next().unwrap_or_default();
        format!("libllvm{major}")
    });
    match (known.map(str::to_owned).or(llvm), on) {
        (Some(package), Debian(_) | Ubuntu) => format!("apt install {package}"),
        (None, Debian(_) | Ubuntu) => {
            format!("install the package that holds {library} (apt-file search {library})")
        }
        (_, Fedora) => format!("dnf install '{library}()(64bit)'"),
        (_, Other) => format!("install the package that holds {library}"),
    }
}
