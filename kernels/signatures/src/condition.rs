//! Evaluates integer constant expressions, as in `#if` conditions and attribute arguments.
//!
//! Identifiers have no value in this module, because the preprocessor has already expanded all macros.

use crate::lexer::{Kind, Token};

/// Maximum nesting depth of parentheses and unary operators.
const DEPTH: usize = 64;

/// Binary operators with their precedence. A higher number binds tighter.
const OPERATORS: [(&str, u8); 18] = [
    ("||", 1),
    ("&&", 2),
    ("|", 3),
    ("^", 4),
    ("&", 5),
    ("==", 6),
    ("!=", 6),
    ("<", 7),
    (">", 7),
    ("<=", 7),
    (">=", 7),
    ("<<", 8),
    (">>", 8),
    ("+", 9),
    ("-", 9),
    ("*", 10),
    ("/", 10),
    ("%", 10),
];

/// Returns the value of the expression in `tokens`, or `None` if the expression is invalid or has no defined
/// value.
pub(crate) fn evaluate(tokens: &[Token]) -> Option<i64> {
    let mut reader = Reader { rest: tokens };
    let value = reader.binary(1, 0)?;
    reader.rest.is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a [Token],
}

impl Reader<'_> {
    /// Parses binary operators with a precedence of at least `least`, together with their operands. All
    /// operators are left-associative.
    fn binary(&mut self, least: u8, depth: usize) -> Option<i64> {
        let mut left = self.unary(depth)?;
        while let Some((operator, tightness)) = self.operator().filter(|(_, tightness)| *tightness >= least) {
            self.rest = &self.rest[1..];
            let right = self.binary(tightness + 1, depth)?;
            left = apply(operator, left, right)?;
        }
        Some(left)
    }

    fn operator(&self) -> Option<(&'static str, u8)> {
        let token = self.rest.first()?;
        OPERATORS.iter().find(|(text, _)| token.is(text)).copied()
    }

    fn unary(&mut self, depth: usize) -> Option<i64> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        if depth == DEPTH {
            return None;
        }
        match &*first.text {
            text if first.kind == Kind::Number => number(text),
            "!" => self.unary(depth + 1).map(|v| i64::from(v == 0)),
            "-" => self.unary(depth + 1).map(i64::wrapping_neg),
            "+" => self.unary(depth + 1),
            "~" => self.unary(depth + 1).map(|v| !v),
            "(" => {
                let value = self.binary(1, depth + 1)?;
                let (close, rest) = self.rest.split_first()?;
                self.rest = rest;
                close.is(")").then_some(value)
            }
            _ => None,
        }
    }
}

fn apply(operator: &str, left: i64, right: i64) -> Option<i64> {
    let truth = |value: bool| Some(i64::from(value));
    match operator {
        "||" => truth(left != 0 || right != 0),
        "&&" => truth(left != 0 && right != 0),
        "|" => Some(left | right),
        "^" => Some(left ^ right),
        "&" => Some(left & right),
        "==" => truth(left == right),
        "!=" => truth(left != right),
        "<" => truth(left < right),
        ">" => truth(left > right),
        "<=" => truth(left <= right),
        ">=" => truth(left >= right),
        "<<" => left.checked_shl(u32::try_from(right).ok()?),
        ">>" => left.checked_shr(u32::try_from(right).ok()?),
        "+" => Some(left.wrapping_add(right)),
        "-" => Some(left.wrapping_sub(right)),
        "*" => Some(left.wrapping_mul(right)),
        "/" => left.checked_div(right),
        "%" => left.checked_rem(right),
        _ => None,
    }
}

/// Parses a C integer literal: decimal, hexadecimal, binary or octal, with its suffix.
fn number(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    let after = |prefixes: [&str; 2]| prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix));
    if let Some(digits) = after(["0x", "0X"]) {
        i64::from_str_radix(digits, 16).ok()
    } else if let Some(digits) = after(["0b", "0B"]) {
        i64::from_str_radix(digits, 2).ok()
    } else if digits.starts_with('0') {
        i64::from_str_radix(digits, 8).ok()
    } else {
        digits.parse().ok()
    }
}
