//! Splits source text into lines of tokens. Joins continued lines, and treats each comment as a blank.
//!
//! The lexer does not interpret directives or declarations.

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or a keyword.
    Word,
    /// A number, together with all letters and digits that follow it directly.
    Number,
    /// A string or a character literal.
    Quoted,
    /// Punctuation: a single character, or one of [`PAIRS`].
    Mark,
}

/// Two-character punctuation that the crate treats as one token.
const PAIRS: [&str; 9] = ["##", "&&", "||", "==", "!=", "<=", ">=", "<<", ">>"];

/// A token.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub kind: Kind,
    pub text: Rc<str>,
    /// Whether a blank precedes the token.
    pub spaced: bool,
    /// Whether the token must not be expanded, because it came from the expansion of the macro that it names.
    pub painted: bool,
}

impl Token {
    pub(crate) fn new(kind: Kind, text: &str) -> Self {
        Self { kind, text: text.into(), spaced: false, painted: false }
    }

    pub(crate) fn is_word(&self) -> bool {
        self.kind == Kind::Word
    }

    /// Returns whether the token is the word or punctuation `text`.
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Mark) && &*self.text == text
    }

    /// Joins the token and `right` into one token, as `##` does.
    pub(crate) fn joined(&self, right: &Token) -> Token {
        let text = [&*self.text, &*right.text].concat();
        let kind = match text.chars().next() {
            Some(c) if starts_word(c) => Kind::Word,
            Some(c) if c.is_ascii_digit() => Kind::Number,
            _ => Kind::Mark,
        };
        Token::new(kind, &text)
    }
}

fn starts_word(c: char) -> bool {
    c.is_alphabetic() || c == '_' || c == '$'
}

fn goes_on_word(c: char) -> bool {
    starts_word(c) || c.is_numeric()
}

/// Returns the lines of `source`, each as a list of tokens.
pub(crate) fn lines(source: &str) -> Vec<Vec<Token>> {
    let source = source.replace("\\\r\n", "").replace("\\\n", "");
    let mut lexer = Lexer { rest: &source, spaced: false, line: Vec::new(), lines: Vec::new() };
    while lexer.step() {}
    lexer.lines.push(lexer.line);
    lexer.lines
}

struct Lexer<'a> {
    rest: &'a str,
    spaced: bool,
    line: Vec<Token>,
    lines: Vec<Vec<Token>>,
}

impl<'a> Lexer<'a> {
    /// Reads one token, comment or blank. Returns false at the end of the source.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else { return false };
        if first == '\n' {
            self.take(1);
            self.spaced = false;
            self.lines.push(core::mem::take(&mut self.line));
        } else if self.rest.starts_with("//") {
            self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.take(self.rest[2..].find("*/").map_or(self.rest.len(), |end| end + 4));
            self.spaced = true;
        } else if first.is_whitespace() {
            self.take(first.len_utf8());
            self.spaced = true;
        } else {
            let (kind, bytes) = self.token(first);
            let token = Token { spaced: self.spaced, ..Token::new(kind, self.take(bytes)) };
            self.spaced = false;
            self.line.push(token);
        }
        true
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// Returns the kind and length in bytes of the token that starts with `first` at the current position.
    fn token(&self, first: char) -> (Kind, usize) {
        if first == '"' || first == '\'' {
            (Kind::Quoted, self.quoted(first))
        } else if starts_word(first) {
            (Kind::Word, self.run(goes_on_word))
        } else if first.is_ascii_digit() {
            (Kind::Number, self.run(|c| goes_on_word(c) || c == '.'))
        } else if PAIRS.iter().any(|pair| self.rest.starts_with(pair)) {
            (Kind::Mark, 2)
        } else {
            (Kind::Mark, first.len_utf8())
        }
    }

    fn run(&self, goes_on: impl Fn(char) -> bool) -> usize {
        self.rest.find(|c| !goes_on(c)).unwrap_or(self.rest.len())
    }

    /// Returns the length in bytes up to the closing quote, or up to the end of the line if there is no
    /// closing quote.
    fn quoted(&self, quote: char) -> usize {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                '\n' => return at,
                c if c == quote && !escaped => return at + 1,
                c => escaped = c == '\\' && !escaped,
            }
        }
        self.rest.len()
    }
}

/// Converts tokens to text, with blanks between words that would otherwise run together.
pub(crate) fn spelled<'a>(tokens: impl IntoIterator<Item = &'a Token>) -> String {
    let mut text = String::new();
    for token in tokens {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&token.text);
    }
    text
}
