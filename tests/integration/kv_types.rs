//! Tests quantized KV caches: accuracy, the same bits for every cut, agreement of devices, KV rings, prefill
//! stages, memory, plan files, and the command.

use crate::gpus::{INTEL, LAVAPIPE, POCL, gpus_and};
use crate::streaming::{start, tokens};
use crate::support::{
    Checkpoint, MODELS, Setup, block_on, devices, engine, engine_on, golden, model_path, ragtag,
    relative_error, with_prefill,
};
use ragtag::{DeviceFacts, Granularity, Model, Plan, Planner};
use ragtag_kernels::{Activations, KvType};

const QUANTISED: [KvType; 3] = [KvType::Q8_0, KvType::Q8_0Q4_0, KvType::Q4_0];

/// Returns the maximum relative error of logits compared with those of an f32 cache.
fn bound(kv: KvType) -> f64 {
    match kv {
        KvType::Q8_0 => 4e-3,
        _ => 4e-2,
    }
}

fn logits(model: &Model, setup: &Setup<'_>, ids: &[u32]) -> Vec<f32> {
    block_on(engine(model, setup).session().logits(ids)).unwrap()
}

#[test]
fn logits_stay_close_to_those_of_an_f32_cache() {
    for name in MODELS {
        let (model, golden) = (Model::open(model_path(name)).unwrap(), golden(name));
        let ids = &golden.cases[0].prompt_ids;
        let exact = logits(&model, &Setup::default(), ids);
        for kv in QUANTISED {
            let error =
                relative_error(&logits(&model, &Setup { kv: Some(kv), ..Setup::default() }, ids), &exact);
            println!("{name}, {kv}: relative error {error:.2e}");
            assert!(error > 1e-5 && error <= bound(kv), "{name}, {kv}: {error}");
        }
    }
}

/// Checks several stages, and chunks of several lengths, against one stage.
#[test]
fn cuts_change_no_bit() {
    let name = "tales-q8_0";
    let (model, ids) = (Model::open(model_path(name)).unwrap(), golden(name).cases[0].prompt_ids.clone());
    for kv in QUANTISED {
        let setup = Setup { kv: Some(kv), cpu_devices: 3, ..Setup::default() };
        let expected = logits(&model, &setup, &ids);
        let split = Some("0-4=cpu:0,5-9=cpu:1,10-13=cpu:2");
        assert!(logits(&model, &Setup { split, ..setup }, &ids) == expected, "{kv}");
    }
}

/// Checks that devices quantize keys and values alike, in prefill chunks and in a rest of few rows. A value
/// between two quants may round to either of them.
#[test]
fn devices_agree() {
    let checkpoint = Checkpoint::open("tiny-gemma3");
    let model = &checkpoint.models[0];
    let ids: Vec<u32> = checkpoint.ids.iter().copied().cycle().take(100).collect();
    let kv = KvType::Q8_0Q4_0;
    let setup = Setup { kv: Some(kv), chunk: 48, ..Setup::default() };
    let expected = logits(model, &setup, &ids);
    for adapter in gpus_and(&[POCL, INTEL, LAVAPIPE]) {
        let label = adapter.label();
        let error = relative_error(&logits(model, &Setup { devices: &label, ..setup }, &ids), &expected);
        println!("{label}, {kv}: relative error {error:.2e}");
        assert!(error <= bound(kv) / 4.0, "{label}, {kv}: {error}");
    }
}

#[test]
fn rings_and_prefill_stages_change_nothing() {
    let checkpoint = Checkpoint::open("tiny-gemma3");
    let model = &checkpoint.models[0];
    let ids: Vec<u32> = checkpoint.ids.iter().copied().cycle().take(300).collect();
    for kv in QUANTISED {
        let setup = |chunk| Setup { context: 512, chunk, kv: Some(kv), ..Setup::default() };
        let expected = logits(model, &setup(512), &ids);
        for chunk in [1, 5, 33] {
            assert!(logits(model, &setup(chunk), &ids) == expected, "{kv}, chunks of {chunk}");
        }
        let engine = engine(model, &Setup { all_logits: false, ..setup(512) });
        let expected = tokens(&engine.session(), &ids, 40);
        drop(engine);
        let found = devices(&Setup { cpu_devices: 2, ..Setup::default() });
        let planner = Planner::new(model).devices(&found).context(512).chunk(5).kv(kv);
        // The first layer has a window. Keys and values of the other two layers pass.
        let planner = planner.granularity(Granularity::HalfBlock);
        let split = "0-1=cpu:1,2-7=cpu:0".parse().unwrap();
        let plan = planner.activations(Activations::F32).split(split).plan().unwrap();
        let engine = start(model, &found, &with_prefill(plan, "cpu:1", 1), false);
        assert_eq!(tokens(&engine.session(), &ids, 40), expected, "{kv}");
    }
}

/// Checks that the memory of a device holds a longer context, and that the device holds what the plan says.
#[test]
fn the_same_memory_holds_a_longer_context() {
    let model = Model::open(model_path("tales-q4_0")).unwrap();
    let found = devices(&Setup::default());
    let plan = |memory_bytes: Option<u64>, kv, context: Option<u32>| -> ragtag::Result<Plan> {
        let limit = |facts: DeviceFacts| DeviceFacts {
            memory_bytes: memory_bytes.unwrap_or(facts.memory_bytes),
            ..facts
        };
        let planner = Planner::new(&model).device_facts(found.facts().into_iter().map(limit).collect());
        let planner = planner.kv(kv).chunk(16).sequences(32);
        context.map_or(planner.clone(), |context| planner.context(context)).plan()
    };
    let needed = |kv| plan(None, kv, Some(256)).unwrap().stages[0].memory_bytes;
    let f16 = needed(KvType::F16);
    for (kv, least, most) in
        [(KvType::Q8_0, 1.8, 1.95), (KvType::Q8_0Q4_0, 2.3, 2.6), (KvType::Q4_0, 3.3, 3.7)]
    {
        let ratio = f16.kv as f64 / needed(kv).kv as f64;
        println!("{kv}: {ratio:.2} times the positions of f16");
        assert!((least..most).contains(&ratio), "{kv}: {ratio}");
    }
    let longest = |kv| plan(Some(f16.total), kv, None).unwrap().context;
    let (short, long) = (longest(KvType::F16), longest(KvType::Q8_0));
    assert!(long * 10 >= short * 18, "{short} and {long}");
    let setup = Setup { kv: Some(KvType::Q8_0Q4_0), sequences: 2, all_logits: false, ..Setup::default() };
    let engine = engine_on(&model, &setup, &found).unwrap();
    let (planned, held) = (engine.plan().stages[0].memory_bytes, engine.stage_reports()[0].pool.in_use_bytes);
    assert!(held <= planned.total && held + planned.kv > planned.total, "{held} of {planned:?}");
}

#[test]
fn unsuitable_heads_are_refused() {
    let checkpoint = Checkpoint::open("tiny-mistral");
    let found = devices(&Setup::default());
    let error = Planner::new(&checkpoint.models[0]).devices(&found).kv(KvType::Q4_0).plan().unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("q4_0") && error.contains("have 48") && error.contains("use f16 or f32"),
        "{error}"
    );
}

#[test]
fn the_command_takes_types_and_keeps_those_of_a_plan() {
    let model = model_path("tales-q8_0");
    let model = model.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let run = |arguments: &[&str]| {
        let mut command = ragtag();
        let output = command.args(arguments).arg(model).args(["--threads", "1"]).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, err)
    };
    let types = ["--kv-keys", "q8_0", "--kv-values", "q4_0"];
    let (code, plan, said) = run(&[&["plan", "--json", "--ctx", "64"], &types[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(plan.contains("\"kv\": \"q8_0/q4_0\""), "{plan}");
    std::fs::write(&file, plan).unwrap();
    let prompt = ["run", "-p", "Once upon a time", "-n", "20", "--temp", "0"];
    let (code, expected, said) = run(&[&prompt[..], &["--ctx", "64"], &types].concat());
    assert_eq!(code, Some(0), "{said}");
    let (code, again, said) = run(&[&prompt[..], &["--plan", file.to_str().unwrap()]].concat());
    assert_eq!((code, again), (Some(0), expected), "{said}");
    let (code, _, said) = run(&[&prompt[..], &["--kv", "q8_0", "--kv-values", "f16"]].concat());
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("q8_0 keys and f16 values"), "{said}");
}
