//! A conversation with a model: its messages, the prompt for the next answer, and answers of models that
//! think before they answer.

use crate::error::{Error, Result};
use crate::model::Model;
use ragtag_chat::{Conversation, Data, Message, Moment, Object, Template, from_json, to_json};
use std::collections::{BTreeMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

/// Texts around the reasoning of an answer. Models of these families write them as plain text.
const MARKERS: [(&str, &str); 2] = [("<think>", "</think>"), ("<seed:think>", "</seed:think>")];

/// A conversation with a model.
#[derive(Debug)]
pub struct Dialogue {
    model: Model,
    template: Template,
    /// Name of the template in errors.
    name: String,
    variables: BTreeMap<String, Data>,
    /// Messages, oldest first.
    messages: Vec<Message>,
    /// Functions that the model may call.
    tools: Vec<Object>,
    /// Whether control tokens in the messages become tokens.
    special: bool,
}

/// Input for the next answer of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerPrompt {
    /// Token ids of the conversation.
    pub ids: Vec<u32>,
    /// Splitter for the answer. It knows whether the prompt has already begun the reasoning.
    pub splitter: ReasoningSplitter,
}

impl Dialogue {
    /// Starts a conversation with the chat template of `model`.
    ///
    /// # Errors
    /// Returns [`Error::NoTemplate`] if the model has no chat template, and [`Error::Template`] if its
    /// template is invalid.
    pub fn new(model: &Model) -> Result<Self> {
        let template = model.chat_template(None, false)?;
        Self::of(model, template, model.name())
    }

    /// Starts a conversation with the template `source`. Errors call the template `name`.
    ///
    /// # Errors
    /// Returns [`Error::Template`] if the template is invalid.
    pub fn with_template(model: &Model, source: &str, name: &str) -> Result<Self> {
        let compiled = Template::compile(source);
        let template = compiled.map_err(|cause| Error::Template { name: name.into(), cause })?;
        Self::of(model, template, name)
    }

    fn of(model: &Model, template: Template, name: &str) -> Result<Self> {
        let tokens = model.chat_templates()?.tokens;
        let variables = tokens.iter().map(|(name, text)| (name.clone(), text.as_str().into())).collect();
        Ok(Self {
            model: model.clone(),
            template,
            name: name.into(),
            variables,
            messages: Vec::new(),
            tools: Vec::new(),
            special: false,
        })
    }

    /// Sets a variable of the template, such as `enable_thinking`.
    pub fn set(&mut self, name: &str, value: Data) {
        self.variables.insert(name.into(), value);
    }

    /// Sets whether the texts of control tokens in the messages become control tokens. By default, they stay text.
    pub fn set_special(&mut self, special: bool) {
        self.special = special;
    }

    /// Sets the functions that the model may call. Only templates that know tools show them to the model.
    pub fn set_tools(&mut self, tools: Vec<Object>) {
        self.tools = tools;
    }

    /// Replaces all messages.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// Returns the messages, oldest first.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Replaces all messages by those of a JSON list.
    ///
    /// # Errors
    /// Returns the cause if the text is not a list of messages, and the template's message if the template
    /// rejects them. The conversation then keeps its messages.
    pub fn load(&mut self, json: &str) -> std::result::Result<(), String> {
        let loaded: Vec<Message> = from_json(json).map_err(|cause| cause.to_string())?;
        if let Some(at) = loaded.iter().position(|message| message.get("role").is_none()) {
            return Err(format!("message {} has no role", at + 1));
        }
        let before = std::mem::replace(&mut self.messages, loaded);
        if let Err(cause) = self.render(&self.messages, &self.tools, false) {
            self.messages = before;
            return Err(cause.to_string());
        }
        Ok(())
    }

    /// Removes all messages except the system message.
    pub fn reset(&mut self) {
        self.messages.retain(is_system);
    }

    /// Returns the system message, if its content is a text.
    pub fn system(&self) -> Option<&str> {
        self.messages.iter().find(|message| is_system(message))?.content()
    }

    /// Sets the system message, or removes it if `text` is empty.
    pub fn set_system(&mut self, text: &str) {
        self.messages.retain(|message| !is_system(message));
        if !text.is_empty() {
            self.messages.insert(0, Message::new("system", text));
        }
    }

    /// Adds a message of the user.
    pub fn ask(&mut self, text: &str) {
        self.messages.push(Message::new("user", text));
    }

    /// Adds an answer of the model. The reasoning is a field of its own, which templates read by name.
    pub fn answer(&mut self, text: &str, reasoning: &str) {
        let answer = Message::new("assistant", text);
        self.messages.push(match reasoning {
            "" => answer,
            _ => answer.with("reasoning_content", reasoning),
        });
    }

    /// Removes the last message.
    pub fn forget_last(&mut self) {
        self.messages.pop();
    }

    /// Removes the `turns` oldest turns. A turn is a message of the user with all messages up to the next one. Keeps
    /// the system message and the last turn.
    pub fn drop_turns(&mut self, turns: usize) {
        self.messages = self.recent(turns);
    }

    /// Returns the messages without the `turns` oldest turns.
    fn recent(&self, turns: usize) -> Vec<Message> {
        let starts = self.turns();
        let from = starts.get(turns).or(starts.last()).copied().unwrap_or(0);
        let recent = |(at, message): &(usize, &Message)| *at >= from || is_system(message);
        self.messages.iter().enumerate().filter(recent).map(|(_, message)| message.clone()).collect()
    }

    /// Returns the index of the first message of each turn. Messages before the first message of the user belong to
    /// the first turn.
    fn turns(&self) -> Vec<usize> {
        let is_user = |message: &Message| message.role() == Some("user");
        let users = self.messages.iter().enumerate().filter(|(_, message)| is_user(message));
        let mut starts: Vec<usize> = users.map(|(at, _)| at).collect();
        starts.iter_mut().take(1).for_each(|first| *first = 0);
        starts
    }

    /// Returns the prompt for the next answer.
    ///
    /// The texts of control tokens in the messages stay text, except after [`Dialogue::set_special`]. Those of the
    /// template become control tokens. The role of a message belongs to the template.
    ///
    /// # Errors
    /// Returns [`Error::Template`] if the template rejects the messages or exceeds its limits, and
    /// [`Error::Tokenizer`] if the prompt cannot be encoded.
    pub fn prompt(&self) -> Result<AnswerPrompt> {
        self.prompt_of(&self.messages)
    }

    /// Returns the prompt for the next answer without the oldest turns, and the number of turns that it leaves out.
    /// Leaves out as few turns as necessary for at most `tokens` tokens. If even the last turn needs more tokens,
    /// leaves out all turns before it. [`Dialogue::drop_turns`] removes the turns from the conversation.
    ///
    /// # Errors
    /// As for [`Dialogue::prompt`].
    pub fn prompt_within(&self, tokens: usize) -> Result<(AnswerPrompt, usize)> {
        let prompt = self.prompt()?;
        let (mut too_few, mut dropped) = (0, self.turns().len().saturating_sub(1));
        if prompt.ids.len() <= tokens || dropped == 0 {
            return Ok((prompt, 0));
        }
        let mut prompt = self.prompt_of(&self.recent(dropped))?;
        let fits = prompt.ids.len() <= tokens;
        // Bisects, because each prompt is encoded anew.
        while fits && dropped - too_few > 1 {
            let middle = too_few.midpoint(dropped);
            let shorter = self.prompt_of(&self.recent(middle))?;
            if shorter.ids.len() <= tokens {
                (prompt, dropped) = (shorter, middle);
            } else {
                too_few = middle;
            }
        }
        Ok((prompt, dropped))
    }

    fn prompt_of(&self, messages: &[Message]) -> Result<AnswerPrompt> {
        let failed = |cause| Error::Tokenizer { name: self.model.name().into(), cause };
        let tokenizer = self.model.tokenizer()?;
        let (text, ids) = if self.special {
            let text = self.render(messages, &self.tools, true)?;
            let ids = tokenizer.encode_with_control(&text, false);
            (text, ids)
        } else {
            let mark = mark(messages, &self.tools);
            let mut insert = |text: &str| tokenizer.mark_control(text, mark).into_owned();
            let (mut messages, mut tools) = (messages.to_vec(), self.tools.clone());
            messages.iter_mut().for_each(|message| message.replace_texts(&mut insert));
            tools.iter_mut().for_each(|tool| tool.replace_texts(&mut insert));
            let text = self.render(&messages, &tools, true)?;
            let ids = tokenizer.encode_marked(&text, false, mark);
            (text, ids)
        };
        let mut ids = ids.map_err(failed)?;
        // Most templates write the start token. The others rely on the tokenizer to add it.
        let start = tokenizer.added_bos();
        if start.is_some() && start != ids.first().copied() {
            ids.splice(0..0, start);
        }
        Ok(AnswerPrompt { ids, splitter: ReasoningSplitter::after(&text) })
    }

    /// Returns the text of the prompt for the next answer.
    ///
    /// # Errors
    /// Returns [`Error::Template`] if the template rejects the messages or exceeds its limits.
    pub fn prompt_text(&self) -> Result<String> {
        self.render(&self.messages, &self.tools, true)
    }

    /// Returns whether the template adds nothing to the only message. The prompt then is the message itself.
    ///
    /// # Errors
    /// Returns [`Error::Template`] if the template rejects the messages or exceeds its limits.
    pub fn is_bare(&self) -> Result<bool> {
        let [only] = &self.messages[..] else { return Ok(false) };
        let text = self.prompt_text()?;
        Ok(only.content() == Some(text.as_str()))
    }

    fn render(&self, messages: &[Message], tools: &[Object], add_generation_prompt: bool) -> Result<String> {
        let mut conversation = Conversation::new(messages.to_vec());
        conversation.tools = Some(tools.to_vec()).filter(|tools| !tools.is_empty());
        conversation.add_generation_prompt = add_generation_prompt;
        conversation.variables.clone_from(&self.variables);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        conversation.now = now.and_then(|since| Moment::from_epoch(since.as_secs()));
        let rendered = self.template.render(&conversation);
        rendered.map_err(|cause| Error::Template { name: self.name.clone(), cause })
    }
}

fn is_system(message: &Message) -> bool {
    message.role() == Some("system")
}

/// Returns a character that occurs neither in the messages nor in the tools. Texts use no noncharacters, so it is almost
/// always the first one.
fn mark(messages: &[Message], tools: &[Object]) -> char {
    let mut used: HashSet<char> = to_json(messages).chars().collect();
    for tool in tools {
        tool.clone().replace_texts(&mut |text| {
            used.extend(text.chars());
            String::new()
        });
    }
    let mut free = ('\u{FDD0}'..='\u{FDEF}').chain('\u{E000}'..='\u{F8FF}').filter(|c| !used.contains(c));
    // Messages with all these characters lose the replacement character.
    free.next().unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text that the model wrote before its answer.
    Reasoning(String),
    /// Text of the answer.
    Answer(String),
}

/// Splits an answer into reasoning and answer while the text arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningSplitter {
    state: State,
    /// Text that may be the beginning of a marker.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No text but white space has arrived.
    Start,
    /// White space before the reasoning is left out. The reasoning ends with this marker.
    Opened(&'static str),
    /// The text up to this marker is reasoning.
    Reasoning(&'static str),
    /// White space between the reasoning and the answer is left out.
    Between,
    Answer,
}

impl ReasoningSplitter {
    /// Creates a splitter for an answer that follows `prompt`.
    pub fn after(prompt: &str) -> Self {
        let open = MARKERS.into_iter().find(|(begin, _)| prompt.trim_end().ends_with(begin));
        let state = open.map_or(State::Start, |(_, end)| State::Opened(end));
        Self { state, held: String::new() }
    }

    /// Returns the marker that ends the reasoning, if the prompt has begun one.
    pub fn end(&self) -> Option<&'static str> {
        match self.state {
            State::Opened(end) | State::Reasoning(end) => Some(end),
            State::Start | State::Between | State::Answer => None,
        }
    }

    /// Adds text and returns the pieces that are certain.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while let Some(piece) = self.next() {
            pieces.extend(piece);
        }
        pieces
    }

    /// Ends the answer and returns the text that was held back.
    pub fn finish(mut self) -> Option<Piece> {
        let rest = std::mem::take(&mut self.held);
        let is_reasoning = matches!(self.state, State::Opened(_) | State::Reasoning(_));
        let piece = if is_reasoning { Piece::Reasoning(rest) } else { Piece::Answer(rest) };
        Some(piece).filter(|piece| !piece.text().is_empty())
    }

    /// Leaves out white space. Changes to `state` as soon as other text follows.
    fn after_space(&mut self, state: State) -> Option<Option<Piece>> {
        self.held = self.held.trim_start().to_owned();
        if self.held.is_empty() {
            return None;
        }
        self.state = state;
        Some(None)
    }

    /// Makes one step. Returns `None` if more text is needed.
    fn next(&mut self) -> Option<Option<Piece>> {
        match self.state {
            State::Start => {
                let text = self.held.trim_start();
                if let Some((begin, end)) = MARKERS.into_iter().find(|(begin, _)| text.starts_with(begin)) {
                    self.held = text[begin.len()..].to_owned();
                    self.state = State::Opened(end);
                    return Some(None);
                }
                if MARKERS.iter().any(|(begin, _)| begin.starts_with(text)) {
                    return None;
                }
                self.state = State::Answer;
                Some(None)
            }
            State::Reasoning(end) => {
                if let Some(at) = self.held.find(end) {
                    let reasoning = self.held[..at].to_owned();
                    self.held = self.held[at + end.len()..].to_owned();
                    self.state = State::Between;
                    return Some(Some(Piece::Reasoning(reasoning)).filter(|piece| !piece.text().is_empty()));
                }
                let certain = self.held.len() - overlap(&self.held, end);
                let rest = self.held.split_off(certain);
                let reasoning = std::mem::replace(&mut self.held, rest);
                (!reasoning.is_empty()).then_some(Some(Piece::Reasoning(reasoning)))
            }
            State::Opened(end) => self.after_space(State::Reasoning(end)),
            State::Between => self.after_space(State::Answer),
            State::Answer => {
                let text = std::mem::take(&mut self.held);
                (!text.is_empty()).then_some(Some(Piece::Answer(text)))
            }
        }
    }
}

impl Piece {
    /// Returns the text.
    pub fn text(&self) -> &str {
        match self {
            Piece::Reasoning(text) | Piece::Answer(text) => text,
        }
    }
}

/// Returns the length of the longest beginning of `marker` with which `text` ends, in bytes.
fn overlap(text: &str, marker: &str) -> usize {
    (1..marker.len()).rev().find(|&bytes| text.ends_with(&marker[..bytes])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits `text` in pieces of `bytes` bytes and joins the pieces of both kinds.
    fn split(prompt: &str, text: &str, bytes: usize) -> (String, String) {
        let mut splitter = ReasoningSplitter::after(prompt);
        let (mut reasoning, mut answer) = (String::new(), String::new());
        let mut take = |piece: Piece| match piece {
            Piece::Reasoning(text) => reasoning.push_str(&text),
            Piece::Answer(text) => answer.push_str(&text),
        };
        for part in text.as_bytes().chunks(bytes) {
            splitter.push(std::str::from_utf8(part).unwrap()).into_iter().for_each(&mut take);
        }
        splitter.finish().into_iter().for_each(&mut take);
        (reasoning, answer)
    }

    #[test]
    fn reasoning_and_answer_are_split_at_their_markers_however_the_text_arrives() {
        let cases = [
            ("", "<think>\na < b </th\n</think>\n\nYes.", "a < b </th\n", "Yes."),
            ("", "\n<think></think>Yes.", "", "Yes."),
            ("<assistant><think>\n", "because</think>Yes.", "because", "Yes."),
            ("", "<thin air>", "", "<thin air>"),
            ("", "Yes <think>no</think>", "", "Yes <think>no</think>"),
            ("", " \n Yes.", "", " \n Yes."),
            ("", "<think>never ends </thi", "never ends </thi", ""),
            ("", "<seed:think>x</seed:think> y", "x", "y"),
            ("", "", "", ""),
        ];
        for (prompt, text, reasoning, answer) in cases {
            for bytes in 1..=text.len().max(1) {
                let expected = (reasoning.to_owned(), answer.to_owned());
                assert_eq!(split(prompt, text, bytes), expected, "{text:?} in parts of {bytes}");
            }
        }
    }
}
