//! Devices that are interchangeable count as one kind with several members.
//!
//! This module must not know the searches.

use super::Instance;

/// The kinds of devices that may take part, each with its members in order; kinds are in the order of their first members.
pub(super) fn merge(instance: &Instance) -> Vec<Vec<usize>> {
    let mut kinds: Vec<Vec<usize>> = Vec::new();
    for device in (0..instance.devices.len()).filter(|d| !instance.excluded[*d]) {
        match kinds.iter_mut().find(|kind| joins(instance, kind, device)) {
            Some(kind) => kind.push(device),
            None => kinds.push(vec![device]),
        }
    }
    kinds
}

/// Every device by itself.
pub(super) fn single(instance: &Instance) -> Vec<Vec<usize>> {
    (0..instance.devices.len()).filter(|d| !instance.excluded[*d]).map(|d| vec![d]).collect()
}

/// Whether a device may change places with any member of a kind without a difference to any placement.
fn joins(instance: &Instance, kind: &[usize], device: usize) -> bool {
    let first = kind[0];
    let pinned = |d: usize| instance.pins.contains(&Some(d));
    let on_bus =
        |d: usize| instance.shared.iter().any(|bus| bus.users.iter().any(|((a, b), _)| *a == d || *b == d));
    let unlike = |d: usize| pinned(d) || on_bus(d);
    if unlike(device)
        || unlike(first)
        || instance.required.contains(&device) != instance.required.contains(&first)
    {
        return false;
    }
    // Within the kind all crossings are the same; to and from any other device they are those of the first member.
    let within = instance.crossing(first, kind.get(1).copied().unwrap_or(device));
    let inside = kind.iter().all(|member| {
        instance.crossing(*member, device) == within && instance.crossing(device, *member) == within
    });
    let outside = (0..instance.devices.len()).filter(|d| *d != device && !kind.contains(d)).all(|other| {
        instance.crossing(other, device) == instance.crossing(other, first)
            && instance.crossing(device, other) == instance.crossing(first, other)
    });
    inside && outside && instance.devices[device] == instance.devices[first]
}
