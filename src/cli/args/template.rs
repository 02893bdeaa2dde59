//! Arguments of `template`.

use super::model::ModelArgs;
use clap::Args;
use ragtag_chat::{Data, Moment};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag template model.gguf --messages chat.json
  ragtag template models/qwen3 --messages chat.json --tools tools.json --set enable_thinking=false
  ragtag template model.gguf --template new.jinja --messages chat.json
  ragtag template --template chat_template.jinja --messages - --bos '<s>' --eos '</s>' < chat.json

A file of messages is a JSON list such as [{\"role\": \"user\", \"content\": \"Hello!\"}]. The prompt is printed without an \
additional line break. The weights of the model may be missing. Exit code 3 if the template rejects the messages.")]
pub(crate) struct TemplateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Render the template in this file ("-": standard input) instead of the model's template. Without a model, the
    /// tokens of --bos and --eos are empty by default.
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub(crate) template: Option<PathBuf>,
    /// JSON list of messages, oldest first ("-": standard input).
    #[arg(long, value_name = "FILE")]
    pub(crate) messages: PathBuf,
    /// JSON list of the tools that the model may call.
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Option<PathBuf>,
    /// JSON list of documents that the model may cite.
    #[arg(long, value_name = "FILE")]
    pub(crate) documents: Option<PathBuf>,
    /// End the prompt after the last message. By default, it ends with the start of the assistant's message.
    #[arg(long)]
    pub(crate) no_generation_prompt: bool,
    /// Use the model's template with this name. Default: tool_use with --tools if the model has it, otherwise
    /// the model's default template.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Text of the token that begins a text. Default: the model's token.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) bos: Option<String>,
    /// Text of the token that ends a text. Default: the model's token.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) eos: Option<String>,
    /// Time for templates that print the date, such as 2025-03-09T08:05:07. Default: the current time in UTC.
    #[arg(long, value_name = "TIME", value_parser = crate::cli::template::moment)]
    pub(crate) now: Option<Moment>,
    /// Set a variable of the template to a JSON value. Repeatable.
    #[arg(long, value_name = "NAME=JSON", value_parser = crate::cli::template::assignment)]
    pub(crate) set: Vec<(String, Data)>,
}
