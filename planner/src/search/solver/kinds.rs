//! Groups interchangeable devices into kinds. Each kind has one or more members. This module knows nothing
//! about the searches.

use super::Instance;

/// Returns the kinds of the usable devices. The members of a kind are in device order. The kinds are ordered
/// by their first members.
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

/// Returns one kind for each usable device, with this device as its only member.
pub(super) fn single(instance: &Instance) -> Vec<Vec<usize>> {
    (0..instance.devices.len()).filter(|d| !instance.excluded[*d]).map(|d| vec![d]).collect()
}

/// Groups the kinds whose transfers into every other kind are equal. With shared buses, every kind forms its
/// own group.
pub(super) fn exits(instance: &Instance, kinds: &[Vec<usize>]) -> Vec<Vec<usize>> {
    // The transfer between members of two kinds. A kind with one member has no transfer to itself.
    let transfer = |from: usize, to: usize| {
        let target = if from == to { *kinds[from].get(1)? } else { kinds[to][0] };
        Some(instance.transfer(kinds[from][0], target))
    };
    let joins = |exit: &Vec<usize>, kind: usize| {
        let same = |to: usize| {
            let mut all = exit.iter().chain([&kind]).filter_map(|from| transfer(*from, to));
            all.next().is_none_or(|first| all.all(|other| other == first))
        };
        instance.shared.is_empty() && (0..kinds.len()).all(same)
    };
    let mut exits: Vec<Vec<usize>> = Vec::new();
    for kind in 0..kinds.len() {
        match exits.iter_mut().find(|exit| joins(exit, kind)) {
            Some(exit) => exit.push(kind),
            None => exits.push(vec![kind]),
        }
    }
    exits
}

/// Returns whether a device is interchangeable with all members of a kind.
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
    // All transfers within a kind must be equal. Transfers to and from any other device must equal those of
    // the first member.
    let within = instance.transfer(first, kind.get(1).copied().unwrap_or(device));
    let inside = kind.iter().all(|member| {
        instance.transfer(*member, device) == within && instance.transfer(device, *member) == within
    });
    let outside = (0..instance.devices.len()).filter(|d| *d != device && !kind.contains(d)).all(|other| {
        instance.transfer(other, device) == instance.transfer(other, first)
            && instance.transfer(device, other) == instance.transfer(first, other)
    });
    inside && outside && instance.devices[device] == instance.devices[first]
}
