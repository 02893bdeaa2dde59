//! Evicts weights from the CPU's caches between two timings.
//!
//! In a run, all other blocks execute between two executions of a block, so a large model's weights come from
//! memory. Calibration times few blocks, and the cache of a large server could hold all of them.

use ragtag_hal::HostMemory;
use rayon::prelude::*;
use std::fs::read_to_string;
use std::path::Path;

/// Description of the first core's caches on Linux.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";
/// Assumed size of the CPU's caches in bytes, if the system does not report it.
const USUAL_CACHE_BYTES: u64 = 64 << 20;
/// Size of a sweep's memory per byte of cache.
const PER_BYTE: u64 = 2;
/// Number of times that a sweep reads its memory. Caches do not evict the oldest line exactly: after one pass, a
/// 300 MiB cache still held about an eighth of the weights.
const PASSES: usize = 4;
/// Maximum size of a sweep's memory in bytes.
const MAX_BYTES: u64 = 1 << 30;
/// Part of the free host memory that all sweeps together may take. Without it, a calibration could exceed the limit
/// of a container.
const FREE_PART: u64 = 4;
/// Number of words in a cache line.
const LINE_WORDS: usize = 8;
/// Number of words that a thread reads at a time.
const PART_WORDS: usize = 1 << 16;

/// Memory that a sweep reads. A sweep does not write: the timed blocks would then wait until the caches have
/// written the changed lines to memory.
pub(super) struct Sweep(Vec<u64>);

impl Sweep {
    /// Creates a sweep of at most `bytes` bytes, the size of the weights that a run reads in between, and of no
    /// more than the caches need and host memory has. `together` is the number of devices that share the CPU.
    /// Returns `None` if there is nothing to read, or no memory for it.
    pub(super) fn new(bytes: u64, together: u32) -> Option<Self> {
        let caches = cache_bytes(Path::new(CACHES)).unwrap_or(USUAL_CACHE_BYTES);
        let free = HostMemory::now().free_bytes / FREE_PART;
        let most = caches.saturating_mul(PER_BYTE).min(MAX_BYTES).min(free);
        let words = (bytes.min(most) / u64::from(together.max(1))) as usize / size_of::<u64>();
        let mut memory = Vec::new();
        memory.try_reserve_exact(words).ok().filter(|()| words > 0)?;
        // Pages that were never written share a single page of zeros.
        memory.par_extend(rayon::iter::repeat_n(1, words));
        Some(Self(memory))
    }

    /// Reads the memory.
    pub(super) fn go(&self) {
        let lines = |part: &[u64]| part.iter().step_by(LINE_WORDS).sum::<u64>();
        for _ in 0..PASSES {
            std::hint::black_box(self.0.par_chunks(PART_WORDS).map(lines).sum::<u64>());
        }
    }
}

/// Returns the total size in bytes of the last-level caches. `folder` describes the caches of one core. All
/// cores are assumed to have the same caches. Returns `None` if the system does not report them.
fn cache_bytes(folder: &Path) -> Option<u64> {
    let caches = std::fs::read_dir(folder).ok()?.flatten();
    let cache = |at: &Path| {
        let size = read_to_string(at.join("size")).ok()?;
        let kib: u64 = size.trim().strip_suffix('K')?.parse().ok()?;
        let sharing = cpus(read_to_string(at.join("shared_cpu_list")).ok()?.trim())?;
        Some((kib.checked_mul(1 << 10)?, sharing.max(1)))
    };
    let (bytes, sharing) = caches.filter_map(|entry| cache(&entry.path())).max()?;
    let all = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    bytes.checked_mul(all.div_ceil(sharing))
}

/// Returns the number of CPUs in a list such as `0-3,8`.
fn cpus(list: &str) -> Option<u64> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.split(',').map(count).try_fold(0u64, |sum, count| sum.checked_add(count?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_read_from_the_system() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(cache_bytes(folder.path()), None);
        let all = std::thread::available_parallelism().unwrap().get() as u64;
        for (index, size, cpus) in [("index0", "32K", "0"), ("index3", "4096K", "0-1"), ("index4", "?", "0")]
        {
            let cache = folder.path().join(index);
            std::fs::create_dir(&cache).unwrap();
            std::fs::write(cache.join("size"), format!("{size}\n")).unwrap();
            std::fs::write(cache.join("shared_cpu_list"), format!("{cpus}\n")).unwrap();
        }
        assert_eq!(cache_bytes(folder.path()), Some(all.div_ceil(2) * (4 << 20)));
        assert_eq!(["0", "0-3,8", "5-4", "a", ""].map(cpus), [Some(1), Some(5), None, None, None]);
    }

    #[test]
    fn a_sweep_is_as_large_as_the_weights_in_between() {
        assert!(Sweep::new(0, 1).is_none());
        assert_eq!(Sweep::new(1 << 16, 2).unwrap().0.len(), 1 << 12);
        assert!(Sweep::new(u64::MAX, 1).unwrap().0.len() <= MAX_BYTES as usize / 8);
    }
}
