//! Translates GBNF, the grammar format of llama.cpp, to Lark.
//!
//! GBNF works on characters. Lark works on lexemes, and the longest one wins. Therefore each character becomes a lexeme of
//! its own. Groups become rules, so the result is not nested.

use std::collections::HashMap;
use std::fmt::Write;

/// Maximum depth of groups.
const MAX_DEPTH: usize = 64;
/// Maximum number of rules with names. The compiler visits rules recursively.
pub(super) const MAX_RULES: usize = 1000;
/// Maximum number of repetitions.
const MAX_REPEATS: u32 = 10_000;

/// Returns the Lark grammar that accepts the texts of the GBNF grammar `source`.
///
/// # Errors
/// Returns the line and the cause if the grammar is invalid.
pub(super) fn to_lark(source: &str) -> Result<String, String> {
    let mut reader = Reader { source, at: 0, names: HashMap::new(), rules: Vec::new() };
    let read = reader.rules();
    read.map_err(|cause| {
        let line = source[..reader.at].lines().count().max(1);
        format!("line {line}: {cause}")
    })?;
    let root = *reader.names.get("root").ok_or("the grammar has no rule \"root\"")?;
    let mut lark = format!("start: r{root}\n");
    for (index, body) in reader.rules.iter().enumerate() {
        let name = reader.names.iter().find(|(_, at)| **at == index).map_or("", |(name, _)| name);
        let body = body.as_ref().ok_or_else(|| format!("the rule {name:?} is missing"))?;
        let _ = writeln!(lark, "r{index}: {body}");
    }
    Ok(lark)
}

struct Reader<'a> {
    source: &'a str,
    /// Position in bytes.
    at: usize,
    /// Indexes of rules by their names. Groups have no names.
    names: HashMap<&'a str, usize>,
    /// Bodies of the rules. `None` until the rule is defined.
    rules: Vec<Option<String>>,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<char> {
        self.source[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let is_next = self.source[self.at..].starts_with(text);
        self.at += if is_next { text.len() } else { 0 };
        is_next
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        if self.take(text) { Ok(()) } else { Err(format!("expected {text:?}")) }
    }

    /// Skips spaces and comments, and also line ends if `lines` is set.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => {}
                '\r' | '\n' if lines => {}
                '#' => {
                    let rest = &self.source[self.at..];
                    self.at += rest.find(['\r', '\n']).unwrap_or(rest.len());
                    continue;
                }
                _ => return,
            }
            self.at += 1;
        }
    }

    fn while_matching(&mut self, matches: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.source[self.at..];
        let text = &rest[..rest.find(|c| !matches(c)).unwrap_or(rest.len())];
        self.at += text.len();
        text
    }

    fn name(&mut self) -> Result<&'a str, String> {
        match self.while_matching(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
            "" => Err("expected the name of a rule".into()),
            name => Ok(name),
        }
    }

    fn rule_of(&mut self, name: &'a str) -> usize {
        *self.names.entry(name).or_insert_with(|| {
            self.rules.push(None);
            self.rules.len() - 1
        })
    }

    fn rules(&mut self) -> Result<(), String> {
        self.skip(true);
        while self.at < self.source.len() {
            let name = self.name()?;
            self.skip(false);
            self.expect("::=")?;
            let body = self.alternatives(0)?;
            let index = self.rule_of(name);
            if self.names.len() > MAX_RULES {
                return Err(format!("more than {MAX_RULES} rules"));
            }
            if self.rules[index].replace(body).is_some() {
                return Err(format!("the rule {name:?} is defined twice"));
            }
            if !matches!(self.peek(), None | Some('\r' | '\n')) {
                return Err("expected the end of the rule".into());
            }
            self.skip(true);
        }
        Ok(())
    }

    fn alternatives(&mut self, depth: usize) -> Result<String, String> {
        if depth > MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} groups within each other"));
        }
        let mut all = String::new();
        loop {
            self.skip(true);
            self.sequence(depth, &mut all)?;
            if !self.take("|") {
                return Ok(all);
            }
            all.push_str(" | ");
        }
    }

    /// Adds a sequence to `body`. An empty one becomes the empty string.
    fn sequence(&mut self, depth: usize, body: &mut String) -> Result<(), String> {
        let start = body.len();
        loop {
            self.skip(depth > 0);
            match self.peek() {
                None | Some('|' | ')' | '\r' | '\n') => break,
                Some(_) => {
                    let atom = self.atom(depth)?;
                    *body += &self.repeated(atom)?;
                    body.push(' ');
                }
            }
        }
        if body.len() == start {
            body.push_str("\"\"");
        }
        Ok(())
    }

    /// Reads an element of a sequence.
    fn atom(&mut self, depth: usize) -> Result<String, String> {
        match self.peek() {
            Some('"') => self.literal(),
            Some('[') => self.class(),
            Some('.') => {
                self.at += 1;
                Ok("/(?s:.)/".into())
            }
            Some('(') => {
                self.at += 1;
                let body = self.alternatives(depth + 1)?;
                self.expect(")")?;
                Ok(self.add(body))
            }
            _ => {
                let name = self.name()?;
                Ok(format!("r{}", self.rule_of(name)))
            }
        }
    }

    /// Adds a rule without a name. Returns its name in Lark.
    fn add(&mut self, body: String) -> String {
        self.rules.push(Some(body));
        format!("r{}", self.rules.len() - 1)
    }

    /// Reads the repetition after an element.
    fn repeated(&mut self, atom: String) -> Result<String, String> {
        self.skip(false);
        if let Some(op @ ('*' | '+' | '?')) = self.peek() {
            self.at += 1;
            return Ok(format!("{atom}{op}"));
        }
        if !self.take("{") {
            return Ok(atom);
        }
        let least = self.number()?;
        let most = if self.take(",") { self.number()? } else { least };
        self.expect("}")?;
        match (least.unwrap_or(0), most) {
            (least, Some(most)) if least > most => Err(format!("{least} repetitions are more than {most}")),
            (_, Some(0)) => Ok("\"\"".into()),
            (least, Some(most)) => Ok(format!("{atom}{{{least},{most}}}")),
            (0, None) => Ok(format!("{atom}*")),
            (least, None) => Ok(format!("{atom}{{{least}}} {atom}*")),
        }
    }

    fn number(&mut self) -> Result<Option<u32>, String> {
        self.skip(false);
        let digits = self.while_matching(|c| c.is_ascii_digit());
        self.skip(false);
        match digits.parse() {
            Ok(number) if number <= MAX_REPEATS => Ok(Some(number)),
            _ if digits.is_empty() => Ok(None),
            _ => Err(format!("{digits} repetitions are more than {MAX_REPEATS}")),
        }
    }

    fn literal(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut characters = Vec::new();
        while !self.take("\"") {
            let (c, _) = self.character()?;
            characters.push(format!("/\\x{{{:x}}}/", u32::from(c)));
        }
        match characters.len() {
            0 => Ok("\"\"".into()),
            1 => Ok(characters.remove(0)),
            _ => Ok(self.add(characters.join(" "))),
        }
    }

    fn class(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut class = String::from(if self.take("^") { "/[^" } else { "/[" });
        let start = class.len();
        while !self.take("]") {
            let (first, _) = self.character()?;
            let is_range =
                self.source[self.at..].starts_with('-') && !self.source[self.at..].starts_with("-]");
            let last = if is_range {
                self.at += 1;
                self.character()?.0
            } else {
                first
            };
            if last < first {
                return Err(format!("the range {first:?} to {last:?} is empty"));
            }
            let _ = write!(class, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(first), u32::from(last));
        }
        if class.len() == start {
            return Err("a class of characters is empty".into());
        }
        class.push_str("]/");
        Ok(class)
    }

    /// Reads a character of a literal or a class. Returns whether it was escaped, too.
    fn character(&mut self) -> Result<(char, bool), String> {
        let c = match self.next().ok_or("a literal or a class does not end")? {
            '\\' => self.next().ok_or("a literal or a class does not end")?,
            '\r' | '\n' => return Err("a literal or a class does not end on its line".into()),
            c => return Ok((c, false)),
        };
        let c = match c {
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => c,
            'x' => self.code(2)?,
            'u' => self.code(4)?,
            'U' => self.code(8)?,
            _ => return Err(format!("unknown escape \\{c}")),
        };
        Ok((c, true))
    }

    fn code(&mut self, digits: usize) -> Result<char, String> {
        let text = self.source.get(self.at..self.at + digits).unwrap_or_default();
        let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let code = u32::from_str_radix(text, 16).ok().filter(|_| is_hex).and_then(char::from_u32);
        self.at += if code.is_some() { digits } else { 0 };
        code.ok_or_else(|| format!("expected {digits} hexadecimal digits of a character"))
    }
}

#[cfg(test)]
mod tests {
    use super::to_lark;

    #[test]
    fn rules_are_translated() {
        let cases = [
            ("root ::= \"a\\n\"", "start: r1\nr0: /\\x{61}/ /\\x{a}/\nr1: r0 \n"),
            (
                "root ::= [a-z_\\]] [^\\x41] .",
                "start: r0\nr0: /[\\x{61}-\\x{7a}\\x{5f}-\\x{5f}\\x{5d}-\\x{5d}]/ /[^\\x{41}-\\x{41}]/ /(?s:.)/ \n",
            ),
            (
                "# a list\nroot ::= \"x\" (\n  \",\" y )* |\n  \"\"\ny ::= [0-9]{2,3} # digits\n",
                "start: r2\nr0: /[\\x{30}-\\x{39}]/{2,3} \nr1: /\\x{2c}/ r0 \nr2: /\\x{78}/ r1*  | \"\" \n",
            ),
        ];
        for (gbnf, lark) in cases {
            let translated = to_lark(gbnf).unwrap();
            let sorted = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "").len();
            assert_eq!(sorted(&translated), sorted(lark), "{translated}");
        }
    }

    #[test]
    fn invalid_grammars_are_refused_with_their_lines() {
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000));
        let cases = [
            ("", "root"),
            ("a ::= \"b\"", "root"),
            ("root ::= a", "\"a\" is missing"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule \"root\" is defined twice"),
            ("root ::= \"a", "does not end"),
            ("root ::= \"a\n\"", "does not end on its line"),
            ("root ::= [z-a]", "range"),
            ("root ::= []", "empty"),
            ("root ::= \"\\uD800\"", "hexadecimal"),
            ("root ::= \"\\xé\"", "hexadecimal"),
            ("root ::= \"\\q\"", "escape"),
            ("root ::= \"a\"{3,2}", "more than 2"),
            ("root ::= \"a\"{1000000000000}", "more than 10000"),
            ("root ::= \"a\")", "end of the rule"),
            ("root ::= (\"a\"", "\")\""),
            ("root ::= <think>", "name of a rule"),
            ("root = \"a\"", "\"::=\""),
            (&deep, "groups"),
        ];
        for (gbnf, cause) in cases {
            let error = to_lark(gbnf).unwrap_err();
            assert!(error.contains(cause), "{error}");
        }
    }
}
