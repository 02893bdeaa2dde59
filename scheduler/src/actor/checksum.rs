//! Checksums of activations, and of keys and values, on a stage's device, for the verification of transfers:
//! the kernel, its results, and the host memory into which they are copied.

use super::owned::OwnedDevice;
use crate::core::End;
use crate::error::{Error, Result};
use ragtag_hal::{
    Access, Binding, BufferId, BufferRange, Command, Device, Dispatch, HostRegion, Module, ModuleId, RegionId,
};
use ragtag_kernels::checksum::{PART_WORDS, parts, place_bytes, total};
use ragtag_kernels::{Kernel, Variant, module_source, select};
use std::sync::Arc;

/// Objects for the checksums of a stage's activations, or of a passage of keys and values. Each place holds
/// the sums of the parts of a range.
#[derive(Debug)]
pub struct Checksums {
    module: ModuleId,
    variant: &'static Variant,
    sums: BufferId,
    region: RegionId,
    host: Arc<HostRegion>,
    place_bytes: u64,
}

/// Returns the place of the activations at one end of a slot.
pub(super) fn place_of(end: End, slot: u32) -> u32 {
    2 * slot + u32::from(end == End::Outgoing)
}

impl Checksums {
    /// Compiles the kernel and creates the memory for `places` places of ranges with at most `most_bytes`
    /// bytes.
    ///
    /// # Errors
    /// Fails if the device runs out of memory or has no variant of the kernel.
    pub fn new(device: &mut OwnedDevice, most_bytes: u64, places: u64) -> ragtag_hal::Result<Self> {
        let caps = &device.adapter().caps;
        let none = || ragtag_hal::Error::Unsupported { what: "checksums of activations".into() };
        let variant = select(Kernel::Checksum, caps, 1).ok_or_else(none)?;
        let source = module_source([variant], caps).ok_or_else(none)?;
        let alignment = caps.binding_alignment_bytes.max(caps.copy_alignment_bytes).max(1);
        let place_bytes = place_bytes(most_bytes).next_multiple_of(alignment);
        let module = device.new_module_id();
        let named = Module { name: "checksum".into(), entries: vec![variant.abi], source };
        device.create_module(module, &named)?;
        let bytes = place_bytes * places;
        let sums = device.new_buffer(bytes)?;
        let host = Arc::new(HostRegion::new(bytes as usize)?);
        let region = device.new_region(&host)?;
        Ok(Self { module, variant, sums, region, host, place_bytes })
    }

    /// Returns the commands that compute the checksum of a range and copy its parts to the host. The range
    /// `rows` has the `places` places from `place` on.
    pub fn commands(
        &self,
        device: &dyn Device,
        (place, places): (u32, u64),
        rows: BufferRange,
    ) -> [Command; 2] {
        let (caps, constants) = (&device.adapter().caps, vec![words(rows.bytes), PART_WORDS]);
        let offset = u64::from(place) * self.place_bytes;
        let all = BufferRange { buffer: self.sums, offset, bytes: self.place_bytes * places };
        let bytes = sums_bytes(constants[0]).next_multiple_of(caps.copy_alignment_bytes.max(1));
        let sums = BufferRange { bytes, ..all };
        let binding = |range, access| Binding { range, access };
        let dispatch = Dispatch {
            module: self.module,
            entry: 0,
            bindings: vec![binding(rows, Access::Read), binding(all, Access::Write)],
            grid: self.variant.grid(&constants, caps),
            constants,
        };
        let download = Command::Download { from: sums, region: self.region, offset };
        [Command::Dispatch(dispatch), download]
    }

    /// Returns the checksum at `place` of `bytes` bytes, which was copied to the host.
    ///
    /// # Errors
    /// [`Error::Protocol`] if a device still writes it.
    pub fn read(&self, place: u32, bytes: u64) -> Result<u64> {
        let start = (u64::from(place) * self.place_bytes) as usize;
        let sums = self.host.read(start..start + sums_bytes(words(bytes)) as usize);
        let sums = sums.map_err(|e| Error::protocol(format!("a checksum is not available yet: {e}")))?;
        Ok(total(&sums))
    }
}

/// Returns the number of words in `bytes` bytes. Rows and blocks have a whole number of words.
fn words(bytes: u64) -> u32 {
    u32::try_from(bytes / 4).unwrap_or(u32::MAX)
}

/// Returns the number of bytes in the sums of all parts.
fn sums_bytes(words: u32) -> u64 {
    u64::from(parts(words)) * 8
}
