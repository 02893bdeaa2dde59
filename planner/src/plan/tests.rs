//! Tests of the plan format.

use super::*;
use crate::split::Span;
use ragtag_transfer::Route;

fn model() -> PlanModel {
    let granularity = Granularity::Block;
    PlanModel { name: "tales".into(), digest: "ab12".into(), segments: 14, granularity }
}

fn stage(device: &str, first: u32, last: u32) -> PlanStage {
    PlanStage {
        device: device.into(),
        segments: Span::new(first, last).expect("in order"),
        streamed: Vec::new(),
        arenas: None,
        from_file: Vec::new(),
        memory_bytes: StageMemory {
            weights: 1,
            arenas: 0,
            kv: 2,
            scratch: 3,
            slots: 4,
            staging: 5,
            total: 15,
            available: 1 << 40,
        },
        predicted: PredictedTimes { decode_us: 1234.5, prefill_us: 0.1 },
    }
}

fn plan() -> Plan {
    Plan {
        ragtag_plan: PLAN_VERSION,
        model: model(),
        objective: Objective::Throughput,
        workload: Workload::default(),
        device_options: Some(PlanDeviceOptions { selection: "auto".into(), cpu_devices: 2, threads: None }),
        context: 512,
        sequences: 2,
        kv_blocks: 40,
        kv_use: KvUse::default(),
        chunk: 128,
        chunks: None,
        decode_rows: 1,
        decode_groups: 2,
        credits: 3,
        slots: 2,
        kv: KvType::F16,
        activations: Activations::Int8,
        wire_type: WireType::F32,
        family: Family::OneStage,
        stages: vec![stage("cpu:0", 0, 5), stage("cpu:1", 6, 13)],
        prefill_stage: None,
        host_memory_bytes: HostMemory { total: 7, available: Some(1 << 40), ..HostMemory::default() },
        other_hosts: Vec::new(),
        edges: PlanEdge::between([(
            Route::HostStaged { chunk_bytes: 65536, depth: 4 }.into(),
            PredictedTimes { decode_us: 21.5, prefill_us: 40.0 },
        )]),
        paths: PlanPaths::through(2),
        token_return: PredictedTimes { decode_us: 20.0, prefill_us: 20.0 },
        predicted: PredictedRun {
            decode_tokens_per_s: 123.4,
            prefill_tokens_per_s: 4567.8,
            prefill_rows: 0,
            first_token_us: 98765.4,
            token_us: 8103.7,
        },
        explanation: Explanation::default(),
        reasons: vec!["because".into()],
    }
}

const DEVICES: [&str; 2] = ["cpu:0", "cpu:1"];

#[test]
fn json_round_trips() {
    let json = plan().to_json();
    assert!(json.contains("\"ragtag_plan\": 4"), "{json}");
    assert_eq!(Plan::from_json(&json), Ok(plan()));
}

#[test]
fn unknown_fields_are_refused_wherever_they_are() {
    let json = plan().to_json();
    for (place, with) in [
        ("\"context\"", "\"contxt\": 1, \"context\""),
        ("\"digest\"", "\"extra\": 1, \"digest\""),
        ("\"decode_us\"", "\"extra\": 1, \"decode_us\""),
        ("\"weights\"", "\"extra\": 1, \"weights\""),
        ("\"chunk_bytes\"", "\"extra\": 1, \"chunk_bytes\""),
        ("\"device\"", "\"extra\": 1, \"device\""),
        ("\"prefill\"", "\"extra\": 1, \"prefill\""),
        ("\"from\"", "\"extra\": 1, \"from\""),
    ] {
        let changed = json.replacen(place, with, 1);
        assert_ne!(changed, json, "{place}");
        let error = Plan::from_json(&changed).expect_err("unknown field");
        assert!(
            matches!(&error, InvalidPlan::NotAPlan { cause } if cause.contains("unknown field")),
            "{error}"
        );
    }
}

#[test]
fn a_newer_version_is_named_even_with_new_fields() {
    let json = plan().to_json().replacen("\"ragtag_plan\": 4", "\"ragtag_plan\": 7, \"novelty\": {}", 1);
    assert_eq!(Plan::from_json(&json), Err(InvalidPlan::Version { found: 7 }));
    let mut newer = plan();
    newer.ragtag_plan = 5;
    assert_eq!(newer.validate(&model(), &DEVICES), Err(InvalidPlan::Version { found: 5 }));
}

#[test]
fn invalid_plans_are_refused() {
    for json in
        ["", "{}", "[]", "GGUF", "{\"ragtag_plan\": -1}", "{\"ragtag_plan\": 2}", "{\"ragtag_plan\": 3}"]
    {
        assert!(matches!(Plan::from_json(json), Err(InvalidPlan::NotAPlan { .. })), "{json}");
    }
    let pretty = plan().to_json();
    let compact: String = pretty.split_whitespace().collect();
    let reversed = compact.replacen("[0,5]", "[5,0]", 1);
    assert_ne!(reversed, compact);
    let error = Plan::from_json(&reversed).expect_err("reversed");
    assert!(error.to_string().contains("the last comes before the first"), "{error}");
    for cut in 0..pretty.len() - 2 {
        assert!(Plan::from_json(&pretty[..cut]).is_err(), "cut at {cut}");
    }
}

/// Checks that error messages are short and contain no control characters. A fuzzer found a message that
/// quoted text as long as the file and could clear the screen.
#[test]
fn messages_are_short_and_without_control_characters() {
    let long = "\\u001b[2J\\\\".repeat(1000);
    let json = plan().to_json();
    for changed in [
        json.replacen("\"context\"", &format!("\"{long}\": 1, \"context\""), 1),
        json.replacen("\"f16\"", &format!("\"{long}\""), 1),
        json.replacen("512", &format!("\"{long}\""), 1),
        format!("\"{long}\""),
    ] {
        let message = Plan::from_json(&changed).expect_err("not a plan").to_string();
        assert!(message.len() < 1600 && !message.contains(char::is_control), "{message}");
        assert!(message.contains(" at line "), "{message}");
    }
}

#[test]
fn validation_names_the_problem() {
    assert_eq!(plan().validate(&model(), &DEVICES), Ok(()));
    let with = |change: &dyn Fn(&mut Plan)| {
        let mut changed = plan();
        change(&mut changed);
        changed.validate(&model(), &DEVICES).expect_err("invalid").to_string()
    };
    assert!(with(&|p| p.model.digest = "cd".into()).contains("digest cd"));
    assert!(with(&|p| p.model.granularity = Granularity::HalfBlock).contains("granularity half-block (14"));
    assert!(with(&|p| p.model.segments = 15).contains("15 segments"));
    assert!(with(&|p| p.stages[1] = stage("cpu:1", 8, 13)).contains("segments 6-7 are on no device"));
    assert!(with(&|p| p.stages[1] = stage("cpu:1", 5, 13)).contains("segments 5 are on cpu:0 and on cpu:1"));
    assert!(with(&|p| p.stages[1] = stage("cpu:1", 6, 14)).contains("last segment is 13"));
    assert!(with(&|p| p.stages[1].device = "cuda:0".into()).contains("no device cuda:0"));
    assert!(with(&|p| p.stages[1].device = "cpu:0".into()).contains("0-5 and 6-13 are both on cpu:0"));
    assert!(with(&|p| p.stages.swap(0, 1)).contains("in the order of the segments"));
    assert!(with(&|p| p.stages.clear()).contains("no segment is placed"));
    assert!(with(&|p| p.edges.clear()).contains("its edges must lead from each stage"));
    assert!(with(&|p| p.context = 0).contains("context is 0"));
    assert!(with(&|p| p.chunks = Some(Chunks::fixed(129))).contains("longest of chunks is 129"));
    let none = Chunks { by_prompt: Vec::new(), beside_decode: 1 };
    assert!(with(&|p| p.chunks = Some(none.clone())).contains("must start at 0 tokens"));
    assert!(with(&|p| p.decode_rows = 129).contains("decode_rows is 129"));
    assert!(with(&|p| p.kv_blocks = 31).contains("kv_blocks is 31; it must be 32 to 16777216"));
    assert!(with(&|p| p.kv_blocks = 1 << 25).contains("kv_blocks is 33554432; it must be 32 to 16777216"));
    let exact = with(&|p| (p.wire_type, p.activations) = (WireType::F16, Activations::F32));
    assert!(exact.contains("wire type is f16, but exact activations"), "{exact}");
    assert!(with(&|p| p.edges[0].to = 0).contains("its edges must lead from each stage"));
    assert!(with(&|p| p.paths.decode = vec![1, 0]).contains("paths.decode must list all 2 stages"));
    let ring = Route::HostStaged { chunk_bytes: 1, depth: 0 };
    assert!(with(&|p| p.edges[0].routes = ring.into()).contains("edges[0].routes: a ring needs"));
}

#[test]
fn streamed_segments_are_checked() {
    let with = |streamed: &[u32]| {
        let mut changed = plan();
        changed.stages[1].streamed = streamed.to_vec();
        changed.validate(&model(), &DEVICES).map_err(|error| error.to_string())
    };
    for streamed in [&[][..], &[6, 7, 9, 12], &[7, 8, 9, 10, 11]] {
        assert_eq!(with(streamed), Ok(()));
    }
    for (streamed, what) in [
        (&[5, 7][..], "stages[1].streamed: segment 5 is outside segments 6-13"),
        (&[7, 14], "segment 14 is outside"),
        (&[7, 13], "segment 13 is the embedding or the head"),
        (&[9, 7], "ascending order"),
        (&[7, 7], "ascending order"),
        (&[7, 8, 9], "at least 4 segments or none"),
    ] {
        let error = with(streamed).expect_err("invalid");
        assert!(error.contains(what), "{error}");
    }
    let with_arenas = |streamed: &[u32], arenas| {
        let mut changed = plan();
        (changed.stages[1].streamed, changed.stages[1].arenas) = (streamed.to_vec(), Some(arenas));
        let valid = changed.validate(&model(), &DEVICES).map_err(|error| error.to_string());
        valid.map(|()| changed.stages[1].arenas().count())
    };
    assert_eq!(with_arenas(&[7, 8, 9, 10, 11, 12], 3), Ok(3));
    let error = with_arenas(&[7, 8, 9, 10, 11, 12], 9).expect_err("too many");
    assert!(error.contains("6 streamed segments cannot share 9 arenas (possible: 2, 3)"), "{error}");
    assert!(
        with_arenas(&[], 2).expect_err("no segments").contains("0 streamed segments cannot share 2 arenas")
    );
    let mut first = plan();
    first.stages[0].streamed = vec![0, 1];
    let error = first.validate(&model(), &DEVICES).expect_err("invalid").to_string();
    assert!(error.starts_with("the plan's stages[0].streamed: "), "{error}");
}

#[test]
fn only_a_streamed_plan_has_the_fields_of_streaming() {
    let json = plan().to_json();
    assert!(!json.contains("streamed") && !json.contains("arenas"), "{json}");
    let mut streamed = plan();
    (streamed.stages[1].streamed, streamed.stages[1].memory_bytes.arenas) = (vec![7, 9], 6);
    let json = streamed.to_json();
    assert!(json.contains("\"streamed\": [") && json.contains("\"arenas\": 6"), "{json}");
    assert_eq!(Plan::from_json(&json), Ok(streamed.clone()));
    // An earlier release wrote no number of arenas.
    streamed.stages[1].streamed = vec![7, 8, 9, 10, 11];
    assert_eq!(streamed.stages[1].arenas().count(), 3);
    streamed.stages[1].streamed.push(12);
    assert_eq!(streamed.stages[1].arenas().count(), 2);
    streamed.stages[1].arenas = Some(3);
    assert_eq!(streamed.stages[1].arenas().count(), 3);
    assert_eq!(Plan::from_json(&streamed.to_json()), Ok(streamed));
}

/// Returns a plan whose segments 6 to 9 decode on `cpu:1` and are prefilled on `cpu:0`.
fn with_prefill_stage() -> Plan {
    let stage = PlanStage { streamed: vec![6, 7, 8, 9], ..stage("cpu:0", 0, 13) };
    Plan { prefill_stage: Some(PrefillStage { stage, from_tokens: 96 }), ..plan() }
}

#[test]
fn the_prefill_stage_is_checked() {
    assert_eq!(with_prefill_stage().validate(&model(), &DEVICES), Ok(()));
    let with = |change: &dyn Fn(&mut PrefillStage)| {
        let mut changed = with_prefill_stage();
        changed.prefill_stage.iter_mut().for_each(change);
        let error = changed.validate(&model(), &DEVICES).expect_err("invalid").to_string();
        assert!(error.starts_with("the plan's prefill_stage: "), "{error}");
        error
    };
    assert!(with(&|p| p.stage.segments = Span::new(0, 12).unwrap()).contains("segments 13 are on no device"));
    assert!(with(&|p| p.stage.segments = Span::new(1, 13).unwrap()).contains("segments 0 are on no device"));
    assert!(with(&|p| p.stage.segments = Span::new(0, 14).unwrap()).contains("last segment is 13"));
    assert!(with(&|p| p.stage.device = "cuda:0".into()).contains("prefill_stage: there is no device cuda:0"));
    for (streamed, what) in [
        (&[][..], "must stream segments that other devices decode"),
        (&[6, 7, 8], "streamed: a stage streams at least 4 segments"),
        (&[0, 7, 8, 9], "segment 0 is the embedding or the head"),
        (&[7, 8, 9, 13], "segment 13 is the embedding or the head"),
        (&[7, 6, 8, 9], "ascending order"),
        (&[7, 8, 9, 99], "segment 99 is outside segments 0-13"),
        (&[5, 7, 8, 9], "cpu:0 decodes segment 5, so its weights are resident"),
    ] {
        let error = with(&|p| p.stage.streamed = streamed.to_vec());
        assert!(error.contains(what), "{error}");
    }
    assert!(with(&|p| p.from_tokens = 0).contains("from_tokens must be at least 1"));
    let mut streams = with_prefill_stage();
    streams.stages[0].streamed = vec![1, 2, 3, 4];
    let error = streams.validate(&model(), &DEVICES).expect_err("invalid").to_string();
    assert!(error.contains("a stage on cpu:0 streams segment 1"), "{error}");
}

#[test]
fn only_a_plan_with_a_prefill_stage_has_its_fields() {
    let json = plan().to_json();
    assert!(!json.contains("prefill_stage") && !json.contains("from_tokens"), "{json}");
    assert_eq!(json.matches("\"kv\"").count(), 3, "no host memory for keys and values: {json}");
    let mut with = with_prefill_stage();
    with.host_memory_bytes.kv = 77;
    let json = with.to_json();
    assert!(json.contains("\"from_tokens\": 96") && json.contains("\"kv\": 77"), "{json}");
    assert_eq!(Plan::from_json(&json), Ok(with));
    let misspelt = json.replacen("from_tokens", "from_token", 1);
    assert!(Plan::from_json(&misspelt).expect_err("unknown").to_string().contains("from_token"));
}

#[test]
fn a_plan_without_a_granularity_uses_blocks() {
    let mut halves = plan();
    halves.model.granularity = Granularity::HalfBlock;
    let json = halves.to_json();
    let field = ",\n    \"granularity\": \"half-block\"";
    assert!(json.contains(field), "{json}");
    assert_eq!(Plan::from_json(&json), Ok(halves));
    assert_eq!(Plan::from_json(&json.replacen(field, "", 1)), Ok(plan()));
    assert!(Plan::from_json(&json.replacen("half-block", "third", 1)).is_err());
}

#[test]
fn device_options_are_optional() {
    let unnamed = Plan { device_options: None, ..plan() };
    assert!(!unnamed.to_json().contains("device_options"));
    assert_eq!(Plan::from_json(&unnamed.to_json()), Ok(unnamed));
    let misspelt = plan().to_json().replacen("\"cpu_devices\"", "\"cpus\"", 1);
    assert!(Plan::from_json(&misspelt).is_err());
}

#[test]
fn a_plan_without_a_wire_type_uses_f32() {
    let mut narrow = plan();
    narrow.wire_type = WireType::F16;
    let json = narrow.to_json();
    let field = "  \"wire_type\": \"f16\",\n";
    assert!(json.contains(field), "{json}");
    assert_eq!(Plan::from_json(&json), Ok(narrow));
    assert_eq!(Plan::from_json(&json.replacen(field, "", 1)), Ok(plan()));
    let error = Plan::from_json(&json.replacen(field, "  \"wire_type\": \"f8\",\n", 1)).expect_err("unknown");
    assert!(error.to_string().contains("wire_type"), "{error}");
}

#[test]
fn the_split_of_a_plan_is_what_users_write() {
    assert_eq!(plan().split().to_string(), "0-5=cpu:0,6-13=cpu:1");
}
