//! Processes preprocessor directives: selects the lines to compile, and tracks the macros that are defined at
//! each line.

use crate::condition::evaluate;
use crate::lexer::{Kind, Token, lines};
use crate::macros::Macros;
use alloc::vec::Vec;

/// A source after preprocessing, as the parser of a compiler would read it.
pub(crate) struct Preprocessed {
    pub tokens: Vec<Token>,
    /// Whether all macros were expanded within the budget.
    pub complete: bool,
}

pub(crate) fn preprocess(source: &str) -> Preprocessed {
    let mut preprocessor =
        Preprocessor { macros: Macros::new(), branches: Vec::new(), waiting: Vec::new(), tokens: Vec::new() };
    for line in lines(source) {
        match line.split_first() {
            Some((hash, directive)) if hash.is("#") => preprocessor.obey(directive),
            _ if preprocessor.counts() => preprocessor.waiting.extend(line),
            _ => {}
        }
    }
    preprocessor.flush();
    Preprocessed { tokens: preprocessor.tokens, complete: preprocessor.macros.complete }
}

/// State of an `#if` that is not yet closed.
struct Branch {
    /// Whether the lines around the `#if` are compiled.
    outside: bool,
    /// Whether an earlier branch of the `#if` was compiled.
    taken: bool,
    /// Whether the lines of the current branch are compiled.
    counts: bool,
}

struct Preprocessor {
    macros: Macros,
    branches: Vec<Branch>,
    /// Tokens since macros were last defined or undefined. They are not expanded yet, because the arguments
    /// of a macro call may span several lines.
    waiting: Vec<Token>,
    tokens: Vec<Token>,
}

impl Preprocessor {
    fn counts(&self) -> bool {
        self.branches.last().is_none_or(|branch| branch.counts)
    }

    fn flush(&mut self) {
        let waiting = core::mem::take(&mut self.waiting);
        self.tokens.extend(self.macros.expand(waiting));
    }

    fn obey(&mut self, directive: &[Token]) {
        let Some((name, rest)) = directive.split_first() else { return };
        match &*name.text {
            "define" if self.counts() => {
                self.flush();
                self.macros.define(rest);
            }
            "undef" if self.counts() => {
                self.flush();
                rest.first().into_iter().for_each(|name| self.macros.undefine(&name.text));
            }
            "if" => self.branch(|this| this.holds(rest)),
            "ifdef" => self.branch(|this| this.names_macro(rest)),
            "ifndef" => self.branch(|this| !this.names_macro(rest)),
            "elif" => self.other_branch(|this| this.holds(rest)),
            "else" => self.other_branch(|_| true),
            "endif" => drop(self.branches.pop()),
            _ => {}
        }
    }

    fn branch(&mut self, holds: impl FnOnce(&mut Self) -> bool) {
        let outside = self.counts();
        let counts = outside && holds(self);
        self.branches.push(Branch { outside, taken: counts, counts });
    }

    fn other_branch(&mut self, holds: impl FnOnce(&mut Self) -> bool) {
        let Some(mut branch) = self.branches.pop() else { return };
        branch.counts = branch.outside && !branch.taken && holds(self);
        branch.taken |= branch.counts;
        self.branches.push(branch);
    }

    fn names_macro(&self, rest: &[Token]) -> bool {
        rest.first().is_some_and(|name| self.macros.is_defined(&name.text))
    }

    /// Returns whether an `#if` condition is true. Identifiers that are not macros evaluate to 0.
    fn holds(&mut self, condition: &[Token]) -> bool {
        let asked = self.answer_defined(condition);
        let mut expanded = self.macros.expand(asked);
        for word in expanded.iter_mut().filter(|token| token.is_word()) {
            *word = Token::new(Kind::Number, "0");
        }
        evaluate(&expanded).is_some_and(|value| value != 0)
    }

    /// Replaces `defined NAME` and `defined(NAME)` in `condition` by 0 or 1.
    fn answer_defined(&self, mut condition: &[Token]) -> Vec<Token> {
        let mut out = Vec::new();
        while let Some((first, rest)) = condition.split_first() {
            let (name, after) = match rest {
                [open, name, close, after @ ..] if open.is("(") && close.is(")") => (name, after),
                [name, after @ ..] => (name, after),
                [] => (first, rest),
            };
            if first.is("defined") {
                out.push(Token::new(
                    Kind::Number,
                    if self.macros.is_defined(&name.text) { "1" } else { "0" },
                ));
                condition = after;
            } else {
                out.push(first.clone());
                condition = rest;
            }
        }
        out
    }
}
