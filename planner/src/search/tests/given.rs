//! Tests of placements and micro-batches that the user requests.

use super::*;

#[test]
fn a_users_split_is_checked_and_proved_but_kept() {
    let devices = vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 130 * MIB, 1.0)];
    let world = World::new(model(12, 10 * MIB, 10 * MIB), devices);
    // The user may choose any order of devices.
    for text in ["0=cpu:0,1-13=cpu:0", "0-5=cpu:0,7-13=cpu:1", "0-5=cpu:0,6-14=cpu:1", "0-13=cuda:0"] {
        assert!(matches!(world.clone().split(text).plan(), Err(PlanError::Split(_))), "{text}");
    }
    for text in ["0-12=cpu:0,13=cpu:1", "0-5=cpu:1,6-13=cpu:0", "0-13=cpu:0"] {
        let plan = world.clone().split(text).plan().expect("fits");
        assert_eq!(plan.split().to_string(), text);
    }
    let poor = world.clone().split("0-12=cpu:0,13=cpu:1").plan().expect("fits");
    assert!(poor.reasons.iter().any(|r| r.contains("is predicted faster")), "{:?}", poor.reasons);
    let own = world.plan().expect("fits");
    let same = world.clone().split(&own.split().to_string()).plan().expect("fits");
    assert!(same.reasons.iter().any(|r| r.contains("no faster split")), "{:?}", same.reasons);

    let Err(PlanError::DoesNotFit(error)) = world.clone().split("0=cpu:0,1-13=cpu:1").plan() else {
        panic!("130 MiB of weights leave nothing for the cache")
    };
    assert_eq!(error.shortages[0].device, "cpu:1");
    let mut open = world.clone().split("0-5=cpu:0,6-13=cpu:1");
    open.limits.context = None;
    assert_eq!(open.plan().expect("fits").context, largest_context(&open.input()).expect("fits"));
}

#[test]
fn requested_decode_groups_are_kept() {
    let devices = vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)];
    let mut world = World::new(model(8, MIB, 3 * MIB), devices).split("0-4=cpu:0,5-9=cpu:1");
    let mut alone = Vec::new();
    for groups in [1, 3] {
        world.limits.decode_groups = Some(groups);
        let plan = world.plan().expect("fits");
        assert_eq!((plan.decode_groups, plan.decode_rows), (groups, 4u32.div_ceil(groups)));
        // Alternatives choose their own decode groups.
        let single = plan.explanation.alternatives.into_iter().find(|other| other.split == "0-9=cpu:0");
        alone.push(single.expect("is an alternative").decode_tokens_per_s);
    }
    assert_eq!(alone[0], alone[1]);
    world.limits.decode_groups = Some(0);
    assert_eq!(world.plan(), Err(PlanError::BadLimit { what: "the number of decode groups" }));
}

#[test]
fn requested_credits_and_slots_are_kept() {
    let mut world = World::new(model(8, 10 * MIB, 10 * MIB), vec![device("cpu:0", 1 << 40, 1.0); 2]);
    world.devices[1].label = "cpu:1".into();
    world.split = Some("0-4=cpu:0,5-9=cpu:1".parse().expect("a split"));
    (world.limits.decode_groups, world.limits.credits, world.limits.slots) = (Some(1), Some(9), 5);
    let plan = world.plan().expect("fits");
    assert_eq!((plan.decode_groups, plan.credits, plan.slots), (1, 9, 5));
    world.limits.credits = Some(0);
    assert_eq!(world.plan(), Err(PlanError::BadLimit { what: "the number of credits" }));
}

#[test]
fn a_bound_holds_for_splits_as_well() {
    let devices = vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)];
    let mut world = World::new(model(8, 10 * MIB, 10 * MIB), devices);
    world.limits.decode_groups = Some(2);
    let best = world.plan().expect("fits").explanation;
    let uneven = world.split("0-8=cpu:0,9-9=cpu:1").plan().expect("fits").explanation;
    assert!(uneven.score_us > best.score_us * 1.2, "{} and {}", uneven.score_us, best.score_us);
    assert!(uneven.bound_us <= best.score_us * 1.001, "{} and {}", uneven.bound_us, best.score_us);
    assert!(uneven.bound_us >= best.score_us * 0.985, "{} and {}", uneven.bound_us, best.score_us);
}

/// Checks that the bound holds at all points of the grid, not only at the point at which the split is best.
#[test]
fn the_bound_of_a_split_is_below_every_listed_plan() {
    let mut listed = 0;
    for seed in 0..200 {
        let objective = OBJECTIVES[seed as usize % 4];
        let world = World { objective, ..random_world(seed) };
        let last = world.segments.len() - 1;
        for device in &world.devices {
            let Ok(plan) = world.clone().split(&format!("0-{last}={}", device.label)).plan() else {
                continue;
            };
            for other in &plan.explanation.alternatives {
                assert!(
                    other.score_us >= plan.explanation.bound_us - 0.1,
                    "seed {seed}: {:?}",
                    plan.explanation
                );
                listed += 1;
            }
        }
    }
    assert!(listed > 200, "{listed}");
}

#[test]
fn scaled_requests_are_reported() {
    let mut world = World::new(model(8, 10 * MIB, 10 * MIB), vec![device("cpu:0", 1 << 40, 1.0)]);
    let request = |world: &World| world.plan().expect("fits").reasons[0].clone();
    assert!(
        request(&world).ends_with("requests of 256 prompt and 128 generated tokens"),
        "{}",
        request(&world)
    );
    world.limits.context = Some(96);
    let small = "256 prompt and 128 generated tokens (scaled down to 64 and 32, the context is 96)";
    assert!(request(&world).ends_with(small), "{}", request(&world));
}
