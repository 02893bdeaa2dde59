//! Size of the host's memory, as the operating system reports it.
//!
//! This module knows nothing about devices.

use std::path::Path;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Names of a control group's limit file and of the bytes in use in its `memory.stat`, for version 2 of control
/// groups and for version 1 ([kernel documentation](https://docs.kernel.org/admin-guide/cgroup-v2.html)). Pages of
/// files do not count as used, because the kernel can drop them.
const VERSION_2: [&str; 2] = ["memory.max", "anon"];
const VERSION_1: [&str; 2] = ["memory.limit_in_bytes", "total_rss"];

/// Size and free bytes of the host's memory. Both figures take the limits of control groups into account, for example
/// of a container or a systemd unit.
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
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        whole.within(Path::new("/sys/fs/cgroup"), &groups)
    }

    /// Applies the limits of control groups. `groups` has a line for each group of the process, as in
    /// `/proc/self/cgroup`. The groups are folders in `mounted`, and the limits of all enclosing groups apply.
    fn within(self, mounted: &Path, groups: &str) -> Self {
        let limits = groups.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let (root, names) = match controllers {
                "" => (mounted.to_owned(), VERSION_2),
                _ if controllers.split(',').any(|one| one == "memory") => (mounted.join("memory"), VERSION_1),
                _ => return None,
            };
            let of_group = move |group: &Path| group_memory(&root.join(group), names);
            Some(Path::new(path.trim_start_matches('/')).ancestors().filter_map(of_group).collect::<Vec<_>>())
        });
        limits.flatten().fold(self, |least, limit| Self {
            total_bytes: least.total_bytes.min(limit.total_bytes),
            free_bytes: least.free_bytes.min(limit.free_bytes),
        })
    }
}

/// Returns the limit of the control group in `folder` and the free bytes below it. Returns `None` if the group has no
/// limit.
fn group_memory(folder: &Path, [limit, used]: [&str; 2]) -> Option<HostMemory> {
    let total_bytes = std::fs::read_to_string(folder.join(limit)).ok()?.trim().parse().ok()?;
    let stat = std::fs::read_to_string(folder.join("memory.stat")).ok()?;
    let value = |line: &str| line.strip_prefix(used)?.strip_prefix(' ')?.parse::<u64>().ok();
    let used_bytes = stat.lines().find_map(value)?;
    Some(HostMemory { total_bytes, free_bytes: total_bytes.saturating_sub(used_bytes) })
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
                format!("cache 7\n{} {}\nanon_thp 5\n", used.0, used.1),
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
        assert_eq!(within("0::/user/run\n"), (900, 500), "the limit of the enclosing group");
        assert_eq!(within("0::/elsewhere\n"), (1000, 600));
        assert_eq!(within("3:cpu:/job\n4:cpuset,memory:/job\n0::/\n"), (700, 0), "more is used than allowed");
        assert_eq!(within("4:memory:/missing/job\n"), (1000, 600));
        assert_eq!(within("nonsense\n::\n\n"), (1000, 600));
    }
}
