//! Detects adapters that represent the same physical device in different APIs.
//!
//! This module knows no backend by name. It relies on the order of the backends, which is the order of
//! preference.

use ragtag_hal::{Adapter, AdapterKind, Memory, MemorySource};

/// Indices, in the report, of the adapters of one physical device.
type Group = Vec<usize>;

/// Criteria that identify two adapters as one device, most reliable first. [`merge`] applies each criterion
/// to all adapters before the next one, so that a weaker match cannot displace a stronger match.
const EVIDENCE: [fn(&Adapter, &Adapter) -> bool; 3] = [same_address, same_uuid, same_name];

/// Groups adapters by physical device. `adapters` are in order of preference. Groups and their members keep
/// this order.
///
/// Two adapters of one backend are always different devices, even if they report the same UUID, as some
/// software devices do. A group therefore has at most one adapter per backend. If several devices are
/// identical, they are matched in the order in which the backends list them.
pub(crate) fn merge(adapters: &[&Adapter]) -> Vec<Group> {
    let mut groups: Vec<Group> = (0..adapters.len()).map(|at| vec![at]).collect();
    for same in EVIDENCE {
        let mut merged: Vec<Group> = Vec::new();
        for group in groups {
            let pairs = |other: &Group| -> Vec<(&Adapter, &Adapter)> {
                let with = |&a: &usize| group.iter().map(move |&b| (adapters[a], adapters[b]));
                other.iter().flat_map(with).collect()
            };
            let fits = |other: &&mut Group| {
                let pairs = pairs(other);
                let is_named = pairs.iter().any(|(a, b)| same_address(a, b) || same_uuid(a, b));
                pairs.iter().any(|(a, b)| same(a, b))
                    && !pairs.iter().any(|(a, b)| differ(a, b) || !is_named && have_different_uuids(a, b))
            };
            match merged.iter_mut().find(fits) {
                Some(other) => other.extend(group),
                None => merged.push(group),
            }
        }
        groups = merged;
    }
    groups.iter_mut().for_each(|group| group.sort_unstable());
    groups.sort_unstable();
    groups
}

fn same_address(a: &Adapter, b: &Adapter) -> bool {
    a.identity.pci.is_some() && a.identity.pci == b.identity.pci
}

fn same_uuid(a: &Adapter, b: &Adapter) -> bool {
    a.identity.uuid.is_some() && a.identity.uuid == b.identity.uuid
}

fn same_name(a: &Adapter, b: &Adapter) -> bool {
    a.name.eq_ignore_ascii_case(&b.name) && similar(total_bytes(a), total_bytes(b))
}

/// Returns true if two adapters cannot be the same device. Adapters of the same backend are different
/// devices, and so are adapters with different PCI addresses. CPU devices are never merged, because only the
/// backend `cpu` divides the CPU into several devices.
fn differ(a: &Adapter, b: &Adapter) -> bool {
    let cpu = a.kind == AdapterKind::Cpu || b.kind == AdapterKind::Cpu;
    let are_apart = a.identity.pci.zip(b.identity.pci).is_some_and(|(a, b)| a != b);
    cpu || a.backend == b.backend || are_apart
}

/// Returns true if two adapters have different UUIDs, and not both have a PCI address. They are different
/// devices, unless a third adapter connects them. Some drivers of one card report different UUIDs.
fn have_different_uuids(a: &Adapter, b: &Adapter) -> bool {
    let both_have_addresses = a.identity.pci.is_some() && b.identity.pci.is_some();
    !both_have_addresses && a.identity.uuid.zip(b.identity.uuid).is_some_and(|(a, b)| a != b)
}

/// Returns the size in bytes of the heap for buffers, or 0 if it is unknown.
pub(crate) fn total_bytes(adapter: &Adapter) -> u64 {
    adapter.memory.first().map_or(0, |memory| memory.total_bytes)
}

/// Returns true if two sizes differ by at most one sixteenth. Different drivers reserve different amounts of
/// memory.
fn similar(a: u64, b: u64) -> bool {
    a.abs_diff(b) <= a.max(b) / 16
}

/// Returns the memory figures of an adapter. Takes the missing figures from other adapters of the same
/// device. Returns `None` if no figure is missing, or if the other adapters do not report the missing figures
/// either.
pub(crate) fn borrowed_memory(adapter: &Adapter, others: &[&Adapter]) -> Option<Memory> {
    let own = adapter.memory.first();
    if own.is_some_and(|own| own.free_bytes.is_some()) {
        return None;
    }
    let heaps = || others.iter().filter_map(|other| other.memory.first());
    // A heap whose free bytes are unknown is useful only if the adapter reports no heap at all.
    let lent = heaps().find(|heap| heap.free_bytes.is_some()).or(heaps().next().filter(|_| own.is_none()))?;
    let total_bytes = own.map_or(lent.total_bytes, |own| own.total_bytes);
    Some(Memory {
        heap: own.map_or(lent.heap, |own| own.heap),
        total_bytes,
        free_bytes: lent.free_bytes.map(|free| free.min(total_bytes)),
        source: MemorySource::OtherApi,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::fakes::{adapter, pci};

    fn merged(adapters: &[Adapter]) -> Vec<Vec<String>> {
        let all: Vec<_> = adapters.iter().collect();
        let labels = |group: Group| group.into_iter().map(|at| all[at].label()).collect();
        merge(&all).into_iter().map(labels).collect()
    }

    #[test]
    fn a_pci_address_decides_if_both_have_one() {
        let mut a = adapter("cuda", 0, AdapterKind::Discrete, 8);
        let mut b = adapter("vulkan", 0, AdapterKind::Discrete, 8);
        let mut c = adapter("vulkan", 1, AdapterKind::Discrete, 8);
        (a.identity.pci, b.identity.pci, c.identity.pci) = (pci(2), pci(1), pci(2));
        (a.identity.uuid, b.identity.uuid, c.identity.uuid) = (Some([1; 16]), Some([1; 16]), Some([2; 16]));
        assert_eq!(merged(&[a, b, c]), [vec!["cuda:0", "vulkan:1"], vec!["vulkan:0"]]);
    }

    #[test]
    fn otherwise_the_uuid_decides_if_both_have_one() {
        let mut a = adapter("cuda", 0, AdapterKind::Discrete, 8);
        let mut b = adapter("vulkan", 0, AdapterKind::Discrete, 8);
        let mut c = adapter("opencl", 0, AdapterKind::Discrete, 20);
        (a.identity.pci, a.identity.uuid) = (pci(2), Some([1; 16]));
        (b.identity.uuid, c.identity.uuid) = (Some([2; 16]), Some([1; 16]));
        c.name = "another name".into();
        assert_eq!(merged(&[a, b, c]), [vec!["cuda:0", "opencl:0"], vec!["vulkan:0"]]);
    }

    #[test]
    fn otherwise_name_and_memory_decide() {
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
    fn identical_devices_stay_separate_and_pair_up_across_backends() {
        let twin = |backend, index| {
            let mut adapter = adapter(backend, index, AdapterKind::Software, 8);
            adapter.identity.uuid = Some([7; 16]);
            adapter
        };
        let adapters = [twin("vulkan", 0), twin("vulkan", 1), twin("opencl", 0), twin("opencl", 1)];
        assert_eq!(merged(&adapters), [["vulkan:0", "opencl:0"], ["vulkan:1", "opencl:1"]]);
    }

    /// Tests an Arc card. Its name and its UUID differ from API to API, and OpenCL reports no PCI address.
    #[test]
    fn an_arc_card_is_one_device_through_all_apis() {
        let arc = |backend, name: &str, slot: Option<u8>, uuid| {
            let mut adapter = adapter(backend, 0, AdapterKind::Discrete, 16);
            adapter.name = name.into();
            (adapter.identity.pci, adapter.identity.uuid) = (slot.and_then(pci), uuid);
            adapter
        };
        let name = "Intel(R) Arc(TM) A770 Graphics";
        let level_zero = arc("level-zero", name, Some(3), Some([1; 16]));
        let vulkan = arc("vulkan", "Intel(R) Arc(tm) A770 Graphics (DG2)", Some(3), Some([2; 16]));
        let opencl = arc("opencl", name, None, Some([1; 16]));
        assert_eq!(merged(&[level_zero, vulkan, opencl]), [["level-zero:0", "vulkan:0", "opencl:0"]]);
    }

    #[test]
    fn cpu_devices_are_never_merged() {
        let mut opencl = adapter("opencl", 0, AdapterKind::Cpu, 8);
        let cpu = [0, 1].map(|index| adapter("cpu", index, AdapterKind::Cpu, 8));
        opencl.name = cpu[0].name.clone();
        assert_eq!(merged(&[opencl, cpu[0].clone(), cpu[1].clone()]).len(), 3);
    }

    /// Tests two identical cards. OpenCL reports the PCI address of only one of them. The match by name must
    /// not displace the match by address.
    #[test]
    fn a_match_by_name_does_not_displace_a_match_by_address() {
        let card = |backend, index, bus: Option<u8>| {
            let mut adapter = adapter(backend, index, AdapterKind::Discrete, 24);
            adapter.name = "RTX 3090".into();
            adapter.identity.pci = bus.and_then(pci);
            adapter
        };
        let cuda = [card("cuda", 0, Some(1)), card("cuda", 1, Some(2))];
        let [a, b] = cuda.clone();
        let opencl = [card("opencl", 0, None), card("opencl", 1, Some(1))];
        let all = [a, b, opencl[0].clone(), opencl[1].clone()];
        assert_eq!(merged(&all), [["cuda:0", "opencl:1"], ["cuda:1", "opencl:0"]]);

        // An adapter that joins a group only by its name does not bring a third adapter into the group.
        let [a, b] = cuda;
        let all = [a, b, card("opencl", 0, None), card("wgpu", 0, Some(2))];
        assert_eq!(merged(&all), [["cuda:0", "opencl:0"], ["cuda:1", "wgpu:0"]]);
    }

    #[test]
    fn four_equal_cards_are_four_through_every_api() {
        let card = |backend: &str, index: u32| {
            let mut adapter = adapter(backend, index, AdapterKind::Discrete, 24);
            adapter.name = "RTX 3090".into();
            // Vulkan lists the cards in reverse order. OpenCL reports only names.
            adapter.identity.pci = match backend {
                "cuda" => pci(index as u8),
                "vulkan" => pci(3 - index as u8),
                _ => None,
            };
            adapter
        };
        let all: Vec<_> = ["cuda", "vulkan", "opencl"]
            .iter()
            .flat_map(|backend| (0..4).map(move |index| (backend, index)))
            .map(|(backend, index)| card(backend, index))
            .collect();
        let expected = [0, 1, 2, 3]
            .map(|at| vec![format!("cuda:{at}"), format!("vulkan:{}", 3 - at), format!("opencl:{at}")]);
        assert_eq!(merged(&all), expected);
    }

    #[test]
    fn an_address_decides_even_if_uuids_differ() {
        let mut a = adapter("hip", 0, AdapterKind::Discrete, 24);
        let mut b = adapter("vulkan", 0, AdapterKind::Discrete, 24);
        (a.identity.pci, b.identity.pci) = (pci(1), pci(1));
        (a.identity.uuid, b.identity.uuid) = (Some([1; 16]), Some([2; 16]));
        assert_eq!(merged(&[a, b]), [["hip:0", "vulkan:0"]]);
    }

    #[test]
    fn memory_that_an_api_does_not_report_is_borrowed() {
        const GIB: u64 = 1 << 30;
        let mut teller = adapter("cuda", 0, AdapterKind::Discrete, 24);
        teller.memory[0].free_bytes = Some(20 * GIB);
        let silent = adapter("opencl", 0, AdapterKind::Discrete, 16);
        let heap = borrowed_memory(&silent, &[&teller]).unwrap();
        assert_eq!(
            (heap.total_bytes, heap.free_bytes, heap.source),
            (16 * GIB, Some(16 * GIB), MemorySource::OtherApi)
        );
        let mut mute = silent.clone();
        mute.memory.clear();
        let heap = borrowed_memory(&mute, &[&silent, &teller]).unwrap();
        assert_eq!((heap.total_bytes, heap.free_bytes), (24 * GIB, Some(20 * GIB)));
        let heap = borrowed_memory(&mute, &[&silent]).unwrap();
        assert_eq!((heap.total_bytes, heap.free_bytes), (16 * GIB, None));
        assert_eq!(borrowed_memory(&teller, &[&silent]), None, "nothing to borrow");
        assert_eq!(borrowed_memory(&silent, &[&mute]), None);
    }
}
