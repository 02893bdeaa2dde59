//! Answers: the text of the model, split into reasoning, text and calls, and the end of the answer.

use crate::logs::Log;
use crate::tools::{Format, Part, ToolParser};
use ragtag_engine::{Piece, Reason, ReasoningSplitter, Summary};

/// Splits the text of an answer while it arrives.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    splitter: Option<ReasoningSplitter>,
    tools: Option<ToolParser>,
    format: Option<Format>,
}

impl Assembler {
    /// Creates an assembler for a chat. The answer contains calls in `format`. It ends after the first one if
    /// `takes_one_call` is set.
    pub(crate) fn chat(splitter: ReasoningSplitter, format: Option<Format>, takes_one_call: bool) -> Self {
        let tools = format.map(|format| ToolParser::new(format, takes_one_call));
        Self { splitter: Some(splitter), tools, format }
    }

    /// Adds the text of a token, whose text in the vocabulary is `piece`.
    pub(crate) fn push(&mut self, piece: Option<&str>, text: &str) -> Vec<Part> {
        let begin =
            self.format.map(Format::begin).filter(|begin| piece == Some(begin) && !text.contains(begin));
        let text = begin.unwrap_or_default().to_owned() + text;
        let Some(splitter) = &mut self.splitter else { return self.parts(vec![Piece::Answer(text)]) };
        let pieces = splitter.push(&text);
        self.parts(pieces)
    }

    /// Ends the answer.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let rest = self.splitter.take().and_then(ReasoningSplitter::finish);
        let mut parts = self.parts(rest.into_iter().collect());
        parts.extend(self.tools.take().map(ToolParser::finish).unwrap_or_default());
        parts
    }

    /// Returns whether the answer is complete, although the model may continue.
    pub(crate) fn is_complete(&self) -> bool {
        self.tools.as_ref().is_some_and(ToolParser::is_full)
    }

    fn parts(&mut self, pieces: Vec<Piece>) -> Vec<Part> {
        let mut parts = Vec::new();
        for piece in pieces {
            match (piece, &mut self.tools) {
                (Piece::Reasoning(text), _) => parts.push(Part::Reasoning(text)),
                (Piece::Answer(text), Some(tools)) => parts.extend(tools.push(&text)),
                (Piece::Answer(text), None) => parts.push(Part::Text(text)),
            }
        }
        parts.retain(|part| !matches!(part, Part::Text(text) | Part::Reasoning(text) if text.is_empty()));
        parts
    }
}

/// Cause of the end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    /// A stop string appeared.
    StopString,
    Length,
    Calls,
}

/// End of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) finish: Finish,
    pub(crate) reason: Reason,
    pub(crate) seed: u64,
    /// Index of the stop string that appeared.
    pub(crate) stop: Option<u32>,
    pub(crate) usage: Usage,
}

/// Tokens of an answer, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) new: u64,
    /// New tokens of the reasoning.
    pub(crate) reasoning: u64,
}

impl Ended {
    /// Describes the end of an answer. `reasoning` is the number of tokens before the text.
    pub(crate) fn new(summary: &Summary, has_calls: bool, reasoning: u64) -> Self {
        let finish = match summary.reason {
            _ if has_calls => Finish::Calls,
            Reason::MaxTokens | Reason::ContextFull | Reason::Deadline => Finish::Length,
            Reason::Stop => Finish::StopString,
            Reason::End | Reason::Cancelled => Finish::Stop,
        };
        let usage = Usage {
            prompt: summary.prompt_tokens.into(),
            cached: summary.cached_tokens.into(),
            new: summary.new_tokens.into(),
            reasoning,
        };
        Self { finish, reason: summary.reason, seed: summary.seed, stop: summary.stop, usage }
    }

    /// Returns a reason for the end that the finish reasons of the APIs hide.
    pub(crate) fn detail(&self) -> Option<&'static str> {
        match self.reason {
            Reason::Deadline => Some("deadline"),
            Reason::ContextFull => Some("context_full"),
            _ => None,
        }
    }
}

/// A call of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// Arguments as JSON.
    pub(crate) arguments: String,
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Choice {
    /// Index of its prompt.
    pub(crate) prompt: usize,
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
    /// Log probabilities of all tokens, if the request wants them.
    pub(crate) logs: Vec<Log>,
    pub(crate) ended: Option<Ended>,
}

impl Choice {
    pub(crate) fn add(&mut self, part: &Part) {
        match part {
            Part::Reasoning(text) => self.reasoning.push_str(text),
            Part::Text(text) => self.text.push_str(text),
            Part::Call { name } => self.calls.push(Call { name: name.clone(), ..Call::default() }),
            Part::Arguments(text) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(text);
                }
            }
        }
    }
}

/// Returns the tokens of all answers. The tokens of a prompt with several answers count once.
pub(crate) fn usage(choices: &[Choice]) -> Usage {
    let mut total = Usage::default();
    let mut counted = Vec::new();
    for choice in choices {
        let usage = choice.ended.map(|ended| ended.usage).unwrap_or_default();
        total.new += usage.new;
        total.reasoning += usage.reasoning;
        if !counted.contains(&choice.prompt) {
            counted.push(choice.prompt);
            total.prompt += usage.prompt;
            total.cached += usage.cached;
        }
    }
    total
}
