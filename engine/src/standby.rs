//! Plans for the failure of each device, made while the engine runs. A recovery with such a plan neither plans nor probes the
//! drivers.
//!
//! The stages of a plan are compiled, too. A plan counts on the memory that was free when the engine started. Before the stages load, the opened devices
//! say whether they have it.

use crate::device_change::Wanted;
use crate::planner::Planner;
use crate::prepared::Compiled;
use ragtag_planner::plan::Plan;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Plan for the failure of one device.
pub(crate) struct StandbyPlan {
    pub(crate) settings: Wanted,
    pub(crate) planner: Planner,
    pub(crate) plan: Plan,
    pub(crate) compiled: Compiled,
    /// Devices that the plan must not use.
    pub(crate) excluded: Vec<String>,
}

/// Plans for the failure of each device of the current plan.
#[derive(Default)]
pub(crate) struct StandbyPlans {
    current: Option<Arc<Plan>>,
    /// For each device, its plan, or `None` if there is no plan without it.
    plans: BTreeMap<String, Option<StandbyPlan>>,
}

impl StandbyPlans {
    /// Returns the next device of `current` whose failure was not considered yet. Forgets the plans for another plan.
    pub(crate) fn next(&mut self, current: &Arc<Plan>) -> Option<String> {
        if !self.current.as_ref().is_some_and(|known| Arc::ptr_eq(known, current)) {
            *self = Self { current: Some(Arc::clone(current)), ..Self::default() };
        }
        let mut devices = current.all_stages().map(|stage| &stage.device);
        devices.find(|device| !self.plans.contains_key(*device)).cloned()
    }

    /// Adds the plan for the failure of `device`, or that there is none.
    pub(crate) fn add(&mut self, device: String, plan: Option<StandbyPlan>) {
        self.plans.insert(device, plan);
    }

    /// Returns the devices for whose failure there is a plan.
    pub(crate) fn devices(&self) -> Vec<String> {
        self.plans.iter().filter(|(_, plan)| plan.is_some()).map(|(device, _)| device.clone()).collect()
    }

    /// Takes the plan for the failure of `device` while `current` ran, if it avoids exactly the devices `excluded`. Forgets
    /// the others.
    pub(crate) fn take(
        &mut self,
        device: &str,
        current: &Arc<Plan>,
        excluded: &[String],
    ) -> Option<StandbyPlan> {
        let Self { current: known, mut plans } = std::mem::take(self);
        known.filter(|known| Arc::ptr_eq(known, current))?;
        plans.remove(device).flatten().filter(|standby| standby.excluded == excluded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{DeviceOptions, Devices};
    use crate::model::Model;

    #[test]
    fn a_plan_applies_only_to_the_stages_and_devices_for_which_it_was_made() {
        let devices = Devices::probe(&DeviceOptions::selecting("cpu")).unwrap();
        let planner = Planner::new(&Model::bundled().unwrap()).devices(&devices).context(64);
        let plan = planner.plan().unwrap();
        let current = Arc::new(plan.clone());
        let standby = || StandbyPlan {
            settings: Wanted::new(&devices),
            planner: planner.clone(),
            plan: plan.clone(),
            compiled: Vec::new(),
            excluded: vec!["cpu:0".into()],
        };
        let filled = || {
            let mut plans = StandbyPlans::default();
            assert_eq!(plans.next(&current).as_deref(), Some("cpu:0"));
            plans.add("cpu:0".into(), Some(standby()));
            assert_eq!((plans.next(&current), plans.devices()), (None, vec!["cpu:0".to_owned()]));
            plans
        };
        let excluded = |labels: &[&str]| labels.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>();
        assert!(filled().take("cpu:0", &current, &excluded(&["cpu:0"])).is_some());
        assert!(filled().take("cpu:0", &current, &excluded(&["cpu:0", "cpu:1"])).is_none());
        assert!(filled().take("cpu:1", &current, &excluded(&["cpu:0"])).is_none());
        let other = Arc::new(plan.clone());
        assert!(filled().take("cpu:0", &other, &excluded(&["cpu:0"])).is_none());
        let mut plans = filled();
        assert_eq!(plans.next(&other).as_deref(), Some("cpu:0"), "other stages have other plans");
        // There may be no plan without a device.
        plans.add("cpu:0".into(), None);
        assert!((plans.next(&other), plans.devices()) == (None, Vec::new()));
    }
}
