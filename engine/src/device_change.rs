//! Changes of a running engine: other devices, a new plan, and suspension. The supervisor of the recovery interrupts the
//! pipeline, loads the stages of another plan, and lets the requests go on. No token is lost.

use crate::devices::Devices;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::planner::Planner;
use ragtag_planner::plan::Plan;
use std::collections::BTreeSet;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Change of a running engine. Without any field, the engine plans again for the same devices. A device that has rested
/// after a failure may then be part of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceChange {
    /// Labels of devices that the engine must no longer use.
    pub remove: Vec<String>,
    /// Labels of devices that the engine may use, from now on or again. A device that rests after a failure may be
    /// part of the plan at once.
    pub add: Vec<String>,
    /// Whether to free the memory of all devices, or to load the stages again. Requests wait meanwhile. `None` loads
    /// nothing if the engine is suspended.
    pub suspend: Option<bool>,
}

/// Devices that an engine may use, and a change that waits for the supervisor.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) devices: Devices,
    /// Devices of the selection that must not be used.
    pub(crate) removed: BTreeSet<String>,
    /// Devices that the latest change has added. Their failures do not count any more.
    pub(crate) added: Vec<String>,
    pub(crate) is_suspended: bool,
    /// Receiver of the plan after the change.
    pub(crate) waiting: Option<Sender<Result<Arc<Plan>>>>,
}

/// Devices that an engine may use, shared by the engine and its supervisor.
pub(crate) type SharedWanted = Arc<Mutex<Wanted>>;

impl Wanted {
    pub(crate) fn new(devices: &Devices) -> Self {
        let (removed, added, is_suspended) = (BTreeSet::new(), Vec::new(), false);
        Self { devices: devices.clone(), removed, added, is_suspended, waiting: None }
    }

    pub(crate) fn lock(wanted: &Mutex<Self>) -> MutexGuard<'_, Self> {
        wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns these settings without the receiver.
    pub(crate) fn settings(&self) -> Self {
        let Self { devices, removed, added, is_suspended, .. } = self;
        let (devices, removed, added) = (devices.clone(), removed.clone(), added.clone());
        Self { devices, removed, added, is_suspended: *is_suspended, waiting: None }
    }

    /// Takes the settings and the receiver.
    pub(crate) fn take(&mut self) -> Self {
        let waiting = self.waiting.take();
        let settings = Self { waiting, ..self.settings() };
        self.added.clear();
        settings
    }

    /// Returns the settings after a change.
    fn changed(&self, change: &DeviceChange) -> Result<Self> {
        let mut next = self.settings();
        for device in &change.add {
            if !next.devices.labels().contains(device) {
                next.devices = next.devices.joined_by(device)?;
            }
            next.removed.remove(device);
        }
        let selected = next.devices.labels();
        if let Some(device) = change.remove.iter().find(|device| !selected.contains(device)) {
            return Err(Error::NotSelected { device: device.clone(), selected });
        }
        if let Some(device) = change.remove.iter().find(|device| change.add.contains(device)) {
            return Err(Error::Usage(format!("{device} is both added and removed")));
        }
        next.removed.extend(change.remove.iter().cloned());
        next.added.extend(change.add.iter().cloned());
        next.is_suspended = change.suspend.unwrap_or(self.is_suspended);
        Ok(next)
    }

    /// Checks that the model fits the devices by the figures with which the engine started, when nothing was loaded.
    fn check(&self, planner: &Planner, before: &Plan) -> Result<()> {
        let removed: Vec<_> = self.removed.iter().cloned().collect();
        let fits =
            |devices: &Devices| planner.clone().knowing(devices).avoiding(&removed).near(before).map(drop);
        // The selection `auto` leaves the CPU out only if there is a GPU.
        fits(&self.devices).or_else(|error| self.devices.joined_by_cpu().map_or(Err(error), |all| fits(&all)))
    }
}

impl Engine {
    /// Changes the devices of the engine while it runs. Requests wait until the stages of a new plan are loaded, and then go
    /// on. A request with more tokens than a shorter context holds ends alone. Blocks until the requests go on, and returns
    /// the new plan. With [`DeviceChange::suspend`], returns the previous plan once the devices are free.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] if an added device was not found, [`Error::NotSelected`] if a removed one is not
    /// selected, [`Error::Planner`] or [`Error::Usage`] if the model does not fit the devices that are left. The engine then
    /// goes on with the same devices. After a failed load, it loads a plan for them again. [`Error::Usage`] if
    /// [`EngineOptions::max_recoveries`](crate::EngineOptions::max_recoveries) is 0, and [`Error::Run`] if the run has ended.
    pub fn change_devices(&self, change: &DeviceChange) -> Result<Arc<Plan>> {
        let pipeline = self.pipeline();
        let supervisor = pipeline.supervisor.as_ref().ok_or_else(|| {
            Error::Usage("without recoveries, the devices of a running engine cannot change".into())
        })?;
        let _turn = supervisor.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, receiver) = channel();
        {
            let mut wanted = Wanted::lock(&supervisor.wanted);
            let mut next = wanted.changed(change)?;
            next.check(&supervisor.planner, &supervisor.first)?;
            next.waiting = Some(sender);
            *wanted = next;
        }
        pipeline.interrupt();
        receiver.recv().map_err(|_| Error::Run(ragtag_scheduler::Error::Stopped))?
    }

    /// Plans again for the memory that is free now and for devices that have come back, and loads the stages of the plan.
    ///
    /// # Errors
    /// Those of [`change_devices`](Self::change_devices).
    pub fn replan(&self) -> Result<Arc<Plan>> {
        self.change_devices(&DeviceChange::default())
    }
}
