//! Pinned host memory, which devices access without a staging copy.
//!
//! Several devices may use the same memory, but a driver pins it only once. These devices share one
//! [`PinCache`].

use crate::error::Result;
use crate::host_pages::HostPages;
use crate::region::HostRegion;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Host memory that a driver can pin.
pub enum Pinnable {
    /// A region for uploads and downloads.
    Region(Arc<HostRegion>),
    /// Imported pages.
    Pages(Arc<HostPages>),
}

impl Pinnable {
    /// Returns a pointer to the first byte, and the size in bytes.
    pub fn memory(&self) -> (*mut u8, usize) {
        match self {
            Self::Region(region) => (region.as_ptr(), region.bytes()),
            Self::Pages(pages) => (pages.pointer(), pages.mapped_bytes()),
        }
    }
}

/// Pinned memory, keyed by address, with the number of its [`Pin`]s. A `P` keeps its memory pinned until it is
/// dropped.
pub struct PinCache<P>(Mutex<HashMap<usize, (P, usize)>>);

impl<P> Default for PinCache<P> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// A use of pinned memory. The last use unpins the memory on drop.
pub struct Pin<P> {
    cache: Arc<PinCache<P>>,
    address: usize,
}

impl<P> PinCache<P> {
    /// Pins memory with `pin`, unless it is pinned already.
    ///
    /// # Errors
    /// Returns the error of `pin`.
    pub fn pin(self: &Arc<Self>, host: Pinnable, pin: impl FnOnce(Pinnable) -> Result<P>) -> Result<Pin<P>> {
        let address = host.memory().0 as usize;
        match self.lock().entry(address) {
            Entry::Occupied(mut known) => known.get_mut().1 += 1,
            Entry::Vacant(new) => drop(new.insert((pin(host)?, 1))),
        }
        Ok(Pin { cache: Arc::clone(self), address })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, (P, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> Drop for Pin<P> {
    fn drop(&mut self) {
        // The lock is held until the memory is unpinned, because another device may pin the same memory now.
        let mut all = self.cache.lock();
        if let Entry::Occupied(mut pinned) = all.entry(self.address) {
            pinned.get_mut().1 -= 1;
            if pinned.get().1 == 0 {
                pinned.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_pinned_once_and_until_its_last_use_ends() {
        let (cache, region) = (Arc::new(PinCache::default()), Arc::new(HostRegion::new(64).expect("memory")));
        let pinned = Arc::new(());
        let pin = || {
            let pin = |_| Ok(Arc::clone(&pinned));
            cache.pin(Pinnable::Region(Arc::clone(&region)), pin).expect("pins")
        };
        let (first, second) = (pin(), pin());
        assert_eq!(Arc::strong_count(&pinned), 2);
        drop(first);
        assert_eq!(Arc::strong_count(&pinned), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&pinned), 1);
        drop(pin());
        let refused = cache.pin(Pinnable::Region(region), |_| Err(crate::Error::invalid("full")));
        assert!(refused.is_err() && cache.lock().is_empty());
    }
}
