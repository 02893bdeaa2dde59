//! Wraps the text of an answer at words while it arrives.
//!
//! Text is written at once. If a word turns out to exceed the line, the wrapper removes its beginning from the screen
//! and writes the whole word on the next line. Lines in Markdown code blocks are not wrapped.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Saves the position of the cursor.
const SAVE: &str = "\x1b7";
/// Returns to the saved position and clears the rest of the line.
const RESTORE: &str = "\x1b8\x1b[K";
/// Distance between tab stops, in columns.
const TAB: usize = 8;
/// Minimum length of a line, in columns.
const MIN_COLUMNS: usize = 10;
/// Wide characters that do not begin a line.
const CLOSING: &str = "、。，．！？：；）」』】〉》］｝ー々";
/// Wide characters that do not end a line.
const OPENING: &str = "（「『【〈《［｛";
/// Joins emoji to one.
const JOINER: char = '\u{200d}';

/// Wrapper of the text of one answer.
#[derive(Debug)]
pub(super) struct Wrapper {
    /// Maximum length of a line, in columns.
    columns: usize,
    /// Position of the cursor.
    column: usize,
    /// White space that precedes the next word and is not written yet.
    gap: String,
    /// Beginning of the current word that is written already.
    word: String,
    /// Position of the current word.
    word_column: usize,
    /// Whether the current word may move to the next line, because another word precedes it on its line.
    is_movable: bool,
    /// Current line of the text.
    line: String,
    is_in_code: bool,
}

impl Wrapper {
    /// Creates a wrapper for a terminal of `width` columns. It leaves the last column free, because terminals differ
    /// in the position of the cursor after the last column.
    pub(super) fn new(width: usize) -> Self {
        Self {
            columns: width.saturating_sub(1).max(MIN_COLUMNS),
            column: 0,
            gap: String::new(),
            word: String::new(),
            word_column: 0,
            is_movable: false,
            line: String::new(),
            is_in_code: false,
        }
    }

    /// Returns what the terminal must get for `text`, which continues the text so far. `text` has no control
    /// characters except line breaks and tabs.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        for c in text.chars() {
            match c {
                '\n' => self.end_line(&mut out),
                _ if self.is_in_code => out.push(c),
                ' ' | '\t' => {
                    self.gap.push(c);
                    self.word.clear();
                }
                _ => self.character(c, &mut out),
            }
            if c != '\n' {
                self.line.push(c);
            }
        }
        out
    }

    fn end_line(&mut self, out: &mut String) {
        out.push('\n');
        let line = self.line.trim_start();
        self.is_in_code ^= line.starts_with("```") || line.starts_with("~~~");
        self.gap.clear();
        self.word.clear();
        self.line.clear();
        self.column = 0;
    }

    fn character(&mut self, c: char, out: &mut String) {
        if self.word.chars().next_back().is_none_or(|last| is_break(last, c)) {
            self.begin_word(c, out);
        }
        self.word.push(c);
        let end = self.word_column + self.word.width();
        if end <= self.columns {
            out.push(c);
            self.column = end;
            return;
        }
        if self.is_movable {
            out.push_str(RESTORE);
        } else {
            // The word is longer than a line.
            self.word = c.into();
        }
        out.push('\n');
        out.push_str(&self.word);
        (self.word_column, self.is_movable) = (0, false);
        self.column = self.word.width();
    }

    /// Writes the white space before a word that begins with `c`, or a line break if the line is full.
    fn begin_word(&mut self, c: char, out: &mut String) {
        self.word.clear();
        let gap = std::mem::take(&mut self.gap);
        let after = |column, space| if space == '\t' { (column / TAB + 1) * TAB } else { column + 1 };
        let start = gap.chars().fold(self.column, after);
        let is_first = self.line.trim_start().is_empty() || self.column == 0;
        if is_first || start + c.width().unwrap_or(0) <= self.columns {
            if !is_first {
                out.push_str(SAVE);
            }
            out.push_str(&gap);
            (self.word_column, self.is_movable) = (start, !is_first);
        } else {
            out.push('\n');
            (self.word_column, self.is_movable) = (0, false);
        }
        self.column = self.word_column;
    }
}

/// Returns whether a line may break between two characters that are not white space. It may break beside the
/// characters of scripts without spaces between words, and beside emoji.
fn is_break(before: char, after: char) -> bool {
    let is_wide = |c: char| c.width() == Some(2) && !('\u{ac00}'..='\u{d7af}').contains(&c);
    if before == JOINER || after.width() == Some(0) || CLOSING.contains(after) || OPENING.contains(before) {
        return false;
    }
    is_wide(after) || is_wide(before) && after.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rows of a terminal that shows `text`, which arrives in pieces of `chars` characters.
    fn rows(width: usize, text: &str, chars: usize) -> Vec<String> {
        let mut wrapper = Wrapper::new(width);
        let text: Vec<char> = text.chars().collect();
        let out: String =
            text.chunks(chars).map(|part| wrapper.push(&part.iter().collect::<String>())).collect();
        let (mut rows, mut saved) = (vec![String::new()], 0);
        let mut rest = out.as_str();
        while let Some(c) = rest.chars().next() {
            let row = rows.last_mut().unwrap();
            let length = if rest.starts_with(RESTORE) {
                row.truncate(saved);
                RESTORE.len()
            } else if rest.starts_with(SAVE) {
                saved = row.len();
                SAVE.len()
            } else if c == '\n' {
                rows.push(String::new());
                1
            } else {
                row.push(c);
                c.len_utf8()
            };
            rest = &rest[length..];
        }
        rows
    }

    #[track_caller]
    fn wraps(width: usize, text: &str, expected: &[&str]) {
        for chars in [1, 2, 3, text.len().max(1)] {
            assert_eq!(rows(width, text, chars), expected, "{text:?} in parts of {chars}");
        }
    }

    #[test]
    fn lines_break_between_words() {
        wraps(11, "one two three four", &["one two", "three four"]);
        wraps(11, "1234567890 x", &["1234567890", "x"]);
        wraps(11, "a 123456789", &["a", "123456789"]);
        wraps(11, "a\n\nb  c\n", &["a", "", "b  c", ""]);
        wraps(11, "12345      67890", &["12345", "67890"]);
        wraps(11, "  two spaces", &["  two", "spaces"]);
        wraps(11, "a\tb\tc", &["a\tb", "c"]);
        wraps(11, "", &[""]);
    }

    #[test]
    fn only_words_longer_than_a_line_are_broken() {
        wraps(11, "see https://example.org/x now", &["see", "https://ex", "ample.org/", "x now"]);
        wraps(11, "      12345678", &["      1234", "5678"]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        wraps(11, "我们在这里住", &["我们在这里", "住"]);
        wraps(11, "abc 我们在这里", &["abc 我们在", "这里"]);
        wraps(11, "我们在这里。好", &["我们在这", "里。好"]);
        wraps(11, "abcdefg「我们」", &["abcdefg", "「我们」"]);
        wraps(11, "안녕하세 여러분", &["안녕하세", "여러분"]);
        wraps(11, "12345678 🦊🦊", &["12345678", "🦊🦊"]);
        // An emoji of several code points takes two columns and stays whole.
        wraps(11, "123456 👩\u{200d}🌾 x", &["123456 👩\u{200d}🌾", "x"]);
        wraps(11, "caf\u{65}\u{301}s de nuit", &["caf\u{65}\u{301}s de", "nuit"]);
    }

    #[test]
    fn code_blocks_keep_their_lines() {
        let code = "    let number = 1; // one";
        let text = format!("So it is done:\n```rust\n{code}\n```\nAnd so it is");
        wraps(11, &text, &["So it is", "done:", "```rust", code, "```", "And so it", "is"]);
    }
}
