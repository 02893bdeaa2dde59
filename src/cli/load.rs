//! Implements `ragtag load`, which measures the answers of a server under a load of requests.

use super::args::LoadArgs;
use super::error::{Error, Result};
use super::output::{out_width, print_json, set_quiet, show, table};
use super::progress;
use ragtag_server::{Distribution, Load, LoadReport};
use std::time::Duration;

/// Number of requests of each client, if the user sets none.
const REQUESTS_PER_CLIENT: u32 = 4;
/// Time of a load at a rate, if the user sets no number of requests.
const RATE_S: f64 = 30.0;

pub(super) fn run(args: &LoadArgs) -> Result<()> {
    set_quiet(args.quiet);
    if args.shared_tokens > args.prompt_tokens {
        return Err(Error::Usage("--shared-tokens exceeds --prompt-tokens".into()));
    }
    let load = load(args);
    let bar = progress::steps("requests", load.requests.into());
    let report = ragtag_server::load(&load, || bar.inc(1));
    bar.finish_and_clear();
    let report = report?;
    match args.json {
        true => print_json(&report)?,
        false => show(&as_text(&report, out_width()))?,
    }
    match report.answers {
        0 if !report.is_interrupted => Err(Error::NoAnswers),
        _ => Ok(()),
    }
}

fn load(args: &LoadArgs) -> Load {
    let usual = match args.rate {
        Some(rate_per_s) => (rate_per_s * RATE_S).ceil() as u32,
        None => args.clients * REQUESTS_PER_CLIENT,
    };
    Load {
        url: args.url.clone(),
        key: args.api_key.clone(),
        certificates: args.ca.clone(),
        model: args.model.clone(),
        is_completion: args.completions,
        clients: args.clients,
        rate_per_s: args.rate,
        requests: args.requests.unwrap_or(usual.max(1)),
        prompt_tokens: args.prompt_tokens,
        shared_tokens: args.shared_tokens,
        new_tokens: args.new_tokens,
        fields: args.fields.clone().unwrap_or_default(),
        timeout: Duration::from_secs(args.timeout),
        seed: args.seed,
    }
}

/// Formats a report as a table of times, followed by counts and rates.
pub(super) fn as_text(report: &LoadReport, width: Option<u16>) -> String {
    let mut table = table(&["time", ">mean", ">p50", ">p90", ">p99", "+>longest"], width);
    let times =
        [("first token", report.first_token), ("per token", report.next_token), ("answer", report.answer)];
    for (name, Distribution { mean_s, p50_s, p90_s, p99_s, max_s }) in times {
        let ms = |time_s: f64| format!("{:.1} ms", time_s * 1e3);
        table.add_row([name.into(), ms(mean_s), ms(p50_s), ms(p90_s), ms(p99_s), ms(max_s)]);
    }
    let load = match (report.clients, report.rate_per_s) {
        (Some(clients), _) => format!("{clients} clients"),
        (None, rate) => format!("{} requests/s", rate.unwrap_or_default()),
    };
    let failed: u64 = report.errors.values().sum();
    let of_cache = match report.cached_tokens {
        0 => String::new(),
        cached => format!(" ({cached} of them cached)"),
    };
    let mut text = format!(
        "{table}\n{}: {} of {} answers in {:.1} s, {failed} failed; {load}, {} of {}\n\
         prompts of {} tokens, {} of them shared, set by {}; answers of at most {} tokens\n\
         {:.1} new tokens/s, {:.1} prompt tokens/s{of_cache}, {:.2} answers/s\n",
        report.url,
        report.answers,
        report.requests,
        report.wall_s,
        report.api,
        report.model,
        report.asked_prompt_tokens,
        report.asked_shared_tokens,
        report.measured_by,
        report.asked_new_tokens,
        report.new_tokens_per_s,
        report.prompt_tokens_per_s,
        report.answers_per_s,
    );
    if report.counts_events {
        text += "the server reports no usage: each event with text counts as a token\n";
    }
    if report.is_interrupted {
        text += "interrupted\n";
    }
    for (reason, count) in &report.errors {
        text += &format!("{count} × {reason}\n");
    }
    text
}
