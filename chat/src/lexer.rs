//! Splits the source of a template into tokens, by Jinja's rules for whitespace (`trim_blocks` and
//! `lstrip_blocks` are on, the last line break is dropped).

use crate::error::{Error, Result};
use crate::value::is_space;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// Text between tags.
    Data(Arc<str>),
    ExpressionBegin,
    ExpressionEnd,
    BlockBegin,
    BlockEnd,
    Name(Arc<str>),
    Str(Arc<str>),
    Int(i128),
    Float(f64),
    Operator(&'static str),
}

/// A token with the line on which it starts.
pub(crate) type Placed = (Token, u32);

/// Operators, longer ones before their prefixes.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",", ";",
];

/// Tag that interrupts the text of a template.
#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Expression,
    Block,
    Comment,
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    /// Whether the text after the last tag starts a line.
    at_line_start: bool,
    tokens: Vec<Placed>,
}

/// Splits a template into tokens.
pub(crate) fn tokens(source: &str) -> Result<Vec<Placed>> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, at: 0, line: 1, at_line_start: true, tokens: Vec::new() };
    while lexer.at < lexer.source.len() {
        lexer.text_and_tag()?;
    }
    Ok(lexer.tokens)
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn wrong<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Error::Syntax { line: self.line, what: what.into() })
    }

    fn skip(&mut self, bytes: usize) -> &'a str {
        let skipped = &self.rest()[..bytes];
        self.line += skipped.matches('\n').count() as u32;
        self.at += bytes;
        skipped
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.skip(rest.len() - rest.trim_start_matches(is_space).len());
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    /// Reads text up to the next tag, and the tag.
    fn text_and_tag(&mut self) -> Result<()> {
        let rest = self.rest();
        let found = rest.match_indices('{').find_map(|(at, _)| match rest.as_bytes().get(at + 1) {
            Some(b'{') => Some((at, Tag::Expression)),
            Some(b'%') => Some((at, Tag::Block)),
            Some(b'#') => Some((at, Tag::Comment)),
            _ => None,
        });
        let Some((length, tag)) = found else {
            self.push(Token::Data(rest.into()));
            self.skip(rest.len());
            return Ok(());
        };
        self.text(length, tag);
        self.skip(2);
        if self.rest().starts_with(['-', '+']) {
            self.skip(1);
        }
        match tag {
            Tag::Comment => self.comment(),
            Tag::Block if self.raw_begin() => self.raw(),
            Tag::Block => self.code(Token::BlockBegin, "%}", Token::BlockEnd),
            Tag::Expression => self.code(Token::ExpressionBegin, "}}", Token::ExpressionEnd),
        }
    }

    /// Emits the text of `length` bytes before `tag`, without the whitespace that the tag removes.
    fn text(&mut self, length: usize, tag: Tag) {
        let text = &self.rest()[..length];
        let sign = self.source.as_bytes().get(self.at + length + 2);
        let kept = self.strip(text, sign, tag != Tag::Expression);
        if !kept.is_empty() {
            self.push(Token::Data(kept.into()));
        }
        self.skip(length);
    }

    /// Returns `text` without the whitespace that the following tag removes. `sign` is the character after
    /// the tag's opening.
    fn strip<'t>(&self, text: &'t str, sign: Option<&u8>, is_block: bool) -> &'t str {
        match sign {
            Some(b'-') => text.trim_end_matches(is_space),
            Some(b'+') => text,
            _ if is_block => {
                let start = text.rfind('\n').map_or(0, |at| at + 1);
                let indents = start > 0 || self.at_line_start;
                if indents && text[start..].chars().all(is_space) { &text[..start] } else { text }
            }
            _ => text,
        }
    }

    /// Skips the end of a block tag or comment, which starts with an optional sign. Returns false if it is
    /// not next.
    fn block_end(&mut self, end: &str) -> bool {
        let rest = self.rest();
        let signed = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        if !signed.starts_with(end) {
            return false;
        }
        let sign = rest.as_bytes()[0];
        self.skip(rest.len() - signed.len() + end.len());
        let from = self.at;
        match sign {
            b'-' => self.skip_spaces(),
            b'+' => {}
            _ if self.rest().starts_with('\n') => _ = self.skip(1),
            _ => {}
        }
        self.at_line_start = self.source[from..self.at].ends_with('\n');
        true
    }

    fn comment(&mut self) -> Result<()> {
        let Some(end) = self.rest().find("#}") else {
            return self.wrong("a comment has no end (close it with #})");
        };
        let signed = self.rest()[..end].ends_with(['-', '+']);
        self.skip(end - usize::from(signed));
        self.block_end("#}");
        Ok(())
    }

    /// Skips the rest of the tag `raw`, if it is next.
    fn raw_begin(&mut self) -> bool {
        let rest = self.rest().trim_start_matches(is_space);
        let Some(rest) = rest.strip_prefix("raw") else { return false };
        let rest = rest.trim_start_matches(is_space);
        let (stripped, end) = match rest.strip_prefix("-%}") {
            Some(end) => (true, end),
            None => match rest.strip_prefix("%}") {
                Some(end) => (false, end),
                None => return false,
            },
        };
        self.skip(self.rest().len() - end.len());
        self.at_line_start = false;
        if stripped {
            let from = self.at;
            self.skip_spaces();
            self.at_line_start = self.source[from..self.at].ends_with('\n');
        }
        true
    }

    /// Reads text up to the tag `endraw`, and the tag.
    fn raw(&mut self) -> Result<()> {
        let rest = self.rest();
        for (at, _) in rest.match_indices("{%") {
            let inner = &rest[at + 2..];
            let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner).trim_start_matches(is_space);
            let Some(inner) = inner.strip_prefix("endraw") else { continue };
            let inner = inner.trim_start_matches(is_space);
            if !inner.strip_prefix(['-', '+']).unwrap_or(inner).starts_with("%}") {
                continue;
            }
            let kept = self.strip(&rest[..at], rest.as_bytes().get(at + 2), true);
            self.push(Token::Data(kept.into()));
            self.skip(rest.len() - inner.len());
            self.block_end("%}");
            return Ok(());
        }
        self.wrong("a raw block has no end (close it with {% endraw %})")
    }

    /// Reads the tokens of a tag up to its end.
    fn code(&mut self, begin: Token, end: &str, ended: Token) -> Result<()> {
        self.push(begin);
        let mut open = Vec::new();
        loop {
            self.skip_spaces();
            if open.is_empty() && self.tag_end(end) {
                self.push(ended);
                return Ok(());
            }
            let rest = self.rest();
            let Some(first) = rest.chars().next() else {
                return self.wrong(format!("a tag has no end (close it with {end})"));
            };
            if first.is_ascii_digit() {
                self.number()?;
            } else if first == '_' || first.is_alphabetic() {
                let length = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
                self.push(Token::Name(rest[..length].into()));
                self.skip(length);
            } else if first == '\'' || first == '"' {
                self.string(first)?;
            } else if let Some(operator) = OPERATORS.iter().find(|operator| rest.starts_with(**operator)) {
                self.bracket(&mut open, operator)?;
                self.push(Token::Operator(operator));
                self.skip(operator.len());
            } else {
                return self.wrong(format!("unexpected character {first:?}"));
            }
        }
    }

    fn tag_end(&mut self, end: &str) -> bool {
        if end == "%}" {
            return self.block_end(end);
        }
        let rest = self.rest();
        let stripped = rest.starts_with('-') && rest[1..].starts_with(end);
        if !stripped && !rest.starts_with(end) {
            return false;
        }
        self.skip(end.len() + usize::from(stripped));
        let from = self.at;
        if stripped {
            self.skip_spaces();
        }
        self.at_line_start = self.source[from..self.at].ends_with('\n');
        true
    }

    /// Checks that brackets match, because the end of a tag may also end dictionaries: `{{ {'a': {}} }}`.
    fn bracket(&self, open: &mut Vec<&'static str>, operator: &'static str) -> Result<()> {
        match operator {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" if open.pop() != Some(operator) => {
                return self.wrong(format!("unexpected {operator}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn number(&mut self) -> Result<()> {
        let rest = self.rest();
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let lower = rest.get(..2).unwrap_or_default().to_ascii_lowercase();
        let radix = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find(|(prefix, _)| lower == *prefix);
        if let Some((_, radix)) = radix {
            let body = &rest[2..];
            let length = body.find(|c: char| !c.is_digit(radix) && c != '_').unwrap_or(body.len());
            let Ok(number) = i128::from_str_radix(&body[..length].replace('_', ""), radix) else {
                return self.wrong("a number is invalid");
            };
            self.push(Token::Int(number));
            self.skip(2 + length);
            return Ok(());
        }
        let whole = digits(rest);
        let mut length = whole;
        // After a dot, as in `x.0.5`, numbers are whole.
        let after_dot = matches!(self.tokens.last(), Some((Token::Operator("."), _)));
        if !after_dot {
            if let Some(fraction) = rest[length..].strip_prefix('.').map(digits).filter(|n| *n > 0) {
                length += 1 + fraction;
            }
            if let Some(exponent) = rest[length..].strip_prefix(['e', 'E']) {
                let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
                let count = digits(unsigned);
                if count > 0 {
                    length += 1 + exponent.len() - unsigned.len() + count;
                }
            }
        }
        let text = rest[..length].replace('_', "");
        let token = match length == whole {
            true => text.parse().ok().map(Token::Int),
            false => text.parse().ok().map(Token::Float),
        };
        let Some(token) = token else { return self.wrong("a number is too large") };
        self.push(token);
        self.skip(length);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<()> {
        let body = &self.rest()[1..];
        let mut text = String::new();
        let mut chars = body.char_indices();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.push(Token::Str(text.into()));
                self.skip(at + 2);
                return Ok(());
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some((at, escape)) = chars.next() else { break };
            let Some(length) = unescape(escape, &body[at + escape.len_utf8()..], &mut text) else {
                return self.wrong(format!("a text has the invalid escape \\{escape}"));
            };
            (0..length).for_each(|_| _ = chars.next());
        }
        self.wrong("a text has no end (a quote is missing)")
    }
}

/// Appends the character that an escape sequence in a text stands for. Returns the number of characters of
/// `rest` that belong to the sequence, or `None` if the sequence is invalid.
fn unescape(escape: char, rest: &str, text: &mut String) -> Option<usize> {
    let simple = match escape {
        '\n' => return Some(0),
        '\\' | '\'' | '"' => Some(escape),
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        'a' => Some('\x07'),
        'b' => Some('\x08'),
        'f' => Some('\x0c'),
        'v' => Some('\x0b'),
        _ => None,
    };
    if let Some(c) = simple {
        text.push(c);
        return Some(0);
    }
    let (digits, radix, skipped) = match escape {
        'x' => (rest.get(..2)?.to_owned(), 16, 2),
        'u' => (rest.get(..4)?.to_owned(), 16, 4),
        'U' => (rest.get(..8)?.to_owned(), 16, 8),
        '0'..='7' => {
            let more = rest.chars().take(2).take_while(|c| c.is_digit(8)).count();
            (format!("{escape}{}", &rest[..more]), 8, more)
        }
        'N' => return None,
        other => {
            text.extend(['\\', other]);
            return Some(0);
        }
    };
    let code =
        digits.chars().all(|c| c.is_digit(radix)).then(|| u32::from_str_radix(&digits, radix).ok())??;
    text.push(char::from_u32(code)?);
    Some(skipped)
}
