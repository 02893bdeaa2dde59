//! Implements `ragtag chat`, a conversation in the terminal.

use super::args::ChatArgs;
use super::files::{input_name, read_input, write_file};
use super::output::{inform, note, offer, offer_shown, set_quiet};
use super::placed::placed_while;
use super::plan_table::summary;
use super::run::{figures, generation};
use super::stream::events;
use super::wanted::Needs;
use crate::dialogue::{Dialogue, Piece, ReasoningSplitter};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::files::MAX_JSON_BYTES;
use crate::model::{Model, file_name};
use crate::session::{Event, Generation, Reason};
use ragtag_chat::to_json;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};
use std::io::IsTerminal;
use std::path::Path;

/// Help on the commands of a chat.
const COMMANDS: &str = "\
/reset        start a new conversation with the same system message
/system TEXT  set the system message; without TEXT, show it
/save FILE    write the conversation as JSON
/load FILE    continue the conversation in a file
/help         show this list
/exit         leave (or Ctrl-D)
A line that ends with \\ continues on the next line. Ctrl-C stops an answer.";

/// Default of the maximum number of tokens of an answer of the bundled model.
const BUNDLED_TOKENS: u32 = 80;

/// Prompt of the editor.
const PROMPT: &str = "> ";

pub(super) fn run(args: &ChatArgs) -> Result<()> {
    set_quiet(args.quiet);
    let model = super::scaled(super::open_model(args.model.as_deref())?, &args.placement)?;
    let dialogue = dialogue(&model, args)?;
    let mut generation = generation(&args.sampling, 0);
    // Checks the settings before anything is loaded.
    generation.sampling.validate().map_err(|e| Error::Usage(e.to_string()))?;
    let needs = Needs { verified: args.transfers.verify_transfers, ..Needs::of(1) };
    let mut placed = placed_while(&model, &args.devices, &args.placement, needs, || {
        model.tokenizer().map(|_| needs.workload)
    })?;
    // The bundled model tells without end, so that its first answer would fill its context.
    let usual = if args.model.is_none() { BUNDLED_TOKENS } else { placed.plan.context };
    generation.max_tokens = args.tokens.unwrap_or(usual);
    inform(&summary(&placed.plan));
    let engine = placed.start(&model, args.transfers.options(false))?;
    Chat { dialogue, engine, generation, shows_reasoning: args.reasoning }.converse()
}

/// Creates the conversation that the arguments describe. Checks templates and files before anything is loaded.
fn dialogue(model: &Model, args: &ChatArgs) -> Result<Dialogue> {
    let mut dialogue = match &args.template {
        Some(path) => {
            let source = read_input(path, MAX_JSON_BYTES)?;
            Dialogue::with_template(model, &source, &file_name(input_name(path)))?
        }
        None => Dialogue::new(model)?,
    };
    for (name, value) in &args.set {
        dialogue.set(name, value.clone());
    }
    dialogue.set_special(args.special);
    dialogue.set_system(args.system.as_deref().unwrap_or_default());
    if let Some(path) = &args.load {
        load(&mut dialogue, path)?;
    }
    Ok(dialogue)
}

fn load(dialogue: &mut Dialogue, path: &Path) -> Result<()> {
    let text = read_input(path, MAX_JSON_BYTES)?;
    dialogue.load(&text).map_err(|cause| Error::Conversation { path: path.into(), cause })
}

/// A line of the user.
#[derive(Debug, PartialEq, Eq)]
enum Input<'a> {
    Message(&'a str),
    Help,
    Reset,
    Exit,
    System(&'a str),
    Save(&'a str),
    Load(&'a str),
    Unknown(&'a str),
}

/// Parses a line. A line that begins with a slash is a command.
fn parse(line: &str) -> Input<'_> {
    if !line.starts_with('/') {
        return Input::Message(line);
    }
    let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    match (command, rest.trim()) {
        ("/help" | "/?", _) => Input::Help,
        ("/reset", "") => Input::Reset,
        ("/exit" | "/quit" | "/bye", "") => Input::Exit,
        ("/system", text) => Input::System(text),
        ("/save", path) if !path.is_empty() => Input::Save(path),
        ("/load", path) if !path.is_empty() => Input::Load(path),
        _ => Input::Unknown(line),
    }
}

/// Reads further lines while a line ends with a backslash.
struct Continued;

impl Completer for Continued {
    type Candidate = String;
}

impl Hinter for Continued {
    type Hint = String;
}

impl Highlighter for Continued {}

impl Helper for Continued {}

impl Validator for Continued {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let continues = context.input().ends_with('\\');
        Ok(if continues { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

/// Returns the line without the backslashes that continue it.
fn joined(line: &str) -> String {
    line.replace("\\\r\n", "\n").replace("\\\n", "\n")
}

struct Chat {
    dialogue: Dialogue,
    engine: Engine,
    generation: Generation,
    shows_reasoning: bool,
}

impl Chat {
    /// Reads lines and answers them until the user leaves.
    fn converse(&mut self) -> Result<()> {
        let failed = |cause: ReadlineError| Error::Usage(format!("cannot read from the terminal: {cause}"));
        let config = Config::builder().auto_add_history(true).build();
        let mut editor = Editor::with_history(config, MemHistory::new()).map_err(failed)?;
        editor.set_helper(Some(Continued));
        inform("/help lists the commands; Ctrl-D leaves");
        loop {
            let line = match editor.readline(PROMPT) {
                Ok(line) => joined(&line),
                Err(ReadlineError::Interrupted) => {
                    inform("Ctrl-D or /exit leaves");
                    continue;
                }
                Err(ReadlineError::Eof) => return Ok(()),
                Err(cause) => return Err(failed(cause)),
            };
            match parse(&line) {
                Input::Message(text) if text.trim().is_empty() => {}
                Input::Message(text) => {
                    if !self.reply(text)? {
                        return Ok(());
                    }
                }
                Input::Exit => return Ok(()),
                command => self.obey(&command),
            }
        }
    }

    /// Executes a command. Shows an error instead of ending the chat.
    fn obey(&mut self, command: &Input<'_>) {
        let done = match *command {
            Input::Reset => {
                self.dialogue.reset();
                Ok("new conversation".into())
            }
            Input::System("") => Ok(self.dialogue.system().unwrap_or("no system message").to_owned()),
            Input::System(text) => {
                self.dialogue.set_system(text);
                Ok("system message set".into())
            }
            Input::Save(path) => {
                let json = to_json(self.dialogue.messages()) + "\n";
                write_file(Path::new(path), json.as_bytes()).map(|()| format!("saved to {path}"))
            }
            Input::Load(path) => load(&mut self.dialogue, Path::new(path))
                .map(|()| format!("{} messages loaded", self.dialogue.messages().len())),
            Input::Unknown(line) => {
                Err(Error::Usage(format!("unknown command {line:?}; /help lists the commands")))
            }
            Input::Help | Input::Exit | Input::Message(_) => Ok(COMMANDS.into()),
        };
        match done {
            Ok(text) => note(&text),
            Err(error) => note(&format!("error: {error}")),
        }
    }

    /// Answers a message. A message that the model cannot answer is forgotten. Returns false if standard
    /// output was closed.
    ///
    /// # Errors
    /// Fails if the pipeline fails.
    fn reply(&mut self, text: &str) -> Result<bool> {
        self.dialogue.ask(text);
        let context = self.engine.plan().context;
        let prompt = match self.dialogue.prompt() {
            Ok(prompt) if prompt.ids.len() < context as usize => prompt,
            Ok(prompt) => {
                self.dialogue.forget_last();
                note(&format!(
                    "the conversation would have {} tokens, and the context holds {context}; /reset starts a new \
                     one, and --ctx sets the context",
                    prompt.ids.len()
                ));
                return Ok(true);
            }
            Err(error) => {
                self.dialogue.forget_last();
                note(&format!("error: {error}"));
                return Ok(true);
            }
        };
        let mut shown = Shown::new(prompt.splitter, self.shows_reasoning);
        let answered =
            super::block_on(events(&self.engine, &prompt.ids, &self.generation, |event| match event {
                Event::Token { text, .. } => shown.text(text),
                Event::Finished(_) => shown.end(),
            }));
        let summary = match answered {
            Ok(summary) => summary,
            Err(error) => {
                self.dialogue.forget_last();
                return Err(error);
            }
        };
        self.dialogue.answer(&shown.answer, &shown.reasoning);
        if summary.reason == Reason::ContextFull {
            note(&format!(
                "the context of {context} tokens is full, so the answer ends here; /reset starts a new one"
            ));
        }
        inform(&figures(&summary, self.generation.sampling.seed));
        Ok(!shown.is_closed)
    }
}

/// An answer on the terminal.
struct Shown {
    splitter: Option<ReasoningSplitter>,
    shows_reasoning: bool,
    /// Whether reasoning is dimmed.
    dims: bool,
    reasoning: String,
    answer: String,
    is_closed: bool,
}

impl Shown {
    fn new(splitter: ReasoningSplitter, shows_reasoning: bool) -> Self {
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dims = std::io::stdout().is_terminal() && !is_plain;
        let (reasoning, answer) = (String::new(), String::new());
        Self { splitter: Some(splitter), shows_reasoning, dims, reasoning, answer, is_closed: false }
    }

    /// Shows text that has arrived. Returns false if standard output is a closed pipe.
    fn text(&mut self, text: &str) -> Result<bool> {
        let pieces = self.splitter.as_mut().map(|splitter| splitter.push(text)).unwrap_or_default();
        pieces.into_iter().try_for_each(|piece| self.piece(piece))?;
        Ok(!self.is_closed)
    }

    /// Shows the rest of the answer.
    fn end(&mut self) -> Result<bool> {
        if let Some(piece) = self.splitter.take().and_then(ReasoningSplitter::finish) {
            self.piece(piece)?;
        }
        self.is_closed |= !offer("\n")?;
        Ok(!self.is_closed)
    }

    fn piece(&mut self, piece: Piece) -> Result<()> {
        let is_open = match piece {
            Piece::Reasoning(text) => {
                self.reasoning.push_str(&text);
                match (self.shows_reasoning, self.dims) {
                    (false, _) => true,
                    (true, false) => offer_shown(&text)?,
                    (true, true) => offer("\x1b[2m")? & offer_shown(&text)? & offer("\x1b[0m")?,
                }
            }
            Piece::Answer(text) => {
                let is_first = self.answer.is_empty() && !self.reasoning.is_empty() && self.shows_reasoning;
                self.answer.push_str(&text);
                offer(if is_first { "\n\n" } else { "" })? & offer_shown(&text)?
            }
        };
        self.is_closed |= !is_open;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_begin_with_a_slash_are_commands() {
        assert_eq!(parse("hello /reset"), Input::Message("hello /reset"));
        assert_eq!(parse(" /reset"), Input::Message(" /reset"));
        assert_eq!(parse("/reset"), Input::Reset);
        assert_eq!(parse("/system  Be brief. "), Input::System("Be brief."));
        assert_eq!(parse("/save a b.json"), Input::Save("a b.json"));
        assert_eq!(parse("/save"), Input::Unknown("/save"));
        assert_eq!(parse("/reset now"), Input::Unknown("/reset now"));
    }

    #[test]
    fn a_backslash_joins_lines() {
        assert_eq!(joined("a\\\nb\\\\\nc"), "a\nb\\\nc");
    }
}
