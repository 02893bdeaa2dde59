//! Device selection: parses selections, and resolves them to adapters of
//! this machine.
//!
//! ```text
//! selection = item { "," item }
//! item      = "auto" | "gpu" | "cpu" | kind | backend | backend ":" index | filter
//! kind      = "discrete" | "integrated" | "software"
//! filter    = "min-memory=" size | "units=" digits
//! size      = digits [ "B" ] | digits [ "." digits ] ( "KiB" | "MiB" | "GiB" | "TiB" )
//! ```
//!
//! Upper and lower case are equal in names, and so are `-` and `_`. A backend may have other names, such as `ocl`.
//!
//! `auto` selects every GPU, or every CPU device if there is no GPU. A list that contains only filters
//! implies `auto`. A software GPU is selected only if the list names it, its backend or its kind. A backend's name
//! selects all of the backend's devices. A kind selects all devices of this kind. If the list also contains `auto`,
//! `gpu` or another backend than `cpu`, its kinds are filters: only devices of these kinds remain, and CPU devices.
//! The words `auto`, `gpu`, `cpu` and kinds select each physical device once.
//! If another item of the list names the device through one of its APIs, Ragtag opens it through that API,
//! otherwise through the preferred API. A device is selected twice only if the list names it through two
//! APIs. `cpu` is the only backend that this module knows by name.

use crate::identity::total_bytes;
use crate::names::{canonical, plain, through};
use crate::table::{Report, Status};
use ragtag_hal::{Adapter, AdapterKind, Label};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

#[cfg(test)]
pub(crate) mod fakes;
#[cfg(test)]
mod tests;

/// Name of the backend of CPU devices.
const CPU: &str = "cpu";

/// An invalid selection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// An item of the selection is not a valid device term.
    #[error(
        "{item:?} in {text:?} is not a device: expected auto, gpu, cpu, discrete, integrated, software, BACKEND, \
         BACKEND:INDEX, min-memory=SIZE or units=N"
    )]
    Syntax {
        /// Item that is not a device term.
        item: String,
        /// Complete selection that contains the item.
        text: String,
    },
    /// A filter is unknown or has an invalid value.
    #[error(
        "{item:?} is not a filter: expected min-memory=SIZE with a size like 512MiB, 8GiB or 1.5TiB, or units=N"
    )]
    FilterSyntax {
        /// Item that is not a filter.
        item: String,
    },
    /// An API without a backend of its own.
    #[error("Ragtag uses {name} devices through {through}")]
    Through {
        /// Name that the user gave.
        name: String,
        /// Backend that uses the API.
        through: &'static str,
    },
    /// Unknown backend.
    #[error("unknown backend {name:?}; there are {}", known.join(", "))]
    UnknownBackend {
        /// Name that the user gave.
        name: String,
        /// Names of all backends.
        known: Vec<String>,
    },
    /// This build does not include the backend.
    #[error("backend {name:?} is not compiled into this build")]
    NotCompiled {
        /// Name of the backend.
        name: String,
    },
    /// The backend's library or driver is missing.
    #[error("{label} cannot be used: {cause}")]
    Unavailable {
        /// Label of the device, or name of the backend.
        label: String,
        /// Error of the backend's probe.
        cause: String,
    },
    /// The backend has no such device.
    #[error("no device {label}; there are {}", list(existing))]
    NoSuchDevice {
        /// Label of the missing device.
        label: String,
        /// Labels of the devices that exist.
        existing: Vec<String>,
    },
    /// The backend has no devices.
    #[error("{name} shows no device; there are {}", list(existing))]
    NoDeviceOf {
        /// Name of the backend.
        name: String,
        /// Labels of the devices that exist.
        existing: Vec<String>,
    },
    /// A GPU was requested, but the machine has none.
    #[error("no GPU found; {}", instead(found, software))]
    NoGpu {
        /// Labels of the devices that exist.
        found: Vec<String>,
        /// Labels and names of the devices that emulate a GPU on the CPU.
        software: Vec<(String, String)>,
    },
    /// No device matches the selection.
    #[error("no device fits {requested:?}; there are {}", list(found))]
    Nothing {
        /// Selection as the user wrote it.
        requested: String,
        /// Labels of the devices that exist.
        found: Vec<String>,
    },
}

pub(crate) fn list(labels: &[String]) -> String {
    if labels.is_empty() { "none".into() } else { labels.join(", ") }
}

/// Describes the devices of a machine without a GPU.
fn instead(found: &[String], software: &[(String, String)]) -> String {
    if software.is_empty() {
        return format!("there are {}", list(found));
    }
    let named: Vec<_> = software.iter().map(|(label, name)| format!("{label} ({name})")).collect();
    format!("software devices: {}", named.join(", "))
}

/// A device term of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// Every GPU, or every CPU device if there is no GPU.
    Auto,
    /// Every GPU.
    Gpu,
    /// Every CPU device.
    Cpu,
    /// Every device of a kind.
    Kind(AdapterKind),
    /// Every adapter of a backend.
    Backend(String),
    /// One adapter.
    Adapter(Label),
}

/// A filter of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Minimum size of the device's memory in bytes.
    MinMemoryBytes(u64),
    /// Minimum number of the device's compute units.
    MinUnits(u32),
}

impl Filter {
    fn admits(self, adapter: &Adapter) -> bool {
        match self {
            Filter::MinMemoryBytes(bytes) => total_bytes(adapter) >= bytes,
            Filter::MinUnits(units) => adapter.caps.parallel_units >= units,
        }
    }
}

/// A parsed selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    text: String,
    terms: Vec<Term>,
    filters: Vec<Filter>,
    /// Kinds to which the devices are limited, except CPU devices. If the list is empty, all kinds.
    kinds: Vec<AdapterKind>,
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Default for Selection {
    /// Returns the selection `auto`.
    fn default() -> Self {
        Self { text: "auto".into(), terms: vec![Term::Auto], filters: Vec::new(), kinds: Vec::new() }
    }
}

impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Self, SelectionError> {
        let mut selection = Self { text: text.trim().into(), terms: Vec::new(), ..Self::default() };
        for item in text.split(',').map(str::trim) {
            if item.contains('=') {
                selection.filters.push(filter(item)?);
                continue;
            }
            let name = canonical(item);
            selection.terms.push(match plain(&name).as_str() {
                "auto" => Term::Auto,
                "gpu" => Term::Gpu,
                CPU => Term::Cpu,
                "discrete" => Term::Kind(AdapterKind::Discrete),
                "integrated" => Term::Kind(AdapterKind::Integrated),
                "software" => Term::Kind(AdapterKind::Software),
                _ if is_word(&name) => Term::Backend(name),
                _ => {
                    let wrong = |_| SelectionError::Syntax { item: item.into(), text: text.into() };
                    Term::Adapter(name.parse().map_err(wrong)?)
                }
            });
        }
        selection.narrow();
        if selection.terms.is_empty() {
            selection.terms.push(Term::Auto);
        }
        Ok(selection)
    }
}

/// Returns true if `item` has the form of a backend name.
pub(crate) fn is_word(item: &str) -> bool {
    !item.is_empty() && item.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
}

fn filter(item: &str) -> Result<Filter, SelectionError> {
    let count = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let parsed = match item.split_once('=') {
        Some(("min-memory", size)) => size_bytes(size).map(Filter::MinMemoryBytes),
        Some(("units", number)) => count(number).map(Filter::MinUnits),
        _ => None,
    };
    parsed.ok_or_else(|| SelectionError::FilterSyntax { item: item.into() })
}

/// Maximum number of digits after the point of a size.
const MAX_DECIMALS: usize = 12;

/// Parses a size such as `512`, `512B`, `3KiB` or `11.5GiB`. Rounds it down to whole bytes. A size in bytes
/// has no decimals.
pub fn size_bytes(text: &str) -> Option<u64> {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits(text));
    let (decimals, unit) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("0", rest),
    };
    let shift = match unit {
        "" | "B" if !rest.starts_with('.') => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    let scale = u32::try_from(decimals.len()).ok().filter(|&of| of as usize <= MAX_DECIMALS)?;
    let part = (decimals.parse::<u64>().ok()? as u128 * (1 << shift)) / 10u128.pow(scale);
    number.parse::<u64>().ok()?.checked_mul(1 << shift)?.checked_add(u64::try_from(part).ok()?)
}

/// Origin of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectionOrigin {
    /// The command line.
    Flag,
    /// The environment variable `RAGTAG_DEVICES`.
    Environment,
    /// The default, used if neither the flag nor the variable is set.
    Default,
}

/// A selection and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Selection.
    pub selection: Selection,
    /// Origin.
    pub source: SelectionOrigin,
}

impl Requested {
    /// Parses the selection in `flag`. Without a flag, parses `environment`, the value of `RAGTAG_DEVICES`.
    /// If the variable is not set or is empty, returns the selection `auto`.
    ///
    /// # Errors
    /// Returns an error if the value that it parses is invalid.
    pub fn new(flag: Option<&str>, environment: Option<&str>) -> Result<Self, SelectionError> {
        let environment = environment.filter(|value| !value.trim().is_empty());
        Ok(match (flag, environment) {
            (Some(flag), _) => Self { selection: flag.parse()?, source: SelectionOrigin::Flag },
            (None, Some(value)) => Self { selection: value.parse()?, source: SelectionOrigin::Environment },
            (None, None) => Self { selection: Selection::default(), source: SelectionOrigin::Default },
        })
    }

    /// Returns the names of the backends that a run on the selected devices needs. `cpu` is one of them,
    /// because it reports the host's memory. Returns `None` if the selection needs all backends.
    pub fn backends(&self) -> Option<Vec<&str>> {
        let name = |term| match term {
            &Term::Auto | &Term::Gpu | &Term::Kind(_) => None,
            Term::Cpu => Some(CPU),
            Term::Backend(name) => Some(name.as_str()),
            Term::Adapter(label) => Some(label.backend.as_str()),
        };
        self.selection.terms.iter().map(name).chain([Some(CPU)]).collect()
    }

    /// Resolves the selection against the devices of a report.
    ///
    /// # Errors
    /// Returns an error if the selection names a missing device or selects no device.
    pub fn choose(&self, report: &Report) -> Result<Choice, SelectionError> {
        let selected = self.selection.resolve(report)?.into_iter().cloned().collect();
        let detected = report.devices.iter().map(ToString::to_string).collect();
        Ok(Choice { requested: self.selection.to_string(), source: self.source, detected, selected })
    }
}

/// Requested, detected and selected devices. A run prints the `Display` output as its first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Selection as the user wrote it.
    pub requested: String,
    /// Origin of the selection.
    pub source: SelectionOrigin,
    /// Labels of each physical device's adapters, such as `cuda:0 = opencl:1`.
    pub detected: Vec<String>,
    /// Adapters to open, in the requested order.
    pub selected: Vec<Adapter>,
}

impl Choice {
    /// Returns whether the selection names an adapter or its backend, other than by `auto`, `gpu`, `cpu` or a kind.
    pub fn names(&self, adapter: &Adapter) -> bool {
        let is_own = |term: &Term| match term {
            Term::Auto | Term::Gpu | Term::Cpu | Term::Kind(_) => false,
            Term::Backend(name) => *name == adapter.backend,
            Term::Adapter(label) => label.backend == adapter.backend && label.index == adapter.index,
        };
        self.requested.parse::<Selection>().is_ok_and(|selection| selection.terms.iter().any(is_own))
    }

    /// Returns whether the free memory of every selected device is known.
    pub fn has_free_memory(&self) -> bool {
        let free = |adapter: &Adapter| adapter.memory.first().and_then(|memory| memory.free_bytes);
        self.selected.iter().all(|adapter| free(adapter).is_some())
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let selected: Vec<_> = self.selected.iter().map(Adapter::label).collect();
        let Choice { requested, detected, .. } = self;
        write!(
            f,
            "requested={requested} detected=[{}] selected=[{}]",
            detected.join(", "),
            selected.join(", ")
        )
    }
}

/// Index of a physical device in a report, and the adapter to open for it.
type Device<'a> = (usize, &'a Adapter);

impl Selection {
    /// Turns kinds into filters if the list contains other items that can select GPUs.
    fn narrow(&mut self) {
        if self.terms.iter().all(|term| matches!(term, Term::Cpu | Term::Kind(_))) {
            return;
        }
        let kinds = self.terms.iter().filter_map(|term| match term {
            Term::Kind(kind) => Some(*kind),
            _ => None,
        });
        self.kinds = kinds.collect();
        self.terms.retain(|term| !matches!(term, Term::Kind(_)));
    }

    fn admits(&self, adapter: &Adapter) -> bool {
        let is_of_kind = self.kinds.is_empty() || is_cpu(adapter) || self.kinds.contains(&adapter.kind);
        is_of_kind && self.filters.iter().all(|filter| filter.admits(adapter))
    }

    /// Returns the selected adapters in the requested order. Each physical device occurs once, unless the
    /// selection names several of its APIs.
    fn resolve<'a>(&self, report: &'a Report) -> Result<Vec<&'a Adapter>, SelectionError> {
        let named = self.named(report)?;
        let mut chosen: Vec<Device<'a>> = Vec::new();
        for term in &self.terms {
            let devices = match term {
                Term::Auto => match of_kind(report, is_gpu) {
                    gpus if gpus.is_empty() => of_kind(report, is_cpu),
                    gpus => gpus,
                },
                Term::Gpu => match of_kind(report, is_gpu) {
                    gpus if gpus.is_empty() => return Err(no_gpu(report)),
                    gpus => gpus,
                },
                Term::Cpu => of_kind(report, is_cpu),
                Term::Kind(kind) => of_kind(report, |adapter| adapter.kind == *kind),
                Term::Backend(_) | Term::Adapter(_) => {
                    for (at, adapter) in term.named(report)? {
                        if chosen.iter().all(|(_, other)| other.label() != adapter.label()) {
                            chosen.push((at, adapter));
                        }
                    }
                    continue;
                }
            };
            for (at, adapter) in devices {
                if chosen.iter().all(|&(other, _)| other != at) {
                    // If another item names the device, Ragtag uses the API that this item names.
                    chosen.push((at, named.get(&at).copied().unwrap_or(adapter)));
                }
            }
        }
        chosen.retain(|(_, adapter)| self.admits(adapter));
        if chosen.is_empty() {
            return Err(SelectionError::Nothing { requested: self.text.clone(), found: labels(report) });
        }
        Ok(chosen.into_iter().map(|(_, adapter)| adapter).collect())
    }

    /// Returns the indices of the physical devices that the selection names. Each index maps to the first
    /// named adapter of the device.
    fn named<'a>(&self, report: &'a Report) -> Result<BTreeMap<usize, &'a Adapter>, SelectionError> {
        let mut named: BTreeMap<usize, &Adapter> = BTreeMap::new();
        for term in &self.terms {
            for (at, adapter) in term.named(report)? {
                named.entry(at).or_insert(adapter);
            }
        }
        Ok(named)
    }
}

impl Term {
    /// Returns the devices that the term names. The result is empty for `auto`, `gpu`, `cpu` and kinds, because
    /// these words name no particular device.
    fn named<'a>(&self, report: &'a Report) -> Result<Vec<Device<'a>>, SelectionError> {
        match self {
            Term::Auto | Term::Gpu | Term::Cpu | Term::Kind(_) => Ok(Vec::new()),
            Term::Backend(name) => find_all(report, name),
            Term::Adapter(label) => Ok(vec![find(report, &label.backend, label.index)?]),
        }
    }
}

fn is_gpu(adapter: &Adapter) -> bool {
    matches!(adapter.kind, AdapterKind::Discrete | AdapterKind::Integrated)
}

/// Returns true for devices of the backend `cpu`. A CPU device of OpenCL does not count, because it would use
/// the same cores a second time.
fn is_cpu(adapter: &Adapter) -> bool {
    adapter.backend == CPU
}

fn no_gpu(report: &Report) -> SelectionError {
    let software = report.adapters().filter(|adapter| adapter.kind == AdapterKind::Software);
    let software = software.map(|adapter| (adapter.label(), adapter.name.clone())).collect();
    SelectionError::NoGpu { found: labels(report), software }
}

fn labels(report: &Report) -> Vec<String> {
    report.adapters().map(Adapter::label).collect()
}

/// Returns the physical devices whose preferred adapter satisfies the predicate `is`.
fn of_kind(report: &Report, is: impl Fn(&Adapter) -> bool) -> Vec<Device<'_>> {
    let best = |physical: &crate::table::Physical| report.adapter(physical.adapters.first()?);
    let devices = report.devices.iter().enumerate().filter_map(|(at, physical)| Some((at, best(physical)?)));
    devices.filter(|(_, adapter)| is(adapter)).collect()
}

/// Returns the adapter with this backend and index, and its physical device.
fn find<'a>(report: &'a Report, backend: &str, index: u32) -> Result<Device<'a>, SelectionError> {
    let label = format!("{backend}:{index}");
    adapters(report, backend, &label)?;
    let at = report.devices.iter().position(|physical| physical.adapters.contains(&label));
    let found = at.zip(report.adapter(&label));
    found.ok_or_else(|| SelectionError::NoSuchDevice { label, existing: labels(report) })
}

/// Returns all adapters of a backend and their physical devices.
fn find_all<'a>(report: &'a Report, backend: &str) -> Result<Vec<Device<'a>>, SelectionError> {
    let adapters = adapters(report, backend, backend)?;
    if adapters.is_empty() {
        return Err(SelectionError::NoDeviceOf { name: backend.into(), existing: labels(report) });
    }
    adapters.iter().map(|adapter| find(report, backend, adapter.index)).collect()
}

/// Returns the adapters of a backend. Errors contain `label`, the name that the user requested.
fn adapters<'a>(report: &'a Report, backend: &str, label: &str) -> Result<&'a [Adapter], SelectionError> {
    let known = report.backends.iter().find(|known| known.name == backend);
    match known.map(|known| &known.status) {
        None => Err(match through(backend) {
            Some(through) => SelectionError::Through { name: backend.into(), through },
            None => SelectionError::UnknownBackend {
                name: backend.into(),
                known: report.backends.iter().map(|known| known.name.clone()).collect(),
            },
        }),
        Some(Status::NotCompiled) => Err(SelectionError::NotCompiled { name: backend.into() }),
        Some(Status::Unavailable(why)) => {
            Err(SelectionError::Unavailable { label: label.into(), cause: why.to_string() })
        }
        Some(Status::NotProbed) => Ok(&[]),
        Some(Status::Found { adapters }) => Ok(adapters),
    }
}
