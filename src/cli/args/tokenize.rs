//! Arguments of `tokenize`.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ragtag tokenize model.gguf \"Hello, world\"
  ragtag tokenize model.gguf -f prompt.txt --ids
  ragtag tokenize model.gguf \"<|im_start|>user\" --no-special --no-bos
  ragtag tokenize models/qwen3 --json < prompt.txt
  ragtag tokenize model.gguf --decode 9906,11,1917

Only the vocabulary is read: a .gguf file may have no weights, and a directory needs only its tokenizer files.")]
pub(crate) struct TokenizeArgs {
    /// A model (default: the bundled model), and the text. Default of the text: standard input.
    #[arg(num_args = 0..=2, value_names = ["MODEL", "TEXT"])]
    pub(crate) words: Vec<OsString>,
    /// A model. The only argument without a name is then the text.
    #[arg(short, long, value_name = "MODEL", hide = true)]
    pub(crate) model: Option<PathBuf>,
    /// Text to split into tokens.
    #[arg(short, long, value_name = "TEXT", hide = true, conflicts_with_all = ["file", "decode"])]
    pub(crate) prompt: Option<OsString>,
    /// Read the text from a file ("-": standard input). One trailing line break is removed.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Write the control tokens that the text contains as text, and not as tokens.
    #[arg(long, conflicts_with = "decode")]
    pub(crate) no_special: bool,
    /// Do not add the tokens that the model expects before and after a text.
    #[arg(long, conflicts_with = "decode")]
    pub(crate) no_bos: bool,
    /// Print the text of these comma-separated token ids instead. Control tokens have no text.
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["file", "ids"])]
    pub(crate) decode: Vec<u32>,
    /// Print only the ids, in one line, separated by commas.
    #[arg(long, conflicts_with = "json")]
    pub(crate) ids: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}
