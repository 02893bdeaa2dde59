//! Calls of functions in the text of an answer.
//!
//! A parser finds them while the text arrives, in the format that the model's template asks for, and passes on the
//! arguments at once. Text that turns out not to be a call stays text.

/// Format of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, as Hermes and Qwen write it.
    Tagged,
    /// `[TOOL_CALLS]` before a list of such objects, or before a name with its arguments, as Mistral writes it.
    Listed,
    /// `{"name": …, "parameters": …}` as the whole answer, as Llama 3 writes it.
    Bare,
}

/// End of a call in the tagged format.
pub(crate) const END: &str = "</tool_call>";
/// Maximum length of the name of a function in bytes.
const MAX_NAME_BYTES: usize = 128;

impl Format {
    /// Returns the format that a chat template asks for. Returns `None` if the template knows no tools, or if it asks for
    /// another format.
    pub(crate) fn of(template: &str) -> Option<Self> {
        let has = |text: &str| template.contains(text);
        match () {
            () if !has("tools") || has("<function=") || has("<arg_key>") => None,
            () if has("[TOOL_CALLS]") => Some(Self::Listed),
            () if has("<tool_call>") => Some(Self::Tagged),
            () if has("<|eot_id|>") && has("parameters") => Some(Self::Bare),
            () => None,
        }
    }

    /// Returns the text before a call. Some vocabularies have it as a control token, which has no text.
    pub(crate) fn begin(self) -> &'static str {
        match self {
            Self::Tagged => "<tool_call>",
            Self::Listed => "[TOOL_CALLS]",
            Self::Bare => "<|python_tag|>",
        }
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Reasoning(String),
    Text(String),
    /// A call begins.
    Call {
        name: String,
    },
    /// More of the arguments of the last call, as JSON.
    Arguments(String),
}

/// A parser of the text after the reasoning.
#[derive(Debug)]
pub(crate) struct ToolParser {
    format: Format,
    state: State,
    /// Text that is not yet certain.
    held: String,
    /// Whether text other than white space has been passed on.
    has_text: bool,
    /// Text since the last call, which is restored if no call follows it.
    opened: String,
    calls: usize,
    /// Whether white space is left out, because a call has ended.
    is_after_call: bool,
    /// Whether nothing counts after the first call.
    takes_one: bool,
}

#[derive(Debug)]
enum State {
    Text,
    /// Before a call, or after one.
    Between,
    /// In a call. `held` begins with it.
    Call(Scan),
}

impl ToolParser {
    pub(crate) fn new(format: Format, takes_one: bool) -> Self {
        Self {
            format,
            state: State::Text,
            held: String::new(),
            has_text: false,
            opened: String::new(),
            calls: 0,
            is_after_call: false,
            takes_one,
        }
    }

    /// Adds text and returns the parts that are certain.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while !self.is_full() && self.step(&mut parts) {}
        parts
    }

    /// Returns whether nothing that follows counts.
    pub(crate) fn is_full(&self) -> bool {
        self.takes_one && self.calls > 0
    }

    /// Ends the answer.
    pub(crate) fn finish(mut self) -> Vec<Part> {
        let is_separator = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '[' | ']');
        let is_done = match &self.state {
            State::Text => self.is_after_call && self.held.trim().is_empty(),
            State::Between => {
                self.calls > 0 && self.opened.trim().is_empty() && self.held.chars().all(is_separator)
            }
            State::Call(scan) => scan.is_announced,
        };
        let mut parts = Vec::new();
        if !is_done && !self.is_full() {
            let text = self.opened.clone() + &self.held;
            self.pass(&text, &mut parts);
        }
        parts
    }

    /// Makes one step. Returns false if more text is needed.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match &mut self.state {
            State::Text => self.text(parts),
            State::Between => self.between(parts),
            State::Call(scan) => {
                scan.feed(&self.held, parts);
                let Some(end) = scan.end else { return false };
                if scan.is_announced || scan.announce_whole(&self.held, self.format, parts) {
                    self.calls += 1;
                    self.opened.clear();
                    self.held.drain(..end);
                    self.state = State::Between;
                } else {
                    self.give_up(parts);
                }
                true
            }
        }
    }

    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        let begin = self.format.begin();
        let is_start = !self.has_text && self.calls == 0;
        if is_start && self.format == Format::Bare && self.held.trim_start().starts_with('{') {
            self.state = State::Between;
            return true;
        }
        if self.is_after_call {
            self.held = self.held.trim_start().to_owned();
            self.is_after_call = self.held.is_empty();
        }
        let begins = self.held.find(begin);
        let certain = begins.unwrap_or(self.held.len() - overlap(&self.held, begin));
        // White space before a call belongs to the call.
        let rest = self.held.split_off(self.held[..certain].trim_end().len());
        let text = std::mem::replace(&mut self.held, rest);
        self.pass(&text, parts);
        if begins.is_some() {
            self.skip(certain - text.len() + begin.len());
            self.state = State::Between;
        }
        begins.is_some()
    }

    fn between(&mut self, parts: &mut Vec<Part>) -> bool {
        let begin = self.format.begin();
        let is_listed = self.format == Format::Listed;
        let rest = self.held.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ',' | ';'));
        let skipped = self.held.len() - rest.len();
        if rest.starts_with(begin) {
            self.skip(skipped + begin.len());
            return true;
        }
        if rest.starts_with(END) && self.format == Format::Tagged && self.opened.trim().is_empty() {
            self.opened.clear();
            (self.held, self.state) = (rest[END.len()..].to_owned(), State::Text);
            self.is_after_call = true;
            return true;
        }
        let open = if is_listed { rest.trim_start_matches(['[', ']', ',', ' ', '\n']) } else { rest };
        let (skipped, length) = (self.held.len() - open.len(), open.len());
        if open.starts_with('{') {
            self.skip(skipped);
            self.state = State::Call(Scan::default());
            return true;
        }
        if is_listed
            && self.opened.contains(begin)
            && let Some(at) = open.find('{')
        {
            let name = open[..at].split('[').next().unwrap_or_default().trim();
            if is_name(name) {
                let scan = Scan { is_named: true, name: Some(name.to_owned()), ..Scan::default() };
                self.skip(skipped + at);
                self.state = State::Call(scan);
                return true;
            }
        }
        let may_be_name =
            is_listed && !open.contains('{') && length < MAX_NAME_BYTES && self.opened.contains(begin);
        let may_end = self.format == Format::Tagged && END.starts_with(rest);
        if open.is_empty() || begin.starts_with(rest) || may_end || may_be_name {
            return false;
        }
        self.give_up(parts);
        true
    }

    /// Skips the first `bytes` bytes of the held text, which belong to no call and perhaps not to the text.
    fn skip(&mut self, bytes: usize) {
        self.opened.extend(self.held.drain(..bytes));
    }

    /// Passes on the text since the last call, because it is no call. What follows its first character may be one.
    fn give_up(&mut self, parts: &mut Vec<Part>) {
        let first = self.held.chars().next().map_or(0, char::len_utf8);
        self.skip(first);
        let text = std::mem::take(&mut self.opened);
        self.pass(&text, parts);
        self.state = State::Text;
    }

    fn pass(&mut self, text: &str, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            self.has_text |= !text.trim().is_empty();
            parts.push(Part::Text(text.to_owned()));
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && text.chars().all(is_letter)
}

/// Returns the length of the longest beginning of `marker` with which `text` ends, in bytes.
fn overlap(text: &str, marker: &str) -> usize {
    (1..marker.len()).rev().find(|&bytes| text.ends_with(&marker[..bytes])).unwrap_or(0)
}

/// Progress within the JSON object of a call.
#[derive(Debug, Default)]
struct Scan {
    /// Bytes that have been read.
    at: usize,
    depth: usize,
    /// Start of the current string.
    string: Option<usize>,
    is_escaped: bool,
    /// Key whose value is being read.
    key: Option<String>,
    is_after_colon: bool,
    /// Start of the current value.
    value: Option<usize>,
    /// Whether the object is the arguments of a call whose name came before it.
    is_named: bool,
    name: Option<String>,
    /// Range of the arguments. The end is unknown while they arrive.
    arguments: Option<(usize, Option<usize>)>,
    sent: usize,
    is_announced: bool,
    /// End of the object.
    end: Option<usize>,
}

impl Scan {
    /// Reads the new bytes of `text`, and passes on arguments.
    fn feed(&mut self, text: &str, parts: &mut Vec<Part>) {
        let bytes = text.as_bytes();
        while self.end.is_none() && self.at < bytes.len() {
            self.byte(text, bytes[self.at]);
            self.at += 1;
        }
        self.announce(text, parts);
    }

    fn byte(&mut self, text: &str, byte: u8) {
        let at = self.at;
        if let Some(start) = self.string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => {
                    self.string = None;
                    if self.depth == 1 && self.key.is_none() {
                        self.key = serde_json::from_str(&text[start..=at]).ok();
                    } else if self.depth == 1 {
                        self.value_ends(text, at + 1);
                    }
                }
                _ => {}
            }
            return;
        }
        if self.is_after_colon && !byte.is_ascii_whitespace() {
            (self.is_after_colon, self.value) = (false, Some(at));
            if byte == b'{' && self.is_arguments() {
                self.arguments = Some((at, None));
            }
        }
        match byte {
            b'"' => self.string = Some(at),
            b':' if self.depth == 1 && self.value.is_none() => self.is_after_colon = self.key.is_some(),
            b',' if self.depth == 1 => self.value_ends(text, at),
            b'{' | b'[' => {
                if self.depth == 0 && self.is_named {
                    self.arguments = Some((at, None));
                }
                self.depth += 1;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                match self.depth {
                    0 => self.object_ends(text, at),
                    1 => self.value_ends(text, at + 1),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn object_ends(&mut self, text: &str, at: usize) {
        if self.is_named {
            self.arguments = self.arguments.map(|(start, _)| (start, Some(at + 1)));
        } else {
            self.value_ends(text, at);
        }
        self.end = Some(at + 1);
    }

    fn is_arguments(&self) -> bool {
        !self.is_named && self.depth == 1 && matches!(self.key.as_deref(), Some("arguments" | "parameters"))
    }

    fn value_ends(&mut self, text: &str, end: usize) {
        let Some(start) = self.value.take() else { return };
        match self.key.take().as_deref() {
            Some("name") if !self.is_named => self.name = serde_json::from_str(&text[start..end]).ok(),
            Some("arguments" | "parameters") if !self.is_named => self.arguments = Some((start, Some(end))),
            _ => {}
        }
    }

    /// Passes on the name as soon as the arguments begin, and then the arguments.
    fn announce(&mut self, text: &str, parts: &mut Vec<Part>) {
        let Some((start, end)) = self.arguments.filter(|(start, _)| text[*start..].starts_with('{')) else {
            return;
        };
        let Some(name) = &self.name else { return };
        if !self.is_announced {
            parts.push(Part::Call { name: name.clone() });
            (self.is_announced, self.sent) = (true, start);
        }
        let until = end.unwrap_or(self.at);
        if until > self.sent {
            parts.push(Part::Arguments(text[self.sent..until].to_owned()));
            self.sent = until;
        }
    }

    /// Passes on a complete call whose arguments are no object. Returns false if it is no call.
    fn announce_whole(&self, text: &str, format: Format, parts: &mut Vec<Part>) -> bool {
        let Some(name) = &self.name else { return false };
        let arguments = match self.arguments {
            Some((start, Some(end))) => &text[start..end],
            _ if format == Format::Bare => return false,
            _ => "{}",
        };
        // Some models write the arguments as a string that contains JSON.
        let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.to_owned());
        parts.extend([Part::Call { name: name.clone() }, Part::Arguments(arguments)]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Parses `text` in pieces of `bytes` characters. Returns the text, and the calls as `name(arguments)`.
    fn parse(format: Format, text: &str, characters: usize) -> (String, Vec<String>) {
        let mut parser = ToolParser::new(format, false);
        let all: Vec<char> = text.chars().collect();
        let mut parts = Vec::new();
        for piece in all.chunks(characters) {
            parts.extend(parser.push(&piece.iter().collect::<String>()));
        }
        parts.extend(parser.finish());
        let (mut text, mut calls) = (String::new(), Vec::<String>::new());
        for part in parts {
            match part {
                Part::Text(more) | Part::Reasoning(more) => text.push_str(&more),
                Part::Call { name } => calls.push(name + " "),
                Part::Arguments(more) => calls.last_mut().unwrap().push_str(&more),
            }
        }
        (text, calls)
    }

    #[test]
    fn calls_are_found_however_the_text_arrives() {
        use Format::{Bare, Listed, Tagged};
        let cases: &[(Format, &str, &str, &[&str])] = &[
            (Tagged, "Hi <b>", "Hi <b>", &[]),
            (
                Tagged,
                "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{ü\"}}\n</tool_call>\n",
                "",
                &["f {\"a\": \"}\\\"{ü\"}"],
            ),
            (
                Tagged,
                "So: <tool_call>{\"arguments\": {\"b\": [1, {}]}, \"name\": \"g\"}</tool_call><tool_call>{\"name\":\"h\"}</tool_call> ok",
                "So:ok",
                &["g {\"b\": [1, {}]}", "h {}"],
            ),
            (
                Tagged,
                "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\":1}\"}</tool_call>",
                "",
                &["f {\"a\":1}"],
            ),
            (Tagged, "<tool_call>none</tool_call>", "<tool_call>none</tool_call>", &[]),
            (Tagged, "<tool_call>{\"name\": \"f\", \"argum", "<tool_call>{\"name\": \"f\", \"argum", &[]),
            (Tagged, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a", "", &["f {\"a"]),
            (
                Listed,
                "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {\"x\": 1}}]",
                "",
                &["f {}", "g {\"x\": 1}"],
            ),
            (
                Listed,
                "[TOOL_CALLS]f[ARGS]{\"name\": \"x\"}[TOOL_CALLS]g{\"y\": 2}",
                "",
                &["f {\"name\": \"x\"}", "g {\"y\": 2}"],
            ),
            (Listed, "a list [1, 2]", "a list [1, 2]", &[]),
            (
                Bare,
                " {\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}}",
                "",
                &["f {\"a\": 1}", "g {}"],
            ),
            (
                Bare,
                "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}",
                "",
                &["f {\"a\": 1}"],
            ),
            (Bare, "{\"name\": \"Ada\"}", "{\"name\": \"Ada\"}", &[]),
            (
                Bare,
                "An object: {\"name\": \"f\", \"parameters\": {}}",
                "An object: {\"name\": \"f\", \"parameters\": {}}",
                &[],
            ),
        ];
        for (format, answer, text, calls) in cases {
            for characters in 1..=answer.chars().count() {
                let found = parse(*format, answer, characters);
                let calls: Vec<String> = calls.iter().map(ToString::to_string).collect();
                assert_eq!(found, ((*text).to_owned(), calls), "{answer:?} in pieces of {characters}");
            }
        }
    }

    proptest! {
        /// However the text arrives, the result is the same, and no text is lost without a call.
        #[test]
        fn pieces_do_not_matter(
            format in prop::sample::select(vec![Format::Tagged, Format::Listed, Format::Bare]),
            fragments in prop::collection::vec(prop::sample::select(FRAGMENTS.to_vec()), 0..12),
            characters in 1..9_usize,
        ) {
            let text = fragments.concat();
            let whole = parse(format, &text, text.len().max(1));
            prop_assert_eq!(&parse(format, &text, characters), &whole);
            if whole.1.is_empty() {
                let solid = |text: &str| text.split_whitespace().collect::<String>();
                prop_assert_eq!(solid(&whole.0), solid(&text));
            }
        }
    }

    /// Fragments of calls.
    const FRAGMENTS: [&str; 20] = [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "{",
        "}",
        "[",
        "]",
        "\"name\"",
        "\"f\"",
        ": ",
        ", ",
        "\"arguments\"",
        "\"parameters\"",
        "{\"name\": \"g\", \"arguments\": {\"a\": \"}\"}}",
        "\\\"",
        "ü",
        "\n",
        "f",
    ];

    #[test]
    fn templates_tell_their_format() {
        assert_eq!(Format::of("{% if tools %}<tool_call>"), Some(Format::Tagged));
        assert_eq!(Format::of("{{ tools }}[TOOL_CALLS]"), Some(Format::Listed));
        assert_eq!(Format::of("tools \"parameters\" <|eot_id|>"), Some(Format::Bare));
        assert_eq!(Format::of("{{ messages }}"), None);
        assert_eq!(Format::of("tools <tool_call><function=f>"), None);
    }
}
