//! The traits that a backend implements, and the data that its probe reports.

use crate::caps::{Caps, MemoryHandle};
use crate::command::{Command, Module, Submission};
use crate::condition::Condition;
use crate::error::{Error, Result, Unavailable};
use crate::ids::{BufferId, DeviceId, ModuleId, Point, ProgramId, QueueKind, RegionId, TimelineId};
use crate::pool::{PoolLimits, PoolStats};
use crate::region::HostRegion;
use crate::timeline::Timeline;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

/// Hardware type of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdapterKind {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// The host's CPU as a compute device.
    Cpu,
    /// A software implementation of a GPU API that runs on the host's CPU.
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

    /// Parses an address such as `0000:03:00.0`.
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

/// Identifiers of a physical device. Fields that the API does not report are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhysicalIdentity {
    /// PCI address.
    pub pci: Option<PciAddress>,
    /// UUID. Several software devices may report the same UUID.
    pub uuid: Option<[u8; 16]>,
}

/// Location of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeapKind {
    /// The device's own memory.
    Device,
    /// The host's memory.
    Host,
}

/// Source of a heap's size and free bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemorySource {
    /// The API that reports the adapter.
    Api,
    /// The operating system.
    System,
    /// Another API that reports the same physical device.
    OtherApi,
    /// The user.
    User,
}

/// Size and free bytes of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Location of the heap.
    pub heap: HeapKind,
    /// Size in bytes.
    pub total_bytes: u64,
    /// Currently free bytes, if known.
    pub free_bytes: Option<u64>,
    /// Source of these figures.
    pub source: MemorySource,
}

/// Name of an adapter as users type it, such as `cpu:0`. The serialized form is a string.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Label {
    /// Name of the backend.
    pub backend: String,
    /// Position in the backend's probe result.
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
        // `u32::from_str` would also accept a leading `+`.
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
    /// Name of the backend: `cpu` in `cpu:0`.
    pub backend: String,
    /// Position in the backend's probe result: 0 in `cpu:0`.
    pub index: u32,
    /// Name of the device.
    pub name: String,
    /// Driver name and version, with the environment variables and throttles that restrict the device.
    pub driver: DriverInfo,
    /// Hardware type.
    pub kind: AdapterKind,
    /// Identifiers of the physical device.
    pub identity: PhysicalIdentity,
    /// Heaps of the device. Buffers are allocated from the first heap.
    pub memory: Vec<Memory>,
    /// Capabilities.
    pub caps: Caps,
    /// Condition of the device at the time of the probe, if the API or the system reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
}

impl Adapter {
    /// Returns the name that users type, such as `cpu:0`.
    pub fn label(&self) -> String {
        format!("{}:{}", self.backend, self.index)
    }

    /// Returns whether this adapter's device can import the memory of `owner`'s device, according to their
    /// drivers. The import may still fail. Opaque file descriptors are imported only within one physical device.
    /// A dma-buf does not count, because only a probe of the link shows whether it can be imported.
    pub fn imports_from(&self, owner: &Self) -> bool {
        let is_valid = |handle: &MemoryHandle| match handle {
            MemoryHandle::OpaqueFd => {
                self.identity.uuid.is_some() && self.identity.uuid == owner.identity.uuid
            }
            MemoryHandle::DriverObject => {
                let is_peer = self.index == owner.index || self.caps.sharing.peers.contains(&owner.index);
                self.backend == owner.backend && is_peer
            }
            MemoryHandle::DmaBuf => false,
            MemoryHandle::HostPages => true,
        };
        self.caps.sharing.imports.intersection(&owner.caps.sharing.exports).any(is_valid)
    }
}

/// Driver name and version, and the environment variables and throttles that restrict the device. The
/// serialized form is a string.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub struct DriverInfo {
    /// Driver name and version as the API reports them.
    pub name: String,
    /// Environment variables that hide devices, and their values.
    pub hidden_by: Option<String>,
    /// Maximum number of multiprocessors that the device uses, if a throttle limits the number.
    pub multiprocessors: Option<u32>,
    /// Duty cycle of the compute queue in percent, if a throttle limits it.
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

/// A probed device: its adapter and the handle that the backend needs to open it. It dereferences to the
/// handle.
#[derive(Clone, Debug)]
pub struct Found<T> {
    /// The adapter.
    pub adapter: Adapter,
    /// Handle that the backend needs to open the device.
    pub native: T,
}

impl<T> Deref for Found<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.native
    }
}

impl<T> Found<T> {
    /// Returns the adapters of the devices that a probe has found, without their handles.
    pub fn adapters(found: Vec<Self>) -> Vec<Adapter> {
        found.into_iter().map(|found| found.adapter).collect()
    }

    /// Looks up `wanted`, an adapter from an earlier probe, in `present`, the result of a new probe.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the device is no longer present.
    pub fn find<'a>(present: &'a [Self], wanted: &Adapter) -> Result<&'a Self> {
        let facts = |adapter: &Adapter| (adapter.label(), adapter.name.clone(), adapter.identity);
        let found = present.iter().find(|found| facts(&found.adapter) == facts(wanted));
        found.ok_or_else(|| Error::invalid(format!("no adapter {}", wanted.label())))
    }

    /// Finds each adapter of `wanted` in `present`, and calls `open` with the device, the adapter, and the ID
    /// that is paired with the adapter.
    ///
    /// # Errors
    /// Returns the error of [`find`](Self::find) or of `open`.
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

/// Limits that the user sets on an opened device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// Maximum total size of all buffers in bytes.
    pub memory_bytes: Option<u64>,
    /// Limits of the pool of freed buffers.
    pub pool: PoolLimits,
}

/// Access to the devices of one API: CPU, CUDA, Vulkan and others.
pub trait Backend: Send + Sync {
    /// Returns the name of the backend in labels, such as `cpu` or `cuda`.
    fn name(&self) -> &'static str;

    /// Returns the adapters that this API reports.
    ///
    /// # Errors
    /// Returns [`Unavailable`], which names the missing or broken library or driver.
    fn probe(&self) -> std::result::Result<Vec<Adapter>, Unavailable>;

    /// Opens each adapter in `adapters` and gives the device the ID that is paired with the adapter. Devices
    /// opened in one call can share a driver context. The IDs of a device's timelines contain the ID of the
    /// device.
    ///
    /// # Errors
    /// Returns an error if an adapter no longer exists or a driver call fails.
    fn open(&self, adapters: &[(Adapter, DeviceId)], limits: &Limits) -> Result<Vec<Box<dyn Device>>>;
}

/// Start and end of a submission, in nanoseconds of the process-wide clock [`Timing::now_ns`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// Point that the submission signalled.
    pub point: Point,
    /// Start of the work.
    pub start_ns: u64,
    /// End of the work.
    pub end_ns: u64,
}

impl Timing {
    /// Returns the time in nanoseconds since the first call in this process. The clock is monotonic.
    pub fn now_ns() -> u64 {
        static EPOCH: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        EPOCH.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
    }
}

/// Memory of a buffer that another device can import. The memory lives as long as a device or a value of this
/// type refers to it.
#[derive(Clone)]
pub struct SharedMemory {
    /// Size in bytes.
    pub bytes: u64,
    /// Handle of the exporting backend, such as [`HostPages`](crate::HostPages). The importing backend must
    /// know its type.
    pub handle: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A semaphore that two devices use, so that the work of one of them can wait for the work of the other
/// without the host. Its value only grows. If the device that raises it fails, waits for the semaphore end. The
/// semaphore lives as long as a device or a value of this type refers to it.
#[derive(Clone)]
pub struct SharedSemaphore {
    /// Handle of the backend that has created the semaphore. The other backend must know its type.
    pub handle: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for SharedSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSemaphore").finish_non_exhaustive()
    }
}

/// An opened device, owned by exactly one thread. Methods do not wait for work on the device unless their
/// documentation says so.
pub trait Device: Send {
    /// Returns the ID with which the device was opened.
    fn id(&self) -> DeviceId;

    /// Returns the adapter as the probe reported it when the device was opened.
    fn adapter(&self) -> &Adapter;

    /// Returns the current size and free bytes of each heap of the device. Buffers are allocated from the
    /// first heap.
    ///
    /// # Errors
    /// Returns an error if an API call fails.
    fn memory(&self) -> Result<Vec<Memory>>;

    /// Returns the host's mirror of a queue's timeline.
    fn timeline(&self, queue: QueueKind) -> Arc<Timeline>;

    /// Returns the timeline on which other devices wait for the points of `queue`. If a throttle slows the
    /// link to other devices, points pass later on this timeline than on [`timeline`](Self::timeline).
    fn timeline_for_others(&self, queue: QueueKind) -> Arc<Timeline> {
        self.timeline(queue)
    }

    /// Imports another device's timeline, so that submissions to this device can wait for its points.
    ///
    /// # Errors
    /// Returns an error if an API call fails.
    fn import_timeline(&mut self, timeline: Arc<Timeline>) -> Result<()>;

    /// Returns statistics about the buffer pool.
    fn pool_stats(&self) -> PoolStats;

    /// Frees the allocations that the pool caches for reuse. Returns their total size in bytes.
    fn trim_pool(&mut self) -> u64;

    /// Allocates a buffer of `bytes` bytes, aligned to at least 64 bytes, with undefined contents. The buffer
    /// takes at most [`class_bytes`](crate::pool::class_bytes) of device memory.
    ///
    /// # Errors
    /// Returns [`Error::OutOfMemory`] if too little memory is free, and [`Error::AllocationTooLarge`] if
    /// `bytes` exceeds the device's limit. Returns [`Error::Invalid`] for zero bytes.
    fn create_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()>;

    /// Allocates a buffer that can be exported. On some APIs, work that uses such a buffer costs more. Its
    /// memory is never reused for another buffer.
    ///
    /// # Errors
    /// Returns the errors of [`create_buffer`](Self::create_buffer). Returns [`Error::Unsupported`] if the
    /// API cannot share memory.
    fn create_shared_buffer(&mut self, id: BufferId, bytes: u64) -> Result<()> {
        self.create_buffer(id, bytes)
    }

    /// Frees a buffer. No submission that uses the buffer may be outstanding. Programs that use the buffer
    /// must not be submitted again.
    ///
    /// # Errors
    /// Returns an error if an API call fails.
    fn destroy_buffer(&mut self, id: BufferId) -> Result<()>;

    /// Returns the memory of a buffer, for import by another device. The buffer must not be imported.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the API cannot share the buffer. Some APIs share only buffers from
    /// [`create_shared_buffer`](Self::create_shared_buffer).
    fn export_buffer(&self, _id: BufferId) -> Result<SharedMemory> {
        Err(Error::Unsupported { what: "sharing buffers".into() })
    }

    /// Creates a buffer over memory that another device has exported. Only the points of submissions order
    /// the accesses of the two devices. [`destroy_buffer`](Self::destroy_buffer) ends the import. Some APIs
    /// only copy between such a buffer and the device's own buffers.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the API cannot import the memory.
    fn import_buffer(&mut self, _id: BufferId, _memory: &SharedMemory) -> Result<()> {
        Err(Error::Unsupported { what: "importing buffers".into() })
    }

    /// Creates a semaphore that this device and another device can use.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the API cannot share semaphores.
    fn create_semaphore(&mut self) -> Result<SharedSemaphore> {
        Err(Error::Unsupported { what: "sharing semaphores".into() })
    }

    /// Makes each later submission to `queue` raise the semaphore to the value of its point. Only one queue
    /// may raise a semaphore.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the API cannot use the semaphore.
    fn raise_semaphore(&mut self, _queue: QueueKind, _semaphore: &SharedSemaphore) -> Result<()> {
        Err(Error::Unsupported { what: "sharing semaphores".into() })
    }

    /// Makes later submissions wait on the device for points of `timeline`, an imported timeline whose queue
    /// raises the semaphore. A submission behind such a wait may run after the point has failed. Its results
    /// are then discarded, because its own point fails too.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the API cannot use the semaphore.
    fn await_semaphore(&mut self, _timeline: TimelineId, _semaphore: &SharedSemaphore) -> Result<()> {
        Err(Error::Unsupported { what: "sharing semaphores".into() })
    }

    /// Loads a module.
    ///
    /// # Errors
    /// Returns [`Error::Compile`] with the compiler's log. Returns [`Error::Unsupported`] for a language that
    /// the device does not accept.
    fn create_module(&mut self, id: ModuleId, module: &Module) -> Result<()>;

    /// Unloads a module. No submission that uses the module may be outstanding. Programs that use the module
    /// must not be submitted again.
    ///
    /// # Errors
    /// Returns an error if an API call fails.
    fn destroy_module(&mut self, id: ModuleId) -> Result<()>;

    /// Registers a host region for uploads and downloads.
    ///
    /// # Errors
    /// Returns an error if the API cannot pin the region.
    fn register_region(&mut self, id: RegionId, region: Arc<HostRegion>) -> Result<()>;

    /// Unregisters a region. No submission that uses the region may be outstanding. Programs that use the
    /// region must not be submitted again.
    ///
    /// # Errors
    /// Returns an error if an API call fails.
    fn unregister_region(&mut self, id: RegionId) -> Result<()>;

    /// Records commands for the compute queue as a native program of the API. A program may be submitted
    /// again only after the point of its last submission has passed. Recording under an existing ID replaces
    /// the program.
    ///
    /// # Errors
    /// Returns an error if an API call fails.
    fn record(&mut self, id: ProgramId, commands: Vec<Command>) -> Result<()>;

    /// Destroys a program. No submission of the program may be outstanding.
    ///
    /// # Errors
    /// Returns an error if an API call fails.
    fn destroy_program(&mut self, id: ProgramId) -> Result<()>;

    /// Enqueues work and returns without waiting for it. If the work fails later, its queue's timeline fails.
    ///
    /// # Errors
    /// Returns an error if the API rejects the submission. In this case, the queue's timeline also fails.
    /// There is one exception: after [`Error::Refused`], the timeline has not failed, and the caller must
    /// submit other work that signals the same point.
    fn submit(&mut self, submission: Submission) -> Result<()>;

    /// Appends to `timings` the start and end of each submission that has ended since the last call. Appends
    /// nothing if the API does not measure times.
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
    fn pci_addresses_round_trip() {
        let address = PciAddress { domain: 1, bus: 0xc3, device: 0x1f, function: 7 };
        assert_eq!("0001:c3:1f.7".parse(), Ok(address));
        assert_eq!(address.to_string().parse(), Ok(address));
        for text in ["", "0000:03", "c3:1f.7", "0000:03:00", "0000:103:00.0", "0001:2g:03.4", "x:03:00.0"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn memory_is_imported_if_one_handle_suits_both_devices() {
        let adapter =
            |backend: &str, uuid: Option<[u8; 16]>, exports: &[MemoryHandle], imports: &[MemoryHandle]| {
                let mut caps = Caps::default();
                caps.sharing.exports.extend(exports);
                caps.sharing.imports.extend(imports);
                Adapter {
                    backend: backend.into(),
                    index: 0,
                    name: "made up".into(),
                    driver: "driver 1".into(),
                    kind: AdapterKind::Discrete,
                    identity: PhysicalIdentity { pci: None, uuid },
                    condition: None,
                    memory: Vec::new(),
                    caps,
                }
            };
        let (fd, object) = (&[MemoryHandle::OpaqueFd][..], &[MemoryHandle::DriverObject][..]);
        let vulkan = adapter("vulkan", Some([1; 16]), fd, fd);
        let cuda = adapter("cuda", Some([1; 16]), &[], fd);
        assert!(cuda.imports_from(&vulkan) && vulkan.imports_from(&vulkan));
        assert!(!vulkan.imports_from(&cuda), "it exports nothing");
        for uuid in [None, Some([2; 16])] {
            let other = adapter("cuda", uuid, fd, fd);
            assert!(!other.imports_from(&vulkan) && !vulkan.imports_from(&other));
        }
        let unnamed = adapter("vulkan", None, fd, fd);
        assert!(!unnamed.imports_from(&unnamed));

        let first = adapter("opencl", None, object, object);
        assert!(first.imports_from(&first), "two opened devices of one adapter");
        let mut second = Adapter { index: 1, ..first.clone() };
        assert!(!second.imports_from(&first) && !first.imports_from(&second), "no peers");
        second.caps.sharing.peers.insert(0);
        assert!(second.imports_from(&first) && !first.imports_from(&second), "peer access has a direction");
        assert!(!adapter("hip", None, object, object).imports_from(&first));

        let dma_buf = &[MemoryHandle::DmaBuf][..];
        let card = adapter("level-zero", Some([1; 16]), dma_buf, dma_buf);
        assert!(!card.imports_from(&card) && !vulkan.imports_from(&card), "only a probe can tell");

        let pages = &[MemoryHandle::HostPages][..];
        let (cpu, importer) = (adapter("cpu", None, pages, pages), adapter("hip", None, object, pages));
        assert!(cpu.imports_from(&cpu) && importer.imports_from(&cpu));
        assert!(!cpu.imports_from(&importer) && !first.imports_from(&cpu));
    }

    #[test]
    fn labels_round_trip() {
        let label = Label { backend: "level-zero".into(), index: 12 };
        assert_eq!(label.to_string().parse(), Ok(label.clone()));
        assert_eq!(Label::try_from(String::from(label.clone())), Ok(label));
        for text in ["", "cpu", "cpu:", ":0", "cpu:+1", "cpu:-1", "c u:0", "cpu:0:1"] {
            assert!(text.parse::<Label>().is_err(), "{text}");
        }
    }

    #[test]
    fn restrictions_of_a_device_follow_its_driver() {
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
