//! Arguments of `ragtag load`.

use clap::{Args, value_parser};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag load http://127.0.0.1:8080                                   # 8 clients, prompts of 512 tokens, answers of 128
  ragtag load http://127.0.0.1:8080 --clients 64 --prompt-tokens 1024 --shared-tokens 768
  ragtag load http://127.0.0.1:8000/v1 --rate 4 -n 200 --fields '{\"ignore_eos\": true}' --json

The server needs OpenAI's API with streams. Prompts are random words. Ctrl-C ends the load and prints the times so far.")]
pub(crate) struct LoadArgs {
    /// Base URL of the server, with or without /v1.
    pub(crate) url: String,
    /// Number of clients. Each sends its next request when it has its answer.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = value_parser!(u32).range(1..=65536), allow_negative_numbers = true)]
    pub(crate) clients: u32,
    /// Send this many requests per second on average, at random times, instead of using a number of clients.
    #[arg(long, value_name = "R", conflicts_with = "clients", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Number of requests. Default: 4 for each client, or as many as come in 30 seconds at the rate.
    #[arg(short = 'n', long, value_name = "N", value_parser = value_parser!(u32).range(1..=16_777_216), allow_negative_numbers = true)]
    pub(crate) requests: Option<u32>,
    /// Length of each prompt in tokens. If the server has no /tokenize, a token counts as 4 characters.
    #[arg(short, long, value_name = "N", default_value_t = 512, value_parser = value_parser!(u32).range(1..=1_048_576), allow_negative_numbers = true)]
    pub(crate) prompt_tokens: u32,
    /// Number of these tokens that all prompts share, at their begin.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = value_parser!(u32).range(..=1_048_576), allow_negative_numbers = true)]
    pub(crate) shared_tokens: u32,
    /// Maximum length of each answer in tokens. Models may end answers earlier.
    #[arg(short = 't', long, alias = "max-tokens", value_name = "N", default_value_t = 128, value_parser = value_parser!(u32).range(1..=1_048_576), allow_negative_numbers = true)]
    pub(crate) new_tokens: u32,
    /// Name of the model. Default: the first one that the server lists.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Use /v1/completions instead of /v1/chat/completions.
    #[arg(long)]
    pub(crate) completions: bool,
    /// Further fields of each request, as a JSON object.
    #[arg(long, value_name = "JSON", value_parser = fields)]
    pub(crate) fields: Option<serde_json::Map<String, serde_json::Value>>,
    /// Key that the server wants.
    #[arg(long, value_name = "KEY", env = "RAGTAG_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Certificates to trust, in PEM format. URLs with https need them.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Time for a whole answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = value_parser!(u64).range(1..=86400), allow_negative_numbers = true)]
    pub(crate) timeout: u64,
    /// Seed of the prompts and of the times of requests.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only the result, errors and warnings.
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| (0.001..=100_000.0).contains(rate));
    rate.ok_or_else(|| "the rate must be a number from 0.001 to 100000".into())
}

fn fields(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    serde_json::from_str(text).map_err(|cause| format!("expected a JSON object: {cause}"))
}
