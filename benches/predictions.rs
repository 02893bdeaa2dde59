//! Compares predicted with measured rates. Each round calibrates two CPU devices, plans for them and runs the
//! plan. One of the two devices is throttled so that it works only half of the time. Prints a Markdown table.
//! Fails if every round has a prediction that is off by more than a fifth.
//!
//! ```sh
//! cargo bench --bench predictions
//! ```
//!
//! The benchmark needs an idle machine with three or more cores.

#![allow(clippy::print_stdout)] // prints a table

use ragtag::compare::Burst;
use ragtag::simulation::{Arrivals, DrawnLoad, Lengths};
use ragtag::{
    Calibration, CalibrationOptions, DeviceOptions, Devices, Engine, EngineOptions, Model, Plan, Planner,
    TensorType, Workload,
};
use ragtag_synth::{Preset, Shape};

/// Load: the number of sequences, and the numbers of prompt tokens and of new tokens per sequence.
const LOAD: (u32, u32, u32) = (4, 96, 64);
const ROUNDS: usize = 4;
/// Maximum difference between prediction and measurement, relative to the measurement.
const MAX_OFF: f64 = 0.2;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Decode rate and prefill rate, in tokens per second.
#[derive(Clone, Copy, Debug)]
struct Rates {
    decode: f64,
    prefill: f64,
}

impl Rates {
    /// Returns the relative difference between the decode rates or between the prefill rates, whichever is
    /// larger.
    fn apart(&self, other: &Self) -> f64 {
        let apart = |a: f64, b: f64| (a / b - 1.0).abs();
        apart(self.decode, other.decode).max(apart(self.prefill, other.prefill))
    }
}

fn main() -> Result<()> {
    let shape = Shape { tensor_type: TensorType::Q8_0, layers: 4, vocabulary: 2048, ..Preset::M300.shape() };
    let model = Model::from_bytes("synthetic", ragtag_synth::in_memory(&shape, 1)?)?;
    let throttles = vec!["cpu:0=threads:2".parse()?, "cpu:1=duty:50%".parse()?];
    let mut options = DeviceOptions::selecting("cpu");
    options.throttles = throttles;
    (options.cpu_devices, options.cpu_threads) = (2, Some(1));
    let devices = Devices::probe(&options)?;
    println!(
        "| decode tokens/s: predicted | measured | prefill tokens/s: predicted | measured | off |\n\
         | ---: | ---: | ---: | ---: | ---: |"
    );
    let mut least_off = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (expected, got) = round(&model, &devices)?;
        let off = expected.apart(&got);
        println!(
            "| {:.0} | {:.0} | {:.0} | {:.0} | {:.0} % |",
            expected.decode,
            got.decode,
            expected.prefill,
            got.prefill,
            off * 100.0
        );
        least_off = least_off.min(off);
    }
    if least_off > MAX_OFF {
        return Err(format!("no prediction is within {:.0} % of its measurement", MAX_OFF * 100.0).into());
    }
    Ok(())
}

/// Calibrates the devices, makes a plan and runs it. Returns the predicted and the measured rates.
fn round(model: &Model, devices: &Devices) -> Result<(Rates, Rates)> {
    let (sequences, prompt, tokens) = LOAD;
    let folder = tempfile::tempdir()?;
    let mut options = CalibrationOptions::default();
    (options.chunk, options.sequences, options.seconds) = (64, sequences, 0.5);
    (options.limit, options.force) = (None, true);
    options.folder = Some(folder.path().into());
    let calibration = Calibration::run(model, devices, &options, &|_, _| ())?;
    let workload = Workload { prompt_tokens: prompt, generated_tokens: tokens };
    let planner = Planner::new(model).devices(devices).calibrated(&calibration).workload(workload);
    let planner = planner.context(prompt + tokens).sequences(sequences).chunk(64);
    let planner = planner.split("0-3=cpu:0,4-5=cpu:1".parse()?);
    let plan = planner.plan()?;
    let engine = Engine::start_exact(model, devices, &plan, EngineOptions::default())?;
    measured(&engine)?;
    Ok((predicted(model, &planner, &plan)?, measured(&engine)?))
}

fn predicted(model: &Model, planner: &Planner, plan: &Plan) -> Result<Rates> {
    let (sequences, prompt, _) = LOAD;
    let load = DrawnLoad {
        requests: sequences,
        arrivals: Arrivals::Together,
        prompt_tokens: Lengths::Fixed(prompt),
        new_tokens: Lengths::Fixed(1),
        seed: 1,
    };
    let (devices, links) = planner.facts();
    let prompts = ragtag::simulate(model, plan, devices, links, &load.draw()?)?;
    Ok(Rates { decode: plan.predicted.decode_tokens_per_s, prefill: prompts.prefill_tokens_per_s })
}

fn measured(engine: &Engine) -> Result<Rates> {
    let (sequences, prompt, tokens) = LOAD;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let run = |burst| runtime.block_on(engine.session().burst(&burst));
    let prompts = run(Burst::Prompts { tokens: prompt, sequences })?;
    let together = run(Burst::Generations { prompt, tokens, sequences })?;
    let decode = together.together_tokens_per_s().ok_or("the sequences never decode all at once")?;
    Ok(Rates { decode, prefill: f64::from(sequences * prompt) / prompts.seconds })
}
