//! Implements `ragtag logits`, which writes the logits of every position to a NumPy file, for comparison with
//! other engines.

use super::args::LogitsArgs;
use super::error::Result;
use super::files::{self, write_file};
use super::output::inform;
use super::plan_table::summary;
use super::records;
use super::start::model::open;
use super::start::placed::placed;
use super::start::wanted::Needs;
use super::stream::block_on;
use crate::npy;

pub(super) fn run(args: &LogitsArgs) -> Result<()> {
    let outputs = args.records.files().chain([&args.output]);
    files::check(outputs, args.model.path().into_iter().chain(&args.placement.plan))?;
    let model = open(&args.model, &args.placement)?;
    let (context, verified) = (Some(args.ids.len() as u32), args.transfers.verify_transfers);
    let needs = Needs { all_logits: true, context, verified, ..Needs::of(1) };
    let mut placed = placed(&model, &args.devices, &args.placement, needs)?;
    inform(&summary(&placed.plan));
    let mut options = args.transfers.options(args.records.trace.is_some());
    options.all_logits = true;
    let engine = placed.start(&model, options)?;
    let logits = block_on(engine.session().logits(&args.ids))?;
    let matrix = npy::encode(&logits, model.hyperparameters().vocabulary as usize);
    let done = || inform(&format!("{}: {} positions", args.output.display(), args.ids.len()));
    records::inform_verified(&engine);
    let written = write_file(&args.output, &matrix).map(|()| done());
    written.and(args.records.write(&model, &placed.devices, engine))
}
