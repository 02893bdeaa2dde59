//! Tests the doctor on fake machines. A fake machine is a folder with the files that the doctor reads.

use super::machine::{Access, Distribution, Machine, Node};
use super::{Diagnosis, Finding, State, apis, diagnose, packages};
use crate::{DeviceOptions, Devices, TriedKernel};
use ragtag_devices::{BackendReport, Report, Status};
use ragtag_hal::{Adapter, Condition, ThrottleReason, Unavailable};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const DEBIAN: &str = "ID=debian\nVERSION_ID=\"12\"\n";
const UBUNTU: &str = "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n";
const FEDORA: &str = "ID=fedora\nVERSION_ID=42\n";

/// A fake machine: a folder with its files, and its environment variables.
struct Fake {
    root: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Fake {
    fn new(os_release: &str) -> Self {
        let fake = Self { root: tempfile::tempdir().unwrap(), variables: Vec::new() };
        fake.file("/etc/os-release", os_release);
        fake.file("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n");
        fake
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        let path = self.root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn file(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).unwrap();
    }

    /// Creates an empty library file `name` in `folder`, and a symbolic link `link` to it.
    fn library(&self, folder: &str, name: &str, link: &str) {
        self.file(&format!("{folder}/{name}"), "");
        symlink(name, self.at(&format!("{folder}/{link}"))).unwrap();
    }

    fn gpu(&self, address: &str, vendor: &str, driver: Option<&str>) {
        let device = format!("/sys/bus/pci/devices/{address}");
        self.file(&format!("{device}/class"), "0x030000\n");
        self.file(&format!("{device}/vendor"), &format!("{vendor}\n"));
        if let Some(driver) = driver {
            symlink(Path::new("../../drivers").join(driver), self.at(&format!("{device}/driver"))).unwrap();
        }
    }

    fn machine(&self) -> Machine {
        let variables = self.variables.iter().map(|(name, value)| (name.to_string(), value.clone()));
        Machine::new(self.root.path().into(), variables.collect())
    }

    /// Returns the findings about `api` if the probe reports that its library is missing.
    fn findings(&self, api: &str) -> Vec<Finding> {
        let why = Unavailable { tried: vec!["a library".into()], cause: "it is missing".into() };
        self.findings_of(api, Status::Unavailable(why))
    }

    fn findings_of(&self, api: &str, status: Status) -> Vec<Finding> {
        let backend = BackendReport { name: api.into(), status };
        let report = Report { backends: vec![backend.clone()], devices: Vec::new() };
        apis::findings(&backend, &report, &self.machine())
    }
}

/// Formats the findings about one subject as `state: found → advice`.
fn about(findings: &[Finding], subject: &str) -> Vec<String> {
    let line = |finding: &Finding| {
        let advice = finding.advice.as_ref().map_or(String::new(), |advice| format!(" → {advice}"));
        format!("{:?}: {}{advice}", finding.state, finding.found)
    };
    findings.iter().filter(|finding| finding.subject == subject).map(line).collect()
}

#[test]
fn a_working_cuda_machine_lacks_only_optional_parts() {
    let fake = Fake::new(DEBIAN);
    fake.gpu("0000:01:00.0", "0x10de", Some("nvidia"));
    fake.file("/sys/module/nvidia/version", "580.159.03\n");
    fake.library("/usr/lib/x86_64-linux-gnu", "libcuda.so.580.159.03", "libcuda.so.1");
    for node in ["nvidiactl", "nvidia-uvm", "nvidia0", "nvidia-uvm-tools", "nvidia-caps"] {
        fake.file(&format!("/dev/{node}"), "");
    }
    let found = fake.findings_of("cuda", Status::Found { adapters: Vec::new() });
    assert_eq!(about(&found, "GPU"), ["Ok: 0000:01:00.0, kernel driver nvidia"]);
    assert_eq!(about(&found, "driver"), ["Ok: 580.159.03 (535 or newer is required)"]);
    let library = "Ok: /usr/lib/x86_64-linux-gnu/libcuda.so.1 (580.159.03)";
    assert_eq!(about(&found, "library"), [library]);
    assert_eq!(about(&found, "node"), ["Ok: /dev/nvidiactl", "Ok: /dev/nvidia-uvm", "Ok: /dev/nvidia0"]);
    let compiler = about(&found, "compiler");
    assert!(
        compiler[0].starts_with("Note: no NVRTC") && compiler[0].contains("→ optional: "),
        "{compiler:?}"
    );
    let products = about(&found, "products");
    assert!(
        products[0].starts_with("Note: no cuBLASLt") && products[0].contains("→ optional: "),
        "{products:?}"
    );
    assert_eq!(about(&found, "devices"), ["Missing: the driver reports no devices"]);

    fake.library("/usr/local/cuda/lib64", "libcublasLt.so.12.9.1.4", "libcublasLt.so.12");
    let products = about(&fake.findings("cuda"), "products");
    assert_eq!(products, ["Ok: cuBLASLt: /usr/local/cuda/lib64/libcublasLt.so.12 (12.9.1.4)"]);
    fake.library("/usr/local/cuda/lib64", "libnvrtc.so.12.9.86", "libnvrtc.so.12");
    let compiler = about(&fake.findings("cuda"), "compiler");
    assert_eq!(compiler, ["Ok: NVRTC: /usr/local/cuda/lib64/libnvrtc.so.12 (12.9.86)"]);
}

#[test]
fn the_condition_of_a_device_is_shown() {
    let devices = Devices::probe(&DeviceOptions::selecting("cpu")).unwrap();
    let condition = Condition {
        celsius: Some(97),
        throttled_by: [ThrottleReason::Temperature].into(),
        ..Condition::default()
    };
    let shown = |condition: Option<Condition>| {
        let adapters = vec![Adapter { condition, ..devices.selected()[0].clone() }];
        about(&Fake::new(DEBIAN).findings_of("level-zero", Status::Found { adapters }), "devices").remove(0)
    };
    assert!(shown(Some(condition)).ends_with(", 97 °C, clocks limited by temperature"));
    assert!(!shown(None).contains("°C"));
}

#[test]
fn outcomes_of_self_tests_are_shown() {
    let devices = Devices::probe(&DeviceOptions::selecting("cpu")).unwrap();
    let shown = |outcomes: &[(&str, Option<&str>)]| {
        let tried = |why: Option<&str>| TriedKernel {
            digest: "a digest".into(),
            tested_unix_s: 1,
            why: why.map(str::to_owned),
        };
        let kernels = outcomes.iter().map(|(name, why)| (name.to_string(), tried(*why))).collect();
        about(&apis::tests(&devices.selected()[0], &kernels), "self-test")
    };
    assert!(shown(&[]).is_empty());
    assert_eq!(
        shown(&[("add opencl", None), ("gather opencl", None)]),
        ["Ok: cpu:0 has passed for 2 kernels"]
    );
    let failed = "Missing: cpu:0 has failed the self-test of head-norm opencl: relative error NaN \
        → update the driver; ragtag selftest --device cpu:0 runs all tests";
    assert_eq!(shown(&[("add opencl", None), ("head-norm opencl", Some("relative error NaN"))]), [failed]);
}

#[test]
fn an_nvidia_gpu_without_a_driver_gets_installation_advice() {
    for (system, package) in [
        (DEBIAN, "apt install nvidia-driver libcuda1 (component non-free)"),
        (UBUNTU, "ubuntu-drivers install"),
        (FEDORA, "dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda (from RPM Fusion)"),
    ] {
        let fake = Fake::new(system);
        fake.gpu("0000:01:00.0", "0x10de", Some("nouveau"));
        let found = fake.findings("cuda");
        let gpu = format!("Missing: 0000:01:00.0, kernel driver nouveau instead of nvidia → {package}");
        assert_eq!(about(&found, "GPU"), [gpu]);
        assert_eq!(about(&found, "library"), [format!("Missing: no libcuda.so.1 → {package}")]);
        assert!(about(&found, "node").iter().all(|node| node.starts_with("Missing: no /dev/nvidia")));
    }
}

#[test]
fn old_and_partly_updated_nvidia_drivers_are_reported() {
    let fake = Fake::new(UBUNTU);
    fake.gpu("0000:01:00.0", "0x10de", Some("nvidia"));
    fake.file("/sys/module/nvidia/version", "470.256.02\n");
    assert_eq!(
        about(&fake.findings("cuda"), "library"),
        ["Missing: no libcuda.so.1 → apt install libnvidia-compute-470"]
    );
    fake.library("/lib/x86_64-linux-gnu", "libcuda.so.535.247.01", "libcuda.so.1");
    let driver = about(&fake.findings("cuda"), "driver");
    assert_eq!(
        driver[0],
        "Missing: 470.256.02 is too old: 535 (CUDA 12.2) or newer is required → ubuntu-drivers install"
    );
    let half = "Missing: library version 535.247.01 does not match kernel module version 470.256.02";
    assert_eq!(driver[1], format!("{half} → reboot to load the new kernel module"));
}

#[test]
fn a_machine_without_a_gpu_gets_no_driver_advice() {
    let fake = Fake::new(DEBIAN);
    fake.gpu("0000:00:02.0", "0x1234", None);
    for api in ["cuda", "hip"] {
        let found = fake.findings(api);
        let advised = |subject: &str| about(&found, subject).iter().any(|line| line.contains("install"));
        assert!(about(&found, "GPU")[0].starts_with("Note: no "), "{found:?}");
        assert!(about(&found, "node").is_empty() && !advised("library") && !advised("GPU"), "{found:?}");
    }
    // OpenCL also has drivers for CPUs, so the doctor suggests one.
    let found = fake.findings("opencl");
    assert_eq!(about(&found, "library"), ["Missing: no libOpenCL.so.1 → apt install ocl-icd-libopencl1"]);
    let driver =
        "Note: no OpenCL driver, and no GPU that needs one → to use the CPU: apt install pocl-opencl-icd";
    assert_eq!(about(&found, "driver"), [driver]);
}

#[test]
fn amd_gpus_need_kfd_hip_and_hiprtc() {
    let mut fake = Fake::new(FEDORA);
    fake.gpu("0000:03:00.0", "0x1002", Some("amdgpu"));
    fake.file("/dev/dri/renderD128", "");
    fake.file("/dev/dri/card0", "");
    let found = fake.findings("hip");
    assert_eq!(about(&found, "GPU"), ["Ok: 0000:03:00.0, kernel driver amdgpu"]);
    assert_eq!(about(&found, "library"), ["Missing: no libamdhip64.so.5 to .7 → dnf install rocm-hip"]);
    let nodes = about(&found, "node");
    assert!(
        nodes[0].starts_with("Missing: no /dev/kfd → ") && nodes[1] == "Ok: /dev/dri/renderD128",
        "{nodes:?}"
    );
    assert_eq!(
        about(&found, "compiler"),
        ["Missing: no libhiprtc.so: kernels cannot be compiled → dnf install rocm-hip"]
    );

    // At first, the library is only outside the search path. Later, it is on the search path as well. The
    // newest version takes precedence.
    fake.library("/opt/rocm/lib", "libamdhip64.so.6.4.60400", "libamdhip64.so.6");
    fake.library("/opt/rocm/lib", "libhiprtc.so.6.4.60400", "libhiprtc.so.6");
    let library = about(&fake.findings("hip"), "library");
    assert!(
        library[0].contains("(6.4.60400), not on the loader's search path → add /opt/rocm/lib"),
        "{library:?}"
    );
    fake.file("/etc/ld.so.conf.d/rocm.conf", "# ROCm\n/opt/rocm/lib\n");
    fake.file("/dev/kfd", "");
    fake.library("/usr/lib64", "libamdhip64.so.5.7.1", "libamdhip64.so.5");
    let found = fake.findings("hip");
    assert_eq!(about(&found, "library"), ["Ok: /opt/rocm/lib/libamdhip64.so.6 (6.4.60400)"]);
    assert_eq!(about(&found, "node"), ["Ok: /dev/kfd", "Ok: /dev/dri/renderD128"]);
    assert_eq!(about(&found, "compiler"), ["Ok: hiprtc: /opt/rocm/lib/libhiprtc.so.6 (6.4.60400)"]);

    fake.file("/.dockerenv", "");
    fs::remove_file(fake.at("/dev/kfd")).unwrap();
    let nodes = about(&fake.findings("hip"), "node");
    assert!(
        nodes[0].ends_with("→ start the container with --device /dev/kfd --device /dev/dri"),
        "{nodes:?}"
    );

    fake.variables = vec![("HIP_VISIBLE_DEVICES", "0".into()), ("ROCR_VISIBLE_DEVICES", String::new())];
    let variables = about(&fake.findings("hip"), "variable");
    assert_eq!(
        variables,
        ["Note: HIP_VISIBLE_DEVICES=0", "Missing: ROCR_VISIBLE_DEVICES= → this hides every GPU: unset it"]
    );
}

#[test]
fn the_compiler_of_hip_5_is_in_its_library() {
    let fake = Fake::new(DEBIAN);
    fake.gpu("0000:03:00.0", "0x1002", Some("amdgpu"));
    fake.library("/usr/lib/x86_64-linux-gnu", "libamdhip64.so.5.2.21153", "libamdhip64.so.5");
    let found = fake.findings("hip");
    assert_eq!(about(&found, "compiler"), ["Ok: hiprtc: part of libamdhip64.so.5"]);
}

#[test]
fn vulkan_drivers_are_followed_from_their_files_to_their_libraries() {
    let mut fake = Fake::new(DEBIAN);
    let json = |library: &str| {
        format!("{{\"file_format_version\": \"1.0.0\", \"ICD\": {{\"library_path\": \"{library}\"}}}}")
    };
    let found = fake.findings("vulkan");
    assert_eq!(about(&found, "library"), ["Missing: no libvulkan.so.1 → apt install libvulkan1"]);
    let none =
        "Note: no Vulkan driver, and no GPU that needs one → to use the CPU: apt install mesa-vulkan-drivers";
    assert_eq!(about(&found, "driver"), [none]);

    fake.gpu("0000:03:00.0", "0x1002", Some("amdgpu"));
    fake.gpu("0000:01:00.0", "0x10de", Some("nvidia"));
    fake.library("/usr/lib/x86_64-linux-gnu", "libvulkan.so.1.3.239", "libvulkan.so.1");
    fake.library("/usr/lib/x86_64-linux-gnu", "libvulkan_radeon.so.22.3", "libvulkan_radeon.so");
    fake.file(
        "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json",
        &json("/usr/lib/x86_64-linux-gnu/libvulkan_radeon.so"),
    );
    fake.file("/usr/share/vulkan/icd.d/readme.txt", "not a driver");
    fake.file("/etc/vulkan/icd.d/broken.json", "{");
    let found = fake.findings("vulkan");
    assert_eq!(about(&found, "library"), ["Ok: /usr/lib/x86_64-linux-gnu/libvulkan.so.1 (1.3.239)"]);
    let drivers = about(&found, "driver");
    assert!(
        drivers[0].starts_with("Missing: /etc/vulkan/icd.d/broken.json cannot be used: EOF while parsing"),
        "{drivers:?}"
    );
    assert!(
        drivers[1].starts_with("Ok: /usr/share/vulkan/icd.d/radeon_icd.x86_64.json names "),
        "{drivers:?}"
    );
    assert_eq!(
        drivers[2..],
        ["Missing: no Vulkan driver for the NVIDIA GPU → apt install nvidia-vulkan-icd (component non-free)"]
    );
    assert!(about(&found, "node")[0].starts_with("Missing: no /dev/dri/renderD128 → "), "{found:?}");

    // The variable replaces the search folders. The path of the library is relative to its file.
    fake.variables = vec![("VK_DRIVER_FILES", "/opt/soft/icd.json:/opt/gone.json".into())];
    fake.file("/opt/soft/icd.json", &json("./libvk_swiftshader.so"));
    let drivers = about(&fake.findings("vulkan"), "driver");
    assert!(
        drivers[0].ends_with(
            "names ./libvk_swiftshader.so, which does not exist → reinstall its package, or remove the file"
        ),
        "{drivers:?}"
    );
    assert!(drivers[1].starts_with("Missing: /opt/gone.json cannot be used: No such file"), "{drivers:?}");
    fake.library("/opt/soft", "libvk_swiftshader.so", "unused.so");
    let found = fake.findings("vulkan");
    assert!(about(&found, "driver")[0].starts_with("Ok: /opt/soft/icd.json names /opt/soft/"), "{found:?}");
    let variables = about(&found, "variable");
    assert_eq!(variables, ["Note: VK_DRIVER_FILES=/opt/soft/icd.json:/opt/gone.json"]);

    // wgpu uses the Vulkan drivers, and has its own environment variable.
    fake.variables.push(("WGPU_BACKEND", "dx12".into()));
    let through = fake.findings("wgpu");
    assert_eq!(about(&through, "driver"), about(&found, "driver"));
    let variables = about(&through, "variable");
    assert_eq!(variables[1..], ["Note: WGPU_BACKEND=dx12"]);
}

#[test]
fn opencl_drivers_are_followed_from_their_files_to_their_libraries() {
    let mut fake = Fake::new(DEBIAN);
    fake.gpu("0000:00:02.0", "0x8086", Some("i915"));
    fake.gpu("0000:01:00.0", "0x10de", Some("nvidia"));
    fake.file("/dev/dri/renderD128", "");
    fake.library("/usr/lib/x86_64-linux-gnu", "libOpenCL.so.1.0.0", "libOpenCL.so.1");
    fake.file("/etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n");
    fake.library("/usr/lib/x86_64-linux-gnu", "libnvidia-opencl.so.535.261.03", "libnvidia-opencl.so.1");
    fake.file("/etc/OpenCL/vendors/pocl.icd", "/usr/lib/x86_64-linux-gnu/libpocl.so.2.10.0\n");
    fake.file("/etc/OpenCL/vendors/readme.txt", "not a driver\n");
    let drivers = about(&fake.findings("opencl"), "driver");
    let names = "/etc/OpenCL/vendors/nvidia.icd names /usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.1";
    assert_eq!(drivers[0], format!("Ok: {names} (535.261.03)"));
    assert!(drivers[1].starts_with("Missing: /etc/OpenCL/vendors/pocl.icd names "), "{drivers:?}");
    assert_eq!(drivers[2], "Missing: no OpenCL driver for the Intel GPU → apt install intel-opencl-icd");
    assert_eq!(drivers.len(), 3);

    fake.variables = vec![("OCL_ICD_VENDORS", "/opt/mine.icd".into())];
    fake.file("/opt/mine.icd", "libigdrcl.so\n");
    let found = fake.findings("opencl");
    assert_eq!(about(&found, "variable"), ["Note: OCL_ICD_VENDORS=/opt/mine.icd"]);
    assert!(about(&found, "driver")[0].contains("libigdrcl.so, which does not exist"), "{found:?}");
}

#[test]
fn variables_of_the_loaders_add_and_replace_drivers() {
    let mut fake = Fake::new(DEBIAN);
    let json = |library: &str, more: &str| format!("{{\"ICD\": {{\"library_path\": \"{library}\"{more}}}}}");
    fake.file("/usr/share/vulkan/icd.d/usual.json", &json("/opt/gone.so", ""));
    fake.file("/users/me/.config/vulkan/icd.d/own.json", &json("/opt/gone.so", ""));
    fake.file("/opt/folder/one.json", &json("/opt/gone.so", ""));
    fake.file("/opt/folder/two.json", &json("/opt/gone.so", ", \"library_arch\": \"32\""));
    fake.file("/opt/empty.json", "{}");
    let files = |fake: &Fake, api: &str| -> Vec<String> {
        let found = about(&fake.findings(api), "driver");
        found.iter().map(|line| line.split(' ').nth(1).unwrap().rsplit('/').next().unwrap().into()).collect()
    };
    let home = ("HOME", "/users/me".to_string());
    fake.variables = vec![home.clone(), ("VK_ADD_DRIVER_FILES", "/opt/empty.json".into())];
    assert_eq!(files(&fake, "vulkan"), ["empty.json", "own.json", "usual.json"]);
    fake.variables.push(("VK_ICD_FILENAMES", "/opt/folder".into()));
    assert_eq!(files(&fake, "vulkan"), ["one.json", "two.json"], "a folder replaces all others");
    let found = about(&fake.findings("vulkan"), "driver");
    let other = "Missing: /opt/folder/two.json names /opt/gone.so, which is for 32-bit programs";
    assert!(found[1].starts_with(other), "{found:?}");
    fake.variables = vec![("VK_DRIVER_FILES", "/opt/empty.json".into())];
    let found = about(&fake.findings("vulkan"), "driver");
    assert!(found[0].contains("/opt/empty.json cannot be used: it has no ICD.library_path"), "{found:?}");

    fake.file("/etc/OpenCL/vendors/usual.icd", "/opt/gone.so\n");
    fake.file("/etc/OpenCL/vendors/empty.icd", "\n");
    fake.variables = vec![("OCL_ICD_FILENAMES", "libmine.so:/opt/own.so".into())];
    let found = about(&fake.findings("opencl"), "driver");
    assert!(found[0].starts_with("Missing: OCL_ICD_FILENAMES names libmine.so, which does not"), "{found:?}");
    assert!(found[1].starts_with("Missing: OCL_ICD_FILENAMES names /opt/own.so"), "{found:?}");
    assert!(found[2].contains("/empty.icd cannot be used: it names no library"), "{found:?}");
    assert!(found[3].starts_with("Missing: /etc/OpenCL/vendors/usual.icd names /opt/gone.so"), "{found:?}");
    fake.variables = vec![("OPENCL_VENDOR_PATH", "/opt/libintelocl.so".into())];
    let found = about(&fake.findings("opencl"), "driver");
    assert!(found[0].starts_with("Missing: OPENCL_VENDOR_PATH names /opt/libintelocl.so"), "{found:?}");
}

#[test]
fn missing_dependencies_name_their_packages() {
    let advice = |on, library: &str| {
        let why = format!("{library}: cannot open shared object file: No such file or directory");
        packages::mending(on, &why)
    };
    for (on, library, expected) in [
        (Distribution::Debian(12), "libGLdispatch.so.0", "apt install libglvnd0"),
        (Distribution::Ubuntu, "libxshmfence.so.1", "apt install libxshmfence1"),
        (Distribution::Debian(12), "libLLVM-15.so.1", "apt install libllvm15"),
        (Distribution::Debian(13), "libLLVM.so.19.1", "apt install libllvm19"),
        (Distribution::Fedora, "libGLdispatch.so.0", "dnf install 'libGLdispatch.so.0()(64bit)'"),
        (Distribution::Other, "libz3.so.4", "install the package that holds libz3.so.4"),
    ] {
        assert_eq!(advice(on, library), expected);
    }
    let unknown = advice(Distribution::Debian(12), "libabacus.so.1");
    assert_eq!(unknown, "install the package that holds libabacus.so.1 (apt-file search libabacus.so.1)");
    let nvidia = advice(Distribution::Debian(12), "libnvidia-glcore.so.580.159.03");
    assert!(nvidia.contains("NVIDIA_DRIVER_CAPABILITIES=all"), "{nvidia}");
    let symbol = "/opt/driver.so: undefined symbol: abacus";
    assert!(
        packages::mending(Distribution::Debian(12), symbol).starts_with("reinstall the driver's package")
    );
}

#[test]
fn level_zero_needs_a_loader_a_driver_and_a_card() {
    let mut fake = Fake::new(DEBIAN);
    let found = fake.findings("level-zero");
    assert_eq!(about(&found, "GPU"), ["Note: no Intel GPU on the PCI bus"]);
    assert_eq!(about(&found, "library"), ["Note: no libze_loader.so.1"]);
    assert_eq!(about(&found, "driver"), ["Note: no libze_intel_gpu.so.1"]);
    assert!(about(&found, "node").is_empty());

    fake.gpu("0000:03:00.0", "0x8086", None);
    let found = fake.findings("level-zero");
    let gpu = "Missing: 0000:03:00.0, no kernel driver (i915 or xe is required) \
        → load the kernel driver: modprobe i915, or xe for new GPUs";
    assert_eq!(about(&found, "GPU"), [gpu]);
    assert_eq!(about(&found, "library"), ["Missing: no libze_loader.so.1 → apt install libze1"]);
    let driver = "Missing: no libze_intel_gpu.so.1 → apt install intel-opencl-icd";
    assert_eq!(about(&found, "driver"), [driver]);
    assert!(about(&found, "node")[0].starts_with("Missing: no /dev/dri/renderD128 → "), "{found:?}");

    fake = Fake::new(FEDORA);
    fake.gpu("0000:03:00.0", "0x8086", Some("xe"));
    fake.file("/dev/dri/renderD128", "");
    fake.library("/usr/lib64", "libze_loader.so.1.17.6", "libze_loader.so.1");
    fake.library("/usr/lib64", "libze_intel_gpu.so.1.6.31294", "libze_intel_gpu.so.1");
    fake.variables = vec![("ZE_AFFINITY_MASK", "0".into())];
    let found = fake.findings("level-zero");
    assert_eq!(about(&found, "GPU"), ["Ok: 0000:03:00.0, kernel driver xe"]);
    assert_eq!(about(&found, "library"), ["Ok: /usr/lib64/libze_loader.so.1 (1.17.6)"]);
    assert_eq!(about(&found, "driver"), ["Ok: /usr/lib64/libze_intel_gpu.so.1 (1.6.31294)"]);
    assert_eq!(about(&found, "variable"), ["Note: ZE_AFFINITY_MASK=0"]);
}

#[test]
fn inaccessible_nodes_name_the_group_to_join() {
    let mut fake = Fake::new(DEBIAN);
    fake.file("/dev/kfd", "");
    let gid = std::os::unix::fs::MetadataExt::gid(&fs::metadata(fake.at("/dev/kfd")).unwrap());
    let denied = |fake: &Fake| fake.machine().denied(Path::new("/dev/kfd"));
    assert_eq!(denied(&fake), Access::Denied { group: gid.to_string(), member: false });
    fake.file("/etc/group", &format!("other:x:{}:me\nrender:x:{gid}:you,me\n", gid + 1));
    fake.variables = vec![("USER", "me".into())];
    assert_eq!(denied(&fake), Access::Denied { group: "render".into(), member: true });

    let finding = |group: &str, member| {
        let access = Access::Denied { group: group.into(), member };
        about(&[apis::node(Node { path: "/dev/kfd".into(), access })], "node").remove(0)
    };
    let join = "Missing: /dev/kfd: permission denied; its group is render → sudo usermod -aG render $USER";
    assert!(finding("render", false).starts_with(join));
    assert!(finding("render", true).ends_with("although the user is in group render → log out and in again"));
    assert!(!finding("root", false).contains("usermod"), "never advise joining root");
}

#[test]
fn distributions_are_identified() {
    let of = |os_release: &str| Fake::new(os_release).machine().distribution();
    assert_eq!(of(DEBIAN), Distribution::Debian(12));
    assert_eq!(of("ID=debian\nPRETTY_NAME=\"Debian sid\"\n"), Distribution::Debian(u32::MAX));
    assert_eq!(of(UBUNTU), Distribution::Ubuntu);
    assert_eq!(of("ID=ubuntu\nID_LIKE=debian\n"), Distribution::Ubuntu);
    assert_eq!(of(FEDORA), Distribution::Fedora);
    for other in ["ID=arch\n", "ID=\"rhel\"\nID_LIKE=\"fedora\"\n", ""] {
        assert_eq!(of(other), Distribution::Other, "{other}");
    }
}

#[test]
fn missing_backends_and_the_selection_are_reported_first() {
    let mut fake = Fake::new(DEBIAN);
    fake.variables = vec![("RAGTAG_DEVICES", "cuda:0".into())];
    let backend = BackendReport { name: "cuda".into(), status: Status::NotCompiled };
    let report = Report { backends: vec![backend], devices: Vec::new() };
    let mut options = DeviceOptions::default();
    options.from_environment = Some("cuda:0".into());
    let found = diagnose(&report, &options, &fake.machine());
    let [Diagnosis { findings: selection, .. }, Diagnosis { api, findings }] = &found[..] else { panic!() };
    assert!(about(selection, "devices")[0].starts_with("Missing: backend \"cuda\" is not compiled"));
    assert_eq!(about(selection, "variable"), ["Note: RAGTAG_DEVICES=cuda:0"]);
    assert_eq!((api.as_str(), findings[0].state), ("cuda", State::Missing));
    assert_eq!(about(findings, "build"), ["Missing: not in this build → build with --features cuda"]);
    assert_eq!(findings.len(), 1);
}
