//! Size of the host's memory, as the operating system reports it.
//!
//! This module knows nothing about devices.

use std::path::Path;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Names of the files that limit a control group, and the lines of its `memory.stat` that count bytes in use, for
/// version 2 of control groups and for version 1 ([kernel
/// documentation](https://docs.kernel.org/admin-guide/cgroup-v2.html)). Pages of files do not count as used, because
/// the kernel can drop them. Files in memory (`shmem`) do. Above `memory.high`, the kernel slows a process almost to
/// a halt.
struct GroupFiles {
    limits: &'static [&'static str],
    used: &'static [&'static str],
}

const VERSION_2: GroupFiles = GroupFiles {
    limits: &["memory.max", "memory.high"],
    used: &["anon", "shmem", "kernel_stack", "pagetables", "percpu", "sock", "slab_unreclaimable"],
};
const VERSION_1: GroupFiles =
    GroupFiles { limits: &["memory.limit_in_bytes"], used: &["total_rss", "total_shmem"] };

/// Names of limits of a process in `/proc/self/limits`, and of the lines of `/proc/self/status` that count what the
/// limits apply to.
///
/// Stacks of threads count, whether they are used or not.
const PROCESS_LIMITS: [[&str; 2]; 2] = [["Max address space", "VmSize:"], ["Max data size", "VmData:"]];

/// Bytes of these limits that are kept for the stacks of threads: for those of each CPU thread, and for others.
const STACK_BYTES: [u64; 2] = [2 * (2 << 20), 32 << 20];

/// Size and free bytes of the host's memory. Both figures take the limits of control groups into account, for example
/// of a container or a systemd unit, and those of the process (`ulimit`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Total bytes.
    pub total_bytes: u64,
    /// Bytes available without swapping.
    pub free_bytes: u64,
}

impl HostMemory {
    /// Returns the current figures from the operating system.
    pub fn now() -> Self {
        let ram = MemoryRefreshKind::nothing().with_ram();
        let system = System::new_with_specifics(RefreshKind::nothing().with_memory(ram));
        let whole = Self { total_bytes: system.total_memory(), free_bytes: system.available_memory() };
        // Other systems have no such file.
        let [groups, limits, status] = ["cgroup", "limits", "status"]
            .map(|file| std::fs::read_to_string(Path::new("/proc/self").join(file)).unwrap_or_default());
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
        let stack_bytes = threads.saturating_mul(STACK_BYTES[0]).saturating_add(STACK_BYTES[1]);
        let whole = whole.within(Path::new("/sys/fs/cgroup"), &groups);
        whole.within_process(&limits, &status, stack_bytes)
    }

    /// Applies the limits of control groups. `groups` has a line for each group of the process, as in
    /// `/proc/self/cgroup`. The groups are folders in `mounted`, and the limits of all enclosing groups apply.
    fn within(self, mounted: &Path, groups: &str) -> Self {
        let limits = groups.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let (root, files) = match controllers {
                "" => (mounted.to_owned(), &VERSION_2),
                _ if controllers.split(',').any(|one| one == "memory") => {
                    (mounted.join("memory"), &VERSION_1)
                }
                _ => return None,
            };
            let of_group = move |group: &Path| group_memory(&root.join(group), files);
            Some(Path::new(path.trim_start_matches('/')).ancestors().filter_map(of_group).collect::<Vec<_>>())
        });
        limits.flatten().fold(self, Self::least)
    }

    /// Applies the limits of the process, given as in `/proc/self/limits` and `/proc/self/status`, with
    /// `stack_bytes` bytes for stacks.
    fn within_process(self, limits: &str, status: &str, stack_bytes: u64) -> Self {
        let first_number = |text: &str, name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split_whitespace().next()?.parse::<u64>().ok()
        };
        let limit = |[limit, used]: [&str; 2]| {
            let kibibytes = first_number(status, used)?;
            let used = kibibytes.saturating_mul(1 << 10).saturating_add(stack_bytes);
            Some(Self::below(first_number(limits, limit)?, used))
        };
        PROCESS_LIMITS.into_iter().filter_map(limit).fold(self, Self::least)
    }

    /// Returns memory with `total_bytes` bytes, `used_bytes` of them in use.
    fn below(total_bytes: u64, used_bytes: u64) -> Self {
        Self { total_bytes, free_bytes: total_bytes.saturating_sub(used_bytes) }
    }

    fn least(self, other: Self) -> Self {
        Self {
            total_bytes: self.total_bytes.min(other.total_bytes),
            free_bytes: self.free_bytes.min(other.free_bytes),
        }
    }
}

/// Returns the limit of the control group in `folder` and the free bytes below it. Returns `None` if the group has no
/// limit.
fn group_memory(folder: &Path, files: &GroupFiles) -> Option<HostMemory> {
    let limit = |name: &&str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let total_bytes = files.limits.iter().filter_map(limit).min()?;
    let stat = std::fs::read_to_string(folder.join("memory.stat")).ok()?;
    let value = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        files.used.contains(&name).then(|| bytes.parse::<u64>().ok())?
    };
    Some(HostMemory::below(total_bytes, stat.lines().filter_map(value).fold(0, u64::saturating_add)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_memory() {
        let host = HostMemory::now();
        assert!(host.free_bytes > 0 && host.free_bytes <= host.total_bytes, "{host:?}");
    }

    #[test]
    fn limits_of_nested_control_groups_apply() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, [limit, used]: [(&str, &str); 2]| {
            let folder = root.path().join(path);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(limit.0), limit.1).unwrap();
            std::fs::write(
                folder.join("memory.stat"),
                format!("file 7\ncache 7\n{} {}\nanon_thp 5\nshmem 5\ntotal_shmem 0\n", used.0, used.1),
            )
            .unwrap();
        };
        group("user/run", [("memory.max", "max\n"), ("anon", "1")]);
        group("user", [("memory.max", "900\n"), ("anon", "400")]);
        group("memory", [("memory.limit_in_bytes", "9223372036854771712\n"), ("total_rss", "1")]);
        group("memory/job", [("memory.limit_in_bytes", "700\n"), ("total_rss", "800")]);
        let whole = HostMemory { total_bytes: 1000, free_bytes: 600 };
        let within = |groups: &str| {
            let HostMemory { total_bytes, free_bytes } = whole.within(root.path(), groups);
            (total_bytes, free_bytes)
        };
        assert_eq!(within("0::/user/run\n"), (900, 495), "the limit of the enclosing group");
        assert_eq!(within("0::/elsewhere\n"), (1000, 600));
        assert_eq!(within("3:cpu:/job\n4:cpuset,memory:/job\n0::/\n"), (700, 0), "more is used than allowed");
        assert_eq!(within("4:memory:/missing/job\n"), (1000, 600));
        assert_eq!(within("nonsense\n::\n\n"), (1000, 600));
        std::fs::write(root.path().join("user/run/memory.high"), "300\n").unwrap();
        assert_eq!(
            within("0::/user/run\n"),
            (300, 294),
            "the limit above which the kernel slows the process"
        );
    }

    #[test]
    fn limits_of_the_process_apply() {
        let limits = |space: &str, data: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             {data}                unlimited            bytes     \n\
                 Max address space         {space}               unlimited            bytes     \n"
            )
        };
        let status = "VmPeak:\t     900 kB\nVmSize:\t     300 kB\nVmData:\t       5 kB\n";
        let whole = HostMemory { total_bytes: 1 << 20, free_bytes: 500 << 10 };
        let within = |space: &str, data: &str| {
            let HostMemory { total_bytes, free_bytes } =
                whole.within_process(&limits(space, data), status, 1 << 10);
            (total_bytes, free_bytes >> 10)
        };
        assert_eq!(within("unlimited", "unlimited"), (1 << 20, 500));
        assert_eq!(within("409600", "unlimited"), (400 << 10, 99));
        assert_eq!(within("unlimited", "102400"), (100 << 10, 94));
        assert_eq!(within("1024", "1024"), (1024, 0));
        assert_eq!(whole.within_process("", "", 1), whole, "another system");
    }
}
