//! Implements `ragtag serve`, which serves models over HTTP.

use super::args::ServeArgs;
use super::error::{Error, Result};
use super::files::read_input;
use super::output::{inform, print, set_quiet};
use super::plan_table::summary;
use super::records::receipt;
use super::start::model::scaled;
use super::start::placed::placed_while;
use super::start::wanted::Needs;
use super::stream::block_on;
use super::template;
use crate::files::MAX_JSON_BYTES;
use crate::{BUNDLED_MODEL, Limits, Model};
use ragtag_server::{Failure, Models, Offer, Options, Served};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Number of sequences that must fit at full context, if the user sets none.
const SEQUENCES: u32 = 4;
/// Exit code of a model that does not fit.
const OUT_OF_MEMORY: u8 = 6;
/// Number of loads of models so far.
static LOADS: AtomicU32 = AtomicU32::new(0);
/// Number of prompt tokens in the warm-up.
const WARM_TOKENS: u32 = 64;

pub(super) fn run(args: &ServeArgs) -> Result<()> {
    set_quiet(args.quiet);
    let options = options(args)?;
    let paths = args.paths();
    super::files::check(args.recovery.log_events.iter(), paths.iter().flatten())?;
    let is_one = paths.len() == 1;
    if !is_one && (args.template.is_some() || args.placement.plan.is_some()) {
        return Err(Error::Usage("--template and --plan are for a single model".into()));
    }
    if !is_one && args.alias.len() > paths.len() {
        return Err(Error::Usage(format!("{} names for {} models", args.alias.len(), paths.len())));
    }
    // A plan on standard input, and a template, are read once.
    let template = args.template.as_deref().map(template::source).transpose()?;
    let args = Arc::new(args.clone());
    let loader = |path: &Option<PathBuf>| {
        let (args, path, template) = (Arc::clone(&args), path.clone(), template.clone());
        move || load(&args, path.as_ref(), template.clone())
    };
    let offer = |at: usize| {
        let load = loader(&paths[at]);
        let start = Box::new(move || load().map_err(|error| failure(&error)));
        let offer = Offer::new(&name(paths[at].as_deref()), start);
        let aliases = if is_one { &args.alias[..] } else { args.alias.get(at..=at).unwrap_or_default() };
        aliases.iter().rev().fold(offer, |offer, name| offer.named(name))
    };
    let mut models = Models::new(offer(0));
    for at in 1..paths.len() {
        models = models.offering(offer(at))?;
    }
    if let Some(seconds) = args.keep_alive {
        models = models.unloading_after(Duration::from_secs(seconds));
    }
    // Without --ctx, the plan of a model uses all memory for its context.
    if args.placement.ctx.is_none() {
        models = models.exclusive();
    }
    let models = models.running(loader(&paths[0])()?);
    let mut printed = Ok(());
    ragtag_server::serve(models, options, |url| printed = print(&format!("listening on {url}\n")))?;
    printed
}

/// Returns the name of a model in the API.
fn name(path: Option<&Path>) -> String {
    let name = path.map_or(OsStr::new(BUNDLED_MODEL), |path| path.file_name().unwrap_or(path.as_os_str()));
    name.to_string_lossy().into_owned()
}

/// Loads a model and starts its engine.
fn load(args: &ServeArgs, path: Option<&PathBuf>, template: Option<(String, String)>) -> Result<Served> {
    let model = scaled(path.map_or_else(Model::bundled, Model::open)?, args.placement.rope_scaling)?;
    let model = if args.embeddings { model.for_embeddings()? } else { model };
    let (verified, all_logits) = (args.transfers.verify_transfers, args.embeddings);
    let (asked, request) = (args.parallel, args.request);
    let needs = Needs { asked, request, verified, all_logits, ..Needs::of(SEQUENCES) };
    let mut placed = placed_while(&model, &args.devices, &args.placement, needs, || {
        model.tokenizer()?;
        Ok(needs.workload)
    })?;
    inform(&summary(&placed.plan));
    let mut start = args.recovery.set(args.transfers.options(false));
    start.log_events = start.log_events.map(|path| numbered(path, LOADS.fetch_add(1, Ordering::Relaxed)));
    start.all_logits = all_logits;
    start.limits = Limits { requests: args.queue, ..Limits::default() };
    let engine = placed.start(&model, start)?;
    block_on(engine.session().warmup(WARM_TOKENS))?;
    let (planner, devices, described) = (placed.planner, placed.devices, model.clone());
    let receipt = Box::new(move |engine: &_| receipt(&described, &devices, engine));
    let served = Served::new(&model, engine).planned_by(planner).with_receipt(receipt);
    Ok(match template {
        Some((source, name)) => served.with_template(source, name)?,
        None => served,
    })
}

/// Returns the path of the log of the nth load of a model, because each load is a run of its own.
fn numbered(path: PathBuf, nth: u32) -> PathBuf {
    if nth == 0 { path } else { path.with_added_extension(nth.to_string()) }
}

/// Returns why a request cannot have its model.
fn failure(error: &Error) -> Failure {
    Failure { message: error.to_string(), lacks_memory: error.exit_code() == OUT_OF_MEMORY }
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
