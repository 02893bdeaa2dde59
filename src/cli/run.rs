//! Implements `ragtag run`, which generates text from a prompt and prints the text as it arrives.

use super::args::{ConstraintArgs, RunArgs, SamplingArgs};
use super::compare;
use super::constraint;
use super::error::{Error, Result};
use super::files::{self, is_standard, read_input};
use super::output::{error_width, inform, offer, print, print_json, set_quiet};
use super::plan_table::{as_table, summary};
use super::records;
use super::start::model::open;
use super::start::placed::placed_while;
use super::start::wanted::{Needs, workload};
use super::stream::{block_on, events};
use super::template::dialogue;
use crate::{Engine, Event, Generation, Meter, Model, Summary};
use ragtag_graph::{Tokenizer, TokenizerError};
use ragtag_scheduler::compare::Burst;
use ragtag_scheduler::{Refusal, Sampling};
use serde_json::json;
use std::path::Path;

/// Number of decode steps in the warm-up for `--replan`.
const WARM_UP_STEPS: u32 = 16;
/// Maximum size of a prompt in bytes. The tokens of a longer prompt would not fit into the context of any
/// model.
const MAX_PROMPT_BYTES: u64 = 1 << 26;

pub(super) fn run(args: &RunArgs) -> Result<()> {
    set_quiet(args.quiet);
    let outputs = args.records.files().chain(&args.comparison.html).chain(&args.recovery.log_events);
    let inputs = args.model.path().into_iter().chain(&args.placement.plan).chain(&args.file);
    let grammars = args.constraint.json_schema.iter().chain(&args.constraint.grammar);
    files::check(outputs, inputs.chain(&args.template).chain(grammars))?;
    let mut prompt = prompt_text(args)?;
    let grammar = constraint::grammar(&args.constraint)?;
    let mut generation = generation(&args.sampling, args.tokens);
    // Checks the settings before anything is loaded.
    generation.sampling.validate().map_err(|e| Error::Usage(e.to_string()))?;
    let model = open(&args.model, &args.placement)?;
    let verified = args.transfers.verify_transfers;
    let needs = Needs { request: args.request, verified, ..Needs::of(1) };
    let mut ids = Vec::new();
    let mut placed = placed_while(&model, &args.devices, &args.placement, needs, || {
        let marker;
        (ids, marker) = prompt_tokens(args, &model, &mut prompt)?;
        let mask = grammar.map(|grammar| constraint::mask(&model, grammar, marker));
        generation.mask = mask.transpose()?;
        Ok(workload(ids.len(), args.tokens))
    })?;
    refuse_long(ids.len(), placed.plan.context)?;
    if !args.json {
        inform(&summary(&placed.plan));
        if placed.plan.stages.len() > 1 {
            let is_capped = !placed.devices.memory_caps().is_empty();
            inform(as_table(&placed.plan, is_capped, error_width()).trim_end());
        }
    }
    let is_traced = args.records.trace.is_some() || args.comparison.html.is_some();
    let options = || args.recovery.set(args.transfers.options(is_traced));
    let (mut engine, mut replanned) = (placed.start(&model, options())?, None);
    if args.comparison.replan {
        block_on(warm_up(&engine, ids.len()))?;
        (engine, replanned) = compare::replan(&mut placed, &model, engine, options())?;
    }
    if args.canary {
        placed.check_blocks(&model, &engine)?;
    }

    let echo = if args.no_echo { "" } else { &prompt };
    let meter = Meter::start();
    let generated = block_on(generate(&engine, echo, &ids, &generation, !args.json))?;
    let comparison = placed.planner.compare(&engine, &bursts(&generated.summary))?;
    compare::mend_profiles(&placed, &engine.plan(), &comparison, &meter);
    let printed = if args.json {
        print_json(&json!({
            "text": generated.text,
            "tokens": generated.tokens,
            "prompt_tokens": ids,
            "finish_reason": generated.summary.reason,
            "seed": generated.summary.seed,
            "plan": *engine.plan(),
            "timings": generated.summary.timings(),
            "comparison": comparison,
            "replanned": replanned,
            "verified_transfers": engine.verified_transfers(),
        }))
    } else {
        inform(&figures(&generated.summary));
        records::inform_verified(&engine);
        if args.compare || args.comparison.html.is_some() {
            inform(compare::as_table(&comparison, error_width()).trim_end());
        }
        Ok(())
    };
    // A failed write does not affect the other outputs.
    let drawn = compare::write_page(&args.comparison, &engine, &comparison);
    printed.and(drawn).and(args.records.write(&model, &placed.devices, engine))
}

/// Returns the pipeline's error for a prompt that is too long, so that the command can fail before it loads
/// the weights.
fn refuse_long(tokens: usize, context: u32) -> Result<()> {
    if tokens <= context as usize {
        return Ok(());
    }
    Err(too_long(tokens, context))
}

/// Returns the pipeline's error for a prompt that is too long.
pub(super) fn too_long(tokens: usize, context: u32) -> Error {
    crate::Error::Run(Refusal::PromptTooLong { tokens, context }.into()).into()
}

/// Runs a short generation whose measured times `--replan` uses. It has two prefill chunks of the same size
/// as the chunks of a prompt with `tokens` tokens, and up to [`WARM_UP_STEPS`] decode steps.
async fn warm_up(engine: &Engine, tokens: usize) -> Result<()> {
    let chunk = engine.plan().chunks().rows(tokens as u64, false);
    Ok(engine.session().rehearse(chunk.saturating_mul(2), WARM_UP_STEPS).await?)
}

/// Returns the prefill and the decode phase of a generation as bursts, each with its measured tokens per
/// second. Omits a phase that took no time.
fn bursts(summary: &Summary) -> Vec<(Burst, f64)> {
    let (prompt, tokens) = (summary.prompt_tokens, summary.new_tokens);
    let prefill = (Burst::Prompts { tokens: prompt, sequences: 1 }, summary.prefill_tokens_per_s());
    let decode = (Burst::Generations { prompt, tokens, sequences: 1 }, summary.decode_tokens_per_s());
    [prefill, decode].into_iter().filter(|(_, tokens_per_s)| *tokens_per_s > 0.0).collect()
}

struct GeneratedText {
    text: String,
    tokens: Vec<u32>,
    summary: Summary,
}

/// Generates text. If `shown` is set, prints `echo`, followed by the text as it arrives. Ctrl-C or a closed
/// output pipe cancels the sequence, but the command still finishes normally.
async fn generate(
    engine: &Engine,
    echo: &str,
    ids: &[u32],
    generation: &Generation,
    shown: bool,
) -> Result<GeneratedText> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    // The echo is printed with the first event, so that a rejected prompt is not echoed.
    let mut unprinted = shown.then_some(echo);
    let summary = events(engine, ids, generation, true, |event| {
        if let Some(echo) = unprinted.take() {
            print(echo)?;
        }
        match event {
            Event::Token { id, text: piece, .. } => {
                tokens.extend(id);
                text.push_str(piece);
                Ok(!shown || offer(piece)?)
            }
            Event::Finished(_) => Ok(!shown || offer("\n")?),
        }
    });
    let summary = summary.await?;
    Ok(GeneratedText { text, tokens, summary })
}

/// Returns the tokens of the prompt, and the marker that ends the reasoning that it begins. With `--chat`, takes the prompt,
/// so that it is not echoed.
fn prompt_tokens(
    args: &RunArgs,
    model: &Model,
    prompt: &mut String,
) -> Result<(Vec<u32>, Option<&'static str>)> {
    if !args.chat {
        let failed = |cause| crate::Error::Tokenizer { name: model.name().into(), cause };
        return Ok((encode(model.tokenizer()?, prompt, !args.no_special).map_err(failed)?, None));
    }
    let mut dialogue = dialogue(model, args.template.as_deref())?;
    dialogue.set_system(args.system.as_deref().unwrap_or_default());
    dialogue.ask(&std::mem::take(prompt));
    // A template without a format of its own leaves the format to the prompt.
    dialogue.set_special(args.special || dialogue.is_bare()?);
    let prompt = dialogue.prompt()?;
    Ok((prompt.ids, prompt.splitter.end()))
}

/// Returns the tokens of a prompt without a chat format. If `special` is set, its control tokens become tokens. A
/// prompt that begins with BOS gets no second one.
pub(super) fn encode(
    tokenizer: &Tokenizer,
    prompt: &str,
    special: bool,
) -> std::result::Result<Vec<u32>, TokenizerError> {
    let mut ids = match special {
        true => tokenizer.encode_with_control(prompt, true),
        false => tokenizer.encode(prompt, true),
    }?;
    if let Some(bos) = tokenizer.added_bos()
        && ids.starts_with(&[bos, bos])
    {
        ids.remove(0);
    }
    Ok(ids)
}

fn prompt_text(args: &RunArgs) -> Result<String> {
    let ConstraintArgs { json_schema, grammar } = &args.constraint;
    let inputs = [&args.file, &args.placement.plan, &args.template, json_schema, grammar];
    if inputs.into_iter().flatten().filter(|path| is_standard(path)).count() > 1 {
        return Err(Error::Usage(
            "standard input can be only one of the prompt (-f -), the plan (--plan -), the template (--template -), \
             the schema (--json-schema -) and the grammar (--grammar -)"
                .into(),
        ));
    }
    args.file.as_deref().map_or_else(|| Ok(args.prompt.clone()), read_prompt)
}

/// Reads a prompt from a file, or from standard input if `path` is `-`.
pub(super) fn read_prompt(path: &Path) -> Result<String> {
    let mut text = read_input(path, MAX_PROMPT_BYTES)?;
    // Editors and the `echo` command append a line break that is not part of the prompt.
    let ends = ["\r\n", "\n"].into_iter().find(|end| text.ends_with(end));
    text.truncate(text.len() - ends.map_or(0, str::len));
    Ok(text)
}

pub(super) fn generation(args: &SamplingArgs, max_tokens: u32) -> Generation {
    Generation {
        max_tokens,
        sampling: Sampling {
            temperature: args.temp,
            top_k: args.top_k,
            top_p: args.top_p,
            min_p: args.min_p,
            repetition_penalty: args.repeat_penalty,
            seed: args.seed,
            ..Sampling::default()
        },
        stop: args.stop.clone(),
        ..Generation::default()
    }
}

pub(super) fn figures(summary: &Summary) -> String {
    let prompt = rate(summary.prompt_tokens, "prompt", summary.prefill_tokens_per_s());
    let new = rate(summary.new_tokens, "new", summary.decode_tokens_per_s());
    let cached = match summary.cached_tokens {
        0 => String::new(),
        tokens => format!(" ({tokens} cached)"),
    };
    format!("{prompt}{cached}, {new} ({}), seed {}", summary.reason, summary.seed)
}

/// Formats a number of tokens and a rate, such as `5 prompt tokens at 3014.6 tokens/s`. Prints a dash for a
/// rate of 0.
fn rate(tokens: u32, what: &str, tokens_per_s: f64) -> String {
    let plural = if tokens == 1 { "" } else { "s" };
    let speed = if tokens_per_s > 0.0 { format!("{tokens_per_s:.1}") } else { "–".into() };
    format!("{tokens} {what} token{plural} at {speed} tokens/s")
}
