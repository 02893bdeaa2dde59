//! Implements `ragtag plan`.

use super::args::PlanArgs;
use super::error::Result;
use super::output::{out_width, print, show};
use super::pictures::{Pictures, bars};
use super::plan_table::{as_table, summary};
use super::start::model::open_metadata;
use super::start::placed::{fleet, for_fleet_or_devices};
use super::start::wanted::Needs;
use crate::pictures::{Gantt, Report};
use crate::{Model, Planner};
use ragtag_planner::plan::Plan;
use ragtag_scheduler::sim::{Arrivals, DrawnLoad, Lengths};
use std::path::PathBuf;

pub(super) fn run(args: &PlanArgs) -> Result<()> {
    if args.api {
        return super::plan_api::run(args);
    }
    let inputs = args.model.path().into_iter().chain(&args.placement.plan).map(PathBuf::as_path);
    let pictures = Pictures::new(&args.pictures, args.json, inputs.chain(args.fleet.file()))?;
    let model = open_metadata(args.model.path(), args.described, args.placement.rope_scaling)?;
    let needs = Needs { asked: args.parallel, request: args.request, ..Needs::of(1) };
    let (planner, devices) =
        for_fleet_or_devices(&model, fleet(&args.fleet)?.as_ref(), &args.devices, &args.placement, needs)?;
    let mut report = Report::new(planner.plan()?);
    if pictures.are_wanted() {
        // If the plan cannot be simulated, the report keeps the estimated timelines.
        report.timelines = simulated(&model, &planner, &report.plan).unwrap_or(report.timelines);
    }
    let printed = if args.json {
        print(&report.plan.to_json())
    } else if !pictures.take_standard_output() {
        let (plan, is_capped) =
            (&report.plan, devices.is_some_and(|devices| !devices.memory_caps().is_empty()));
        let table = as_table(plan, is_capped, out_width());
        show(&format!("{}\n{table}\n{}", summary(plan), bars(&report, out_width())))
    } else {
        Ok(())
    };
    printed.and(pictures.write(&report))
}

/// Simulates a plan in which all sequences run concurrently, each with two requests of the planned workload.
/// Returns timelines of excerpts from the simulation, or `None` if the simulation fails or there is no
/// excerpt.
fn simulated(model: &Model, planner: &Planner, plan: &Plan) -> Option<Vec<Gantt>> {
    let prompt = plan.workload.prompt_tokens.clamp(1, (plan.context / 2).max(1));
    let new = plan.workload.generated_tokens.clamp(1, plan.context.saturating_sub(prompt).max(1));
    let load = DrawnLoad {
        requests: plan.sequences.saturating_mul(2),
        arrivals: Arrivals::Closed { at_once: plan.sequences },
        prompt_tokens: Lengths::Fixed(prompt),
        new_tokens: Lengths::Fixed(new),
        seed: 1,
    };
    let (devices, links) = planner.facts();
    let summary = crate::simulate(model, plan, devices, links, &load.draw().ok()?).ok()?;
    Some(Gantt::simulated(plan, &summary).excerpts()).filter(|charts| !charts.is_empty())
}
