//! Tests of the conditions under which the planner simulates placements. The tests of the simulations are in
//! `scheduler/tests/trials.rs`.

use super::*;

#[test]
fn only_plans_for_many_sequences_are_tried() {
    let devices = [device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)];
    let world = World::new(model(12, 10 * MIB, 10 * MIB), devices.to_vec());
    assert_eq!(world.plan().expect("fits").stages.len(), 2);
    let tried = |change: &dyn Fn(&mut World)| {
        let mut world = world.clone();
        change(&mut world);
        // In these trials, fewer stages serve more requests per second.
        let trial: Trial = |_, plan, _, _| Some(1.0 / plan.stages.len() as f64);
        let plan = plan(&PlannerInput { trial: Some(trial), ..world.input() }).expect("fits");
        (plan.stages.len(), plan.reasons.iter().any(|reason| reason.starts_with("trials: ")))
    };
    assert_eq!(tried(&|_| ()), (1, true));
    assert_eq!(tried(&|world| world.devices.truncate(1)), (1, true));
    assert_eq!(tried(&|world| world.limits.sequences = 1), (2, false));
    assert_eq!(tried(&|world| world.objective = Objective::FirstToken), (2, false));
    assert_eq!(tried(&|world| *world = world.clone().split("0-6=cpu:0,7-13=cpu:1")), (2, false));
}
