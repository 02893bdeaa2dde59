//! Tests that no alternative listed in a plan beats the plan.

use super::*;

/// Makes a plan for a world in which several chunk lengths are available.
fn planned(world: &World) -> Option<Plan> {
    let others = [64, 256, 512].map(|chunk| (chunk, world.segments.as_slice()));
    plan(&PlannerInput { other_chunks: &others, ..world.input() }).ok()
}

#[test]
fn no_listed_alternative_beats_the_plan() {
    let (mut plans, mut chunks) = (0, [0; 2]);
    for seed in (0..400).step_by(if nightly() { 1 } else { 5 }) {
        let world = unlike_world(seed);
        let Some(plan) = planned(&world) else { continue };
        plans += 1;
        chunks[usize::from(plan.chunk == 128)] += 1;
        let (score_us, bound_us) = (plan.explanation.score_us, plan.explanation.bound_us);
        let input = world.input();
        for other in others(&plan) {
            let split: Split = other.split.parse().expect("a split");
            let (runs, _) =
                requested::runs(&PlannerInput { split: Some(&split), ..input }).expect("known devices");
            assert!(input.allows(&runs), "seed {seed}: {other:?} breaks {:?}", world.constraints);
            // A plan may cost one percent more for fewer devices, and half a percent more for a faster
            // decode.
            let most = if split.parts.len() > plan.stages.len() { 1.01 } else { 1.005 };
            assert!(
                score_us <= other.score_us * most + 0.1,
                "seed {seed}, {:?}: {} takes {score_us}, {other:?}",
                world.objective,
                plan.split()
            );
            assert!(other.score_us >= bound_us - 0.1, "seed {seed}: {bound_us} bounds {other:?}");
        }
    }
    assert!(plans > 20 && chunks.iter().all(|&count| count > 2), "{plans} plans, chunks {chunks:?}");
}

/// Checks that the search looks beyond its starting points. Here, the chunk length affects the score more
/// than the difference between the two CPU devices does.
#[test]
fn a_device_that_is_faster_with_another_chunk_is_found() {
    let with = |label: &str, launch_us: f64, speed: f64| DeviceFacts {
        launch_us: Figure::assumed(launch_us),
        ..device(label, 1 << 40, speed)
    };
    let devices = vec![with("cpu:0", 10.0, 1.0), with("cpu:1", 30_000.0, 1.2)];
    let mut world = World::new(model(12, 10 * MIB, 10 * MIB), devices);
    (world.objective, world.constraints.max_stages) = (Objective::FirstToken, Some(1));
    world.workload = Workload { prompt_tokens: 512, generated_tokens: 0 };
    assert_eq!(world.plan().expect("fits").split().to_string(), "0-13=cpu:0");
    let plan = planned(&world).expect("fits");
    assert_eq!((plan.split().to_string().as_str(), plan.chunk), ("0-13=cpu:1", 512));
}

/// Checks that the search continues at a point at which the placements found so far have a better score. With
/// many different devices, the search solves only some points.
#[test]
fn a_better_chunk_is_found_where_not_every_point_is_solved() {
    let devices = (0..20).map(|at| device(&format!("cpu:{at}"), 30 * MIB, 1.0)).collect();
    let mut world = World::new(model(4, 10 * MIB, 10 * MIB), devices);
    world.workload = Workload { prompt_tokens: 512, generated_tokens: 0 };
    world.objective = Objective::FirstToken;
    world.limits.wire_type = Some(WireType::F32);
    // The rules use the devices in their order. Only in the reverse order are the links fast.
    let slow = LinkFacts { latency_us: Figure::assumed(1e5), ..LinkFacts::assumed() };
    for (at, to) in world.devices.iter().enumerate() {
        let before = world.devices[..at].iter();
        world.links.known.extend(before.map(|from| (from.label.clone(), to.label.clone(), slow.clone())));
    }
    let score_us = |chunk: u32, others: &[(u32, &[Segment])]| {
        let limits = PlanLimits { chunk, ..world.limits };
        let input = PlannerInput { limits, other_chunks: others, ..world.input() };
        Grid::new(&input, 512).search().expect("fits").best.score_us()
    };
    let (long, short, found) =
        (score_us(512, &[]), score_us(128, &[]), score_us(512, &[(128, &world.segments)]));
    assert!(short < 0.8 * long && found < 1.01 * short, "{found} of {short} and {long}");
}

/// Checks that the bound holds if the search solves only some points, because there are many different
/// devices.
#[test]
fn a_bound_holds_where_not_every_point_is_solved() {
    let devices: Vec<_> =
        (0..14).map(|at| device(&format!("cpu:{at}"), 40 * MIB, 1.0 + f64::from(at) / 9.0)).collect();
    let mut world = World::new(model(30, 10 * MIB, 10 * MIB), devices);
    world.objective = Objective::Latency;
    let plan = planned(&world).expect("fits");
    let Explanation { score_us, bound_us, .. } = plan.explanation;
    assert!(bound_us > 0.8 * score_us && bound_us <= score_us, "{bound_us} bounds {score_us}");
    for other in others(&plan) {
        assert!(score_us <= other.score_us * 1.01 + 0.1, "{score_us}, {other:?}");
    }
    // With very many segments the planner computes no bound.
    world.segments = model(600, MIB / 4, MIB);
    world.devices.iter_mut().for_each(|device| device.memory_bytes = 1 << 40);
    let plan = planned(&world).expect("fits");
    assert_eq!(plan.explanation.bound_us, 0.0);
    assert!(!plan.reasons.iter().any(|reason| reason.starts_with("bound:")), "{:?}", plan.reasons);
}

/// Checks that a plan whose chunk is shorter than its number of sequences can be read back: longer chunks for
/// long prompts would let more sequences decode together.
#[test]
fn chunks_by_prompt_keep_the_decode_steps() {
    let mut world = World::new(model(4, MIB, MIB), vec![device("gpu:0", 1 << 40, 1.0)]);
    (world.limits.sequences, world.limits.logit_rows, world.limits.chunk) = (64, 64, 16);
    let others = [(256, world.segments.as_slice())];
    let input = PlannerInput { other_chunks: &others, ..world.input() };
    let grid = Grid::new(&input, 512);
    let point = Point { chunk: 16, groups: 1, wire_type: WireType::F32 };
    let choice = grid.priced(point, vec![Run::new(0, 0..6)]).expect("fits");
    let chunks = chunks::by_prompt(&grid, &choice);
    let plan = assemble::plan(&grid, &choice, Some(chunks));
    assert_eq!(plan.validate(&plan.model, &["gpu:0"]), Ok(()));
}
