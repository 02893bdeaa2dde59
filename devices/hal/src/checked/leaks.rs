//! What a device was left with: everything that its owner made and did not destroy.

use super::Checked;
use crate::error::Error;
use crate::ids::{BufferId, ModuleId, ProgramId, RegionId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// What has not been destroyed, in the order of the ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaks {
    /// Buffers.
    pub buffers: Vec<BufferId>,
    /// Host regions that are registered.
    pub regions: Vec<RegionId>,
    /// Recorded programs.
    pub programs: Vec<ProgramId>,
    /// Modules.
    pub modules: Vec<ModuleId>,
}

impl Leaks {
    /// Whether everything was destroyed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.buffers.len(), "buffers"),
            (self.regions.len(), "regions"),
            (self.programs.len(), "programs"),
            (self.modules.len(), "modules"),
        ];
        let some = counts.iter().filter(|(count, _)| *count > 0);
        let words: Vec<_> = some.map(|(count, what)| format!("{count} {what}")).collect();
        f.write_str(&if words.is_empty() { "nothing".into() } else { words.join(", ") })
    }
}

/// Tells what a device was left with once it has gone, to those who gave it away.
#[derive(Clone, Debug, Default)]
pub struct LeakWatch(Arc<Mutex<Option<Leaks>>>);

impl LeakWatch {
    /// What was left; `None` while the device is open.
    pub fn leaks(&self) -> Option<Leaks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Checked {
    /// What has not been destroyed so far. A lost device cannot be asked to destroy anything, so nothing counts there.
    pub fn leaks(&self) -> Leaks {
        if self.is_lost() {
            return Leaks::default();
        }
        Leaks {
            buffers: sorted(&self.resources.buffers),
            regions: sorted(&self.resources.regions),
            programs: sorted(&self.programs),
            modules: sorted(&self.resources.modules),
        }
    }

    /// Will know what this device is left with.
    pub fn leak_watch(&self) -> LeakWatch {
        self.watch.clone()
    }

    /// Whether the device itself was lost; not whether it waited for one that was.
    fn is_lost(&self) -> bool {
        self.own.iter().any(|own| matches!(own.timeline.failure(), Some(Error::Lost { .. })))
    }
}

fn sorted<K: Copy + Ord, V>(things: &HashMap<K, V>) -> Vec<K> {
    let mut ids: Vec<K> = things.keys().copied().collect();
    ids.sort_unstable();
    ids
}

impl Drop for Checked {
    fn drop(&mut self) {
        let leaks = self.leaks();
        if !leaks.is_empty() {
            let device = self.inner.adapter().label();
            tracing::warn!(device, ?leaks, "a device was closed with {leaks} that nobody destroyed");
        }
        *self.watch.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(leaks);
    }
}
