//! Tests of placements in which devices have several stages.

use super::worlds::{MIB, World, device, model};
use crate::objective::Objective;
use crate::plan::Family;
use crate::search::Pin;

/// Returns a world with two equal devices and a prompt of four chunks.
fn two_equal_devices() -> World {
    let devices = vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)];
    let mut world = World::new(model(16, 400 * MIB, MIB), devices);
    world.objective = Objective::FirstToken;
    world.workload.prompt_tokens = 512;
    world.workload.generated_tokens = 0;
    world.several_stages = true;
    world
}

#[test]
fn a_prompt_of_four_chunks_takes_less_time_in_turns() {
    let mut world = two_equal_devices();
    let plan = world.plan().expect("fits");
    assert_eq!(plan.family, Family::Interleaved, "{}", plan.split());
    assert!(
        plan.reasons.iter().any(|reason| reason.starts_with("family: interleaved")),
        "{:?}",
        plan.reasons
    );
    assert_eq!(plan.explanation.bound_us, 0.0, "no bound covers it");
    world.several_stages = false;
    let exact = world.plan().expect("fits");
    assert_eq!(exact.family, Family::OneStage);
    assert!(plan.predicted.first_token_us < exact.predicted.first_token_us * 0.95);
    assert_eq!((plan.credits, exact.credits), (2, 3), "devices that take turns need one credit each");
}

#[test]
fn the_fill_of_a_pipeline_is_as_its_formula_says() {
    let mut world = two_equal_devices();
    world.links.other.latency_us.value = 0.0;
    world.links.other.bandwidth_bytes_per_s.value = 1e15;
    world.devices.iter_mut().for_each(|device| {
        (device.stage_us.value, device.hand_over_us.value) = (0.0, 0.0);
    });
    // The embedding and the head also take time, so the two halves are only nearly equal.
    let first_token_us = |split: &str| {
        let world = world.clone().split(split);
        world.plan().expect("fits").predicted.first_token_us
    };
    let alone = first_token_us("0-17=cpu:0");
    let apart = first_token_us("0-8=cpu:0,9-17=cpu:1");
    let turns = first_token_us("0-4=cpu:0,5-8=cpu:1,9-12=cpu:0,13-17=cpu:1");
    assert!((alone / apart - 1.6).abs() < 0.03, "{}", alone / apart);
    assert!((alone / turns - 1.78).abs() < 0.05, "{}", alone / turns);
}

#[test]
fn stages_of_one_device_share_its_memory() {
    let mut world = two_equal_devices();
    let split = "0-4=cpu:0,5-8=cpu:1,9-12=cpu:0,13-17=cpu:1";
    let plan = world.clone().split(split).plan().expect("fits");
    let bottleneck = plan.reasons.iter().find(|reason| reason.starts_with("bottleneck")).expect("a reason");
    assert!(bottleneck.contains("segments 0-4 and 9-12") || bottleneck.contains("segments 5-8 and 13-17"));
    let [first, _, third, _] = &plan.stages[..] else { panic!("{:?}", plan.stages) };
    let (a, b) = (first.memory_bytes, third.memory_bytes);
    assert_eq!(b.available, a.available - a.total);
    assert_eq!(b.scratch, 0, "the device has scratch already");
    // One byte less than both stages need.
    world.devices[0].memory_bytes = a.total + b.total - 1;
    let error = world.clone().split(split).plan().expect_err("too small").to_string();
    assert!(error.contains("cpu:0"), "{error}");
    world.devices[0].memory_bytes += 1;
    world.split(split).plan().expect("fits exactly");
}

#[test]
fn pins_may_give_a_device_several_stages() {
    let mut world = two_equal_devices();
    let pin = |(segment, device): (u32, &str)| Pin { segment, device: device.into() };
    world.constraints.pins = [(3, "cpu:1"), (5, "cpu:0"), (7, "cpu:1")].map(pin).to_vec();
    let plan = world.plan().expect("fits");
    let on = |segment: usize| {
        let stage = plan.stages.iter().find(|stage| stage.segments.range().contains(&segment));
        &*stage.expect("all segments are placed").device
    };
    assert_eq!([3, 5, 7].map(on), ["cpu:1", "cpu:0", "cpu:1"], "{}", plan.split());
    world.constraints.max_stages = Some(2);
    world.plan().expect_err("three stages are the fewest");
}
