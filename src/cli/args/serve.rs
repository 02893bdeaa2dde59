//! Arguments of `ragtag serve`.

use super::devices::DeviceArgs;
use super::placement::{PlacementArgs, RequestArgs};
use super::run::{RecoveryArgs, TransferArgs};
use clap::Args;
use std::path::PathBuf;

#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag serve                                       # the bundled model
  ragtag serve model.gguf --ctx 8192 --parallel 16 --device cuda:0
  ragtag serve large.gguf small.gguf --ctx 4096 --keep-alive 600
  ragtag serve embedder.gguf --embeddings --ctx 2048
  ragtag serve model.gguf --host 0.0.0.0 --api-key-file keys.txt
  ragtag serve model.gguf --tls-cert chain.pem --tls-key key.pem --api-key-file keys.txt
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'

Clients of OpenAI's API use http://127.0.0.1:8080/v1 as the base URL, those of Anthropic's http://127.0.0.1:8080. Ctrl-C or \
SIGTERM stops the server as soon as its answers have ended. docs/serving.md describes routes, limits and metrics.")]
pub(crate) struct ServeArgs {
    /// .gguf files or directories with safetensors. The first request for a model loads it. Default: the bundled model.
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// Same as MODEL.
    #[arg(short = 'm', long = "model", value_name = "MODEL", hide = true, conflicts_with = "models")]
    model_options: Vec<PathBuf>,
    /// Name or address to listen on.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Name of each model in the API, in turn. Repeatable. Default: the file name without .gguf.
    #[arg(long, alias = "served-model-name", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) alias: Vec<String>,
    /// Key that clients must send. Repeatable. Other users of this machine can see it in the list of processes.
    #[arg(long, value_name = "KEY", env = "RAGTAG_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Vec<String>,
    /// File with keys, one on each line.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Serve other machines without keys.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Certificate chain for TLS, in PEM format.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM format.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Use the chat template in this file instead of the model's template.
    #[arg(long, alias = "chat-template-file", value_name = "FILE")]
    pub(crate) template: Option<PathBuf>,
    /// Answer /v1/embeddings instead of generating text.
    #[arg(long, alias = "embedding", conflicts_with = "template")]
    pub(crate) embeddings: bool,
    /// Number of sequences that must fit at full context. Default: the number in the plan with --plan, otherwise 4. More
    /// of them run at the same time if they are shorter.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    pub(crate) parallel: Option<u32>,
    /// Unload a model after this time without a request. Default: never.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000), allow_negative_numbers = true)]
    pub(crate) keep_alive: Option<u64>,
    /// Maximum number of requests that wait. The server refuses more with status 429.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1048576), allow_negative_numbers = true)]
    pub(crate) queue: u32,
    /// Time after which an answer ends, whatever it has produced.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=604800), allow_negative_numbers = true)]
    pub(crate) deadline: u64,
    /// Time for a request to arrive, for a client to read, and until an idle connection is closed.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400), allow_negative_numbers = true, hide = true)]
    pub(crate) patience: u64,
    /// Time for answers to end after Ctrl-C or SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=86400), allow_negative_numbers = true, hide = true)]
    pub(crate) drain: u64,
    /// Maximum size of a request in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024), allow_negative_numbers = true, hide = true)]
    pub(crate) max_body: u32,
    /// Maximum number of connections.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=65536), allow_negative_numbers = true, hide = true)]
    pub(crate) connections: u32,
    /// Maximum number of connections from one address.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65536), allow_negative_numbers = true, hide = true)]
    pub(crate) connections_per_address: u32,
    /// Print only the address, errors and warnings.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
    #[command(flatten)]
    pub(crate) transfers: TransferArgs,
    #[command(flatten)]
    pub(crate) recovery: RecoveryArgs,
}

impl ServeArgs {
    /// Returns the paths of the models. `None` is the bundled model.
    pub(crate) fn paths(&self) -> Vec<Option<PathBuf>> {
        let named: Vec<_> = self.models.iter().chain(&self.model_options).cloned().map(Some).collect();
        if named.is_empty() { vec![None] } else { named }
    }
}
