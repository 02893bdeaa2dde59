//! Properties of a machine that affect drivers: GPUs on the PCI bus, device nodes, libraries and environment
//! variables. Linux exposes all of them as files, except the variables. Tests therefore use a folder as the
//! root of a fake machine.

use ragtag_devices::ProbeChild;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A GPU vendor, identified by its PCI vendor id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vendor {
    Nvidia,
    Amd,
    Intel,
}

impl Vendor {
    const IDS: [(&'static str, Vendor); 3] =
        [("0x10de", Vendor::Nvidia), ("0x1002", Vendor::Amd), ("0x8086", Vendor::Intel)];

    pub(super) fn name(self) -> &'static str {
        match self {
            Vendor::Nvidia => "NVIDIA",
            Vendor::Amd => "AMD",
            Vendor::Intel => "Intel",
        }
    }
}

/// A GPU on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gpu {
    pub(super) vendor: Vendor,
    /// PCI address, for example `0000:01:00.0`.
    pub(super) address: String,
    /// Kernel driver that controls the GPU, if any.
    pub(super) driver: Option<String>,
}

/// Linux distribution. It determines the names of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distribution {
    /// Debian, with the major version.
    Debian(u32),
    Ubuntu,
    Fedora,
    Other,
}

/// A device node, and the result of opening it for reading and writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) path: PathBuf,
    pub(super) access: Access,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Granted,
    /// The user lacks permission. `group` is the node's group. `member` is true if `/etc/group` lists the
    /// user in that group.
    Denied {
        group: String,
        member: bool,
    },
    Failed(String),
}

/// A shared library on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Library {
    pub(super) path: PathBuf,
    /// Part of the file name after `.so.`, after following all links. It is empty if there is no such part.
    pub(super) version: String,
    /// Whether the library is on the search path of the dynamic loader.
    pub(super) on_path: bool,
}

/// A file that registers a driver with the OpenCL or Vulkan loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Icd {
    pub(super) file: PathBuf,
    /// Name or path of the library, as written in the file. Empty if the file cannot be read.
    pub(super) names: String,
    /// The library that the loader would open.
    pub(super) library: Result<Library, Fault>,
}

/// Reason why a driver's file is useless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The file cannot be read, or names no library.
    File(String),
    /// The library does not exist.
    NoLibrary,
    /// The library is for programs with another size of pointers.
    Bits(String),
    /// The dynamic loader cannot open the library. The text is its error.
    Closed(String),
}

/// A machine: its root folder and its environment variables.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    root: PathBuf,
    variables: BTreeMap<String, String>,
    /// Child process that opens drivers' libraries, as their loaders do.
    opener: Option<ProbeChild>,
}

impl Machine {
    /// Creates a machine with the files under `root` and the environment variables `variables`.
    pub(super) fn new(root: PathBuf, variables: BTreeMap<String, String>) -> Self {
        Self { root, variables, opener: None }
    }

    /// Opens the libraries of drivers in child processes, instead of only looking for them.
    pub(super) fn opening_with(self, opener: Option<ProbeChild>) -> Self {
        Self { opener, ..self }
    }

    /// Converts a path on the machine to the path of the same file in this process's file system.
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Converts a path in this process's file system to the path of the same file on the machine.
    fn own(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).map_or(path.into(), |rest| Path::new("/").join(rest))
    }

    /// Returns the first line of a file on the machine, or `None` if the file cannot be read or is empty.
    fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.at(path)).ok()?;
        Some(text.lines().next()?.trim().to_string())
    }

    /// Returns the paths of a folder's entries in sorted order.
    fn list(&self, folder: impl AsRef<Path>) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.at(folder)).into_iter().flatten().filter_map(|entry| entry.ok());
        let mut paths: Vec<_> = entries.map(|entry| self.own(&entry.path())).collect();
        paths.sort_unstable();
        paths
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// Returns the version of a kernel module, or `None` if it is not loaded or has no version.
    pub(super) fn module(&self, name: &str) -> Option<String> {
        self.line(Path::new("/sys/module").join(name).join("version"))
    }

    /// Returns whether the machine is the Windows Subsystem for Linux (WSL), where GPUs have no device nodes
    /// of their own.
    pub(super) fn in_windows(&self) -> bool {
        self.exists("/dev/dxg")
    }

    pub(super) fn in_container(&self) -> bool {
        self.exists("/.dockerenv") || self.exists("/run/.containerenv")
    }

    pub(super) fn gpus(&self) -> Vec<Gpu> {
        let gpu = |device: PathBuf| {
            // Display controllers (VGA, 3D and others) have PCI class 0x03.
            self.line(device.join("class")).filter(|class| class.starts_with("0x03"))?;
            let vendor = self.line(device.join("vendor"))?;
            let (_, vendor) = Vendor::IDS.into_iter().find(|(id, _)| *id == vendor)?;
            let driver = fs::read_link(self.at(device.join("driver"))).ok();
            let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
            Some(Gpu { vendor, address: name(&device)?, driver: driver.as_deref().and_then(name) })
        };
        self.list("/sys/bus/pci/devices").into_iter().filter_map(gpu).collect()
    }

    pub(super) fn distribution(&self) -> Distribution {
        let text = fs::read_to_string(self.at("/etc/os-release")).unwrap_or_default();
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches('"').to_string()
        };
        let is = |name: &str| {
            value("ID") == name || value("ID_LIKE").split_ascii_whitespace().any(|like| like == name)
        };
        match () {
            () if is("ubuntu") => Distribution::Ubuntu,
            // This excludes derivatives of Debian, which have other version numbers. Sid has no version.
            () if value("ID") == "debian" => {
                Distribution::Debian(value("VERSION_ID").parse().unwrap_or(u32::MAX))
            }
            () if value("ID") == "fedora" => Distribution::Fedora,
            () => Distribution::Other,
        }
    }

    /// Returns the device nodes in `folder` whose names differ from `example` only in the trailing number.
    pub(super) fn nodes(&self, folder: &str, example: &str) -> Vec<Node> {
        let prefix = example.trim_end_matches(|c: char| c.is_ascii_digit());
        let numbered = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.strip_prefix(prefix).is_some_and(|rest| {
                rest.is_empty() == (prefix == example) && rest.bytes().all(|byte| byte.is_ascii_digit())
            })
        };
        self.list(folder).into_iter().filter(numbered).map(|path| self.node(path)).collect()
    }

    fn node(&self, path: PathBuf) -> Node {
        let access = match OpenOptions::new().read(true).write(true).open(self.at(&path)) {
            Ok(_) => Access::Granted,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => self.denied(&path),
            Err(error) => Access::Failed(error.to_string()),
        };
        Node { path, access }
    }

    pub(super) fn denied(&self, path: &Path) -> Access {
        let text = fs::read_to_string(self.at("/etc/group")).unwrap_or_default();
        let user = self.variable("USER").unwrap_or_default();
        let id = group_id(&self.at(path)).map(|id| id.to_string());
        // The fields of a line are name:password:id:members.
        let groups = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let found = groups.into_iter().find_map(|fields| match fields[..] {
            [name, _, number, members] if Some(number) == id.as_deref() => {
                Some((name.to_string(), members.split(',').any(|member| member == user)))
            }
            _ => None,
        });
        let (group, member) = found.unwrap_or_else(|| (id.unwrap_or_else(|| "unknown".into()), false));
        Access::Denied { group, member }
    }

    /// Returns the first library in `names` that is on the search path of the dynamic loader. If there is
    /// none, returns the first one in the folders `elsewhere`.
    pub(super) fn library(&self, names: &[&str], elsewhere: &[PathBuf]) -> Option<Library> {
        let folders = self.loader_folders();
        let look = |folders: &[PathBuf], on_path| {
            let paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
            paths.into_iter().find_map(|path| self.library_at(path, on_path))
        };
        look(&folders, true).or_else(|| look(elsewhere, false))
    }

    fn library_at(&self, path: PathBuf, on_path: bool) -> Option<Library> {
        // Follows links in this file system, so a test must not use absolute links.
        let real = fs::canonicalize(self.at(&path)).ok()?;
        let name = real.file_name()?.to_string_lossy();
        let version = name.split_once(".so.").map_or(String::new(), |(_, version)| version.into());
        Some(Library { path, version, on_path })
    }

    /// Returns the folders on the search path of the dynamic loader, in order.
    fn loader_folders(&self) -> Vec<PathBuf> {
        let variable = self.variable("LD_LIBRARY_PATH").unwrap_or_default();
        let mut folders: Vec<PathBuf> =
            variable.split(':').filter(|folder| folder.starts_with('/')).map(PathBuf::from).collect();
        folders.extend(self.configured_folders("/etc/ld.so.conf"));
        for machine in ["x86_64-linux-gnu", "aarch64-linux-gnu"] {
            folders.extend(["/lib", "/usr/lib"].map(|folder| Path::new(folder).join(machine)));
        }
        folders.extend(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
        folders
    }

    /// Returns the folders that a configuration file of the dynamic loader lists. Follows `include` lines,
    /// but only one level deep.
    fn configured_folders(&self, file: &str) -> Vec<PathBuf> {
        let text = fs::read_to_string(self.at(file)).unwrap_or_default();
        let mut folders = Vec::new();
        for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
            match line.strip_prefix("include") {
                Some(pattern) => {
                    let pattern = Path::new("/etc").join(pattern.trim());
                    let included = pattern.parent().map(|folder| self.list(folder)).unwrap_or_default();
                    let files = included.iter().filter(|path| path.extension().is_some_and(|e| e == "conf"));
                    // Skips a file that includes itself.
                    folders.extend(
                        files.filter(|path| *path != Path::new(file)).flat_map(|path| self.plain(path)),
                    );
                }
                None if line.starts_with('/') => folders.push(line.into()),
                None => {}
            }
        }
        folders
    }

    fn plain(&self, file: &Path) -> Vec<PathBuf> {
        let text = fs::read_to_string(self.at(file)).unwrap_or_default();
        text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from).collect()
    }

    /// Returns the drivers that the OpenCL loader would load. `OCL_ICD_FILENAMES` names libraries. The
    /// other variables name a folder, a file or a library.
    pub(super) fn icds(&self) -> Vec<Icd> {
        let set = |name: &str| self.variable(name).filter(|value| !value.is_empty());
        let vendors = ["OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"];
        let named = vendors.iter().find_map(|name| Some((*name, set(name)?)));
        let (variable, place) = named.unwrap_or(("", "/etc/OpenCL/vendors"));
        let more = set("OCL_ICD_FILENAMES").unwrap_or_default();
        let more = more.split(':').filter(|name| !name.is_empty());
        let mut icds: Vec<_> =
            more.map(|name| self.icd("OCL_ICD_FILENAMES".into(), name.into(), Path::new(""))).collect();
        let is_library = place.contains(".so") && !self.at(place).is_dir();
        let files = match () {
            () if is_library => {
                icds.push(self.icd(variable.into(), place.into(), Path::new("")));
                Vec::new()
            }
            () if place.ends_with(".icd") => vec![PathBuf::from(place)],
            () => self.list(place),
        };
        let files = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "icd"));
        icds.extend(files.map(|file| match self.line(&file) {
            Some(names) if !names.is_empty() => self.icd(file, names, Path::new("")),
            _ => unusable(file, "it names no library"),
        }));
        self.opened(icds)
    }

    /// Returns the drivers that the Vulkan loader would load. The loader uses the files and folders that its
    /// environment variables name. If no such variable is set, it uses its search folders, after the files of
    /// `VK_ADD_DRIVER_FILES`. Source: LoaderDriverInterface.md of the Vulkan loader.
    pub(super) fn vulkan_icds(&self) -> Vec<Icd> {
        let set = |name: &str| self.variable(name).filter(|value| !value.is_empty());
        let paths = |value: &str| value.split(':').filter(|p| !p.is_empty()).map(PathBuf::from).collect();
        let named: Vec<PathBuf> = match set("VK_DRIVER_FILES").or(set("VK_ICD_FILENAMES")) {
            Some(named) => paths(named),
            None => {
                let mut all: Vec<PathBuf> = set("VK_ADD_DRIVER_FILES").map(paths).unwrap_or_default();
                all.extend(self.vulkan_folders());
                all
            }
        };
        let files = named.into_iter().flat_map(|path| match self.at(&path).is_dir() {
            true => self.list(&path).into_iter().filter(|path| is_json(path)).collect(),
            false if is_json(&path) => vec![path],
            false => Vec::new(),
        });
        let icds = files.map(|file| self.vulkan_icd(file)).collect();
        self.opened(icds)
    }

    /// Returns the search folders of the Vulkan loader, in order.
    fn vulkan_folders(&self) -> Vec<PathBuf> {
        let set = |name: &str| self.variable(name).filter(|value| !value.is_empty());
        let home = |variable: &str, usual: &str| {
            let folder = set(variable).map(PathBuf::from);
            folder.or_else(|| Some(Path::new(set("HOME")?).join(usual)))
        };
        let many = |variable: &str, usual: &str| -> Vec<PathBuf> {
            set(variable).unwrap_or(usual).split(':').map(PathBuf::from).collect()
        };
        let mut folders: Vec<PathBuf> = home("XDG_CONFIG_HOME", ".config").into_iter().collect();
        folders.extend(many("XDG_CONFIG_DIRS", "/etc/xdg"));
        folders.push("/etc".into());
        folders.extend(home("XDG_DATA_HOME", ".local/share"));
        folders.extend(many("XDG_DATA_DIRS", "/usr/local/share:/usr/share"));
        let folders = folders.into_iter().map(|folder| folder.join("vulkan/icd.d"));
        folders.filter(|folder| folder.is_absolute() && self.at(folder).is_dir()).collect()
    }

    fn vulkan_icd(&self, file: PathBuf) -> Icd {
        let text = match fs::read_to_string(self.at(&file)) {
            Ok(text) => text,
            Err(error) => return unusable(file, &error.to_string()),
        };
        let json: serde_json::Value = match serde_json::from_str(&text) {
            Ok(json) => json,
            Err(error) => return unusable(file, &error.to_string()),
        };
        let Some(names) = json["ICD"]["library_path"].as_str() else {
            return unusable(file, "it has no ICD.library_path");
        };
        let folder = file.parent().unwrap_or(&file).to_path_buf();
        let icd = self.icd(file, names.into(), &folder);
        match json["ICD"]["library_arch"].as_str().filter(|bits| *bits != BITS) {
            Some(bits) => Icd { library: Err(Fault::Bits(format!("{bits}-bit"))), ..icd },
            None => icd,
        }
    }

    /// Returns a driver with the library `names`. A path starts at `folder` if it is relative.
    fn icd(&self, file: PathBuf, names: String, folder: &Path) -> Icd {
        let library = match names.contains('/') {
            true => self.library_at(folder.join(&names), true),
            false => self.library(&[&names], &[]),
        };
        Icd { file, names, library: library.ok_or(Fault::NoLibrary) }
    }

    /// Opens the libraries of drivers, if this machine can. Replaces a library that cannot be opened by the
    /// error of the dynamic loader.
    fn opened(&self, mut icds: Vec<Icd>) -> Vec<Icd> {
        let Some(opener) = &self.opener else { return icds };
        let name = |icd: &Icd| match &icd.library {
            Ok(library) if icd.names.contains('/') => Some(library.path.display().to_string()),
            // The dynamic loader searches more folders than the doctor.
            Ok(_) | Err(Fault::NoLibrary) if !icd.names.contains('/') => Some(icd.names.clone()),
            _ => None,
        };
        let names: Vec<_> = icds.iter().map(name).collect();
        let unique: BTreeSet<_> = names.iter().flatten().cloned().collect();
        let unique: Vec<_> = unique.into_iter().collect();
        let Some(results) = opener.open_libraries(&unique) else { return icds };
        let results: BTreeMap<_, _> = unique.into_iter().zip(results).collect();
        for (icd, name) in icds.iter_mut().zip(names) {
            let Some((name, result)) = name.and_then(|name| Some((name.clone(), results.get(&name)?))) else {
                continue;
            };
            let is_absent =
                |error: &str| error.starts_with(&format!("{name}: cannot open shared object file"));
            match result {
                Ok(()) if icd.library.is_err() => {
                    icd.library = Ok(Library { path: name.into(), version: String::new(), on_path: true });
                }
                Ok(()) => {}
                Err(error) if is_absent(error) => icd.library = Err(Fault::NoLibrary),
                Err(error) => {
                    let bits =
                        ["32", "64"].into_iter().find(|bits| error.contains(&format!("ELFCLASS{bits}")));
                    let fault = bits.map(|bits| Fault::Bits(format!("{bits}-bit")));
                    icd.library = Err(fault.unwrap_or_else(|| Fault::Closed(error.clone())));
                }
            }
        }
        icds
    }
}

/// Number of bits of a pointer, as files of Vulkan's drivers state it.
const BITS: &str = if cfg!(target_pointer_width = "64") { "64" } else { "32" };

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// Returns a driver's file that names no library.
fn unusable(file: PathBuf, why: &str) -> Icd {
    Icd { file, names: String::new(), library: Err(Fault::File(why.into())) }
}

#[cfg(unix)]
fn group_id(path: &Path) -> Option<u32> {
    Some(std::os::unix::fs::MetadataExt::gid(&fs::metadata(path).ok()?))
}

#[cfg(not(unix))]
fn group_id(_: &Path) -> Option<u32> {
    None
}
