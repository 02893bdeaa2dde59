//! Implements `ragtag perplexity`, which computes the perplexity of a model on a text.
//!
//! The command cuts the text into pieces of `--ctx` tokens. If the tokenizer adds BOS before a text, BOS replaces
//! the first token of each piece. The model predicts each token in the second half of a piece from all earlier tokens of the piece. The
//! perplexity is the exponential of the mean negative log-probability of these tokens.

use super::args::PerplexityArgs;
use super::error::{Error, Result};
use super::files;
use super::output::{inform, print, print_json};
use super::plan_table::summary;
use super::progress;
use super::records;
use super::start::model::open;
use super::start::placed::placed;
use super::start::wanted::Needs;
use super::stream::block_on;
use crate::files::read_text;
use crate::{Model, Session};
use ragtag_scheduler::token_log_probability;
use serde_json::json;

/// Default piece length in tokens.
const DEFAULT_CONTEXT: u32 = 512;
/// Maximum size of the text in bytes. It is about twice the size of the longest text in common use.
const MAX_BYTES: u64 = 1 << 30;

pub(super) fn run(args: &PerplexityArgs) -> Result<()> {
    let inputs = args.model.path().into_iter().chain(&args.placement.plan).chain([&args.file]);
    files::check(args.records.files(), inputs)?;
    let model = open(&args.model, &args.placement)?;
    let context = args.placement.ctx.unwrap_or(DEFAULT_CONTEXT.min(model.hyperparameters().context));
    let pieces = pieces(&model, args, context as usize)?;
    // Two pieces are in flight at a time, which keeps two stages busy.
    let verified = args.transfers.verify_transfers;
    let needs = Needs { all_logits: true, context: Some(context), verified, ..Needs::of(2) };
    let mut placed = placed(&model, &args.devices, &args.placement, needs)?;
    inform(&summary(&placed.plan));
    let mut options = args.transfers.options(args.records.trace.is_some());
    options.all_logits = true;
    let engine = placed.start(&model, options)?;
    let score = block_on(score(&engine.session(), &pieces))?;
    let printed = if args.json {
        print_json(&json!({
            "perplexity": score.perplexity(),
            "uncertainty": score.uncertainty(),
            "tokens": score.count,
            "chunks": pieces.len(),
            "ctx": context,
            "plan": *engine.plan(),
            "verified_transfers": engine.verified_transfers(),
        }))
    } else {
        records::inform_verified(&engine);
        let (perplexity, uncertainty) = (score.perplexity(), score.uncertainty());
        print(&format!("perplexity {perplexity:.4} ± {uncertainty:.4} over {} tokens\n", score.count))
    };
    printed.and(args.records.write(&model, &placed.devices, engine))
}

fn pieces(model: &Model, args: &PerplexityArgs, context: usize) -> Result<Vec<Vec<u32>>> {
    if context < 4 {
        return Err(Error::Usage("--ctx must be at least 4 to measure perplexity".into()));
    }
    let text = read_text(&args.file, MAX_BYTES).map_err(files::cannot_read(&args.file))?;
    let tokenizer = model.tokenizer()?;
    let ids = tokenizer
        .encode(&text, true)
        .map_err(|cause| crate::Error::Tokenizer { name: model.name().into(), cause })?;
    let most = args.chunks.map_or(usize::MAX, |n| n as usize);
    let mut pieces: Vec<Vec<u32>> = ids.chunks_exact(context).take(most).map(<[u32]>::to_vec).collect();
    if pieces.is_empty() {
        let path = args.file.display();
        return Err(Error::Usage(format!(
            "{path} has {} tokens, fewer than one piece of {context} (set --ctx)",
            ids.len()
        )));
    }
    for piece in &mut pieces {
        piece[0] = tokenizer.added_bos().unwrap_or(piece[0]);
    }
    Ok(pieces)
}

#[derive(Debug, Default)]
struct Score {
    /// Sum of the negative log-probabilities of the predicted tokens, and sum of their squares.
    sum: f64,
    squares: f64,
    count: u64,
}

impl Score {
    fn add(&mut self, negative_log_probability: f64) {
        self.sum += negative_log_probability;
        self.squares += negative_log_probability * negative_log_probability;
        self.count += 1;
    }

    fn perplexity(&self) -> f64 {
        (self.sum / self.count.max(1) as f64).exp()
    }

    /// Returns the standard error of the perplexity. It follows from the standard error of the mean
    /// log-probability.
    fn uncertainty(&self) -> f64 {
        let n = self.count.max(2) as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        (variance / (n - 1.0)).sqrt() * self.perplexity()
    }
}

async fn score(session: &Session, pieces: &[Vec<u32>]) -> Result<Score> {
    let bar = progress::steps("perplexity", pieces.len() as u64);
    let mut score = Score::default();
    for pair in pieces.chunks(2) {
        // Submits both pieces before it waits for the first result.
        let running: Vec<_> = pair.iter().map(|piece| session.start_logits(piece)).collect();
        for (piece, stream) in pair.iter().zip(running) {
            let logits = stream.collect().await?;
            let vocabulary = logits.len() / piece.len();
            for position in piece.len() / 2..piece.len() - 1 {
                let row = &logits[position * vocabulary..(position + 1) * vocabulary];
                let log_probability = token_log_probability(row, piece[position + 1])
                    .map_err(|e| Error::Usage(format!("position {position}: {e}")))?;
                score.add(-log_probability);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(score)
}
