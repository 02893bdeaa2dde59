//! The traits that a backend implements, and the facts that its probe reports.

use crate::caps::Caps;
use crate::command::{Command, Module, Submission};
use crate::error::{Error, Result, Unavailable};
use crate::ids::{BufferId, DeviceId, ModuleId, Point, ProgramId, QueueKind, RegionId};
use crate::pool::{PoolLimits, PoolStats};
use crate::region::HostRegion;
use crate::timeline::Timeline;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

/// What sort of hardware an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdapterKind {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// The host's processor, addressed as such.
    Cpu,
    /// A GPU API executed by the host's processor.
    Software,
}

/// A PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = &'static str;

    /// Reads `0000:03:00.0`.
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let address = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            let byte = |text: &str| u8::from_str_radix(text, 16).ok();
            let domain = u32::from_str_radix(domain, 16).ok()?;
            Some(Self { domain, bus: byte(bus)?, device: byte(device)?, function: byte(function)? })
        };
        address().ok_or("a PCI address is DOMAIN:BUS:DEVICE.FUNCTION")
    }
}

/// What tells one physical device from another, as far as the API says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhysicalIdentity {
    /// PCI address.
    pub pci: Option<PciAddress>,
    /// UUID. Twin software devices may share one.
    pub uuid: Option<[u8; 16]>,
}

/// Which memory a heap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeapKind {
    /// The device's own memory.
    Device,
    /// The host's memory.
    Host,
}

/// Where a memory figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemorySource {
    /// The API of this adapter.
    Api,
    /// The operating system.
    System,
    /// The same physical device, seen through another API.
    OtherApi,
    /// The user.
    User,
}

/// A heap: how large, and how much of it is free now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Which memory.
    pub heap: HeapKind,
    /// Size in bytes.
    pub total_bytes: u64,
    /// Free now, in bytes, where anything reports it.
    pub free_bytes: Option<u64>,
    /// Who says so.
    pub source: MemorySource,
}

/// The name of an adapter as users type it: `cpu:0`. Written as one text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Label {
    /// Its backend.
    pub backend: String,
    /// Its position in the backend's probe.
    pub index: u32,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.backend, self.index)
    }
}

impl FromStr for Label {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let (backend, index) = text.split_once(':').ok_or("a device is BACKEND:INDEX")?;
        let named = !backend.is_empty() && backend.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        // `parse` alone would take a sign.
        let counts = index.bytes().all(|byte| byte.is_ascii_digit());
        let index = index.parse().ok().filter(|_| named && counts).ok_or("a device is BACKEND:INDEX")?;
        Ok(Self { backend: backend.into(), index })
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        label.to_string()
    }
}

impl TryFrom<String> for Label {
    type Error = &'static str;

    fn try_from(text: String) -> std::result::Result<Self, Self::Error> {
        text.parse()
    }
}

/// A physical device as seen through one API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adapter {
    /// The backend's name, as in `cpu:0`.
    pub backend: String,
    /// Position in the backend's probe, as in `cpu:0`.
    pub index: u32,
    /// The device's name.
    pub name: String,
    /// The driver, and what narrows the device.
    pub driver: DriverInfo,
    /// What sort of hardware.
    pub kind: AdapterKind,
    /// What tells it from others.
    pub identity: PhysicalIdentity,
    /// Its heaps; the first is the one that buffers are allocated from.
    pub memory: Vec<Memory>,
    /// What it can do.
    pub caps: Caps,
}

impl Adapter {
    /// The name that users type: `cpu:0`.
    pub fn label(&self) -> String {
        format!("{}:{}", self.backend, self.index)
    }
}

/// The driver of an adapter, and what narrows the device that it shows. Written as one text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct DriverInfo {
    /// The driver and its version, as the API reports them.
    pub name: String,
    /// Variables of the environment that hide devices, with their values.
    pub hidden_by: Option<String>,
    /// The most multiprocessors that the device uses, where a handicap limits them.
    pub multiprocessors: Option<u32>,
    /// Share of the time in which a handicap lets the device compute, in percent.
    pub duty_percent: Option<u32>,
}

impl fmt::Display for DriverInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.hidden_by.iter().try_for_each(|variables| write!(f, ", {variables}"))?;
        self.multiprocessors.iter().try_for_each(|count| write!(f, ", {count} multiprocessors"))?;
        self.duty_percent.iter().try_for_each(|percent| write!(f, ", duty {percent} %"))
    }
}

impl From<String> for DriverInfo {
    fn from(name: String) -> Self {
        Self { name, ..Self::default() }
    }
}

impl From<&str> for DriverInfo {
    fn from(name: &str) -> Self {
        name.to_string().into()
    }
}

impl From<DriverInfo> for String {
    fn from(driver: DriverInfo) -> Self {
        driver.to_string()
    }
}

/// A device as a probe found it: an adapter, and what its backend opens it with, to which it dereferences.
#[derive(Clone, Debug)]
pub struct Found<T> {
    /// The adapter.
    pub adapter: Adapter,
    /// What the backend opens it with.
    pub native: T,
}

impl<T> Deref for Found<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.native
    }
}

impl<T> Found<T> {
    /// The adapters of a probe.
    pub fn adapters(found: Vec<Self>) -> Vec<Adapter> {
        found.into_iter().map(|found| found.adapter).collect()
    }

    /// The device that an earlier probe showed as `wanted`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is not there any more.
    pub fn find<'a>(present: &'a [Self], wanted: &Adapter) -> Result<&'a Self> {
        let facts = |adapter: &Adapter| (adapter.label(), adapter.name.clone(), adapter.identity);
        let found = present.iter().find(|found| facts(&found.adapter) == facts(wanted));
        found.ok_or_else(|| Error::invalid(format!("no adapter {}", wanted.label())))
    }

    /// Opens devices that an earlier probe showed as `wanted`.
    ///
    /// # Errors
    /// As [`find`](Self::find), and what `open` says.
    pub fn open_each<D: Device + 'static>(
        present: &[Self],
        wanted: &[(Adapter, DeviceId)],
        open: impl Fn(&Self, &Adapter, DeviceId) -> Result<D>,
    ) -> Result<Vec<Box<dyn Device>>> {
        let open = |(wanted, id): &(Adapter, DeviceId)| {
            Ok(Box::new(open(Self::find(present, wanted)?, wanted, *id)?) as Box<dyn Device>)
        };
        wanted.iter().map(open).collect()
    }
}

/// Bounds that the user puts on an opened device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Most bytes that its buffers may take together.
    pub memory_bytes: Option<u64>,
    /// What it may keep of buffers that are gone, for the next ones.
    pub pool: PoolLimits,
}

/// One API.
pub trait Backend: Send + Sync {
    /// Its name in labels: `cpu`, `cuda`, …
    fn name(&self) -> &'static str;

    /// The adapters that this API shows.
    ///
    /// # Errors
    /// [`Unavailable`] names the library or driver that is missing.
    fn probe(&self) -> std::result::Result<Vec<Adapter>, Unavailable>;

    /// Opens adapters, several at once so that they may share a context. Each is given the id that names its timelines.
    ///
    /// # Errors
    /// If an adapter is not there any more, or its driver refuses.
    fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Box<dyn Device>>>;
}

/// When a submission ran, in nanoseconds since an epoch that all devices of this process share
/// ([`Timing::now_ns`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// The point that it signalled.
    pub point: Point,
    /// Work started.
    pub start_ns: u64,
    /// Work ended.
    pub end_ns: u64,
}

impl Timing {
    /// The clock of [`Timing`]: monotonic nanoseconds since the process first asked.
    pub fn now_ns() -> u64 {
        static EPOCH: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        EPOCH.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
    }
}

/// An opened device, owned by exactly one thread. No method blocks on the device, except where it says so.
pub trait Device: Send {
    /// The id it was opened with.
    fn id(&self) -> DeviceId;

    /// Its adapter, as probed when it was opened.
    fn adapter(&self) -> &Adapter;

    /// Its heaps as they are now; the first is the one that buffers are allocated from.
    ///
    /// # Errors
    /// If the API refuses.
    fn memory(&self) -> Result<Vec<Memory>>;

    /// The mirror of a queue's timeline.
    fn timeline(&self, queue: QueueKind) -> Arc<Timeline>;

    /// The same as other devices are to wait for it: where the link to them is throttled, its points pass later.
    fn timeline_for_others(&self, queue: QueueKind) -> Arc<Timeline> {
        self.timeline(queue)
    }

    /// Makes the points of another device's timeline usable in waits.
    ///
    /// # Errors
    /// If the API refuses.
    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()>;

    /// What the pool that its buffers come from holds and has done.
    fn pool_stats(&self) -> PoolStats;

    /// Gives everything back to the system that its pool holds and no buffer uses, and returns the bytes.
    fn trim_pool(&mut self) -> u64;

    /// Allocates a buffer of `bytes` bytes, 64-byte aligned at least, its contents undefined. It takes
    /// [`class_bytes`](crate::pool::class_bytes) of the device's memory, or less.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::AllocationTooLarge`] with sizes; [`Error::Invalid`] for zero bytes.
    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()>;

    /// Frees a buffer. No submission that names it may be outstanding; programs that name it are not submitted again.
    ///
    /// # Errors
    /// If the API refuses.
    fn destroy_buffer(&mut self, id: BufferId) -> Result<()>;

    /// Loads a module.
    ///
    /// # Errors
    /// [`Error::Compile`] with the log; [`Error::Unsupported`] for a language that the device does not take.
    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()>;

    /// Unloads a module. No submission that names it may be outstanding; programs that name it are not submitted again.
    ///
    /// # Errors
    /// If the API refuses.
    fn destroy_module(&mut self, id: ModuleId) -> Result<()>;

    /// Registers a host region, so that uploads and downloads may name it.
    ///
    /// # Errors
    /// If the API cannot pin it.
    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()>;

    /// Lets go of a region. No submission that names it may be outstanding; programs that name it are not submitted
    /// again.
    ///
    /// # Errors
    /// If the API refuses.
    fn unregister_region(&mut self, id: RegionId) -> Result<()>;

    /// Records commands for the compute queue on the API's own means. A program may be submitted again only after its
    /// last submission has passed. An id used before is recorded anew.
    ///
    /// # Errors
    /// If the API refuses.
    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()>;

    /// Forgets a program. No submission of it may be outstanding.
    ///
    /// # Errors
    /// If the API refuses.
    fn destroy_program(&mut self, id: ProgramId) -> Result<()>;

    /// Enqueues work and returns. Work that fails later poisons the timeline of its queue.
    ///
    /// # Errors
    /// If the API refuses at once; the queue's timeline is then poisoned as well.
    fn submit(&mut self, submission: Submission) -> Result<()>;

    /// Appends the timings of submissions that passed since the last call, as far as the API measures them.
    fn take_timings(&mut self, timings: &mut Vec<Timing>);
}

impl fmt::Debug for dyn Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.adapter().label(), self.id())
    }
}

impl From<Unavailable> for Error {
    fn from(unavailable: Unavailable) -> Self {
        Error::Unsupported { what: unavailable.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_on_the_bus_are_read_as_they_are_written() {
        let address = PciAddress { domain: 1, bus: 0xc3, device: 0x1f, function: 7 };
        assert_eq!("0001:c3:1f.7".parse(), Ok(address));
        assert_eq!(address.to_string().parse(), Ok(address));
        for text in ["", "0000:03", "c3:1f.7", "0000:03:00", "0000:103:00.0", "0001:2g:03.4", "x:03:00.0"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn labels_are_read_as_they_are_written() {
        let label = Label { backend: "level-zero".into(), index: 12 };
        assert_eq!(label.to_string().parse(), Ok(label.clone()));
        assert_eq!(Label::try_from(String::from(label.clone())), Ok(label));
        for text in ["", "cpu", "cpu:", ":0", "cpu:+1", "cpu:-1", "c u:0", "cpu:0:1"] {
            assert!(text.parse::<Label>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_narrows_a_device_stands_behind_its_driver() {
        let driver = DriverInfo {
            hidden_by: Some("DEVICES=1".into()),
            multiprocessors: Some(64),
            duty_percent: Some(50),
            ..DriverInfo::from("driver 1, API 2")
        };
        let text = "driver 1, API 2, DEVICES=1, 64 multiprocessors, duty 50 %";
        assert_eq!(driver.to_string(), text);
        assert_eq!(String::from(driver), text);
        assert_eq!(DriverInfo::from("plain").to_string(), "plain");
    }
}
