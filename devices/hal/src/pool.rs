//! Pool of native allocations. A new buffer reuses the allocation of a freed buffer of the same size class.
//!
//! The pool rounds requests up to size classes, so that buffers of similar sizes can reuse each other's
//! memory. Unused allocations stay cached within the limits of [`PoolLimits`]. The pool frees them when they
//! have been idle for long or when memory runs out.
//!
//! This module knows nothing about the allocations themselves. It reads no clock: the caller passes the time.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// Smallest size class.
const SMALLEST_BYTES: u64 = 256;
/// Maximum difference between consecutive size classes.
const LARGEST_STEP_BYTES: u64 = 64 << 10;
/// Number of size classes per power of two. Large sizes have more classes, which are [`LARGEST_STEP_BYTES`]
/// apart.
const STEPS: u64 = 8;

/// Returns the size class of a buffer of `bytes` bytes. The smallest class is 256 bytes. Up to 512 KiB there
/// are eight classes per power of two. Larger classes are multiples of 64 KiB. Above 256 bytes, rounding
/// wastes less than one eighth of the buffer's size. The class of zero bytes is zero, and the result
/// saturates at `u64::MAX`.
pub fn class_bytes(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        1..=SMALLEST_BYTES => SMALLEST_BYTES,
        _ => {
            let power_below = 1 << (bytes - 1).ilog2();
            let step = LARGEST_STEP_BYTES.min(power_below / STEPS);
            bytes.checked_next_multiple_of(step).unwrap_or(u64::MAX)
        }
    }
}

/// Limits on the allocations that a pool caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Maximum total size of cached allocations in bytes. The default is 256 MiB, and 0 disables the cache.
    pub max_pool_bytes: u64,
    /// Maximum number of cached allocations. The default is 64.
    pub max_cached_buffers: usize,
    /// Maximum idle time of a cached allocation. The next call to the pool frees allocations that exceed it.
    /// The default is 30 seconds.
    pub cleanup_interval: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self { max_pool_bytes: 256 << 20, max_cached_buffers: 64, cleanup_interval: Duration::from_secs(30) }
    }
}

/// Statistics of a device's pool. All sizes are allocation sizes: they include the rounding to size classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStats {
    /// Number of allocations in use.
    pub in_use_buffers: u64,
    /// Total size of the allocations in use.
    pub in_use_bytes: u64,
    /// Number of cached allocations.
    pub cached_buffers: u64,
    /// Total size of the cached allocations.
    pub cached_bytes: u64,
    /// Peak of the total size of all allocations, in use and cached.
    pub peak_bytes: u64,
    /// Number of buffers that reused a cached allocation.
    pub hits: u64,
    /// Number of buffers that needed a new allocation.
    pub misses: u64,
    /// Number of cached allocations that the pool freed because they were idle too long, exceeded a limit, or
    /// had to make room for a new allocation.
    pub trimmed: u64,
}

/// A cached allocation.
#[derive(Debug)]
struct Cached<T> {
    native: T,
    bytes: u64,
    since_ns: u64,
}

/// Pool of native allocations in one heap. Dropping a `T` frees the allocation.
#[derive(Debug)]
pub struct Pool<T> {
    limits: PoolLimits,
    budget_bytes: u64,
    largest_bytes: u64,
    /// Cached allocations, ordered by idle time. The allocation that has been idle longest comes first.
    cached: VecDeque<Cached<T>>,
    stats: PoolStats,
}

impl<T> Pool<T> {
    /// Returns an empty pool. The allocations in use and in the cache take at most `budget_bytes` bytes
    /// together. A single allocation takes at most `largest_bytes` bytes.
    pub fn new(limits: PoolLimits, budget_bytes: u64, largest_bytes: u64) -> Self {
        let (cached, stats) = (VecDeque::new(), PoolStats::default());
        Self { limits, budget_bytes, largest_bytes, cached, stats }
    }

    /// Returns the statistics of the pool.
    pub fn stats(&self) -> PoolStats {
        self.stats
    }

    /// Returns the number of bytes of the budget that no buffer uses. Cached allocations count as free.
    pub fn free_bytes(&self) -> u64 {
        self.budget_bytes.saturating_sub(self.stats.in_use_bytes)
    }

    /// Returns an allocation for a buffer of `bytes` bytes: a cached allocation, or a new allocation from
    /// `allocate`. A new allocation has the size of its class, or less if the budget or the maximum
    /// allocation size requires it. If memory runs out, frees the cache and calls `allocate` again.
    ///
    /// # Errors
    /// Returns [`Error::OutOfMemory`] with the requested bytes if the budget or the system has too little
    /// memory left. Returns any other error of `allocate` unchanged.
    pub fn acquire(&mut self, bytes: u64, now_ns: u64, allocate: impl FnMut(u64) -> Result<T>) -> Result<T> {
        let size = self.size(bytes)?;
        if let Some(native) = self.take(size, now_ns) {
            return Ok(native);
        }
        self.acquire_new(bytes, allocate)
    }

    /// Returns the size of an allocation for a buffer of `bytes` bytes.
    fn size(&self, bytes: u64) -> Result<u64> {
        let free = self.free_bytes();
        if bytes > free {
            return Err(Error::OutOfMemory { wanted: bytes, free: Some(free) });
        }
        Ok(class_bytes(bytes).min(self.largest_bytes).min(free).max(bytes))
    }

    /// Returns a new allocation like [`acquire`](Self::acquire), but never a cached allocation.
    ///
    /// # Errors
    /// Returns the errors of [`acquire`](Self::acquire).
    pub fn acquire_new(&mut self, bytes: u64, mut allocate: impl FnMut(u64) -> Result<T>) -> Result<T> {
        let size = self.size(bytes)?;
        self.keep_at_most(usize::MAX, self.free_bytes() - size);
        let allocated = match allocate(size) {
            Err(error) if error.is_out_of_memory() && !self.cached.is_empty() => {
                self.drain();
                allocate(size)
            }
            other => other,
        };
        let native = allocated.map_err(|error| match error {
            Error::OutOfMemory { free, .. } => Error::OutOfMemory { wanted: bytes, free },
            other => other,
        })?;
        self.stats.misses += 1;
        self.count_in_use(size);
        Ok(native)
    }

    /// Takes a cached allocation of the size class of `bytes`, if there is one. Prefers the most recently
    /// used allocation, because its pages are warm.
    pub fn take(&mut self, bytes: u64, now_ns: u64) -> Option<T> {
        self.trim(now_ns);
        let size = class_bytes(bytes);
        let at = self.cached.iter().rposition(|cached| cached.bytes == size)?;
        let cached = self.cached.remove(at)?;
        self.count_cached();
        self.stats.hits += 1;
        self.count_in_use(size);
        Some(cached.native)
    }

    /// Returns an allocation to the pool, which caches it if the limits allow it. `bytes` is the size of the
    /// allocation, not of its buffer.
    pub fn put(&mut self, native: T, bytes: u64, now_ns: u64) {
        self.forget(bytes);
        // A truncated allocation does not have the size of its class, so the pool does not cache it.
        if bytes == class_bytes(bytes) && bytes <= self.limits.max_pool_bytes {
            self.cached.push_back(Cached { native, bytes, since_ns: now_ns });
            self.count_cached();
            self.keep_at_most(self.limits.max_cached_buffers, self.limits.max_pool_bytes);
        }
        self.trim(now_ns);
    }

    /// Removes an allocation of `bytes` bytes from the statistics. The caller must not return this allocation
    /// to the pool.
    ///
    /// # Panics
    /// Panics if the allocations in use are smaller.
    pub fn forget(&mut self, bytes: u64) {
        let stats = &mut self.stats;
        assert!(
            stats.in_use_buffers > 0 && bytes <= stats.in_use_bytes,
            "{bytes} bytes leave the pool, but {} buffers of {} bytes are in use",
            stats.in_use_buffers,
            stats.in_use_bytes
        );
        stats.in_use_buffers -= 1;
        stats.in_use_bytes -= bytes;
    }

    /// Frees cached allocations that have been idle for longer than the limit.
    pub fn trim(&mut self, now_ns: u64) {
        let interval = self.limits.cleanup_interval.as_nanos();
        let idle = |cached: &&Cached<T>| u128::from(now_ns.saturating_sub(cached.since_ns)) > interval;
        let stale = self.cached.iter().take_while(idle).count();
        self.keep_at_most(self.cached.len() - stale, u64::MAX);
    }

    /// Frees all cached allocations. Returns their total size in bytes.
    pub fn drain(&mut self) -> u64 {
        let bytes = self.stats.cached_bytes;
        self.keep_at_most(0, 0);
        bytes
    }

    /// Frees cached allocations, longest idle first, until at most `buffers` allocations and `bytes` bytes
    /// remain cached.
    fn keep_at_most(&mut self, buffers: usize, bytes: u64) {
        while self.cached.len() > buffers || self.stats.cached_bytes > bytes {
            self.cached.pop_front();
            self.stats.trimmed += 1;
            self.count_cached();
        }
    }

    fn count_cached(&mut self) {
        self.stats.cached_buffers = self.cached.len() as u64;
        self.stats.cached_bytes = self.cached.iter().map(|cached| cached.bytes).sum();
        self.count_peak();
    }

    fn count_in_use(&mut self, bytes: u64) {
        self.stats.in_use_buffers += 1;
        self.stats.in_use_bytes += bytes;
        self.count_peak();
    }

    fn count_peak(&mut self) {
        self.stats.peak_bytes = self.stats.peak_bytes.max(self.stats.in_use_bytes + self.stats.cached_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    const SECOND_NS: u64 = 1_000_000_000;

    /// A simulated system with limited memory. Dropping an allocation frees its bytes.
    #[derive(Clone)]
    struct System {
        free_bytes: Rc<Cell<u64>>,
        asked: Rc<Cell<u32>>,
    }

    struct Block {
        system: System,
        bytes: u64,
    }

    impl System {
        fn new(bytes: u64) -> Self {
            Self { free_bytes: Rc::new(Cell::new(bytes)), asked: Rc::default() }
        }

        fn allocate(&self, bytes: u64) -> Result<Block> {
            self.asked.set(self.asked.get() + 1);
            let free = self.free_bytes.get();
            if bytes > free {
                return Err(Error::OutOfMemory { wanted: bytes, free: Some(free) });
            }
            self.free_bytes.set(free - bytes);
            Ok(Block { system: self.clone(), bytes })
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            self.system.free_bytes.set(self.system.free_bytes.get() + self.bytes);
        }
    }

    struct Bench {
        system: System,
        pool: Pool<Block>,
    }

    impl Bench {
        fn new(limits: PoolLimits, budget_bytes: u64, system_bytes: u64) -> Self {
            Self { system: System::new(system_bytes), pool: Pool::new(limits, budget_bytes, 1 << 30) }
        }

        fn acquire(&mut self, bytes: u64, now_ns: u64) -> Result<Block> {
            self.pool.acquire(bytes, now_ns, |size| self.system.allocate(size))
        }

        fn put(&mut self, block: Block, now_ns: u64) {
            let bytes = block.bytes;
            self.pool.put(block, bytes, now_ns);
        }
    }

    #[test]
    fn classes_waste_less_than_an_eighth() {
        let sizes = (1..5000).chain((0..40_000).map(|i| i * i * 7 + i)).chain([(1 << 40) + 1, (1 << 50) - 1]);
        let mut before = (0, 0);
        for bytes in sizes.filter(|&bytes| bytes > 0) {
            let class = class_bytes(bytes);
            assert!(class >= bytes.max(256), "{bytes}");
            assert!(class == 256 || (class - bytes) * 8 < bytes, "{bytes} takes {class}");
            assert!(class - bytes < 64 << 10, "{bytes} takes {class}");
            assert_eq!(class_bytes(class), class, "a class is its own");
            if bytes > before.0 {
                assert!(class >= before.1, "{bytes}");
                before = (bytes, class);
            }
        }
        assert_eq!(
            [0, 1, 257, 300, 512, 513, 10 << 20].map(class_bytes),
            [0, 256, 288, 320, 512, 576, 10 << 20]
        );
        assert_eq!(class_bytes((1 << 20) + 1), (1 << 20) + (64 << 10));
        assert_eq!(class_bytes(u64::MAX), u64::MAX);
    }

    #[test]
    fn classes_are_eight_for_each_power_of_two() {
        for power in 8..18 {
            let mut classes: Vec<u64> = ((1 << power) + 1..=1 << (power + 1)).map(class_bytes).collect();
            classes.dedup();
            assert_eq!(classes.len(), 8, "above 2^{power}");
        }
    }

    #[test]
    fn a_freed_allocation_is_reused_within_its_class() {
        let mut b = Bench::new(PoolLimits::default(), 1 << 20, 1 << 20);
        let first = b.acquire(1000, 0).unwrap();
        assert_eq!(first.bytes, 1024);
        b.put(first, 1);
        assert_eq!((b.pool.stats().cached_bytes, b.pool.stats().in_use_bytes), (1024, 0));
        assert!(b.pool.take(1025, 2).is_none(), "another class");
        let again = b.acquire(961, 3).unwrap();
        let other = b.acquire(1000, 4).unwrap();
        assert_eq!((again.bytes, other.bytes, b.system.asked.get()), (1024, 1024, 2));
        let expected = PoolStats {
            in_use_buffers: 2,
            in_use_bytes: 2048,
            peak_bytes: 2048,
            hits: 1,
            misses: 2,
            ..PoolStats::default()
        };
        assert_eq!(b.pool.stats(), expected);
    }

    #[test]
    fn limits_bound_the_cache() {
        let limits = PoolLimits { max_pool_bytes: 2048, max_cached_buffers: 3, ..PoolLimits::default() };
        let mut b = Bench::new(limits, 1 << 20, 1 << 20);
        let blocks: Vec<_> = [512, 512, 512, 1024].map(|bytes| b.acquire(bytes, 0).unwrap()).into();
        let large = b.acquire(4096, 0).unwrap();
        let sizes = |b: &Bench| b.pool.cached.iter().map(|cached| cached.bytes).collect::<Vec<_>>();
        for block in blocks {
            b.put(block, 1);
        }
        assert_eq!(sizes(&b), [512, 512, 1024], "the oldest went");
        b.put(large, 2);
        assert_eq!(sizes(&b), [512, 512, 1024], "too large to be kept");
        let more = b.acquire(256, 3).unwrap();
        b.put(more, 3);
        assert_eq!(sizes(&b), [512, 1024, 256]);
        assert_eq!((b.pool.stats().trimmed, b.system.free_bytes.get()), (2, (1 << 20) - 1792));
        let mut none = Bench::new(PoolLimits { max_cached_buffers: 0, ..PoolLimits::default() }, 4096, 4096);
        let block = none.acquire(100, 0).unwrap();
        none.put(block, 0);
        assert_eq!((none.pool.stats().cached_buffers, none.system.free_bytes.get()), (0, 4096));
    }

    #[test]
    fn idle_allocations_are_freed_after_the_interval() {
        let limits = PoolLimits { cleanup_interval: Duration::from_secs(10), ..PoolLimits::default() };
        let mut b = Bench::new(limits, 1 << 20, 1 << 20);
        let (early, late) = (b.acquire(300, 0).unwrap(), b.acquire(600, 0).unwrap());
        b.put(early, SECOND_NS);
        b.put(late, 5 * SECOND_NS);
        b.pool.trim(11 * SECOND_NS);
        assert_eq!(b.pool.stats().cached_buffers, 2, "not longer than the interval");
        b.pool.trim(11 * SECOND_NS + 1);
        assert_eq!((b.pool.stats().cached_bytes, b.pool.stats().trimmed), (640, 1));
        assert!(b.pool.take(600, 16 * SECOND_NS).is_none(), "taking trims as well");
        assert_eq!(b.system.free_bytes.get(), 1 << 20);
        b.pool.trim(0);
    }

    #[test]
    fn running_out_of_memory_drains_the_cache_and_retries_once() {
        let mut b = Bench::new(PoolLimits::default(), u64::MAX, 4096);
        let blocks: Vec<_> = (0..4).map(|_| b.acquire(1024, 0).unwrap()).collect();
        blocks.into_iter().for_each(|block| b.put(block, 1));
        assert_eq!((b.pool.stats().cached_bytes, b.system.free_bytes.get()), (4096, 0));
        let block = b.acquire(2048, 2).unwrap();
        assert_eq!((block.bytes, b.pool.stats().trimmed, b.system.asked.get()), (2048, 4, 6));
        let same = b.acquire(2047, 3).unwrap();
        assert_eq!((same.bytes, b.system.asked.get()), (2048, 7), "of the same class");
        let refused = b.acquire(1000, 3).map(|block| block.bytes);
        assert_eq!(
            refused,
            Err(Error::OutOfMemory { wanted: 1000, free: Some(0) }),
            "reports the requested bytes"
        );
        assert_eq!(b.system.asked.get(), 8, "no retry with an empty cache");
    }

    #[test]
    fn a_budget_includes_the_cache_and_truncates_classes() {
        let mut b = Bench::new(PoolLimits::default(), 3000, 1 << 20);
        let first = b.acquire(2048, 0).unwrap();
        assert_eq!(b.pool.free_bytes(), 952);
        let refused = b.acquire(953, 0).map(|block| block.bytes);
        assert_eq!(refused, Err(Error::OutOfMemory { wanted: 953, free: Some(952) }));
        let rest = b.acquire(930, 0).unwrap();
        assert_eq!((rest.bytes, b.pool.free_bytes()), (952, 0), "its class would be 960");
        b.put(rest, 1);
        assert_eq!(b.pool.stats().cached_buffers, 0, "of no class");
        b.put(first, 1);
        assert_eq!((b.pool.free_bytes(), b.pool.stats().cached_bytes), (3000, 2048));
        let whole = b.acquire(2999, 2).unwrap();
        assert_eq!((whole.bytes, b.pool.stats().cached_bytes, b.pool.stats().trimmed), (3000, 0, 1));
        assert_eq!(b.pool.stats().peak_bytes, 3000);
        b.pool.forget(whole.bytes);
        assert_eq!(b.pool.stats().in_use_bytes, 0);
        let mut small = Pool::new(PoolLimits::default(), 1 << 20, 1000);
        assert_eq!(small.acquire(990, 0, Ok), Ok(1000), "the largest allocation");
    }

    #[test]
    fn other_errors_are_passed_on() {
        let mut b = Bench::new(PoolLimits::default(), 1 << 20, 1 << 20);
        let block = b.acquire(256, 0).unwrap();
        b.put(block, 0);
        let lost = Error::Lost { cause: "unplugged".into() };
        let result = b.pool.acquire(1024, 1, |_| Err(lost.clone()));
        assert_eq!((result.err(), b.pool.stats().cached_buffers), (Some(lost), 1));
    }
}
