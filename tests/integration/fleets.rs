//! Tests plans for fleets of absent devices, and for model files that contain no weights.

use crate::support::{self, model_bytes, model_path, ragtag, text};
use ragtag::{Fleet, Model, Plan, Planner, TensorType};
use ragtag_graph::Lowering;
use ragtag_graph::gguf::Writer;
use ragtag_kernels::{Activations, KvType};
use ragtag_synth::{Preset, Shape};
use serde_json::Value;
use std::path::Path;
use std::time::Instant;

const USAGE: i32 = 2;
const MODEL: i32 = 3;
const PLACEMENT: i32 = 4;

fn succeeds(arguments: &[&str]) -> String {
    let output = ragtag().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(arguments)).unwrap()
}

/// Runs a command. Checks that it fails with exit code `code`, and that its message contains every string in
/// `words`.
fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let output = ragtag().args(arguments).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{arguments:?}: {word} in {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
}

fn devices_of(plan: &Value) -> Vec<&str> {
    plan["stages"].as_array().unwrap().iter().map(|stage| stage["device"].as_str().unwrap()).collect()
}

// ---- fleets -------------------------------------------------------------------------------------------------------

#[test]
fn plans_for_a_line_of_cards_without_devices() {
    let line = "2x-arc-a770+rx7900xtx";
    let plan = json(&["plan", "--fleet", line, "--objective", "latency", "--prompt-tokens", "64", "--json"]);
    assert!(
        devices_of(&plan).iter().all(|label| ["arc-a770:0", "arc-a770:1", "rx7900xtx:0"].contains(label))
    );
    assert_eq!(plan["objective"], "latency");
    assert_eq!(plan["workload"]["prompt_tokens"], 64);
    assert_eq!(plan["workload"]["generated_tokens"], 128);
    let mix = json(&["plan", "--fleet", line, "--objective", "mix:latency=1,first-token=0.5", "--json"]);
    assert_eq!(mix["objective"]["mix"]["first_token"], 0.5);
    // Splits use the labels of cards, and the command reads plans for fleets like any other plan.
    let split = json(&["plan", "--fleet", line, "--split", "0-4=arc-a770:1,5-13=rx7900xtx:0", "--json"]);
    assert_eq!(devices_of(&split), ["arc-a770:1", "rx7900xtx:0"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    std::fs::write(&file, split.to_string()).unwrap();
    let again = json(&["plan", "--fleet", line, "--plan", text(&file), "--json"]);
    assert_eq!(devices_of(&again), devices_of(&split));
    refused(&["plan", "--fleet", "l4", "--plan", text(&file)], PLACEMENT, &["no device arc-a770:1"]);
}

#[test]
fn a_plan_file_is_read_back_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let fleet = ["plan", "--fleet", "2x-rtx3090+arc-a770+rx6800xt", "--json"];
    let again = |plan: &Value, more: &[&str]| {
        std::fs::write(&file, plan.to_string()).unwrap();
        json(&[&fleet[..], &["--plan", text(&file)], more].concat())
    };
    // Compare everything except the reasons, because a split needs fewer explanations.
    let without_reasons = |plan: &Value| {
        let mut plan = plan.clone();
        let fields = plan.as_object_mut().unwrap();
        fields.remove("reasons");
        fields.remove("explanation");
        plan
    };
    let split = ["--split", "0-4=rtx3090:0,5-9=rtx3090:1,10-13=arc-a770:0"];
    for arguments in [&["--parallel", "8", "--ctx", "256"][..], &[&split[..], &["--parallel", "5"]].concat()]
    {
        let plan = json(&[&fleet[..], arguments].concat());
        assert_eq!(without_reasons(&again(&plan, &[])), without_reasons(&plan));
        // Manual changes to a plan are kept as well.
        let mut changed = plan.clone();
        (changed["credits"], changed["slots"]) = (11.into(), 5.into());
        for edge in changed["edges"].as_array_mut().unwrap() {
            let small = serde_json::json!({ "up_to_bytes": 4096, "route": "peer" });
            let ring = serde_json::json!({ "host-staged": { "chunk_bytes": 65536, "depth": 2 } });
            edge["routes"] = serde_json::json!([small, { "route": ring }]);
        }
        let read = again(&changed, &[]);
        assert_eq!([&read["credits"], &read["slots"]], [11, 5]);
        assert_eq!(read["edges"], changed["edges"]);
    }
    // Arguments override the plan.
    let plan = json(&[&fleet[..], &split, &["--parallel", "5", "--wire", "f16"]].concat());
    let exact = again(&plan, &["--activations", "f32"]);
    assert_eq!([&exact["activations"], &exact["wire_type"], &exact["kv"]], ["f32"; 3]);
    let more = again(&plan, &["--parallel", "7"]);
    assert_eq!((&more["sequences"], &more["wire_type"]), (&7.into(), &"f16".into()));
}

#[test]
fn a_plan_without_reasons_is_the_same_plan() {
    let model = Model::open(model_path("tales-bitnet-tq2_0")).unwrap();
    let fleet = Fleet::from_line("2x-arc-a770+rx7900xtx").unwrap();
    let planner = Planner::new(&model).fleet(&fleet).unwrap().sequences(4);
    let (plan, bare) = (planner.plan().unwrap(), planner.unexplained().plan().unwrap());
    assert!(!plan.reasons.is_empty() && bare.reasons.is_empty());
    let (explanation, reasons) = (plan.explanation.clone(), plan.reasons.clone());
    assert_ne!(explanation, bare.explanation);
    assert_eq!(plan, Plan { explanation, reasons, ..bare });
}

#[test]
fn simulates_a_fleet_without_devices() {
    let simulated = json(&["simulate", "--fleet", "2x-l4", "--closed", "4", "--requests", "8", "--json"]);
    assert_eq!(
        devices_of(&simulated["plan"]).len(),
        simulated["summary"]["stages"].as_array().unwrap().len()
    );
    assert_eq!(simulated["summary"]["finished"], 8);
    assert!(simulated["summary"]["requests_per_s"].as_f64().unwrap() > 0.0);
    refused(&["simulate", "--fleet", "l4", "--device", "cpu"], 2, &["--fleet", "--device"]);
}

#[test]
fn reports_errors_in_fleets() {
    refused(&["plan", "--fleet", "rtx309"], PLACEMENT, &["--fleet: \"rtx309\"", "similar cards are rtx3090"]);
    refused(&["plan", "--fleet", "l4", "--device", "cpu"], USAGE, &["--device"]);
    refused(&["plan", "--fleet", "missing.json"], 7, &["cannot read missing.json"]);
    refused(&["plan", "--fleet", "l4", "--objective", "speed"], USAGE, &["unknown objective"]);
    refused(
        &["plan", "--fleet", "l4", "--prompt-tokens", "0", "--new-tokens", "0"],
        PLACEMENT,
        &["workload"],
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fleet.json");
    let fails = |json: &str, words: &[&str]| {
        std::fs::write(&file, json).unwrap();
        refused(&["plan", "--fleet", text(&file)], PLACEMENT, words);
    };
    fails("{}", &["fleet.json: not a fleet: missing field `ragtag_fleet`"]);
    fails(
        r#"[1, [{"card": "l4"}], [], []]"#,
        &["not a fleet: invalid type: sequence, expected struct Fleet"],
    );
    fails(
        r#"{"ragtag_fleet": 1, "devices": [["a", "l4"]]}"#,
        &["devices[0]: invalid type: sequence, expected struct FleetDevice"],
    );
    fails(r#"{"ragtag_fleet": 2, "novel": 1}"#, &["version 2, but this build reads version 1"]);
    let units = r#"{"ragtag_fleet": 1, "devices": [{"card": "l4", "bandwidth_gb_per_s": 448000000000}]}"#;
    fails(units, &["devices[0].bandwidth_gb_per_s: is 448000000000", "looks like bytes per second"]);
    fails(
        r#"{"ragtag_fleet": 1, "devices": [{"card": "l4", "cuont": 2}]}"#,
        &["devices[0].cuont", "unknown field"],
    );
    let small = r#"{"ragtag_fleet": 1, "devices": [{"card": "l4", "memory_bytes": 67108864}]}"#;
    std::fs::write(&file, small).unwrap();
    refused(&["plan", "--fleet", text(&file), "--ctx", "512", "--parallel", "512"], 6, &["l4:0"]);
}

#[test]
fn every_example_is_a_fleet() {
    let mut examples = 0;
    for entry in std::fs::read_dir(support::root().join("examples/fleets")).unwrap() {
        let path = entry.unwrap().path();
        let fleet = Fleet::from_json(&std::fs::read_to_string(&path).unwrap());
        let fleet = fleet.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(!fleet.facts().unwrap().0.is_empty());
        succeeds(&["plan", "--fleet", text(&path)]);
        examples += 1;
    }
    assert!(examples >= 3);
}

#[test]
fn lists_cards_with_sources_and_planning_figures() {
    let table = succeeds(&["cards"]);
    assert!(table.contains("rx7900xtx") && table.contains("arc-a770") && table.contains("epyc-9654"));
    let cards = json(&["cards", "--json"]);
    for card in cards["cards"].as_array().unwrap() {
        assert!(card["source"]["title"].is_string() && card["source"]["url"].is_string(), "{card}");
        assert!(card["planned_with"]["bandwidth_bytes_per_s"]["value"].as_f64().unwrap() > 0.0, "{card}");
    }
}

// ---- descriptions -------------------------------------------------------------------------------------------------

/// Writes the bundled model's header, without tensor data, to a file in `folder`. Returns the path of the
/// file.
fn header_of_the_bundled_model(folder: &Path) -> std::path::PathBuf {
    let bytes = model_bytes("tales-bitnet-tq2_0");
    let whole = Model::bundled().unwrap();
    let first = whole.graph().weights().tensors().iter().map(|tensor| tensor.offset).min().unwrap();
    let path = folder.join("header.gguf");
    std::fs::write(&path, &bytes[..first as usize]).unwrap();
    path
}

#[test]
fn a_header_gets_the_plan_of_its_file_and_does_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let header = header_of_the_bundled_model(folder.path());
    let (path, whole) = (text(&header), model_path("tales-bitnet-tq2_0"));
    let arguments = ["--fleet", "2x-rtx3060", "--json"];
    let of_header = json(&[&["plan", path], &arguments[..]].concat());
    let mut of_whole = json(&[&["plan", text(&whole)], &arguments[..]].concat());
    // The plan for the header is also valid for the whole file. Only the displayed name differs.
    of_whole["model"]["name"] = of_header["model"]["name"].clone();
    assert_eq!(of_header, of_whole);
    assert!(succeeds(&["inspect", path]).contains("metadata only"));
    assert_eq!(json(&["inspect", path, "--json"])["has_weights"], false);
    assert_eq!(json(&["inspect", "--json"])["has_weights"], true);
    refused(&["run", path, "-n", "1"], MODEL, &["header.gguf ends at byte", "the data of tensor"]);
    refused(&["inspect", path, "--assume-type", "q4_k"], USAGE, &["cannot assume a tensor type"]);
    refused(&["plan", "--assume-type", "q4_k"], USAGE, &["the bundled model has weights"]);
    refused(&["plan", path, "--assume-type", "q3"], USAGE, &["expected one of f32"]);
    // A truncated header is an error that names the missing part.
    let bytes = std::fs::read(&header).unwrap();
    std::fs::write(&header, &bytes[..bytes.len() / 2]).unwrap();
    refused(&["plan", path], MODEL, &["header.gguf ends at byte"]);
}

#[test]
fn an_engine_refuses_a_model_without_weights() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open_metadata(header_of_the_bundled_model(folder.path()), None).unwrap();
    let setup = support::Setup::default();
    let error =
        support::engine_on(&model, &setup, &support::devices(&setup)).expect_err("no weights").to_string();
    assert!(error.contains("has no data: this model can be planned but not run"), "{error}");
}

#[test]
fn a_config_gets_the_plan_of_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.json");
    std::fs::copy(support::checkpoint().join("config.json"), &config).unwrap();
    let path = text(folder.path());
    let lowering = Lowering {
        activations: Activations::Int8,
        kv: KvType::F16,
        context: 512,
        sequences: 2,
        kv_blocks: None,
        chunk: 64,
        logit_rows: 2,
        wire_type: ragtag::WireType::F32,
    };
    let described = Model::open_metadata(folder.path(), None).unwrap();
    let whole = Model::open_metadata(support::checkpoint(), None).unwrap();
    let segments = |model: &Model| model.graph().segments(&lowering).unwrap();
    assert_eq!(segments(&described), segments(&whole));
    assert_eq!(described.graph().parameters(), whole.graph().parameters());

    let assumed = json(&["inspect", path, "--assume-type", "q8_0", "--json"]);
    assert_eq!(assumed["tensor_types"]["Q8_0"]["tensors"], 4 * 7 + 1);
    assert_eq!(assumed["tensor_types"]["F32"]["tensors"], 4 * 2 + 1);
    let fingerprint =
        |arguments: &[&str]| json(&[&["inspect", path, "--json"], arguments].concat())["fingerprint"].clone();
    assert_ne!(fingerprint(&[]), fingerprint(&["--assume-type", "q8_0"]));
    succeeds(&["plan", path, "--fleet", "2x-l4", "--assume-type", "q8_0"]);
    refused(
        &["plan", path, "--assume-type", "q4_k"],
        MODEL,
        &["rows of 32 values are not whole blocks of 256"],
    );
    refused(&["run", path, "-n", "1"], MODEL, &["has no model.safetensors"]);

    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"dtype\": \"float16\",", "")).unwrap();
    refused(&["plan", path], MODEL, &["has no metadata torch_dtype"]);
    std::fs::write(&config, text.replace("\"float16\"", "\"float8_e4m3fn\"")).unwrap();
    refused(&["plan", path], MODEL, &["not supported: dtype in config.json = \"float8_e4m3fn\""]);
    std::fs::remove_file(&config).unwrap();
    refused(&["plan", path], MODEL, &["config.json"]);
}

/// Checks that the planner can plan from the header alone if the model has rotary factors. These factors are
/// tensor data, so the header does not contain them.
#[test]
fn plans_for_a_header_with_rotary_factors() {
    let mut writer = Writer::new();
    writer.put("general.architecture", "llama");
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 256),
        ("embedding_length", 64),
        ("feed_forward_length", 128),
        ("attention.head_count", 2),
    ] {
        writer.put(&format!("llama.{key}"), value as u32);
    }
    writer.put("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let mut matrix = |name: &str, shape: &[u64]| {
        writer.tensor(name, TensorType::F32, shape, 4 * shape.iter().product::<u64>());
    };
    matrix("rope_freqs.weight", &[16]);
    matrix("token_embd.weight", &[64, 320]);
    for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        matrix(&format!("blk.0.{name}.weight"), &[64, 64]);
    }
    for (name, shape) in [("ffn_gate", [64, 128]), ("ffn_up", [64, 128]), ("ffn_down", [128, 64])] {
        matrix(&format!("blk.0.{name}.weight"), &shape);
    }
    for name in ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"] {
        matrix(name, &[64]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("factors.gguf");
    std::fs::write(&path, writer.header()).unwrap();
    let model = Model::open_metadata(&path, None).unwrap();
    let plan = Planner::new(&model).fleet(&Fleet::from_line("l4").unwrap()).unwrap().plan().unwrap();
    assert_eq!(plan.stages.len(), 1);
}

/// Checks plans for a model of 405 billion weights on a fleet of 16 devices. The model file has only a
/// header.
#[test]
fn plans_for_the_largest_models_from_their_headers() {
    let shape = Shape {
        tensor_type: TensorType::Q4_K,
        layers: 126,
        width: 16384,
        heads: 128,
        kv_heads: 8,
        head_width: 128,
        ffn: 53248,
        vocabulary: 128256,
        context: 131072,
        ..Preset::B70.shape()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("405b.gguf");
    std::fs::write(&path, ragtag_synth::header(&shape).unwrap()).unwrap();
    let fleet = Fleet::from_line("8x-a100-40gb+8x-rtx4090").unwrap();
    let start = Instant::now();
    let model = Model::open_metadata(&path, None).unwrap();
    let opened = start.elapsed();
    let planner = Planner::new(&model).fleet(&fleet).unwrap().context(8192);
    let plan = planner.plan().unwrap();
    println!("opened in {opened:?}, planned for after {:?}", start.elapsed());
    assert!((405_000_000_000..407_000_000_000).contains(&model.graph().parameters()));
    let mut next = 0;
    for stage in &plan.stages {
        let range = stage.segments.range();
        assert_eq!(range.start, next);
        next = range.end;
        assert!(stage.memory_bytes.total <= stage.memory_bytes.available, "{stage:?}");
    }
    assert_eq!(next, 128);
    // 228 GB do not fit on five of the larger cards.
    assert!((6..=16).contains(&plan.stages.len()), "{}", plan.stages.len());
}

#[test]
fn a_model_that_does_not_fit_is_streamed() {
    let shape =
        Shape { tensor_type: TensorType::Q4_K, vocabulary: 128256, context: 131072, ..Preset::B70.shape() };
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = (folder.path().join("70b.gguf"), folder.path().join("plan.json"));
    std::fs::write(&path, ragtag_synth::header(&shape).unwrap()).unwrap();
    let arguments = ["plan", text(&path), "--fleet", "rtx4090"];
    let start = Instant::now();
    let plan = json(&[&arguments[..], &["--json"]].concat());
    println!("planned in {:?}: {:#}", start.elapsed(), plan["reasons"]);
    let streamed = plan["stages"][0]["streamed"].as_array().unwrap().len();
    assert!((30..80).contains(&streamed), "{streamed} segments");
    assert_eq!(plan["context"], 4096);
    // A fleet has no host memory to check, but the plan states the need.
    assert!(plan["host_memory_bytes"]["weights"].as_u64().unwrap() > 16 << 30);
    let printed = succeeds(&arguments);
    let drawn = printed.lines().filter(|line| !line.starts_with('-') && !line.starts_with("host memory"));
    assert_eq!(drawn.filter(|line| line.contains("streamed")).count(), 2, "{printed}");
    assert!(printed.contains(&format!("0 rtx4090:0, {streamed} streamed")), "{printed}");
    let model = Model::open_metadata(&path, None).unwrap();
    let planner = Planner::new(&model).fleet(&Fleet::from_line("rtx4090").unwrap()).unwrap();
    let refused = planner.without_streaming().plan().unwrap_err();
    assert!(refused.to_string().contains("the model does not fit"), "{refused}");
    // The command plans the same segments for the file.
    std::fs::write(&file, plan.to_string()).unwrap();
    let again = json(&[&arguments[..], &["--plan", text(&file), "--json"]].concat());
    assert_eq!((&again["stages"], &again["predicted"]), (&plan["stages"], &plan["predicted"]));
}
