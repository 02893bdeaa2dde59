//! Checks that no barrier and no reduction of a kernel in OpenCL C depends on a condition.
//!
//! OpenCL allows a barrier in a branch that all items of a group take. Implementations for CPUs run the items of a group
//! one after the other, and there such code has failed: PoCL 5 and 6 give each item its own memory for the reductions of
//! a sub-group if one of them is in a branch, and PoCL 6 writes beyond buffers behind a barrier that follows a `return`.
//! A kernel therefore gives groups without work a loop of zero turns.
//!
//! The rule reads words, not types: macros that contain a barrier are listed by name.

use super::{TextFile, Violation, sources::is_word};
use std::collections::BTreeSet;

/// Functions and macros that all items of a group or of a sub-group call together.
const COLLECTIVE: &[&str] = &[
    "BARRIER",
    "across",
    "group_max",
    "group_sum",
    "sub_group_broadcast",
    "sub_group_reduce_add",
    "sub_group_reduce_max",
];

/// Kernels that break the rule. PoCL 6 computes the first one right as it is, and wrong with loops in place of branches.
const EXEMPT: [&str; 1] = ["kernels/src/attention/partial.cl"];

/// Word or character of a source, with its line.
type Token<'a> = (&'a str, usize);

/// Function of a source: its name and the tokens of its body, with both braces.
struct Function<'a> {
    path: &'a str,
    name: &'a str,
    body: Vec<Token<'a>>,
}

/// Checks the kernels among all files of the tree. Functions may call those of other files.
pub(super) fn check(files: &[TextFile]) -> Vec<Violation> {
    let is_kernel = |file: &&TextFile| file.path.starts_with("kernels/src/") && file.path.ends_with(".cl");
    let functions: Vec<_> = files.iter().filter(is_kernel).flat_map(functions).collect();
    let mut collective: BTreeSet<&str> = COLLECTIVE.iter().copied().collect();
    loop {
        let calls = |f: &&Function<'_>| f.body.windows(2).any(|pair| is_call(pair, &collective));
        let more: Vec<_> = functions.iter().filter(calls).map(|f| f.name).collect();
        let before = collective.len();
        collective.extend(more);
        if collective.len() == before {
            break;
        }
    }
    let bound = functions.iter().filter(|function| !EXEMPT.contains(&function.path));
    bound.flat_map(|function| violations(function, &collective)).collect()
}

fn is_call(pair: &[Token<'_>], collective: &BTreeSet<&str>) -> bool {
    collective.contains(pair[0].0) && pair[1].0 == "("
}

/// Splits a source without comments and lines of the preprocessor into tokens.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut out, mut continues) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let is_code = !continues && !line.trim_start().starts_with('#');
        continues = !is_code && line.ends_with('\\');
        let mut rest = line.split("//").next().filter(|_| is_code).unwrap_or_default().trim_start();
        while let Some(first) = rest.chars().next() {
            let end = if is_word(first) { rest.find(|c| !is_word(c)) } else { Some(first.len_utf8()) };
            let (token, after) = rest.split_at(end.unwrap_or(rest.len()));
            out.push((token, number));
            rest = after.trim_start();
        }
    }
    out
}

fn functions(file: &TextFile) -> Vec<Function<'_>> {
    let tokens = tokens(&file.text);
    let (mut out, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if tokens[at].0 != "{" {
            at += 1;
            continue;
        }
        let end = closing(&tokens, at);
        // The name is before the parameters, which are before the body.
        let parameters = tokens[..at].iter().rposition(|token| token.0 == "(");
        let is_function = at > 0 && tokens[at - 1].0 == ")";
        if let Some(open) = parameters.filter(|&open| is_function && open > 0) {
            out.push(Function { path: &file.path, name: tokens[open - 1].0, body: tokens[at..end].to_vec() });
        }
        at = end;
    }
    out
}

/// Returns the position after the bracket that closes the one at `at`.
fn closing(tokens: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0;
    for (place, (token, _)) in tokens.iter().enumerate().skip(at) {
        match *token {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return place + 1;
        }
    }
    tokens.len()
}

/// Statement around others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Around {
    is_loop: bool,
    line: usize,
}

/// Collective call, or a statement that leaves a loop or the function, with the statements around it.
struct Event<'a> {
    token: Token<'a>,
    around: Vec<Around>,
}

fn violations(function: &Function<'_>, collective: &BTreeSet<&str>) -> Vec<Violation> {
    let mut events = Vec::new();
    statement(&function.body, 0, &mut Vec::new(), collective, &mut events);
    let is_call = |event: &&Event<'_>| collective.contains(event.token.0);
    let mut out = Vec::new();
    for (place, event) in events.iter().enumerate() {
        let (word, line) = event.token;
        let innermost = event.around.iter().rfind(|around| around.is_loop);
        let shared = |other: &Event<'_>| innermost.is_some_and(|own| other.around.contains(own));
        let later = |other: &&Event<'_>| match word {
            "return" => event.around.iter().any(|around| around.is_loop && other.around.contains(around)),
            _ => shared(other),
        };
        let what = if is_call(&event) {
            let branch = event.around.iter().find(|around| !around.is_loop);
            branch.map(|branch| format!("{word} depends on the branch of line {}", branch.line))
        } else {
            let is_early = word == "return" && !event.around.is_empty();
            let after = events[place..].iter().filter(|_| is_early).find(is_call);
            let other = after.or_else(|| events.iter().filter(is_call).find(later));
            other.map(|other| format!("{} of line {} depends on this {word}", other.token.0, other.token.1))
        };
        let advice = "groups without work take zero turns of a loop instead";
        out.extend(what.map(|what| Violation::new(function.path, line, format!("{what}: {advice}"))));
    }
    out
}

/// Reads the statement at `at` and returns the position after it.
fn statement<'a>(
    tokens: &[Token<'a>],
    at: usize,
    around: &mut Vec<Around>,
    collective: &BTreeSet<&str>,
    events: &mut Vec<Event<'a>>,
) -> usize {
    let Some(&(word, line)) = tokens.get(at) else { return tokens.len() };
    match word {
        "{" => {
            let (mut next, end) = (at + 1, closing(tokens, at));
            while next + 1 < end {
                next = statement(tokens, next, around, collective, events);
            }
            end
        }
        "if" | "for" | "while" | "switch" | "else" => {
            around.push(Around { is_loop: word == "for" || word == "while", line });
            let body = if word == "else" { at + 1 } else { closing(tokens, at + 1) };
            let end = statement(tokens, body, around, collective, events);
            around.pop();
            end
        }
        _ => {
            let mut place = at;
            while !matches!(tokens.get(place), None | Some((";", _))) {
                let token = tokens[place];
                let leaves = ["return", "break", "continue"].contains(&token.0);
                if leaves || tokens[place..].get(..2).is_some_and(|pair| is_call(pair, collective)) {
                    let mut around = around.clone();
                    // What follows `?`, `&&` or `||` is a branch.
                    let branches = tokens[at..place].iter().any(|(token, _)| ["?", "&", "|"].contains(token));
                    around.extend(branches.then_some(Around { is_loop: false, line: token.1 }));
                    events.push(Event { token, around });
                }
                let opens = token.0 == "{";
                place = if opens { closing(tokens, place) } else { place + 1 };
            }
            place + 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines that break the rule in a kernel with this body, whose first line is line 2.
    fn lines(body: &str) -> Vec<usize> {
        let text = format!(
            "KERNEL(ITEMS) one(uint n) {{\n{body}\n}}\nFN float sum(float x) {{ BARRIER(); return x; }}"
        );
        let files = [TextFile { path: "kernels/src/one/one.cl".into(), text }];
        check(&files).into_iter().map(|violation| violation.line).collect()
    }

    #[test]
    fn a_barrier_in_a_branch_is_found() {
        assert_eq!(lines("if (n == 2) {\nx = 1;\nBARRIER();\n}"), [4]);
        assert_eq!(lines("if (n == 2) BARRIER();\nelse sum(x);"), [2, 3]);
        assert_eq!(lines("x = n == 2 ? sum(x) : 0;\ny = group_sum(s, n < 2 ? 1 : 0);"), [2]);
        assert_eq!(lines("for (uint i = 0; i < n; i++) {\nif (i == 1)\nwhile (x) BARRIER();\n}"), [4]);
    }

    #[test]
    fn a_barrier_behind_a_way_out_is_found() {
        assert_eq!(lines("if (GROUP(0) >= n) return;\n#define F(x) if (x) { BARRIER(); }\nx = sum(x);"), [2]);
        assert_eq!(lines("for (uint i = 0; i < n; i++) {\nBARRIER();\nif (i == x) return;\n}"), [4]);
        assert_eq!(
            lines("for (uint i = 0; i < n; i++) {\nif (i == x) continue; // BARRIER()\nsum(x);\n}"),
            [3]
        );
    }

    #[test]
    fn loops_and_ways_out_behind_barriers_are_allowed() {
        let inner = "for (uint i = 0; i < n; i++) {\nfor (;;) { if (x) break; }\nsum(x);\n}";
        assert!(lines(inner).is_empty());
        assert!(lines("float a[2] = {1, 2};\nBARRIER();\nif (ITEM >= n) return;\nif (x) y = 1;").is_empty());
    }
}
