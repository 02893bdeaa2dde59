//! Tests of unused devices and of the reasons for leaving them out.

use super::*;

#[test]
fn a_device_that_would_slow_the_pipeline_down_is_left_out_and_named() {
    let mut world = World::new(
        model(12, 10 * MIB, 10 * MIB),
        vec![device("cuda:0", 1 << 40, 50.0), device("cpu:0", 1 << 40, 0.05)],
    );
    // Even the embedding must not be placed on this device, although the embedding costs almost nothing.
    world.devices[1].stage_us.value = 5000.0;
    let plan = world.plan().expect("fits");
    assert_eq!(plan.split().to_string(), "0-13=cuda:0");
    let why = plan.reasons.iter().find(|r| r.starts_with("cpu:0 is left out")).expect("a reason");
    assert!(why.contains(" slower"), "{why}");

    // A second device that is equal to the used one does not reduce latency.
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

/// Returns a world in which two devices are faster than one, but the gain is too small to outweigh the
/// preference for fewer devices. Also returns the split for one device and the split for two devices.
fn barely_faster_with_two() -> (World, &'static str, &'static str) {
    let mut world = World::new(model(8, 10 * MIB, 10 * MIB), vec![device("cpu:0", 1 << 40, 1.0); 2]);
    world.devices[1] = device("cpu:1", 1 << 40, 0.8);
    (world.objective, world.limits.wire_type) = (Objective::FirstToken, Some(WireType::F32));
    let (one, two) = ("0-9=cpu:0", "0-3=cpu:1,4-9=cpu:0");
    let score = |world: &World, split| {
        let plan = world.clone().split(split).plan().expect("fits");
        plan.explanation.score_us
    };
    // The link's latency determines the gain from the second device.
    let (mut low, mut high) = (0.0, score(&world, one));
    for _ in 0..60 {
        world.links.other.latency_us.value = (low + high) / 2.0;
        let is_slow = score(&world, two) > 0.995 * score(&world, one);
        *(if is_slow { &mut high } else { &mut low }) = world.links.other.latency_us.value;
    }
    (world, one, two)
}

#[test]
fn a_device_that_makes_little_difference_is_left_out_with_the_reason() {
    let (world, one, two) = barely_faster_with_two();
    let plan = world.plan().expect("fits");
    assert_eq!(plan.split().to_string(), one);
    let why = plan.reasons.iter().find(|r| r.starts_with("cpu:1 is left out")).expect("a reason");
    assert!(
        why.contains(two)
            && why.contains("% faster; of plans within 1 %, the one with the fewest devices is chosen"),
        "{why}"
    );
}

#[test]
fn the_reasons_state_how_much_faster_a_plan_could_be() {
    let (world, ..) = barely_faster_with_two();
    let reasons = world.plan().expect("fits").reasons;
    let wanted = "bound: with one stage per device, no placement can be predicted more than 0.5 % faster";
    assert!(reasons.iter().any(|reason| reason == wanted), "{reasons:?}");
}

/// Checks that each of two equal unused devices gets its own plan. The best plan with the first device uses
/// both devices. The plan for the second device exchanges them. Both take the same time, so either may come first.
#[test]
fn each_of_two_equal_unused_devices_has_a_plan_of_its_own() {
    let small = |label| device(label, 60 * MIB, 1.0);
    let devices = vec![device("cuda:0", 1 << 40, 50.0), small("cpu:0"), small("cpu:1")];
    let mut world = World::new(model(4, 10 * MIB, 10 * MIB), devices);
    let slow = LinkFacts { bandwidth_bytes_per_s: Figure::assumed(1e3), ..LinkFacts::assumed() };
    for cpu in ["cpu:0", "cpu:1"] {
        world.links.known.push(("cuda:0".into(), cpu.into(), slow.clone()));
        world.links.known.push((cpu.into(), "cuda:0".into(), slow.clone()));
    }
    let plan = world.plan().expect("fits");
    assert_eq!(plan.split().to_string(), "0-5=cuda:0");
    let split = |left: &LeftOut| left.best_with.as_ref().map(|with| with.split.clone()).expect("a plan");
    let mut splits: Vec<_> = plan.explanation.left_out.iter().map(split).collect();
    splits.sort();
    assert_eq!(splits, ["0-2=cpu:0,3-5=cpu:1", "0-2=cpu:1,3-5=cpu:0"]);
}

#[test]
fn more_memory_is_suggested_for_the_full_device() {
    let devices = vec![device("cuda:0", 120 * MIB, 10.0), device("cpu:0", 1 << 40, 1.0)];
    let mut world = World::new(model(12, 10 * MIB, 10 * MIB), devices);
    world.objective = Objective::Latency;
    let plan = world.plan().expect("fits");
    assert_eq!(plan.stages.len(), 2, "{}", plan.split());
    let bindings: Vec<_> =
        plan.explanation.bindings.iter().map(|binding| (&*binding.of, &*binding.more)).collect();
    assert_eq!(bindings, [("cuda:0", "60 MiB more memory")]);
}

#[test]
fn excluded_devices_are_not_reported_as_short_of_memory() {
    let devices = (0..2).map(|at| device(&format!("cpu:{at}"), 1 << 40, 1.0 + f64::from(at))).collect();
    let mut world = World::new(model(12, 10 * MIB, 10 * MIB), devices);
    let why = |world: &World| {
        let plan = world.plan().expect("fits");
        let why = plan.reasons.iter().find(|reason| reason.starts_with("cpu:0 is left out")).cloned();
        (why.expect("a reason"), plan.explanation.left_out.iter().any(|left| left.constrained))
    };
    let pin = |segment| Pin { segment, device: "cpu:1".into() };
    world.constraints.pins = (0..14).map(pin).collect();
    let wanted = "cpu:0 is left out: the constraints exclude it";
    assert_eq!(why(&world), (wanted.into(), true));
    world.devices[0].memory_bytes = 10;
    assert_eq!(why(&world), ("cpu:0 is left out: no plan with it fits (it has 10 bytes)".into(), false));
}

#[test]
fn rules_respect_the_constraints() {
    let devices = (0..3).map(|at| device(&format!("cpu:{at}"), 1 << 40, 1.0 + f64::from(at))).collect();
    let mut world = World::new(model(12, 10 * MIB, 10 * MIB), devices);
    world.constraints.excluded = vec!["cpu:2".into()];
    let rules = |world: &World| {
        let of = |rule| baseline(&world.input(), rule).expect("no error");
        Baseline::ALL.into_iter().filter_map(of).map(|plan| plan.split().to_string()).collect::<Vec<_>>()
    };
    let placed = rules(&world);
    assert!(placed.len() == 5 && !placed.iter().any(|split| split.contains("cpu:2")), "{placed:?}");
    assert!(placed.contains(&"0-13=cpu:1".into()) && placed.contains(&"0-6=cpu:0,7-13=cpu:1".into()));
    world.constraints.pins = vec![Pin { segment: 13, device: "cpu:0".into() }];
    assert_eq!(rules(&world), ["0-13=cpu:0", "0-13=cpu:0"]);
    world.constraints = Constraints { max_stages: Some(1), ..Constraints::default() };
    assert_eq!(rules(&world), ["0-13=cpu:2", "0-13=cpu:0"]);
}

/// Checks that one reason covers all unused cards if the planner uses only some of sixteen equal cards.
#[test]
fn equal_unused_devices_share_one_line() {
    let devices: Vec<_> = (0..16).map(|at| device(&format!("rtx4090:{at}"), 1 << 40, 1.0)).collect();
    let mut world = World::new(model(8, 10 * MIB, 10 * MIB), devices);
    world.objective = Objective::Latency;
    world.workload.prompt_tokens = 16;
    let plan = world.plan().expect("fits");
    assert_eq!((plan.stages.len(), plan.explanation.left_out.len()), (1, 15));
    let reported: Vec<_> = plan.reasons.iter().filter(|reason| reason.contains("left out")).collect();
    let wanted = "rtx4090:1 to rtx4090:15 are left out: the best plan with one of them, 0-9=rtx4090:1, is predicted as fast";
    assert_eq!(reported, [wanted]);
    // Each unused device still has its own alternative.
    for left in &plan.explanation.left_out {
        assert_eq!(
            left.best_with.as_ref().map(|with| with.split.clone()),
            Some(format!("0-9={}", left.device))
        );
    }
    world.devices[1..].iter_mut().for_each(|device| device.memory_bytes = 20);
    let reasons = world.plan().expect("fits").reasons;
    let wanted = "rtx4090:1 to rtx4090:15 are left out: no plan with any of them fits (each has 20 bytes)";
    assert!(reasons.iter().any(|reason| reason == wanted), "{reasons:?}");
}

#[test]
fn every_device_that_is_left_out_is_named() {
    let speed = |at: u32| 1.0 + f64::from(at) / 100.0;
    let devices: Vec<_> = (0..20).map(|at| device(&format!("cpu:{at}"), 1 << 40, speed(at))).collect();
    let mut world = World::new(model(8, 10 * MIB, 10 * MIB), devices);
    world.objective = Objective::Latency;
    world.workload.prompt_tokens = 16;
    let plan = world.plan().expect("fits");
    let left_out = &plan.explanation.left_out;
    assert_eq!(left_out.len(), 20 - plan.stages.len());
    assert!(left_out.iter().filter(|left| !left.tried).all(|left| left.best_with.is_none()));
    let tried = left_out.iter().filter(|left| left.tried).count();
    let reported = plan.reasons.iter().filter(|reason| reason.contains(" is left out: ")).count();
    assert!(tried > 0 && tried < left_out.len() && reported == tried, "{tried} tried, {reported} reported");
    let rest =
        plan.reasons.iter().find(|reason| reason.contains("left out without a search")).expect("a reason");
    let untried: Vec<_> =
        left_out.iter().filter(|left| !left.tried).map(|left| left.device.as_str()).collect();
    assert!(rest.starts_with(&crate::wording::labels(&untried)), "{rest}");
}
