//! Memory that the engines of this process have claimed.
//!
//! The free memory that a driver or the system reports still contains what an engine is about to allocate, and pages
//! that a CPU device has not touched yet. So an engine claims the memory of its plan before it opens its devices, and
//! planners leave claimed memory alone. A claim ends when the engine's pipeline has released its memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Name of host memory.
pub(crate) const HOST: &str = "host";

/// Memory of one device, or of the host.
#[derive(Debug)]
pub(crate) struct Part {
    /// Names of the device: its labels in all APIs, and its address. Each of them suffices to recognize it.
    pub(crate) names: Vec<String>,
    /// Memory of the plan, in bytes.
    pub(crate) bytes: u64,
    /// Part of this memory that counts as free although it is allocated, because the device commits its pages on
    /// first access.
    pub(crate) untouched_bytes: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    /// Memory caps under which the plan was made.
    caps: Vec<String>,
    parts: Vec<Part>,
    is_allocated: bool,
}

struct Ledger {
    /// Number of changes so far.
    changes: u64,
    entries: Vec<Entry>,
}

static LEDGER: Mutex<Ledger> = Mutex::new(Ledger { changes: 0, entries: Vec::new() });

fn changed() -> MutexGuard<'static, Ledger> {
    let mut ledger = LEDGER.lock().unwrap_or_else(PoisonError::into_inner);
    ledger.changes += 1;
    ledger
}

/// Returns a number that grows whenever an engine claims, allocates or releases memory.
pub(crate) fn changes() -> u64 {
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner).changes
}

/// Claimed memory of a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claimed {
    /// Memory claimed under the same caps, which engines share.
    pub(crate) capped_bytes: u64,
    /// Memory claimed under any caps that the device still reports as free.
    pub(crate) free_bytes: u64,
}

/// Returns the memory that engines have claimed on the device with these names.
pub(crate) fn claimed(names: &[String], caps: &[String]) -> Claimed {
    let ledger = LEDGER.lock().unwrap_or_else(PoisonError::into_inner);
    let mut claimed = Claimed::default();
    for entry in &ledger.entries {
        let is_here = |part: &&Part| part.names.iter().any(|name| names.contains(name));
        for Part { bytes, untouched_bytes, .. } in entry.parts.iter().filter(is_here) {
            let free_bytes = if entry.is_allocated { *untouched_bytes } else { *bytes };
            let capped_bytes = if entry.caps == caps { *bytes } else { 0 };
            claimed.capped_bytes = claimed.capped_bytes.saturating_add(capped_bytes);
            claimed.free_bytes = claimed.free_bytes.saturating_add(free_bytes);
        }
    }
    claimed
}

/// The claim of one engine. Dropping it ends the claim.
#[derive(Debug)]
pub(crate) struct Claim {
    id: u64,
}

impl Claim {
    /// Claims memory that is not allocated yet.
    pub(crate) fn new(parts: Vec<Part>, caps: Vec<String>) -> Self {
        let mut ledger = changed();
        let id = ledger.changes;
        ledger.entries.push(Entry { id, caps, parts, is_allocated: false });
        Self { id }
    }

    /// Records that the memory is allocated.
    pub(crate) fn allocated(&self) {
        let mut ledger = changed();
        let own = ledger.entries.iter_mut().find(|entry| entry.id == self.id);
        own.into_iter().for_each(|entry| entry.is_allocated = true);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        changed().entries.retain(|entry| entry.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_counts_until_it_ends() {
        let part = |name: &str, bytes, untouched_bytes| Part {
            names: vec!["ledger-test".into(), name.into()],
            bytes,
            untouched_bytes,
        };
        let now = |name: &str| {
            let Claimed { capped_bytes, free_bytes } = claimed(&[name.into()], &["card=1B".into()]);
            (capped_bytes, free_bytes)
        };
        let before = changes();
        let one = Claim::new(vec![part("a-card", 100, 30)], vec!["card=1B".into()]);
        let two = Claim::new(vec![part("b-card", 7, 0)], Vec::new());
        assert!(changes() > before);
        assert_eq!([now("a-card"), now("b-card"), now("ledger-test")], [(100, 100), (0, 7), (100, 107)]);
        one.allocated();
        assert_eq!(now("ledger-test"), (100, 37));
        drop(one);
        two.allocated();
        assert_eq!([now("a-card"), now("ledger-test")], [(0, 0), (0, 0)]);
    }
}
