//! Checks the numbers of a released model: tokens of prompts, logits, generated text and perplexity, on single devices and
//! in pipelines over several APIs.
//!
//! `transformers` has computed the expected values in float64. They contain the most likely tokens of all
//! positions, and more of some. The complete distributions are too large for the repository. They come from the
//! CPU in class exact, whose distributions are first compared with the expected ones.

use super::distributions::{Logits, Sums, Top, best};
use super::{Checks, Depth, GOLDEN, tokens};
use crate::checks::Done;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Maximum mean KL divergence in class exact.
const MAX_EXACT_KL: f64 = 1e-6;
/// Maximum mean KL divergence in class fast, relative to that of llama.cpp with its default types.
const MAX_FAST_KL: f64 = 1.1;
/// The same for one prompt, whose divergence varies by chance.
const MAX_SHORT_FAST_KL: f64 = 2.0;
/// Maximum relative difference of the perplexities in class exact and fast.
const MAX_PERPLEXITIES: [f64; 2] = [1e-4, 2e-2];
/// Size of the text for the perplexity, in bytes, from the start of the held-out text.
const TEXT_BYTES: usize = 8192;
/// Prompt for short checks.
const SHORT: &str = "english";
/// Number of tokens of the short prompt that devices other than the CPU run for each commit. Software devices take seconds
/// for each token.
const START_TOKENS: usize = 24;
/// Prompt that is a part of the held-out text instead of a committed one.
const LONG: &str = "long";
/// Orders of the APIs in pipelines. Each commit runs the first one.
const ORDERS: [[&str; 3]; 3] =
    [["cpu", "opencl", "vulkan"], ["vulkan", "cpu", "opencl"], ["opencl", "vulkan", "cpu"]];

/// Expected values of a model.
#[derive(Deserialize)]
struct Golden {
    file: String,
    /// Text of the prompt [`SHORT`] and its greedy continuation.
    text: String,
    perplexity: f64,
    cases: Vec<Case>,
}

/// Expected values of a prompt.
#[derive(Deserialize)]
struct Case {
    name: String,
    ids: Vec<u32>,
    /// Greedy continuation.
    greedy: Vec<u32>,
    /// Most likely token of each position of prompt and continuation, or −1 if another is about as likely.
    best: Vec<i64>,
    top: Vec<Top>,
    /// Mean KL divergence of llama.cpp with its default types.
    kl_of_llama_cpp: f64,
}

impl Case {
    /// Returns the case of the first tokens of the prompt, without a continuation.
    fn start(&self) -> Self {
        let top = self.top.iter().filter(|top| top.position < START_TOKENS).cloned().collect();
        Self {
            name: format!("start of {}", self.name),
            ids: self.ids[..START_TOKENS].to_vec(),
            greedy: Vec::new(),
            best: self.best[..START_TOKENS].to_vec(),
            top,
            kl_of_llama_cpp: self.kl_of_llama_cpp,
        }
    }
}

/// Devices that run a model.
#[derive(Clone)]
struct Route {
    name: String,
    arguments: Vec<String>,
    is_cpu: bool,
}

/// Divergences of a route and a class, summed over prompts.
#[derive(Default)]
struct Measured {
    found: Sums,
    /// Sum of the divergences of llama.cpp.
    other: f64,
}

/// Checks the model with the expected values in `name`.json.
pub(super) fn check(
    checks: &mut Checks<'_>,
    name: &str,
    depth: Depth,
    devices: &[String],
    done: &mut Done,
) -> Result<(), String> {
    let golden: Golden = checks.golden(&format!("{name}.json"))?;
    let model = checks.file(&golden.file);
    check_prompts(checks, name, &model, &golden)?;
    let routes = routes(checks, name, &model, depth, devices, done)?;
    let mut measured: Vec<[Measured; 2]> = routes.iter().map(|_| Default::default()).collect();
    let short = golden.cases.iter().find(|case| case.name == SHORT).ok_or(format!("no prompt {SHORT}"))?;
    let start = short.start();
    let whole = golden.cases.iter().map(|case| (case, true));
    for (case, is_whole) in whole.chain((depth == Depth::Commit).then_some((&start, false))) {
        println!("{name}, {}: {} tokens", case.name, case.best.len());
        let truth = checks.file("truth.npy");
        logits(checks, &model, case, &["--device", "cpu:0", "--activations", "f32"], &truth)?;
        check_exact(checks, &format!("{name} on cpu:0, {}", case.name), case, &truth)?;
        for (route, sums) in routes.iter().zip(&mut measured) {
            if depth == Depth::Full || route.is_cpu == is_whole {
                check_case(
                    checks,
                    &format!("{name} on {}, {}", route.name, case.name),
                    &model,
                    case,
                    route,
                    sums,
                )?;
            }
        }
        std::fs::remove_file(&truth).map_err(|e| format!("{}: {e}", truth.display()))?;
    }
    for (route, [exact, fast]) in routes.iter().zip(&measured) {
        let share = fast.found.kl / fast.other;
        let what = format!(
            "{name} on {}: KL exact {:.1e}, fast {:.5} ({share:.2} of llama.cpp's), same first token {:.2} %",
            route.name,
            exact.found.mean_kl(),
            fast.found.mean_kl(),
            100.0 * fast.found.equal as f64 / fast.found.rows as f64
        );
        println!("{what}");
        let has_all = route.is_cpu || depth == Depth::Full;
        let most = if has_all { MAX_FAST_KL } else { MAX_SHORT_FAST_KL };
        checks.expect(exact.found.mean_kl() <= MAX_EXACT_KL && share <= most, || what);
    }
    for route in routes.iter().filter(|route| route.is_cpu || depth == Depth::Full) {
        check_text(checks, name, &model, route, short, &golden.text)?;
        check_perplexity(checks, name, &model, route, golden.perplexity)?;
    }
    Ok(())
}

/// Checks that the tokenizer gives the prompts the expected tokens.
fn check_prompts(checks: &mut Checks<'_>, name: &str, model: &Path, golden: &Golden) -> Result<(), String> {
    let prompts: serde_json::Map<String, serde_json::Value> = checks.golden("prompts.json")?;
    let tokenizer = tokens::tokenizer(model)?;
    for case in &golden.cases {
        let text = match prompts.get(&case.name).and_then(|text| text.as_str()) {
            Some(text) => text.to_owned(),
            None => held(checks)?,
        };
        let found = tokenizer.encode(&text, true).map_err(|e| e.to_string());
        let most = if case.name == LONG { case.ids.len() } else { usize::MAX };
        let found = found.map(|ids| ids.into_iter().take(most).collect::<Vec<_>>());
        let is_right = found.as_ref() == Ok(&case.ids);
        checks.expect(is_right, || {
            format!("{name}, {}: tokens {found:?} instead of {:?}", case.name, case.ids)
        });
    }
    Ok(())
}

/// Returns the start of the held-out text.
fn held(checks: &Checks<'_>) -> Result<String, String> {
    let path = checks.root.join(GOLDEN).with_file_name("held.txt");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    text.get(..TEXT_BYTES).map(str::to_owned).ok_or(format!("{} is too short", path.display()))
}

/// Returns the devices that run the model, alone and in pipelines. Skips pipelines whose APIs are missing.
fn routes(
    checks: &Checks<'_>,
    name: &str,
    model: &Path,
    depth: Depth,
    devices: &[String],
    done: &mut Done,
) -> Result<Vec<Route>, String> {
    let (all, segments) = (detected(checks)?, segments(checks, model)?);
    let alone = |device: &String| Route {
        name: device.clone(),
        arguments: vec!["--device".into(), device.clone()],
        is_cpu: device == "cpu:0",
    };
    if !devices.is_empty() {
        return Ok(devices.iter().map(alone).collect());
    }
    let first = |api: &str| all.iter().find(|device| device.split(':').next() == Some(api));
    let is_first = |device: &&String| device.split(':').next().and_then(first) == Some(device);
    let mut routes: Vec<_> =
        all.iter().filter(|device| depth == Depth::Full || is_first(device)).map(alone).collect();
    let orders = if depth == Depth::Full { &ORDERS[..] } else { &ORDERS[..1] };
    for order in orders {
        let step = format!("{name} on {}", order.join(", "));
        match order.iter().map(|api| first(api).ok_or(api)).collect::<Result<Vec<_>, _>>() {
            Ok(devices) => routes.push(pipeline(&devices, segments)),
            Err(api) => done.skip(&step, &format!("device of {api}"), "`ragtag devices` lists none"),
        }
    }
    Ok(routes)
}

/// Returns a pipeline that gives each device about the same number of segments.
fn pipeline(devices: &[&String], segments: usize) -> Route {
    let cut = |stage: usize| segments * stage / devices.len();
    let ranges = devices.iter().enumerate();
    let split: Vec<_> =
        ranges.map(|(at, device)| format!("{}-{}={device}", cut(at), cut(at + 1) - 1)).collect();
    let names: Vec<_> = devices.iter().map(|device| device.as_str()).collect();
    let arguments = ["--device", &names.join(","), "--split", &split.join(",")].map(str::to_owned).to_vec();
    Route { name: names.join(", "), arguments, is_cpu: false }
}

/// Returns the devices of this machine, each with its first name.
fn detected(checks: &Checks<'_>) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct Devices {
        detected: Vec<String>,
    }
    let devices: Devices =
        serde_json::from_str(&checks.printed(&["devices", "--json"])?).map_err(|e| e.to_string())?;
    let first = |names: String| names.split(" = ").next().unwrap_or_default().to_owned();
    Ok(devices.detected.into_iter().map(first).collect())
}

/// Returns the number of segments of a model.
fn segments(checks: &Checks<'_>, model: &Path) -> Result<usize, String> {
    #[derive(Deserialize)]
    struct Inspected {
        segments: Vec<serde::de::IgnoredAny>,
    }
    let text = checks.printed(&["inspect", "--json", &model.display().to_string()])?;
    let inspected: Inspected = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    Ok(inspected.segments.len())
}

/// Writes the logits of a prompt and its continuation to a file.
fn logits(
    checks: &Checks<'_>,
    model: &Path,
    case: &Case,
    arguments: &[&str],
    to: &Path,
) -> Result<(), String> {
    let ids: Vec<_> = case.ids.iter().chain(&case.greedy).map(u32::to_string).collect();
    let (model, to) = (model.display().to_string(), to.display().to_string());
    let fixed = ["logits", &model, "--no-calibration", "--ids", &ids.join(","), "--output", &to];
    checks.printed(&[&fixed, arguments].concat()).map(drop)
}

/// Compares logits in class exact with the expected most likely tokens and probabilities.
fn check_exact(checks: &mut Checks<'_>, what: &str, case: &Case, file: &Path) -> Result<(), String> {
    let (mut wrong, mut kl, mut rows) = (Vec::new(), 0.0, 0);
    Logits::open(file, case.best.len())?.each(|position, row| {
        let (expected, found) = (case.best[position], best(row));
        if expected >= 0 && found as i64 != expected {
            wrong.push(format!("position {position}: {found} instead of {expected}"));
        }
        for top in case.top.iter().filter(|top| top.position == position) {
            kl += top.kl(row);
            rows += 1;
        }
    })?;
    let kl = kl / f64::from(rows);
    checks.expect(wrong.is_empty(), || format!("{what}: most likely tokens: {}", wrong.join(", ")));
    checks.expect(kl <= MAX_EXACT_KL, || format!("{what}: KL {kl:.1e} at {rows} positions"));
    Ok(())
}

/// Runs a prompt in both classes, and adds the divergences from the truth, which is the result of the CPU in class
/// exact. In class exact, also runs the short prompt token by token, which uses the kernels for decoding.
fn check_case(
    checks: &mut Checks<'_>,
    what: &str,
    model: &Path,
    case: &Case,
    route: &Route,
    measured: &mut [Measured; 2],
) -> Result<(), String> {
    let (truth, file): (PathBuf, PathBuf) = (checks.file("truth.npy"), checks.file("found.npy"));
    let base: Vec<_> = route.arguments.iter().map(String::as_str).collect();
    let rows = case.best.len();
    let classes: [&[&str]; 3] = [&["f32"], &["int8"], &["f32", "--chunk", "1"]];
    for (number, class) in classes.into_iter().enumerate().take(if case.name == SHORT { 3 } else { 2 }) {
        if route.is_cpu && class == ["f32"] {
            continue;
        }
        let arguments = [&base[..], &["--activations"], class].concat();
        logits(checks, model, case, &arguments, &file)?;
        if class[0] == "f32" {
            check_exact(checks, what, case, &file)?;
        }
        let sums = Logits::open(&file, rows)?.compare(Logits::open(&truth, rows)?)?;
        let to = &mut measured[number % 2];
        to.found.add(sums);
        to.other += case.kl_of_llama_cpp * rows as f64;
    }
    std::fs::remove_file(&file).map_err(|e| format!("{}: {e}", file.display()))
}

/// Checks the greedy continuation of the short prompt, from text to text.
fn check_text(
    checks: &mut Checks<'_>,
    name: &str,
    model: &Path,
    route: &Route,
    case: &Case,
    expected: &str,
) -> Result<(), String> {
    let prompts: serde_json::Map<String, serde_json::Value> = checks.golden("prompts.json")?;
    let prompt = prompts.get(SHORT).and_then(|text| text.as_str()).unwrap_or_default();
    let (model, count) = (model.display().to_string(), case.greedy.len().to_string());
    let fixed = [
        "run",
        &model,
        "-p",
        prompt,
        "-n",
        &count,
        "--temp",
        "0",
        "--activations",
        "f32",
        "--no-calibration",
    ];
    let arguments: Vec<_> = fixed.into_iter().chain(route.arguments.iter().map(String::as_str)).collect();
    let found = checks.printed(&arguments)?;
    let what = || format!("{name} on {}: writes {found:?} instead of {expected:?}", route.name);
    checks.expect(found.trim_end() == expected.trim_end(), what);
    Ok(())
}

/// Checks the perplexity of the held-out text in both classes.
fn check_perplexity(
    checks: &mut Checks<'_>,
    name: &str,
    model: &Path,
    route: &Route,
    expected: f64,
) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Printed {
        perplexity: f64,
    }
    let text = checks.file("held.txt");
    std::fs::write(&text, held(checks)?).map_err(|e| format!("{}: {e}", text.display()))?;
    let (model, text) = (model.display().to_string(), text.display().to_string());
    for (class, most) in ["f32", "int8"].into_iter().zip(MAX_PERPLEXITIES) {
        let fixed = ["perplexity", &model, "-f", &text, "--ctx", "256", "--json", "--no-calibration"];
        let base = route.arguments.iter().map(String::as_str);
        let arguments: Vec<_> = fixed.into_iter().chain(["--activations", class]).chain(base).collect();
        let printed: Printed =
            serde_json::from_str(&checks.printed(&arguments)?).map_err(|e| e.to_string())?;
        let found = printed.perplexity;
        println!(
            "{name} on {}, {class}: perplexity {found:.4}, `transformers` in float64 {expected:.4}",
            route.name
        );
        let what = || format!("{name} on {}, {class}: perplexity {found} instead of {expected}", route.name);
        checks.expect((found / expected - 1.0).abs() <= most, what);
    }
    Ok(())
}
