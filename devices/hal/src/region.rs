//! Page-aligned host memory that devices and the host share. Leases guard access to ranges of the memory.
//!
//! Rust's borrow checker cannot see when devices copy into and out of regions. Each access therefore takes a
//! lease on its range. Two leases may overlap only if both are read leases. A scheduling bug then causes an
//! error that names the range, instead of corrupting data.

use crate::error::{Error, Result};
use crate::host_pages::HostPages;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Held {
    range: Range<usize>,
    writes: bool,
}

/// Makes the calling thread run only on these cores, if the system allows it.
#[cfg(target_os = "linux")]
fn run_on(cores: &[usize]) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| set.set(*core));
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(%error, ?cores, "cannot bind a thread to cores");
    }
}

#[cfg(not(target_os = "linux"))]
fn run_on(_: &[usize]) {}

/// Page-aligned, zeroed host memory of fixed size. It has a mapping of its own, because an allocator may keep freed memory.
pub struct HostRegion {
    pages: HostPages,
    held: Mutex<Vec<Held>>,
}

impl std::fmt::Debug for HostRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostRegion({} bytes)", self.bytes())
    }
}

impl HostRegion {
    /// Allocates a region.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] for zero bytes, and [`Error::OutOfMemory`] if the host cannot allocate the
    /// memory.
    pub fn new(bytes: usize) -> Result<Self> {
        if bytes == 0 {
            return Err(Error::invalid("a host region of zero bytes"));
        }
        let pages = HostPages::new(bytes as u64);
        let pages = pages.ok_or(Error::OutOfMemory { wanted: bytes as u64, free: None })?;
        Ok(Self { pages, held: Mutex::default() })
    }

    /// Allocates a region on the NUMA node of `cores`: a thread that runs only on these cores allocates it
    /// and writes to its pages first. Uses any node if `cores` is empty, if the thread must not run on these
    /// cores, or on other systems than Linux.
    ///
    /// # Errors
    /// Returns the errors of [`HostRegion::new`].
    pub fn near(bytes: usize, cores: &[usize]) -> Result<Self> {
        if cores.is_empty() {
            return Self::new(bytes);
        }
        let touched = || {
            run_on(cores);
            let region = Self::new(bytes)?;
            region.write(0..bytes)?.fill(0);
            Ok(region)
        };
        let thread = std::thread::Builder::new().name("ragtag ring".into());
        let region = std::thread::scope(|scope| thread.spawn_scoped(scope, touched).ok()?.join().ok());
        region.unwrap_or_else(|| Self::new(bytes))
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.pages.bytes() as usize
    }

    /// Returns a pointer to the first byte, for drivers that pin or map the memory. Accesses through the
    /// pointer need leases as well.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pages.pointer()
    }

    /// Leases a range for reading.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the range is outside the region or overlaps a write lease.
    pub fn read(&self, range: Range<usize>) -> Result<Lease<'_>> {
        self.hold(range.clone(), false)?;
        Ok(Lease { region: self, range })
    }

    /// Leases a range for writing.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the range is outside the region or overlaps another lease.
    pub fn write(&self, range: Range<usize>) -> Result<LeaseMut<'_>> {
        self.hold(range.clone(), true)?;
        Ok(LeaseMut { region: self, range })
    }

    /// Leases a range for a device that copies asynchronously. The lease does not borrow the region, and
    /// lasts until the returned value is dropped.
    ///
    /// # Errors
    /// Returns the errors of [`HostRegion::write`] if `writes` is true, and those of [`HostRegion::read`]
    /// otherwise.
    pub fn reserve(self: &Arc<Self>, range: Range<usize>, writes: bool) -> Result<Reservation> {
        self.hold(range.clone(), writes)?;
        Ok(Reservation { region: Arc::clone(self), range, writes })
    }

    fn hold(&self, range: Range<usize>, writes: bool) -> Result<()> {
        if range.start > range.end || range.end > self.bytes() {
            return Err(Error::invalid(format!(
                "range {range:?} of a host region of {} bytes",
                self.bytes()
            )));
        }
        let mut held = self.lock();
        let overlaps = |other: &&Held| other.range.start < range.end && range.start < other.range.end;
        if let Some(other) = held.iter().filter(|o| writes || o.writes).find(overlaps) {
            return Err(Error::invalid(format!(
                "range {range:?} of a host region is wanted for {} while {:?} is being {}",
                if writes { "writing" } else { "reading" },
                other.range,
                if other.writes { "written" } else { "read" },
            )));
        }
        held.push(Held { range, writes });
        Ok(())
    }

    fn release(&self, range: &Range<usize>, writes: bool) {
        let mut held = self.lock();
        if let Some(at) = held.iter().position(|h| h.range == *range && h.writes == writes) {
            held.swap_remove(at);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a region, leased for reading.
#[derive(Debug)]
pub struct Lease<'a> {
    region: &'a HostRegion,
    range: Range<usize>,
}

impl Lease<'_> {
    /// Returns the bytes as 32-bit floats in the host's byte order. Returns `None` if the range is not a
    /// whole number of aligned floats.
    pub fn floats(&self) -> Option<&[f32]> {
        // SAFETY: every bit pattern is a valid float.
        match unsafe { self.align_to::<f32>() } {
            ([], floats, []) => Some(floats),
            _ => None,
        }
    }
}

impl Deref for Lease<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is inside the region (`hold` checks it), the memory is initialised (zeroed), and
        // no write lease overlaps this lease.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr().add(self.range.start), self.range.len()) }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.region.release(&self.range, false);
    }
}

/// Bytes of a region, leased for writing.
#[derive(Debug)]
pub struct LeaseMut<'a> {
    region: &'a HostRegion,
    range: Range<usize>,
}

impl Deref for LeaseMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is inside the region, the memory is initialised, and no other lease overlaps this
        // lease.
        unsafe { std::slice::from_raw_parts(self.region.as_ptr().add(self.range.start), self.range.len()) }
    }
}

impl DerefMut for LeaseMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range is inside the region, the memory is initialised, and no other lease overlaps this
        // lease.
        unsafe {
            std::slice::from_raw_parts_mut(self.region.as_ptr().add(self.range.start), self.range.len())
        }
    }
}

impl Drop for LeaseMut<'_> {
    fn drop(&mut self) {
        self.region.release(&self.range, true);
    }
}

/// A lease that a device holds. The device accesses the bytes through [`HostRegion::as_ptr`].
#[derive(Debug)]
pub struct Reservation {
    region: Arc<HostRegion>,
    range: Range<usize>,
    writes: bool,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.region.release(&self.range, self.writes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_page_aligned_zeroed_and_never_empty() {
        assert!(matches!(HostRegion::new(0), Err(Error::Invalid { .. })));
        assert!(matches!(HostRegion::new(usize::MAX), Err(Error::OutOfMemory { .. })));
        let region = HostRegion::new(10_000).unwrap();
        assert_eq!((region.bytes(), region.as_ptr() as usize % 4096), (10_000, 0));
        assert!(region.read(0..10_000).unwrap().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_write_is_visible_to_the_next_lease() {
        let region = HostRegion::new(64).unwrap();
        region.write(8..12).unwrap().copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(region.read(7..13).unwrap()[..], [0, 1, 2, 3, 4, 0]);
    }

    #[test]
    fn an_aligned_lease_is_read_as_floats() {
        let region = HostRegion::new(64).unwrap();
        region
            .write(8..16)
            .unwrap()
            .copy_from_slice(&[1.5f32.to_ne_bytes(), (-2.0f32).to_ne_bytes()].concat());
        assert_eq!(region.read(8..16).unwrap().floats(), Some(&[1.5, -2.0][..]));
        assert!(
            region.read(9..17).unwrap().floats().is_none() && region.read(8..15).unwrap().floats().is_none()
        );
    }

    #[test]
    fn only_read_leases_overlap() {
        let region = HostRegion::new(64).unwrap();
        let writer = region.write(16..32).unwrap();
        assert!(matches!(region.read(31..40), Err(Error::Invalid { .. })));
        assert!(matches!(region.write(0..17), Err(Error::Invalid { .. })));
        let before = region.read(0..16).unwrap();
        let again = region.read(8..16).unwrap();
        assert!(matches!(region.write(15..16), Err(Error::Invalid { .. })));
        let after = region.write(32..64).unwrap();
        drop((writer, before, after));
        assert!(matches!(region.write(0..64), Err(Error::Invalid { .. })), "one reader is left");
        drop(again);
        assert!(region.write(0..64).is_ok());
    }

    #[test]
    fn reservations_are_leases() {
        let region = Arc::new(HostRegion::new(64).unwrap());
        let reads = region.reserve(0..16, false).unwrap();
        assert!(region.read(0..64).is_ok() && region.write(15..16).is_err());
        let writes = region.reserve(16..32, true).unwrap();
        assert!(region.read(31..32).is_err() && region.reserve(0..17, false).is_err());
        drop((reads, writes));
        assert!(region.write(0..64).is_ok() && region.reserve(60..65, false).is_err());
    }

    #[test]
    fn leases_stay_inside_their_region() {
        let region = HostRegion::new(64).unwrap();
        assert!(region.read(0..65).is_err());
        assert!(region.write(60..usize::MAX).is_err());
        #[allow(clippy::reversed_empty_ranges)] // reversed on purpose
        let reversed = 8..4;
        assert!(region.read(reversed).is_err());
        assert!(region.read(64..64).unwrap().is_empty());
    }

    #[test]
    fn threads_share_a_region_by_ranges() {
        let region = HostRegion::new(4 * 1024).unwrap();
        std::thread::scope(|scope| {
            for part in 0..4usize {
                let region = &region;
                scope.spawn(move || {
                    region.write(part * 1024..(part + 1) * 1024).unwrap().fill(part as u8 + 1)
                });
            }
        });
        let all = region.read(0..4096).unwrap();
        assert!((0..4096).all(|at| usize::from(all[at]) == at / 1024 + 1));
    }

    #[test]
    fn a_region_near_cores_is_a_zeroed_region() {
        // The last core does not exist on any machine, and some systems forbid all cores but one.
        for cores in [&[][..], &[0], &[usize::MAX], &[0, 1, 4096]] {
            let region = HostRegion::near(3 * 4096 + 5, cores).unwrap();
            assert_eq!(region.bytes(), 3 * 4096 + 5);
            assert!(region.read(0..region.bytes()).unwrap().iter().all(|byte| *byte == 0), "{cores:?}");
        }
        assert!(HostRegion::near(0, &[0]).is_err());
    }
}
