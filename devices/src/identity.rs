//! Which adapters are one physical device seen through several APIs.
//!
//! This module must not know backends by name: their order says which is preferred.

use crate::table::Physical;
use ragtag_hal::{Adapter, AdapterKind};

/// Groups adapters by physical device. They come in order of preference, and so do the adapters of each group.
///
/// Two adapters of one backend are two devices, whatever their UUIDs say (software devices share one); so a group has at
/// most one adapter of each backend, and twins pair up in the order in which the backends show them.
pub(crate) fn merge<'a>(adapters: impl Iterator<Item = &'a Adapter>) -> Vec<Physical> {
    let mut groups: Vec<Vec<&Adapter>> = Vec::new();
    for adapter in adapters {
        let fits = |group: &&mut Vec<&Adapter>| {
            group.iter().all(|other| other.backend != adapter.backend)
                && group.iter().any(|other| same(other, adapter))
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(adapter),
            None => groups.push(vec![adapter]),
        }
    }
    let physical =
        |group: Vec<&Adapter>| Physical { adapters: group.into_iter().map(Adapter::label).collect() };
    groups.into_iter().map(physical).collect()
}

/// Whether adapters of two backends are the same device: by PCI address if both have one, else by UUID if both have
/// one, else by name and memory. CPU devices are parts of a processor that only their own backend divides.
fn same(a: &Adapter, b: &Adapter) -> bool {
    if a.kind == AdapterKind::Cpu || b.kind == AdapterKind::Cpu {
        return false;
    }
    if let (Some(a), Some(b)) = (a.identity.pci, b.identity.pci) {
        return a == b;
    }
    if let (Some(a), Some(b)) = (a.identity.uuid, b.identity.uuid) {
        return a == b;
    }
    a.name.eq_ignore_ascii_case(&b.name) && similar(total_bytes(a), total_bytes(b))
}

/// The size of the heap that buffers come from.
pub(crate) fn total_bytes(adapter: &Adapter) -> u64 {
    adapter.memory.first().map_or(0, |memory| memory.total_bytes)
}

/// Within a sixteenth: drivers keep different amounts for themselves.
fn similar(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= a.max(b) / 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::fakes::{adapter, pci};

    fn merged(adapters: &[Adapter]) -> Vec<Vec<String>> {
        merge(adapters.iter()).into_iter().map(|physical| physical.adapters).collect()
    }

    #[test]
    fn a_pci_address_decides_where_both_have_one() {
        let mut a = adapter("cuda", 0, AdapterKind::Discrete, 8);
        let mut b = adapter("vulkan", 0, AdapterKind::Discrete, 8);
        let mut c = adapter("vulkan", 1, AdapterKind::Discrete, 8);
        (a.identity.pci, b.identity.pci, c.identity.pci) = (pci(2), pci(1), pci(2));
        (a.identity.uuid, b.identity.uuid, c.identity.uuid) = (Some([1; 16]), Some([1; 16]), Some([2; 16]));
        assert_eq!(merged(&[a, b, c]), [vec!["cuda:0", "vulkan:1"], vec!["vulkan:0"]]);
    }

    #[test]
    fn else_the_uuid_decides_where_both_have_one() {
        let mut a = adapter("cuda", 0, AdapterKind::Discrete, 8);
        let mut b = adapter("vulkan", 0, AdapterKind::Discrete, 8);
        let mut c = adapter("opencl", 0, AdapterKind::Discrete, 20);
        (a.identity.pci, a.identity.uuid) = (pci(2), Some([1; 16]));
        (b.identity.uuid, c.identity.uuid) = (Some([2; 16]), Some([1; 16]));
        c.name = "another name".into();
        assert_eq!(merged(&[a, b, c]), [vec!["cuda:0", "opencl:0"], vec!["vulkan:0"]]);
    }

    #[test]
    fn else_name_and_memory_decide() {
        let gpu = |backend, total_gib| {
            let mut adapter = adapter(backend, 0, AdapterKind::Integrated, total_gib);
            adapter.name = if backend == "wgpu" { "Arc A380".into() } else { "ARC A380".into() };
            adapter
        };
        assert_eq!(merged(&[gpu("vulkan", 16), gpu("opencl", 15), gpu("wgpu", 16)]).len(), 1);
        assert_eq!(merged(&[gpu("vulkan", 16), gpu("opencl", 12)]).len(), 2);
        let mut other = gpu("opencl", 16);
        other.name = "Arc A770".into();
        assert_eq!(merged(&[gpu("vulkan", 16), other]).len(), 2);
    }

    #[test]
    fn twins_stay_two_and_pair_up_across_backends() {
        let twin = |backend, index| {
            let mut adapter = adapter(backend, index, AdapterKind::Software, 8);
            adapter.identity.uuid = Some([7; 16]);
            adapter
        };
        let adapters = [twin("vulkan", 0), twin("vulkan", 1), twin("opencl", 0), twin("opencl", 1)];
        assert_eq!(merged(&adapters), [["vulkan:0", "opencl:0"], ["vulkan:1", "opencl:1"]]);
    }

    #[test]
    fn cpu_devices_are_never_merged() {
        let mut opencl = adapter("opencl", 0, AdapterKind::Cpu, 8);
        let cpu = [0, 1].map(|index| adapter("cpu", index, AdapterKind::Cpu, 8));
        opencl.name = cpu[0].name.clone();
        assert_eq!(merged(&[opencl, cpu[0].clone(), cpu[1].clone()]).len(), 3);
    }
}
