//! Implements `ragtag serve`, which serves a model over HTTP.

use super::args::ServeArgs;
use super::error::Result;
use super::files::read_input;
use super::output::{inform, print, set_quiet};
use super::plan_table::summary;
use super::records::receipt;
use super::start::model::open;
use super::start::placed::placed_while;
use super::start::wanted::Needs;
use super::stream::block_on;
use super::template;
use crate::Limits;
use crate::files::MAX_JSON_BYTES;
use ragtag_server::{Options, Served};
use std::time::Duration;

/// Number of sequences that must fit at full context, if the user sets none.
const SEQUENCES: u32 = 4;
/// Number of prompt tokens in the warm-up.
const WARM_TOKENS: u32 = 64;

pub(super) fn run(args: &ServeArgs) -> Result<()> {
    set_quiet(args.quiet);
    let options = options(args)?;
    let source = args.template.as_deref().map(template::source).transpose()?;
    let model = open(&args.model, &args.placement)?;
    let verified = args.transfers.verify_transfers;
    let needs = Needs { asked: args.parallel, request: args.request, verified, ..Needs::of(SEQUENCES) };
    let mut placed = placed_while(&model, &args.devices, &args.placement, needs, || {
        model.tokenizer()?;
        Ok(needs.workload)
    })?;
    inform(&summary(&placed.plan));
    let mut start = args.transfers.options(false);
    start.limits = Limits { requests: args.queue, ..Limits::default() };
    let engine = placed.start(&model, start)?;
    block_on(engine.session().warmup(WARM_TOKENS))?;
    let (planner, devices, described) = (placed.planner, placed.devices, model.clone());
    let receipt = Box::new(move |engine: &_| receipt(&described, &devices, engine));
    let mut served = Served::new(&model, engine).planned_by(planner).with_receipt(receipt);
    for name in args.alias.iter().rev() {
        served = served.named(name);
    }
    if let Some((source, name)) = source {
        served = served.with_template(source, name)?;
    }
    let mut printed = Ok(());
    ragtag_server::serve(served, options, |url| printed = print(&format!("listening on {url}\n")))?;
    printed
}

fn options(args: &ServeArgs) -> Result<Options> {
    let mut options = Options::default();
    (options.host, options.port) = (args.host.clone(), args.port);
    options.keys.clone_from(&args.api_key);
    if let Some(path) = &args.api_key_file {
        let keys = read_input(path, MAX_JSON_BYTES)?;
        options.keys.extend(keys.lines().map(|key| key.trim().to_owned()));
    }
    options.keys.retain(|key| !key.is_empty());
    options.is_open = args.insecure;
    options.tls = args.tls_cert.clone().zip(args.tls_key.clone());
    options.body_bytes = (args.max_body as usize) << 20;
    options.bodies_bytes = options.bodies_bytes.max(options.body_bytes * 2);
    options.connections = args.connections as usize;
    options.connections_per_address = args.connections_per_address as usize;
    options.patience = Duration::from_secs(args.patience);
    options.deadline = Duration::from_secs(args.deadline);
    options.drain = Duration::from_secs(args.drain);
    Ok(options)
}
