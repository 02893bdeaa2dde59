//! Tests of predictions for transfers and the token return, which belong to no segment.

use super::*;

/// Returns a world with two equal devices that each run half of the model.
fn halves() -> World {
    let devices = vec![device("cpu:0", 1 << 40, 1.0), device("cpu:1", 1 << 40, 1.0)];
    World::new(model(12, 10 * MIB, 10 * MIB), devices).split("0-6=cpu:0,7-13=cpu:1")
}

#[test]
fn the_return_of_tokens_delays_every_token() {
    let mut world = halves();
    world.objective = Objective::Latency;
    world.limits.sequences = 1;
    let free = world.plan().expect("fits");
    world.devices[1].host_latency_us = Figure::assumed(300.0);
    let late = world.plan().expect("fits");
    let extra = |of: fn(&Plan) -> f64| of(&late) - of(&free);
    let returned = extra(|plan| plan.token_return.decode_us);
    assert!(returned >= 300.0, "{returned} us for the return");
    // The link between the devices has its own latency, so only the token return changes.
    assert!((extra(|plan| plan.predicted.token_us) - returned).abs() < 0.2, "{late:?}");
    assert!((extra(|plan| plan.predicted.first_token_us) - returned).abs() < 0.2, "{late:?}");
}

#[test]
fn the_last_stage_is_on_the_device_that_returns_tokens_faster() {
    for slow in 0..2 {
        let mut world = World { split: None, ..halves() };
        world.objective = Objective::Latency;
        // Neither device holds the whole model.
        world.devices.iter_mut().for_each(|device| device.memory_bytes = 110 * MIB);
        world.devices[slow].host_latency_us = Figure::assumed(5000.0);
        let plan = world.plan().expect("fits");
        assert_eq!(plan.stages.len(), 2);
        assert_eq!(plan.stages[1].device, world.devices[1 - slow].label);
    }
}

#[test]
fn prefill_is_no_faster_than_the_slowest_transfer() {
    let mut world = halves();
    let slow = LinkFacts { bandwidth_bytes_per_s: Figure::assumed(1e5), ..LinkFacts::assumed() };
    world.links.known.push(("cpu:0".into(), "cpu:1".into(), slow));
    let plan = world.plan().expect("fits");
    let transfer_us = plan.edges[0].predicted.prefill_us;
    assert!(plan.stages.iter().all(|stage| stage.predicted.prefill_us < transfer_us / 2.0), "{plan:?}");
    let rate = f64::from(plan.predicted.prefill_rows) / transfer_us * 1e6;
    assert!((plan.predicted.prefill_tokens_per_s - rate).abs() < 0.1, "{rate} against {plan:?}");
}

#[test]
fn prompts_and_decode_that_never_overlap_each_take_their_slowest_part() {
    let mut world = halves();
    world.limits.sequences = 4;
    world.workload = Workload { prompt_tokens: 256, generated_tokens: 64 };
    let input = world.input();
    let problem = problem(&input, 2);
    let workload_times = &problem.workload_times;
    assert_eq!((workload_times.decode_rows, workload_times.chunks), (2, 2.0));
    let part = |decode_us, chunk_us| Times { decode_us, chunk_us, ..Times::default() };
    let parts = [part(10.0, 700.0), part(30.0, 500.0)];
    // A request takes two chunks of 700 µs and 64 steps. A step of two rows takes 30 µs, so two steps take
    // longer than the round of 40 µs for four sequences.
    let round = |decode_us| workload_times.apart_us(&part(decode_us, 1200.0), parts.iter().copied());
    assert!(close(round(40.0), 2.0 * 700.0 + 64.0 * 15.0));
    // A longer round determines the time instead.
    assert!(close(round(100.0), 2.0 * 700.0 + 64.0 * 25.0));
}
