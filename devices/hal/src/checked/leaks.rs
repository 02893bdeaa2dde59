//! Leak reports: resources that a device's owner created but did not destroy.

use super::Checked;
use crate::error::Error;
use crate::ids::{BufferId, ModuleId, ProgramId, RegionId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Resources that were not destroyed, ordered by ID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaks {
    /// Buffers.
    pub buffers: Vec<BufferId>,
    /// Registered host regions.
    pub regions: Vec<RegionId>,
    /// Recorded programs.
    pub programs: Vec<ProgramId>,
    /// Modules.
    pub modules: Vec<ModuleId>,
}

impl Leaks {
    /// Returns true if everything was destroyed.
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

/// Handle that reports the leaks of a device after the device has been dropped.
#[derive(Clone, Debug, Default)]
pub struct LeakWatch(Arc<Mutex<Option<Leaks>>>);

impl LeakWatch {
    /// Returns the leaks, or `None` while the device is open.
    pub fn leaks(&self) -> Option<Leaks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Checked {
    /// Returns the resources that have not been destroyed so far. Reports no leaks for a lost device, because
    /// its owner cannot destroy any resource.
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

    /// Returns a handle that reports this device's leaks after it is dropped.
    pub fn leak_watch(&self) -> LeakWatch {
        self.watch.clone()
    }

    /// Returns true if the device itself was lost. Returns false if it only waited for another device that
    /// was lost.
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
            tracing::warn!(device, ?leaks, "a device was closed with {leaks} that were not destroyed");
        }
        *self.watch.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(leaks);
    }
}
