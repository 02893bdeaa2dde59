//! Implements `ragtag plan --api`: plans for other programs, one JSON request and one JSON answer per line.

use super::args::{DescribedArgs, FleetArgs, PlacementArgs, PlanArgs, RequestArgs, WireArg};
use super::error::{Error, Result};
use super::output::offer;
use super::start::model::{open_metadata, scaled};
use super::start::placed::{fleet, for_fleet_or_devices, open_fleet};
use super::start::wanted::Needs;
use crate::files::MAX_JSON_BYTES;
use crate::{Fleet, Model, Plan, WireType};
use ragtag_planner::request::{FailureKind, PlanAnswer, PlanFailure, PlanOptions, PlanRequest};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;

/// Maximum number of models that stay open.
const MODELS: usize = 16;

pub(super) fn run(args: &PlanArgs) -> Result<()> {
    let (mut input, mut models) = (BufReader::new(io::stdin()), Models::default());
    let unread = |cause| crate::Error::File { action: "read", path: "standard input".into(), cause };
    while let Some(line) = next_line(&mut input, MAX_JSON_BYTES).map_err(unread)? {
        if line.as_ref().is_ok_and(|line| line.trim().is_empty()) {
            continue;
        }
        let answer = answer(args, &mut models, line);
        // JSON serialization cannot fail for structs of strings and numbers.
        let text = serde_json::to_string(&answer).expect("answers are plain data");
        if !offer(&(text + "\n"))? {
            break;
        }
    }
    Ok(())
}

/// Returns the next line, or `None` at the end of the input. Returns a message if the line is longer than
/// `most_bytes` or not UTF-8. Skips what is beyond the limit.
fn next_line(
    input: &mut impl BufRead,
    most_bytes: u64,
) -> io::Result<Option<std::result::Result<String, String>>> {
    let mut line = Vec::new();
    if input.by_ref().take(most_bytes + 1).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.len() as u64 > most_bytes && !line.ends_with(b"\n") {
        input.skip_until(b'\n')?;
        return Ok(Some(Err(format!("the line has more than {most_bytes} bytes"))));
    }
    Ok(Some(String::from_utf8(line).map_err(|_| "the line is not UTF-8".into())))
}

fn answer(args: &PlanArgs, models: &mut Models, line: std::result::Result<String, String>) -> PlanAnswer {
    let request =
        line.map_err(|message| (Value::Null, message)).and_then(|line| PlanRequest::from_json(&line));
    let (id, outcome) = match request {
        Ok(request) => (request.id.clone(), plan(args, models, request)),
        Err((id, message)) => (id, Err(Error::Usage(message))),
    };
    match outcome {
        Ok(plan) => PlanAnswer::Planned { id, plan: Box::new(plan) },
        Err(error) => {
            let kind = FailureKind::of_exit_code(error.exit_code());
            PlanAnswer::Failed { id, error: PlanFailure { kind, message: error.to_string() } }
        }
    }
}

fn plan(args: &PlanArgs, models: &mut Models, request: PlanRequest) -> Result<Plan> {
    let path = request.model.map(PathBuf::from);
    let model = models.open(path.as_ref().or(args.model.path()), args.described)?;
    let model = scaled(model, args.placement.rope_scaling)?;
    let options = request.options;
    let needs = Needs {
        asked: options.sequences.or(args.parallel),
        request: RequestArgs {
            objective: options.objective.or(args.request.objective),
            prompt_tokens: options.prompt_tokens.or(args.request.prompt_tokens),
            new_tokens: options.new_tokens.or(args.request.new_tokens),
        },
        ..Needs::of(1)
    };
    let (fleet, placement) = (requested_fleet(request.fleet, &args.fleet)?, over(&args.placement, options));
    let (planner, _) = for_fleet_or_devices(&model, fleet.as_ref(), &args.devices, &placement, needs)?;
    Ok(planner.plan()?)
}

/// Reads the fleet of a request, or that of the arguments.
fn requested_fleet(requested: Option<Value>, args: &FleetArgs) -> Result<Option<Fleet>> {
    match requested {
        None => fleet(args),
        Some(Value::String(text)) => open_fleet(&text).map(Some),
        Some(inline) => {
            let fleet = Fleet::from_json(&inline.to_string());
            Ok(fleet.map(Some).map_err(|cause| crate::Error::Fleet { of: "fleet".into(), cause })?)
        }
    }
}

/// Returns the arguments with the settings of a request in place of theirs.
fn over(args: &PlacementArgs, options: PlanOptions) -> PlacementArgs {
    let wire = options.wire_type.map(|wire_type| match wire_type {
        WireType::F32 => WireArg::F32,
        WireType::F16 => WireArg::F16,
    });
    let kv = args.kv.over(&options);
    // A split replaces the search, so it also replaces the constraints.
    let args = match options.split {
        Some(_) => PlacementArgs {
            pin: vec![],
            override_tensor: vec![],
            cpu_moe: false,
            n_cpu_moe: None,
            exclude: vec![],
            max_stages: None,
            ..args.clone()
        },
        None => args.clone(),
    };
    PlacementArgs {
        granularity: options.granularity.or(args.granularity),
        split: options.split,
        pin: options.pins.unwrap_or(args.pin),
        exclude: options.exclude.unwrap_or(args.exclude),
        max_stages: options.max_stages.or(args.max_stages),
        ctx: options.context.or(args.ctx),
        chunk: options.chunk.or(args.chunk),
        kv,
        activations: options.activations.or(args.activations),
        wire: wire.or(args.wire),
        ..args
    }
}

/// Models that are open, the most recently used one last.
#[derive(Default)]
struct Models(Vec<(Option<PathBuf>, Model)>);

impl Models {
    fn open(&mut self, path: Option<&PathBuf>, described: DescribedArgs) -> Result<Model> {
        let known = self.0.iter().position(|(other, _)| other.as_ref() == path);
        let entry = match known {
            Some(at) => self.0.remove(at),
            None => (path.cloned(), open_metadata(path, described, None)?),
        };
        let model = entry.1.clone();
        if self.0.len() == MODELS {
            self.0.remove(0);
        }
        self.0.push(entry);
        Ok(model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_skipped() {
        let mut input = BufReader::with_capacity(3, &b"123456\n12345\n123456789\n\xff\n12345"[..]);
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input, 5).unwrap() {
            lines.push(line.unwrap_or_else(|message| message));
        }
        let long = "the line has more than 5 bytes";
        assert_eq!(lines, [long, "12345\n", long, "the line is not UTF-8", "12345"]);
    }

    #[test]
    fn few_models_stay_open() {
        let mut models = Models::default();
        let described = DescribedArgs { assume_type: None };
        let folder = tempfile::tempdir().unwrap();
        for number in 0..MODELS + 2 {
            let path = folder.path().join(format!("{number}.gguf"));
            std::fs::copy(test_support::golden("tiny-llama3").join("model.gguf"), &path).unwrap();
            models.open(Some(&path), described).unwrap();
            models.open(None, described).unwrap();
        }
        assert_eq!(models.0.len(), MODELS);
        assert!(models.0.iter().any(|(path, _)| path.is_none()), "the most recently used one");
        assert!(models.open(Some(&folder.path().join("missing")), described).is_err());
        assert_eq!(models.0.len(), MODELS);
    }
}
