//! Replaces comments and literals in Rust source with spaces, so that rules about code see only code.
//!
//! The lexer recognises only comments, strings and character literals.

/// Replaces every character of a comment, string or character literal with a space. Keeps line breaks, and
/// therefore line numbers.
pub(super) fn code(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut masked = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        match literal_end(&chars, at) {
            Some(end) => {
                masked.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
                at = end;
            }
            None => {
                masked.push(chars[at]);
                at += 1;
            }
        }
    }
    masked
}

/// Returns the end of the comment or literal that starts at `at`. Returns `None` if none starts there.
fn literal_end(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    // `r` and `b` start a literal only at the start of a word.
    let inside_word = at > 0 && is_word(chars[at - 1]);
    match chars[at] {
        '/' if next == Some('/') => Some(find(chars, at, |c| c == '\n')),
        '/' if next == Some('*') => Some(block_comment_end(chars, at)),
        '"' => Some(string_end(chars, at + 1)),
        '\'' => char_end(chars, at),
        'r' if !inside_word => raw_end(chars, at + 1),
        'b' | 'c' if !inside_word => match next {
            Some('"') => Some(string_end(chars, at + 2)),
            Some('\'') => char_end(chars, at + 1),
            Some('r') => raw_end(chars, at + 2),
            _ => None,
        },
        _ => None,
    }
}

/// Returns whether a character may be part of an identifier.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn find(chars: &[char], from: usize, stop: impl Fn(char) -> bool) -> usize {
    (from..chars.len()).find(|at| stop(chars[*at])).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from, 0);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

/// Returns the end of the string literal whose first character after the quote is at `at`.
fn string_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// Returns the end of the raw string whose first `#` or quote is at `at`. Returns `None` if no raw string
/// starts there, for example in a raw identifier.
fn raw_end(chars: &[char], at: usize) -> Option<usize> {
    let quote = find(chars, at, |c| c != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - at;
    let closes = |end: &usize| {
        chars[*end] == '"'
            && chars.len() > end + hashes
            && chars[end + 1..=end + hashes].iter().all(|c| *c == '#')
    };
    Some((quote + 1..chars.len()).find(closes).map_or(chars.len(), |end| end + 1 + hashes))
}

/// Returns the end of the character literal whose opening quote is at `at`. Returns `None` for a lifetime.
fn char_end(chars: &[char], at: usize) -> Option<usize> {
    match (chars.get(at + 1)?, chars.get(at + 2)) {
        ('\\', Some(_)) => Some((find(chars, at + 3, |c| c == '\'') + 1).min(chars.len())),
        (_, Some('\'')) => Some(at + 3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the masked source, with each run of white space reduced to one space.
    fn left(source: &str) -> String {
        let masked = code(source);
        assert_eq!(masked.chars().count(), source.chars().count());
        assert_eq!(masked.lines().count(), source.lines().count());
        masked.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_are_masked() {
        assert_eq!(left("a // b\nc"), "a c");
        assert_eq!(left("//! a\n/// b\nc"), "c");
        assert_eq!(left("a /* b /* c */ d */ e"), "a e");
        assert_eq!(left("a /* never closed"), "a");
        assert_eq!(left("a / b // \"\nc"), "a / b c");
    }

    #[test]
    fn strings_are_masked() {
        assert_eq!(left(r#"a("b \" // c", d)"#), "a( , d)");
        assert_eq!(left(r###"a(r#"b " c"#, d)"###), "a( , d)");
        assert_eq!(left(r##"a(br#"b"#, b"c", c"d", e)"##), "a( , , , e)");
        assert_eq!(left("a(\"\\\\\", b)"), "a( , b)");
        assert_eq!(left("a \"never closed"), "a");
        assert_eq!(left("a r#\"never closed\""), "a");
    }

    #[test]
    fn characters_are_masked_and_lifetimes_stay() {
        assert_eq!(left("a('b', '\\'', '\\u{1f600}', b'\"', c)"), "a( , , , , c)");
        assert_eq!(left("fn f<'a>(x: &'a str) -> &'static str"), "fn f<'a>(x: &'a str) -> &'static str");
    }

    #[test]
    fn names_that_look_like_prefixes_stay() {
        assert_eq!(left("r#type br bar(\"x\") for r in b"), "r#type br bar( ) for r in b");
    }
}
