//! Devices that a plan leaves out, and what it says of them.

use super::*;

#[test]
fn a_device_that_would_slow_the_pipeline_down_is_left_out_and_named() {
    let mut world = World::new(
        model(12, 10 * MIB, 10 * MIB),
        vec![device("cuda:0", 1 << 40, 50.0), device("cpu:0", 1 << 40, 0.05)],
    );
    // Even the embedding, which costs next to nothing, must not go there.
    world.devices[1].stage_us.value = 5000.0;
    let plan = world.plan().expect("fits");
    assert_eq!(plan.split().to_string(), "0-13=cuda:0");
    let why = plan.reasons.iter().find(|r| r.starts_with("cpu:0 is left out")).expect("a reason");
    assert!(why.contains("% slower"), "{why}");

    // A twin of the device that is used adds nothing to the latency.
    let mut twin = world.clone();
    twin.objective = Objective::Latency;
    twin.workload.prompt_tokens = 128;
    twin.devices[1] = device("cuda:1", 1 << 40, 50.0);
    let plan = twin.plan().expect("fits");
    let why = plan.reasons.iter().find(|r| r.starts_with("cuda:1 is left out")).expect("a reason");
    assert!(why.contains("0-13=cuda:1, is predicted as fast"), "{why}");

    let mut tiny = world.clone();
    tiny.devices[1].memory_bytes = 10;
    let plan = tiny.plan().expect("fits");
    let why = plan.reasons.iter().find(|r| r.starts_with("cpu:0 is left out")).expect("a reason");
    assert!(why.contains("no plan with it fits (it has 10 bytes)"), "{why}");
}

#[test]
fn a_device_that_makes_little_difference_is_left_out_with_the_reason() {
    // Two devices are faster than one by less than what a device less is worth.
    let mut world = World::new(model(8, 10 * MIB, 10 * MIB), vec![device("cpu:0", 1 << 40, 1.0); 2]);
    world.devices[1] = device("cpu:1", 1 << 40, 0.8);
    (world.objective, world.limits.boundary) = (Objective::FirstToken, Some(Boundary::F32));
    let (one, two) = ("0-9=cpu:0", "0-3=cpu:1,4-9=cpu:0");
    let score = |world: &World, split| {
        let plan = world.clone().split(split).plan().expect("fits");
        plan.explanation.score_us
    };
    // The link's latency decides how much the second device gains.
    let (mut low, mut high) = (0.0, score(&world, one));
    for _ in 0..60 {
        world.links.other.latency_us.value = (low + high) / 2.0;
        let is_slow = score(&world, two) > 0.995 * score(&world, one);
        *(if is_slow { &mut high } else { &mut low }) = world.links.other.latency_us.value;
    }
    let plan = world.plan().expect("fits");
    assert_eq!(plan.split().to_string(), one);
    let why = plan.reasons.iter().find(|r| r.starts_with("cpu:1 is left out")).expect("a reason");
    assert!(
        why.contains(two)
            && why.contains("% faster; of plans within 1 % the one with the fewest devices is taken"),
        "{why}"
    );
}

#[test]
fn every_device_that_is_left_out_is_named() {
    let devices: Vec<_> = (0..20).map(|at| device(&format!("cpu:{at}"), 1 << 40, 1.0)).collect();
    let mut world = World::new(model(8, 10 * MIB, 10 * MIB), devices);
    world.objective = Objective::Latency;
    world.workload.prompt_tokens = 16;
    let plan = world.plan().expect("fits");
    let left_out = &plan.explanation.left_out;
    assert_eq!(left_out.len(), 20 - plan.stages.len());
    assert!(left_out.iter().filter(|left| !left.tried).all(|left| left.best_with.is_none()));
    let tried = left_out.iter().filter(|left| left.tried).count();
    let told = plan.reasons.iter().filter(|reason| reason.contains(" is left out: ")).count();
    assert!(tried > 0 && tried < left_out.len() && told == tried, "{tried} tried, {told} told");
    let rest = plan.reasons.iter().find(|reason| reason.contains("left out as well")).expect("a reason");
    let untried = left_out.iter().filter(|left| !left.tried);
    assert!(untried.clone().all(|left| rest.contains(&left.device)), "{rest}");
}
