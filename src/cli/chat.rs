//! Implements `ragtag chat`, a conversation in the terminal.

use super::answer::Answer;
use super::args::ChatArgs;
use super::error::{Error, Result};
use super::files::{read_input, write_file};
use super::lines::{Line, Lines};
use super::output::{inform, note, set_quiet};
use super::plan_table::summary;
use super::run::{figures, generation, too_long};
use super::start::model::open;
use super::start::placed::placed_while;
use super::start::wanted::Needs;
use super::stream::{block_on, events};
use crate::files::MAX_JSON_BYTES;
use crate::{AnswerPrompt, Dialogue, Engine, Event, Generation, Model, Reason, Summary};
use ragtag_chat::to_json;
use ragtag_scheduler::Error as RunError;
use std::io::IsTerminal;
use std::path::Path;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Help on the commands of a chat.
const COMMANDS: &str = "\
/reset        start a new conversation with the same system message
/system TEXT  set the system message; without TEXT, show it
/save FILE    write the conversation as JSON
/load FILE    continue the conversation in a file
/help         show this list
/exit         leave (or Ctrl-D)
A line that ends with \\ continues on the next line. Ctrl-C stops an answer, or clears the line.";

/// Default of the maximum number of tokens of an answer. Bounds the output of models that never end an answer.
const ANSWER_TOKENS: u32 = 2048;
/// The default of the bundled model, which tells without end.
const BUNDLED_TOKENS: u32 = 80;
/// Share of the context that a prompt leaves to the answer if turns can be dropped, as a divisor.
const ANSWER_SHARE: usize = 4;
/// Maximum number of prompt tokens in the warm-up. Bounds the time for which the first message may have to wait.
const WARM_TOKENS: u32 = 64;

pub(super) fn run(args: &ChatArgs) -> Result<()> {
    set_quiet(args.quiet);
    let model = open(&args.model, &args.placement)?;
    let dialogue = dialogue(&model, args)?;
    let mut generation = generation(&args.sampling, 0);
    // Checks the settings before anything is loaded.
    generation.sampling.validate().map_err(|e| Error::Usage(e.to_string()))?;
    let needs = Needs { verified: args.transfers.verify_transfers, ..Needs::of(1) };
    let mut placed = placed_while(&model, &args.devices, &args.placement, needs, || {
        model.tokenizer()?;
        Ok(needs.workload)
    })?;
    let usual = if args.model.path().is_none() { BUNDLED_TOKENS } else { ANSWER_TOKENS };
    generation.max_tokens = args.tokens.unwrap_or(usual);
    inform(&summary(&placed.plan));
    let engine = placed.start(&model, args.recovery.set(args.transfers.options(false)))?;
    let chat = Chat {
        dialogue,
        engine,
        generation,
        shows_reasoning: args.reasoning,
        shows_stats: args.stats,
        drops_turns: args.drops_turns,
        is_interactive: std::io::stdin().is_terminal(),
    };
    chat.converse()
}

/// Creates the conversation that the arguments describe. Checks templates and files before anything is loaded.
fn dialogue(model: &Model, args: &ChatArgs) -> Result<Dialogue> {
    let mut dialogue = super::template::dialogue(model, args.template.as_deref())?;
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

struct Chat {
    dialogue: Dialogue,
    engine: Engine,
    generation: Generation,
    shows_reasoning: bool,
    shows_stats: bool,
    /// Whether a full context drops the oldest turns. Otherwise, it ends the chat.
    drops_turns: bool,
    /// Whether a person types the lines.
    is_interactive: bool,
}

impl Chat {
    /// Reads lines and answers them until the user leaves.
    fn converse(mut self) -> Result<()> {
        let mut lines = Lines::open()?;
        // Over a pipe, the first line does not wait for a user.
        let usual = if self.is_interactive { Some(self.usual_tokens()) } else { None };
        let mut warming = usual.map(|tokens| Warming::start(&self.engine, tokens));
        inform("/help lists the commands; Ctrl-D leaves");
        let mut is_leaving = false;
        loop {
            let before = std::mem::take(&mut is_leaving);
            let line = match lines.next()? {
                Line::Text(line) => line,
                Line::Cleared => continue,
                Line::Interrupted if !before => {
                    inform("Ctrl-C again, Ctrl-D or /exit leaves");
                    is_leaving = true;
                    continue;
                }
                Line::Interrupted | Line::End => return Ok(()),
            };
            drop(warming.take());
            match self.handle(&line) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) if self.is_interactive && !ends_chat(&error) => note(&format!("error: {error}")),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the number of tokens of a prompt with a short message, for the warm-up.
    fn usual_tokens(&mut self) -> u32 {
        self.dialogue.ask("Hello");
        let tokens = self.dialogue.prompt().map_or(0, |prompt| prompt.ids.len());
        self.dialogue.forget_last();
        (tokens as u32).clamp(1, WARM_TOKENS)
    }

    /// Answers or executes a line. Returns false if the chat ends.
    fn handle(&mut self, line: &str) -> Result<bool> {
        match parse(line) {
            Input::Message(text) if text.trim().is_empty() => Ok(true),
            Input::Message(text) => self.reply(text),
            Input::Exit => Ok(false),
            command => self.obey(&command).map(|done| {
                note(&done);
                true
            }),
        }
    }

    /// Executes a command. Returns its message.
    fn obey(&mut self, command: &Input<'_>) -> Result<String> {
        match *command {
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
        }
    }

    /// Answers a message. Returns false if standard output was closed.
    ///
    /// # Errors
    /// Fails if the model cannot answer the message, which is then forgotten, if the pipeline fails, or if the context
    /// is full and no turns may be dropped.
    fn reply(&mut self, text: &str) -> Result<bool> {
        self.dialogue.ask(text);
        let prompt = self.prompt().inspect_err(|_| self.dialogue.forget_last())?;
        let mut answer = Answer::new(prompt.splitter, self.shows_reasoning);
        let (engine, generation) = (&self.engine, &self.generation);
        let answered =
            block_on(events(engine, &prompt.ids, generation, self.is_interactive, |event| match event {
                Event::Token { text, .. } => answer.push(text),
                Event::Finished(_) => answer.end(),
            }));
        let summary = answered.inspect_err(|_| {
            answer.abandon();
            self.dialogue.forget_last();
        })?;
        self.dialogue.answer(&answer.text, &answer.reasoning);
        self.report(&summary)?;
        Ok(!answer.is_closed)
    }

    /// Returns the prompt for the next answer. If it does not leave enough of the context to the answer, drops the
    /// oldest turns.
    fn prompt(&mut self) -> Result<AnswerPrompt> {
        let context = self.engine.plan().context;
        let most = context as usize;
        let spare =
            if self.drops_turns { (self.generation.max_tokens as usize).min(most / ANSWER_SHARE) } else { 0 };
        let (prompt, dropped) = self.dialogue.prompt_within(most - spare)?;
        let tokens = prompt.ids.len();
        if tokens > most {
            return Err(too_long(tokens, context));
        }
        if dropped > 0 && !self.drops_turns {
            return Err(Error::ContextFull { context });
        }
        if dropped > 0 {
            self.dialogue.drop_turns(dropped);
            let turns = if dropped == 1 { "turn".into() } else { format!("{dropped} turns") };
            note(&format!(
                "[dropped the oldest {turns}, because the context holds {context} tokens; --ctx sets a larger one]"
            ));
        }
        Ok(prompt)
    }

    /// Reports an incomplete answer, and the statistics if the user requested them.
    fn report(&self, summary: &Summary) -> Result<()> {
        let (context, tokens) = (self.engine.plan().context, summary.new_tokens);
        match summary.reason {
            Reason::MaxTokens => note(&format!("[answer cut at {tokens} tokens; -n sets the limit]")),
            Reason::ContextFull if self.drops_turns => {
                note(&format!(
                    "[answer cut at {tokens} tokens, because the context of {context} tokens is full]"
                ));
            }
            _ => {}
        }
        if self.shows_stats {
            let figures = figures(summary);
            let (first_ms, used) = (summary.prefill_s * 1e3, summary.prompt_tokens + tokens);
            note(&format!(
                "{figures}, first token after {first_ms:.0} ms, context {used} of {context} tokens"
            ));
        }
        match summary.reason {
            Reason::ContextFull if !self.drops_turns => Err(Error::ContextFull { context }),
            _ => Ok(()),
        }
    }
}

/// Warm-up of the engine while the user types the first line. Dropping it cancels the warm-up.
struct Warming {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Warming {
    fn start(engine: &Engine, prompt_tokens: u32) -> Self {
        let (session, (stop, stopped)) = (engine.session(), oneshot::channel());
        let thread = std::thread::spawn(move || {
            // If the pipeline fails, the first message gets the error.
            let _ = block_on(async {
                tokio::select! {
                    done = session.warmup(prompt_tokens) => done,
                    _ = stopped => Ok(()),
                }
            });
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Warming {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().map(JoinHandle::join);
    }
}

/// Returns whether a chat cannot continue after an error.
fn ends_chat(error: &Error) -> bool {
    match error {
        Error::Library(crate::Error::Run(cause)) => !matches!(cause, RunError::Refused(_)),
        Error::Output(_) | Error::ContextFull { .. } => true,
        _ => false,
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
}
