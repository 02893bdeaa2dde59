//! Plans against rules: fleets of cards drawn from the library by a seeded rule, the planner's placement and those of the rules
//! that engines follow, all simulated under the same load. Prints a table in Markdown.
//!
//! ```sh
//! cargo bench --bench fleets                  # the table of docs/fleets.md
//! cargo bench --bench fleets -- --fleets 5 --first 100
//! ```
//!
//! The rule: fleet *n* has 2 to 8 cards, each drawn from all cards of the library that are no processors, with the generator
//! of seed *n*. There are two tables, for two questions. In the first, someone has these cards and wants to run *a* model that
//! takes more than one of them: it is drawn, by the same generator, from those of the models below that the fleet holds at a
//! context of 2048 for 16 sequences, and none of its cards alone (where there is no such model, it is the largest that the
//! fleet holds). In the second, someone wants the *largest* that the fleet holds. A rule's placement counts if it fits; the
//! best of the rules in simulation is what the plan is held against. Micro-batches and credits are chosen for a rule's
//! placement as they are for the planner's.

#![allow(clippy::print_stdout, clippy::print_stderr)] // the tables are what it is for, and one waits for them

use ragtag::fleet::cards;
use ragtag::simulation::{Arrivals, DrawnLoad, Lengths, Load};
use ragtag::{AdapterKind, Baseline, Fleet, Model, Objective, Plan, Planner, TensorType, Workload};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::path::Path;

const SEQUENCES: u32 = 16;
const CONTEXT: u32 = 2048;
const REQUEST: Workload = Workload { prompt_tokens: 512, generated_tokens: 128 };
const REQUESTS: u32 = 64;

/// Shapes of dense models, each about half as large again as the next: parameters, layers, width, heads, key-value heads, inner width, vocabulary.
const SHAPES: [(&str, [u32; 6]); 13] = [
    ("405B", [126, 16384, 128, 8, 53248, 128_256]),
    ("310B", [118, 15360, 120, 8, 46080, 128_256]),
    ("223B", [96, 14336, 112, 8, 43008, 128_256]),
    ("162B", [94, 12288, 96, 8, 36864, 151_936]),
    ("123B", [88, 12288, 96, 8, 28672, 32768]),
    ("71B", [80, 8192, 64, 8, 28672, 128_256]),
    ("46B", [80, 8192, 64, 8, 16384, 128_256]),
    ("33B", [64, 5120, 40, 8, 27648, 152_064]),
    ("22B", [56, 6144, 48, 8, 16384, 32768]),
    ("15B", [48, 5120, 40, 8, 13824, 152_064]),
    ("8B", [32, 4096, 32, 8, 14336, 128_256]),
    ("3.6B", [28, 3072, 24, 8, 8192, 128_256]),
    ("1.5B", [16, 2048, 32, 8, 8192, 128_256]),
];

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let (fleets, first) = arguments()?;
    let folder = tempfile::tempdir()?;
    let models: Vec<_> = SHAPES
        .iter()
        .map(|(name, shape)| Ok((*name, model(folder.path(), name, *shape)?)))
        .collect::<Result<_>>()?;
    let load = DrawnLoad {
        requests: REQUESTS,
        arrivals: Arrivals::Closed { at_once: SEQUENCES },
        prompt_tokens: Lengths::Fixed(REQUEST.prompt_tokens),
        new_tokens: Lengths::Fixed(REQUEST.generated_tokens),
        seed: 1,
    };
    let load = load.draw()?;
    let (mut drawn_model, mut largest_model) = (Table::default(), Table::default());
    for seed in first..first + fleets {
        let (names, mut rng) = drawn(seed);
        let fleet = Fleet::from_line(&names.join("+"))?;
        let fitting = Fitting::new(&models, &fleet)?;
        let largest = fitting.models.start;
        let at = fitting.for_several_cards().choose(&mut rng).copied().unwrap_or(largest);
        let row = Row::new(&models[at], &fleet, &load)?;
        let largest_row =
            if at == largest { row.clone() } else { Row::new(&models[largest], &fleet, &load)? };
        eprintln!("{seed}: {row} / {largest_row}");
        let cards = format!("{seed} | {}", names.join(", "));
        drawn_model.rows.push((cards.clone(), row));
        largest_model.rows.push((cards, largest_row));
    }
    println!("A model that takes several cards:\n\n{drawn_model}");
    println!("The largest model that fits:\n\n{largest_model}");
    Ok(())
}

fn arguments() -> Result<(u64, u64)> {
    let (mut fleets, mut first) = (40, 1);
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<u64> { Ok(arguments.next().ok_or("a number is missing")?.parse()?) };
        match argument.as_str() {
            "--fleets" => fleets = number()?,
            "--first" => first = number()?,
            other => return Err(format!("{other}: known are --fleets N and --first SEED").into()),
        }
    }
    Ok((fleets, first))
}

/// The cards of a fleet, and the generator as they leave it.
fn drawn(seed: u64) -> (Vec<&'static str>, SmallRng) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let drawn_from: Vec<_> = cards().iter().filter(|card| card.kind != AdapterKind::Cpu).collect();
    let names = (0..rng.random_range(2..=8))
        .filter_map(|_| drawn_from.choose(&mut rng))
        .map(|card| card.name.as_str())
        .collect();
    (names, rng)
}

/// A model of this shape, of which there is no weight.
fn model(folder: &Path, name: &str, shape: [u32; 6]) -> Result<Model> {
    let [layers, width, heads, kv_heads, inner, vocabulary] = shape;
    let folder = folder.join(name);
    std::fs::create_dir(&folder)?;
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": inner,
        "max_position_embeddings": 8192,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    Ok(Model::open_metadata(folder, Some(TensorType::Q4_K))?)
}

fn planner(model: &Model, fleet: &Fleet) -> Result<Planner> {
    Ok(Planner::new(model).fleet(fleet)?.sequences(SEQUENCES).context(CONTEXT).workload(REQUEST))
}

/// Which of the models a fleet holds.
struct Fitting {
    /// Numbers of those that the fleet holds, the largest first.
    models: Range<usize>,
    /// The number of the largest that one of its cards holds alone.
    on_one_card: usize,
}

impl Fitting {
    fn new(models: &[(&str, Model)], fleet: &Fleet) -> Result<Self> {
        // Whether it fits depends on no objective; that of one sequence is found soonest.
        let planner =
            |model: &Model| -> Result<Planner> { Ok(planner(model, fleet)?.objective(Objective::Latency)) };
        let (mut first, mut on_one_card) = (None, models.len());
        for (at, (_, model)) in models.iter().enumerate() {
            let planner = planner(model)?;
            if first.is_none() && planner.plan().is_ok() {
                first = Some(at);
            }
            if planner.baseline(Baseline::BestSingle)?.is_some() {
                on_one_card = at;
                break;
            }
        }
        Ok(Self { models: first.ok_or("no model fits the fleet")?..models.len(), on_one_card })
    }

    /// Those that the fleet holds and none of its cards alone.
    fn for_several_cards(&self) -> Vec<usize> {
        (self.models.start..self.on_one_card).collect()
    }
}

/// What a fleet comes to.
#[derive(Clone)]
struct Row {
    model: String,
    devices: usize,
    predicted: f64,
    rate: f64,
    best_rule: Option<(Baseline, f64)>,
}

impl Row {
    fn new((name, model): &(&str, Model), fleet: &Fleet, load: &Load) -> Result<Self> {
        let planner = planner(model, fleet)?;
        let mut best_rule: Option<(Baseline, f64)> = None;
        for rule in Baseline::ALL {
            let Some(plan) = planner.baseline(rule)? else { continue };
            let rate = simulated(model, fleet, &plan, load)?;
            if best_rule.is_none_or(|(_, best)| rate > best) {
                best_rule = Some((rule, rate));
            }
        }
        let plan = planner.plan()?;
        Ok(Self {
            model: (*name).into(),
            devices: plan.stages.len(),
            predicted: 1e6 / plan.explanation.score_us,
            rate: simulated(model, fleet, &plan, load)?,
            best_rule,
        })
    }

    fn ratio(&self) -> Option<f64> {
        self.best_rule.map(|(_, rate)| self.rate / rate)
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} | {} | {:.3} | {:.3} | ", self.model, self.devices, self.predicted, self.rate)?;
        match self.best_rule {
            Some((rule, rate)) => write!(f, "{rule} | {rate:.3} | {:.2}", self.rate / rate),
            None => write!(f, "none fits | | "),
        }
    }
}

/// Rows with what stands before each, in Markdown.
#[derive(Default)]
struct Table {
    rows: Vec<(String, Row)>,
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "| seed | cards | model | devices used | predicted requests/s | simulated | best rule | its requests/s | ratio |"
        )?;
        writeln!(f, "| ---: | --- | --- | ---: | ---: | ---: | --- | ---: | ---: |")?;
        for (cards, row) in &self.rows {
            writeln!(f, "| {cards} | {row} |")?;
        }
        let mut ratios: Vec<f64> = self.rows.iter().filter_map(|(_, row)| row.ratio()).collect();
        ratios.sort_by(f64::total_cmp);
        let middle = ratios.len() / 2;
        let median = match ratios.as_slice() {
            [] => return writeln!(f, "\nno rule fits any of these fleets"),
            ratios if ratios.len() % 2 == 1 => ratios[middle],
            ratios => (ratios[middle - 1] + ratios[middle]) / 2.0,
        };
        writeln!(
            f,
            "\n{} fleets with a rule that fits: ratio at least {:.2}, median {median:.2}",
            ratios.len(),
            ratios[0]
        )
    }
}

/// Requests a second.
fn simulated(model: &Model, fleet: &Fleet, plan: &Plan, load: &Load) -> Result<f64> {
    let (devices, links) = fleet.facts()?;
    Ok(ragtag::simulate(model, plan, &devices, &links, load)?.requests_per_s)
}
