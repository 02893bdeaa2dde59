//! Implements `ragtag replay`, which replays the log of a run's events.

use super::args::ReplayArgs;
use super::error::{Error, Result};
use super::files::{self, write_file};
use super::output::{inform, print_json, show};
use super::plan_table::summary;
use super::start::model::scaled;
use super::start::placed::placed;
use super::start::wanted::Needs;
use super::stream::block_on;
use crate::{
    Engine, EngineOptions, Event, Generation, LogEnd, LoggedRequest, Model, Prompt, Replay, TokenStream,
};
use serde::Serialize;
use serde_json::json;
use std::path::Path;

/// Number of requests that run at the same time.
const PARALLEL: u32 = 8;

pub(super) fn run(args: &ReplayArgs) -> Result<()> {
    files::check(&args.trace, [&args.file].into_iter().chain(&args.execute))?;
    let replayed = crate::replay(&args.file)?;
    let executed = args.execute.as_deref().map(|path| execute(args, &replayed, path)).transpose()?;
    let printed = match args.json {
        true => print_json(&json!({
            "ragtag_replay": 1,
            "summary": replayed,
            "requests": replayed.requests.len(),
            "executed": executed,
        })),
        false => show(&as_text(&replayed, executed)),
    };
    let trace = || replayed.trace.to_chrome_json();
    printed.and(args.trace.iter().try_for_each(|path| write_file(path, trace().as_bytes())))?;
    match executed {
        Some(Executed { requests, different, .. }) if different > 0 => {
            Err(Error::OtherTokens { different, requests })
        }
        _ => Ok(()),
    }
}

/// Result of running the requests of a log again.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Executed {
    /// Requests that ran. Those without tokens in the log do not.
    requests: usize,
    tokens: usize,
    /// Requests with other tokens.
    different: usize,
    /// Requests with a grammar, a bias or a penalty, which the log lacks.
    skipped: usize,
}

/// Runs the requests of a log with the model at `path`.
fn execute(args: &ReplayArgs, replayed: &Replay, path: &Path) -> Result<Executed> {
    let model = scaled(Model::open(path)?, args.placement.rope_scaling)?;
    if model.fingerprint()? != replayed.run.fingerprint {
        let (file, name) = (path.display(), &replayed.run.model);
        return Err(Error::Usage(format!("{file} is not the model of the log ({name})")));
    }
    let mut placement = args.placement.clone();
    placement.activations.get_or_insert(replayed.run.activations);
    placement.kv = placement.kv.or_types(replayed.run.kv);
    let needs = Needs { context: Some(replayed.shape.context), ..Needs::of(PARALLEL) };
    let mut placed = placed(&model, &args.devices, &placement, needs)?;
    inform(&summary(&placed.plan));
    let engine = placed.start(&model, EngineOptions::default())?;
    // A request without tokens was refused, failed or cancelled before the first one.
    let answered = replayed.requests.iter().filter(|request| !request.tokens.is_empty());
    let (run, others): (Vec<_>, Vec<_>) = answered.partition(|request| request.is_repeatable());
    let mut executed = Executed { requests: run.len(), skipped: others.len(), ..Executed::default() };
    for requests in run.chunks(PARALLEL as usize) {
        let streams: Vec<_> =
            requests.iter().map(|request| start(&engine, request)).collect::<Result<_>>()?;
        for (request, stream) in requests.iter().zip(streams) {
            let tokens = block_on(tokens(stream))?;
            executed.tokens += tokens.len();
            executed.different += usize::from(tokens != request.tokens);
        }
    }
    Ok(executed)
}

/// Starts a request with as many tokens as in the log.
fn start(engine: &Engine, request: &LoggedRequest) -> Result<TokenStream> {
    let max_tokens = request.tokens.len() as u32;
    let sampling = request.sampling.unwrap_or_default();
    let generation = Generation { max_tokens, sampling, ignore_end: true, ..Generation::default() };
    Ok(engine.session().generate(Prompt::Tokens(&request.prompt.tokens), &generation)?)
}

async fn tokens(mut stream: TokenStream) -> crate::Result<Vec<u32>> {
    let mut tokens = Vec::new();
    loop {
        match stream.next_event().await? {
            Event::Token { id, .. } => tokens.extend(id),
            Event::Finished(_) => return Ok(tokens),
        }
    }
}

fn as_text(replayed: &Replay, executed: Option<Executed>) -> String {
    let Replay { run, events, actions, duration_s, micro_batches, tokens, failed, .. } = replayed;
    let mut text = format!(
        "{} by Ragtag {}, split {}\n{events} events replay with the same {actions} actions\n{} requests ({failed} failed), \
         {micro_batches} micro-batches, {tokens} tokens in {duration_s:.3} s\n",
        run.model,
        run.ragtag,
        run.split,
        replayed.requests.len(),
    );
    for loss in &replayed.losses {
        let after = |time: Option<f64>| time.map_or("never".into(), |time| format!("{time:.3} s"));
        text += &format!(
            "interrupted at {:.3} s; other stages after {}, the next token after {}\n",
            loss.at_s,
            after(loss.restarted_after_s),
            after(loss.token_after_s)
        );
    }
    match replayed.end {
        LogEnd::Limit => text += "the log ends before the run, at its limit of 1 GiB\n",
        LogEnd::Behind => {
            text += "the log ends before the run, because the disk was too slow or an event too long\n"
        }
        _ => {}
    }
    if let Some(Executed { requests, tokens, different, skipped }) = executed {
        text += &format!("{requests} requests ran again with {tokens} tokens, {different} of them differ");
        text += &match skipped {
            0 => "\n".into(),
            count => format!("; {count} with other samplers did not run\n"),
        };
    }
    text
}
