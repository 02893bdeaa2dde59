//! Compares the planner's placements with placements chosen by simple rules, on randomly drawn fleets of
//! cards. Simulates all placements under the same load. Prints Markdown tables.
//!
//! ```sh
//! cargo bench --bench fleets                  # the table of docs/fleets.md
//! cargo bench --bench fleets -- --fleets 5 --first 100
//! ```
//!
//! Fleet *n* has 2 to 8 cards. A generator with seed *n* draws each card from all cards of the card library
//! except CPUs. The bench prints two tables, one for each way of choosing the model.
//!
//! The first table uses a model that needs more than one card. The generator draws it from the models that
//! fit the fleet with a context of 2048 for 16 sequences, but do not fit any single card of the fleet. If
//! there is no such model, the bench uses the largest model that fits the fleet. The second table uses the
//! *largest* model that fits the fleet.
//!
//! The bench ignores placements that do not fit in memory. It compares the plan with the best rule in two
//! ways. In the first, the rules' placements run with the settings of other engines
//! (`Planner::untuned_baseline`): all decoding sequences are in one micro-batch, or in one per stage,
//! whichever is better. In the second, the planner tunes the chunk, micro-batches and credits for each rule's
//! placement in the same way as for its own (`Planner::baseline`), so that only the placements differ.

#![allow(clippy::print_stdout, clippy::print_stderr)] // prints tables, and progress

#[path = "support/shapes.rs"]
mod shapes;

use ragtag::fleet::cards;
use ragtag::simulation::{Arrivals, DrawnLoad, Lengths, Load};
use ragtag::{AdapterKind, Baseline, EngineDecode, Fleet, Model, Objective, Plan, Planner, Workload};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use shapes::{SHAPES, model};
use std::ops::Range;

const SEQUENCES: u32 = 16;
const CONTEXT: u32 = 2048;
const REQUEST: Workload = Workload { prompt_tokens: 512, generated_tokens: 128 };
const REQUESTS: u32 = 64;

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
    println!("A model that needs several cards:\n\n{drawn_model}");
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
            other => return Err(format!("unknown option {other}; use --fleets N and --first SEED").into()),
        }
    }
    Ok((fleets, first))
}

/// Draws the names of a fleet's cards. Also returns the generator, for further draws.
fn drawn(seed: u64) -> (Vec<&'static str>, SmallRng) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let drawn_from: Vec<_> = cards().iter().filter(|card| card.kind != AdapterKind::Cpu).collect();
    let names = (0..rng.random_range(2..=8))
        .filter_map(|_| drawn_from.choose(&mut rng))
        .map(|card| card.name.as_str())
        .collect();
    (names, rng)
}

fn planner(model: &Model, fleet: &Fleet) -> Result<Planner> {
    let planner = Planner::new(model).fleet(fleet)?.unexplained();
    Ok(planner.sequences(SEQUENCES).context(CONTEXT).workload(REQUEST))
}

/// Models that fit in the memory of a fleet.
struct Fitting {
    /// Indices of the models that fit the fleet, in the list of all models. The largest model comes first.
    models: Range<usize>,
    /// Index of the largest model that fits on a single card of the fleet, or the total number of models if
    /// none does.
    on_one_card: usize,
}

impl Fitting {
    fn new(models: &[(&str, Model)], fleet: &Fleet) -> Result<Self> {
        // Memory fit does not depend on the objective, and latency is the fastest objective to plan.
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

    /// Returns the indices of the models that fit the fleet but do not fit any of its cards alone.
    fn for_several_cards(&self) -> Vec<usize> {
        (self.models.start..self.on_one_card).collect()
    }
}

/// Name of a rule, and its placement's simulated requests per second.
type OfRule = (String, f64);

/// Results for one fleet and model.
#[derive(Clone)]
struct Row {
    model: String,
    devices: usize,
    rate: f64,
    /// Best rule when the rules' placements run with the settings of other engines.
    untuned: Option<OfRule>,
    /// Best rule when the planner tunes the rules' placements like its own.
    tuned: Option<OfRule>,
}

impl Row {
    fn new((name, model): &(&str, Model), fleet: &Fleet, load: &Load) -> Result<Self> {
        let planner = planner(model, fleet)?;
        let rate = |plan: &Plan| simulated(model, fleet, plan, load);
        let (mut untuned, mut tuned) = (None, None);
        for rule in Baseline::ALL {
            for decode in EngineDecode::ALL {
                if let Some(plan) = planner.untuned_baseline(rule, decode)? {
                    keep_best(&mut untuned, (format!("{rule}, {decode}"), rate(&plan)?));
                }
            }
            if let Some(plan) = planner.baseline(rule)? {
                keep_best(&mut tuned, (rule.to_string(), rate(&plan)?));
            }
        }
        let plan = planner.plan()?;
        Ok(Self { model: (*name).into(), devices: plan.stages.len(), rate: rate(&plan)?, untuned, tuned })
    }

    /// Returns the ratio of the planner's simulated requests per second to those of a rule.
    fn ratio(&self, (_, rate): &OfRule) -> f64 {
        self.rate / rate
    }
}

fn keep_best(best: &mut Option<OfRule>, other: OfRule) {
    if best.as_ref().is_none_or(|(_, rate)| other.1 > *rate) {
        *best = Some(other);
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} | {} | {:.3}", self.model, self.devices, self.rate)?;
        [&self.untuned, &self.tuned].into_iter().try_for_each(|of_rule| match of_rule {
            Some(best) => write!(f, " | {} | {:.3} | {:.2}", best.0, best.1, self.ratio(best)),
            None => write!(f, " | none fits | | "),
        })
    }
}

/// Rows of a Markdown table, each with its leading cells.
#[derive(Default)]
struct Table {
    rows: Vec<(String, Row)>,
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "| seed | cards | model | devices used | plan, requests/s | best rule, as engines run it | requests/s | ratio \
             | best rule, tuned | requests/s | ratio |"
        )?;
        writeln!(f, "| ---: | --- | --- | ---: | ---: | --- | ---: | ---: | --- | ---: | ---: |")?;
        for (cards, row) in &self.rows {
            writeln!(f, "| {cards} | {row} |")?;
        }
        writeln!(f)?;
        let ratios = |of: fn(&Row) -> Option<&OfRule>| {
            let ratio = |(_, row): &(String, Row)| Some(row.ratio(of(row)?));
            self.rows.iter().filter_map(ratio).collect::<Vec<_>>()
        };
        writeln!(f, "As engines run them: {}", summary(ratios(|row| row.untuned.as_ref())))?;
        writeln!(f, "Tuned: {}", summary(ratios(|row| row.tuned.as_ref())))
    }
}

fn summary(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let middle = ratios.len() / 2;
    let median = match ratios.as_slice() {
        [] => return "no rule fits any of these fleets".into(),
        ratios if ratios.len() % 2 == 1 => ratios[middle],
        ratios => (ratios[middle - 1] + ratios[middle]) / 2.0,
    };
    let least = ratios[0];
    format!("{} fleets with a rule that fits, ratio at least {least:.2}, median {median:.2}", ratios.len())
}

/// Simulates a plan for a fleet under a load. Returns the requests per second.
fn simulated(model: &Model, fleet: &Fleet, plan: &Plan, load: &Load) -> Result<f64> {
    let (devices, links) = fleet.facts()?;
    Ok(ragtag::simulate(model, plan, &devices, &links, load)?.requests_per_s)
}
