//! Shared test support: models, golden data, engines, errors, and the command itself.

pub use crate::made::model_path;
use ragtag::{
    DeviceOptions, Devices, Engine, EngineOptions, Event, GemmChoice, Generation, Granularity, Model,
    Planner, Prompt, Summary, TokenStream, WireType,
};
use ragtag_kernels::{Activations, KvType, NumericsClass};
use ragtag_planner::Split;
use ragtag_planner::plan::{Plan, PlanStage, PrefillStage};
use ragtag_planner::split::Span;
use ragtag_transfer::{Route, Routes};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names of the four golden models.
pub const MODELS: [&str; 4] = ["tales-bitnet-tq2_0", "tales-q8_0", "tales-q4_0", "tales-q4_k_m"];

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Golden outputs for one model, from an independent implementation.
pub struct Golden {
    /// Logits at the first four positions of the first prompt.
    pub logits: Vec<f32>,
    pub cases: Vec<GoldenCase>,
}

/// Golden prompt with its greedy continuation.
pub struct GoldenCase {
    pub prompt: String,
    pub prompt_ids: Vec<u32>,
    pub greedy_ids: Vec<u32>,
    pub margins: Vec<f64>,
    pub text: String,
}

pub fn golden(name: &str) -> Golden {
    let npy = std::fs::read(test_support::golden(&format!("{name}.logits.npy"))).unwrap();
    let json = read_json(&test_support::golden(&format!("{name}.golden.json")));
    let ids =
        |v: &serde_json::Value| v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect();
    let case = |case: &serde_json::Value| GoldenCase {
        prompt: case["prompt"].as_str().unwrap().into(),
        prompt_ids: ids(&case["prompt_ids"]),
        greedy_ids: ids(&case["greedy_ids"]),
        margins: case["top2_margin"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect(),
        text: case["text"].as_str().unwrap().into(),
    };
    Golden {
        logits: ragtag::npy::decode(&npy).unwrap().0,
        cases: json["cases"].as_array().unwrap().iter().map(case).collect(),
    }
}

impl Golden {
    /// Returns the relative error of `logits`, which belong to the first prompt or to its first tokens, at the positions
    /// that the golden data has.
    pub fn error(&self, logits: &[f32]) -> f64 {
        assert_ne!(logits.len(), 0);
        let length = self.logits.len().min(logits.len());
        relative_error(&logits[..length], &self.logits[..length])
    }
}

/// Returns ‖out − reference‖ / ‖reference‖ in float64. If any value is NaN, returns NaN, so that comparisons
/// with a bound fail.
pub fn relative_error(out: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(out.len(), reference.len());
    let square = |x: f64| x * x;
    let difference: f64 = out.iter().zip(reference).map(|(&o, &r)| square(f64::from(o) - f64::from(r))).sum();
    let norm: f64 = reference.iter().map(|&r| square(f64::from(r))).sum();
    (difference / norm).sqrt()
}

pub fn argmax(row: &[f32]) -> u32 {
    let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.unwrap().0 as u32
}

/// Returns a split of `halves` half-block segments: the feed-forward halves on `second`, the rest on `first`.
pub fn feed_forward_apart(first: &str, second: &str, halves: u32) -> String {
    let half = |segment: u32| {
        let is_feed_forward = segment.is_multiple_of(2) && segment < halves - 1;
        format!(",{segment}={}", if is_feed_forward { second } else { first })
    };
    format!("0-1={first}") + &(2..halves).map(half).collect::<String>()
}

/// Options of an engine that a test starts.
#[derive(Clone)]
pub struct Setup<'a> {
    /// Device selection, as for `--device`.
    pub devices: &'a str,
    pub cpu_devices: u32,
    pub threads: u32,
    pub granularity: Granularity,
    pub split: Option<&'a str>,
    pub activations: Activations,
    /// Types of keys and values. `None` selects the default for the activations.
    pub kv: Option<KvType>,
    pub wire_type: WireType,
    pub chunk: u32,
    pub sequences: u32,
    pub context: u32,
    pub all_logits: bool,
    pub trace: bool,
    pub gemm: GemmChoice,
    /// Route between all devices. `None` selects the routes that the drivers offer, although no probe has
    /// verified them.
    pub route: Option<Route>,
    pub verify_transfers: bool,
    pub stall_timeout: Option<Duration>,
    pub compute_timeout: Option<Duration>,
    /// Whether the engine opens each device only once, without a self-test before.
    pub no_self_test: bool,
    pub max_recoveries: u32,
    pub log_events: Option<&'a Path>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            devices: "cpu",
            cpu_devices: 1,
            threads: 1,
            granularity: Granularity::Block,
            split: None,
            activations: Activations::F32,
            kv: None,
            wire_type: WireType::F32,
            chunk: 32,
            sequences: 1,
            context: 128,
            all_logits: true,
            trace: false,
            gemm: GemmChoice::Auto,
            route: None,
            verify_transfers: false,
            stall_timeout: None,
            compute_timeout: None,
            no_self_test: false,
            max_recoveries: 0,
            log_events: None,
        }
    }
}

pub fn devices(setup: &Setup<'_>) -> Devices {
    let mut options = DeviceOptions::selecting(setup.devices);
    (options.cpu_devices, options.cpu_threads) = (setup.cpu_devices, Some(setup.threads));
    options.gemm = setup.gemm;
    Devices::probe(&options).unwrap()
}

/// Returns the label of the last Vulkan device. Records a skip if there is none.
pub fn last_vulkan() -> Option<String> {
    let found = Devices::probe(&DeviceOptions::default()).unwrap();
    let ours = found.report().adapters().filter(|adapter| adapter.backend == "vulkan");
    let label = ours.last().map(ragtag_hal::Adapter::label);
    if label.is_none() {
        assert!(std::env::var_os("RAGTAG_TEST_VULKAN_ADAPTERS").is_none(), "no device of Vulkan");
        test_support::skip!("Vulkan driver", "no device");
    }
    label
}

pub fn engine(model: &Model, setup: &Setup<'_>) -> Engine {
    engine_on(model, setup, &devices(setup)).unwrap()
}

pub fn engine_on(model: &Model, setup: &Setup<'_>, devices: &Devices) -> ragtag::Result<Engine> {
    let usual = if setup.activations == Activations::F32 { KvType::F32 } else { KvType::F16 };
    let mut planner = Planner::new(model)
        .devices(devices)
        .context(setup.context)
        .sequences(setup.sequences)
        .chunk(setup.chunk)
        .granularity(setup.granularity)
        .activations(setup.activations)
        .wire_type(setup.wire_type)
        .kv(setup.kv.unwrap_or(usual));
    if setup.all_logits {
        planner = planner.all_logits();
    }
    if let Some(split) = setup.split {
        planner = planner.split(split.parse::<Split>().unwrap());
    }
    let adapters = devices.selected();
    for (from, to) in adapters.iter().flat_map(|from| adapters.iter().map(move |to| (from, to))) {
        let [source, destination] = [from, to].map(ragtag_hal::Adapter::label);
        let routes = match setup.route {
            Some(route) => Routes::or_staged(route),
            None => {
                let unprobed = &planner.facts().1.between(&source, &destination).routes;
                let staged = unprobed.iter().next().unwrap();
                let route = match () {
                    () if from.imports_from(to) => Route::Peer,
                    () if to.imports_from(from) => Route::Import,
                    () => staged,
                };
                Routes::or(route, staged)
            }
        };
        planner = planner.routes(&source, &destination, routes);
    }
    let plan = planner.plan()?;
    let mut options = EngineOptions::default();
    (options.all_logits, options.trace) = (setup.all_logits, setup.trace);
    (options.verify_transfers, options.stall_timeout) = (setup.verify_transfers, setup.stall_timeout);
    options.compute_timeout = setup.compute_timeout;
    (options.no_self_test, options.max_recoveries) = (setup.no_self_test, setup.max_recoveries);
    options.log_events = setup.log_events.map(Path::to_owned);
    Engine::start_exact(model, devices, &plan, options)
}

/// All token ids, the whole text and the summary from a token stream.
#[derive(Debug)]
pub struct Said {
    pub ids: Vec<u32>,
    pub text: String,
    pub summary: Summary,
}

pub async fn listen(mut stream: TokenStream) -> ragtag::Result<Said> {
    let (mut ids, mut text) = (Vec::new(), String::new());
    loop {
        match stream.next_event().await? {
            Event::Token { id, text: piece, .. } => {
                ids.extend(id);
                text.push_str(&piece);
            }
            Event::Finished(summary) => return Ok(Said { ids, text, summary }),
        }
    }
}

/// Returns generation parameters for exactly `max_tokens` greedy tokens; generation continues after an end
/// token.
pub fn greedy(max_tokens: u32) -> Generation {
    Generation { max_tokens, ignore_end: true, ..Generation::greedy() }
}

/// Runs the body of an async test.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Returns the `ragtag` command with a clean environment.
pub fn ragtag() -> assert_cmd::Command {
    sheltered(assert_cmd::Command::cargo_bin("ragtag").unwrap())
}

/// Returns a command that runs the shell script `script`. In the script, `"$0" "$@"` runs Ragtag with
/// `arguments`.
pub fn shell(script: &str, arguments: &[&str]) -> assert_cmd::Command {
    let mut command = sheltered(assert_cmd::Command::new("sh"));
    command.args(["-c", script, env!("CARGO_BIN_EXE_ragtag")]).args(arguments);
    command
}

/// Gives `command` an environment without the user's settings and caches, and without GPUs. Its child processes
/// inherit the environment.
pub fn sheltered(mut command: assert_cmd::Command) -> assert_cmd::Command {
    for (variable, value) in environment() {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    command.timeout(Duration::from_secs(300));
    command
}

/// Returns the changes that [`sheltered`] makes to the environment.
pub fn environment() -> Vec<(OsString, Option<OsString>)> {
    // These tests assume a fixed set of devices. The settings below therefore hide all OpenCL and Vulkan
    // drivers and all GPUs.
    let hidden: [(&str, OsString); 6] = [
        ("OCL_ICD_VENDORS", test_support::golden("tiny-hf").into()),
        ("VK_DRIVER_FILES", root().join("no-driver.json").into()),
        ("CUDA_VISIBLE_DEVICES", "-1".into()),
        ("HIP_VISIBLE_DEVICES", "-1".into()),
        // Only tests of calibration time the devices.
        ("RAGTAG_NO_CALIBRATION", "1".into()),
        // Other tests use the CPUs.
        ("RAGTAG_MAX_LOAD", "100".into()),
    ];
    let mut changes = test_support::clean_environment();
    changes.extend(hidden.map(|(name, value)| (name.into(), Some(value))));
    changes
}

/// Runs `ragtag` with the Vulkan drivers in `drivers`, or with the system's drivers if `drivers` is `None`.
/// Returns its exit code, standard output and standard error.
pub fn run_with_vulkan(
    drivers: Option<&OsStr>,
    prepare: impl FnOnce(&mut assert_cmd::Command),
) -> (Option<i32>, String, String) {
    let mut command = ragtag();
    command.env_remove("VK_DRIVER_FILES").envs(drivers.map(|files| ("VK_DRIVER_FILES", files)));
    // The layer that lets calls fail.
    for variable in ["VK_ADD_LAYER_PATH", "VK_INSTANCE_LAYERS"] {
        command.envs(std::env::var_os(variable).map(|value| (variable, value)));
    }
    prepare(&mut command);
    let output = command.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, err)
}

pub fn read_json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Runs a test body on a separate thread. Fails the test if the body takes longer than `seconds`, so that a
/// test never hangs.
pub fn within<T: Send + 'static>(seconds: u64, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    // Skips are recorded under the name of the thread, which is the name of the test.
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let _ = sender.send(body());
    });
    let thread = thread.unwrap();
    match receiver.recv_timeout(std::time::Duration::from_secs(seconds)) {
        Ok(value) => value,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("not done after {seconds} s"),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the body sends its value before it returns"),
        },
    }
}

/// Converts a path to a command-line argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// Returns the bytes of a model file, for tests that corrupt the file.
pub fn model_bytes(name: &str) -> Vec<u8> {
    std::fs::read(model_path(name)).unwrap()
}

/// Returns the byte position of the metadata value for `key` in a model file. The value follows its 4-byte
/// type.
pub fn metadata_value(bytes: &[u8], key: &str) -> usize {
    after_string(bytes, key) + 4
}

/// Returns the byte position of a tensor's description in a model file, after the tensor's name. The
/// description consists of the number of dimensions, the extents, the type and the offset.
pub fn tensor_info(bytes: &[u8], tensor: &str) -> usize {
    after_string(bytes, tensor)
}

/// Returns the byte position after the length-prefixed string `text`.
fn after_string(bytes: &[u8], text: &str) -> usize {
    let pattern = [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let at = bytes.windows(pattern.len()).position(|window| window == pattern);
    at.unwrap_or_else(|| panic!("no {text} in the file")) + pattern.len()
}

/// Overwrites bytes in place.
pub fn patch(bytes: &mut [u8], at: usize, with: &[u8]) {
    bytes[at..at + with.len()].copy_from_slice(with);
}

/// Returns the byte range of a tensor's data in its file.
pub fn tensor_data(bytes: &[u8], tensor: &str) -> std::ops::Range<usize> {
    let model = Model::from_bytes("copy", bytes.to_vec()).unwrap();
    let found = model.graph().weights().tensor(tensor).unwrap();
    found.offset as usize..(found.offset + found.bytes) as usize
}

/// Returns the path of a model directory with a configuration, two safetensors shards, and the tokenizer in
/// both formats.
pub fn checkpoint() -> PathBuf {
    test_support::golden("tiny-hf")
}

/// Checkpoint for tests of pipelines. Devices that run shaders on the CPU take a quarter of a second for each token
/// of a bundled model, and little time for this one.
pub const SMALL: &str = CHECKPOINTS[0];
/// Number of its segments: the embedding, four blocks and the head.
pub const SMALL_SEGMENTS: u32 = 6;

/// Model directories with golden logits. `tests/support/golden/tiny.py` wrote all but the first.
pub const CHECKPOINTS: [&str; 20] = [
    "tiny-hf",
    "tiny-qwen2",
    "tiny-qwen3",
    "tiny-qwen3-window",
    "tiny-llama3",
    "tiny-llama-linear",
    "tiny-llama-yarn",
    "tiny-mistral",
    "tiny-gemma2",
    "tiny-gemma3",
    "tiny-phi3",
    "tiny-granite",
    "tiny-olmo2",
    "tiny-smollm3",
    "tiny-glm4",
    "tiny-command-r",
    "tiny-command-r-plus",
    "tiny-starcoder2",
    "tiny-fp8",
    "tiny-bitnet",
];

/// A model directory with golden logits.
pub struct Checkpoint {
    /// The model opened from its directory. If the directory contains `model.gguf`, a second model opened
    /// from this file.
    pub models: Vec<Model>,
    pub ids: Vec<u32>,
    /// Logits that `transformers` computed for the first of `ids`, in most folders for all of them.
    pub logits: Vec<f32>,
}

impl Checkpoint {
    pub fn open(name: &str) -> Self {
        let folder = test_support::golden(name);
        let paths = [folder.clone(), folder.join("model.gguf")].into_iter().filter(|path| path.exists());
        let json = read_json(&folder.join("ids.json"));
        let ids = json["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32);
        Self {
            models: paths.map(|path| Model::open(path).unwrap()).collect(),
            ids: ids.collect(),
            logits: ragtag::npy::decode(&std::fs::read(folder.join("logits.npy")).unwrap()).unwrap().0,
        }
    }

    /// Returns the relative error of `logits` at the positions that the golden data has.
    pub fn error(&self, logits: &[f32]) -> f64 {
        relative_error(&logits[..self.logits.len()], &self.logits)
    }

    /// Checks that the logits of each model are within the tolerance of the exact class, or of the fast class
    /// if the activations of `setup` are not f32.
    pub fn check_logits(&self, what: &str, setup: &Setup<'_>) {
        let exact = setup.activations == Activations::F32;
        let class = if exact { NumericsClass::Exact } else { NumericsClass::Fast };
        for model in &self.models {
            let engine = engine(model, setup);
            let logits = block_on(engine.session().logits(&self.ids)).unwrap();
            let error = self.error(&logits);
            println!("{what}, {} {:?}: relative error {error:.2e}", model.name(), setup.activations);
            assert!(error <= class.tolerance(), "{what}, {} {class:?}: {error}", model.name());
        }
    }
}

/// Returns 24 greedy tokens of the model [`SMALL`], and the routes between the stages.
pub fn tokens_and_routes(devices: &str, split: Option<&str>) -> (Vec<u32>, Vec<Routes>) {
    let Checkpoint { models, ids, .. } = Checkpoint::open(SMALL);
    let setup = Setup { devices, split, activations: Activations::F32, ..Setup::default() };
    let engine = engine(&models[0], &setup);
    let routes = engine.plan().routes().to_vec();
    let stream = engine.session().generate(Prompt::Tokens(&ids), &greedy(24)).unwrap();
    (block_on(listen(stream)).unwrap().ids, routes)
}

/// Writes a model as `count` GGUF parts. The first part contains the metadata of the model. Returns the file
/// names of the parts.
pub fn split(model: &Model, folder: &Path, count: usize) -> Vec<String> {
    let tensors = model.graph().weights().tensors();
    let parts = tensors.chunks(tensors.len().div_ceil(count));
    assert_eq!(parts.len(), count);
    let names: Vec<_> = (1..=count).map(|n| format!("m-{n:05}-of-{count:05}.gguf")).collect();
    for ((number, part), name) in parts.enumerate().zip(&names) {
        let mut writer = ragtag_graph::gguf::Writer::new();
        if number == 0 {
            put_metadata(&mut writer, model);
        }
        writer.put("split.no", number as u16);
        writer.put("split.count", count as u16);
        writer.put("split.tensors.count", tensors.len() as i32);
        part.iter().for_each(|t| writer.tensor(&t.name, t.tensor_type, &t.shape, t.bytes));
        let mut file = writer.header();
        for tensor in part {
            file.extend_from_slice(&model.graph().weights().bytes(tensor).unwrap());
            file.resize(file.len() + writer.padding(tensor.bytes) as usize, 0);
        }
        std::fs::write(folder.join(name), file).unwrap();
    }
    names
}

/// Copies all metadata of `model` to `writer`.
pub fn put_metadata(writer: &mut ragtag_graph::gguf::Writer, model: &Model) {
    use ragtag_graph::gguf::{FromValue, Metadata, Value, ValueType};
    fn list<'a, T: FromValue<'a>>(metadata: &'a Metadata, key: &str) -> Vec<T> {
        metadata.list(key).unwrap().collect::<Result<_, _>>().unwrap()
    }
    let metadata = model.graph().metadata().expect("a GGUF file");
    for (key, value) in metadata.iter() {
        match value.unwrap() {
            Value::Integer(ValueType::U32, v) => writer.put(key, v as u32),
            Value::F32(v) => writer.put(key, v),
            Value::Str(v) => writer.put(key, v),
            Value::Bool(v) => writer.put(key, v),
            Value::Array(v) => match v.element_type() {
                ValueType::Str => writer.put(key, &list::<&str>(metadata, key)[..]),
                ValueType::F32 => writer.put(key, &list::<f32>(metadata, key)[..]),
                ValueType::I32 => writer.put(key, &list::<i32>(metadata, key)[..]),
                other => panic!("{key}: an array of {}", other.name()),
            },
            other => panic!("{key}: {other}"),
        }
    }
}

/// Returns the plan with a prefill stage on `device`, which streams the layers of the other devices.
pub fn with_prefill(mut plan: Plan, device: &str, from_tokens: u32) -> Plan {
    let own = plan.stages.iter().find(|stage| stage.device == device).unwrap().clone();
    let last = plan.model.segments - 1;
    let others = plan.stages.iter().filter(|stage| stage.device != device);
    let streamed = others.flat_map(|stage| stage.segments.range()).map(|segment| segment as u32);
    let streamed = streamed.filter(|segment| ![0, last].contains(segment)).collect();
    let stage = PlanStage { segments: Span::new(0, last).unwrap(), streamed, ..own };
    plan.prefill_stage = Some(PrefillStage { stage, from_tokens });
    plan.credits += 2;
    plan
}
