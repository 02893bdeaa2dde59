//! Checksums of activations on a stage's device, for the verification of transfers: the kernel, its results,
//! and the host memory into which they are copied.

use crate::core::End;
use crate::error::{Error, Result};
use ragtag_hal::{
    Access, Binding, BufferId, BufferRange, Command, Device, Dispatch, HostRegion, Module, ModuleId, RegionId,
};
use ragtag_kernels::checksum::{PART_WORDS, parts, place_bytes, total};
use ragtag_kernels::{Kernel, Variant, module_source, select};
use std::sync::Arc;

/// Unused ids for the objects of [`Checksums`].
pub(super) struct ChecksumIds {
    pub(super) module: ModuleId,
    pub(super) sums: BufferId,
    pub(super) region: RegionId,
}

/// Objects for the checksums of one stage. Each end of each slot has a place for the sums of its parts.
pub(super) struct Checksums {
    module: ModuleId,
    variant: &'static Variant,
    sums: BufferId,
    region: RegionId,
    host: Arc<HostRegion>,
    place_bytes: u64,
    slots: u32,
}

impl Checksums {
    /// Compiles the kernel and creates the memory for `slots` slots with transfers of at most `most_bytes`
    /// bytes.
    ///
    /// # Errors
    /// Fails if the device runs out of memory or has no variant of the kernel.
    pub(super) fn new(
        device: &mut dyn Device,
        ids: ChecksumIds,
        most_bytes: u64,
        slots: u32,
    ) -> ragtag_hal::Result<Self> {
        let caps = &device.adapter().caps;
        let none = || ragtag_hal::Error::Unsupported { what: "checksums of activations".into() };
        let variant = select(Kernel::Checksum, caps, 1).ok_or_else(none)?;
        let source = module_source([variant], caps).ok_or_else(none)?;
        let alignment = caps.binding_alignment_bytes.max(caps.copy_alignment_bytes).max(1);
        let place_bytes = place_bytes(most_bytes).next_multiple_of(alignment);
        let ChecksumIds { module, sums, region } = ids;
        let named = Module { name: "checksum".into(), entries: vec![variant.abi], source };
        device.create_module(module, &named)?;
        let bytes = place_bytes * 2 * u64::from(slots);
        device.create_buffer(sums, bytes)?;
        let host = Arc::new(HostRegion::new(bytes as usize)?);
        device.register_region(region, Arc::clone(&host))?;
        Ok(Self { module, variant, sums, region, host, place_bytes, slots })
    }

    /// Returns the commands that compute the checksum of `rows` and copy its parts to the host.
    pub(super) fn commands(
        &self,
        device: &dyn Device,
        end: End,
        slot: u32,
        rows: BufferRange,
    ) -> [Command; 2] {
        let (caps, constants) = (&device.adapter().caps, vec![words(rows.bytes), PART_WORDS]);
        let offset = self.place(end, slot);
        let all = BufferRange { buffer: self.sums, offset, bytes: self.place_bytes };
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

    /// Returns the checksum of `bytes` bytes, which was copied to the host.
    ///
    /// # Errors
    /// [`Error::Protocol`] if a device still writes it.
    pub(super) fn read(&self, end: End, slot: u32, bytes: u64) -> Result<u64> {
        let start = self.place(end, slot) as usize;
        let sums = self.host.read(start..start + sums_bytes(words(bytes)) as usize);
        let sums = sums.map_err(|e| Error::protocol(format!("a checksum is not available yet: {e}")))?;
        Ok(total(&sums))
    }

    /// Returns the first byte of the sums of a slot.
    fn place(&self, end: End, slot: u32) -> u64 {
        let index = if end == End::Incoming { slot } else { self.slots + slot };
        u64::from(index) * self.place_bytes
    }
}

/// Returns the number of words in `bytes` bytes of activations. Rows have a whole number of words.
fn words(bytes: u64) -> u32 {
    u32::try_from(bytes / 4).unwrap_or(u32::MAX)
}

/// Returns the number of bytes in the sums of all parts.
fn sums_bytes(words: u32) -> u64 {
    u64::from(parts(words)) * 8
}
