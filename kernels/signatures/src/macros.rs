//! Macro definitions, and their expansion as in the C standard (6.10.3). Arguments are expanded first and
//! then substituted into the body of the macro. Then the result is scanned again for macros. A macro does not
//! expand within its own expansion.
//!
//! [`BUDGET`] limits the work, even for malicious source.

use crate::lexer::{Kind, Token};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;

/// Maximum number of tokens that all expansions of one source may produce. Without a limit, a few lines could
/// exhaust memory.
const BUDGET: usize = 1 << 18;
/// Maximum nesting depth up to which arguments are expanded before they are substituted. Arguments that are
/// nested more deeply are expanded only when the body is scanned again.
const DEPTH: usize = 32;
/// Maximum length in bytes of a token that `##` produces.
const JOINED_BYTES: usize = 256;

struct Macro {
    /// Parameters, or `None` if the macro has no parameter list.
    parameters: Option<Vec<Rc<str>>>,
    body: Vec<Token>,
}

/// Argument of a macro call.
struct Argument {
    /// Tokens as written in the source, for `#` and `##`.
    tokens: Vec<Token>,
    /// Tokens after macro expansion.
    expanded: Vec<Token>,
}

/// The macros that are defined at one point of a source.
pub(crate) struct Macros {
    defined: BTreeMap<Rc<str>, Rc<Macro>>,
    left: usize,
    /// Whether all expansions so far stayed within the budget.
    pub complete: bool,
}

impl Macros {
    pub(crate) fn new() -> Self {
        Self { defined: BTreeMap::new(), left: BUDGET, complete: true }
    }

    /// Processes the rest of a `#define` line. Ignores invalid definitions and macros with `...`.
    pub(crate) fn define(&mut self, line: &[Token]) {
        let Some((name, rest)) = line.split_first().filter(|(name, _)| name.is_word()) else { return };
        let has_parameters = rest.first().is_some_and(|token| token.is("(") && !token.spaced);
        let (parameters, body) = if has_parameters {
            let Some(close) = rest.iter().position(|token| token.is(")")) else { return };
            let Some(parameters) = parameters(&rest[1..close]) else { return };
            (Some(parameters), &rest[close + 1..])
        } else {
            (None, rest)
        };
        self.defined.insert(name.text.clone(), Rc::new(Macro { parameters, body: body.to_vec() }));
    }

    pub(crate) fn undefine(&mut self, name: &str) {
        self.defined.remove(name);
    }

    pub(crate) fn is_defined(&self, name: &str) -> bool {
        self.defined.contains_key(name)
    }

    /// Returns `tokens` with all macros expanded.
    pub(crate) fn expand(&mut self, tokens: Vec<Token>) -> Vec<Token> {
        self.expand_nested(tokens, 0)
    }

    fn expand_nested(&mut self, tokens: Vec<Token>, depth: usize) -> Vec<Token> {
        let mut input = Input::default();
        input.push(tokens, None);
        let mut out = Vec::new();
        while let Some(token) = input.next() {
            match self.replacement(&token, &mut input, depth) {
                Some(body) => input.push(body, Some(token.text)),
                None => out.push(token),
            }
        }
        out
    }

    /// Returns the tokens that replace the macro call at `token`, and removes its arguments from `input`.
    /// Returns `None` if `token` is not a macro call.
    fn replacement(&mut self, token: &Token, input: &mut Input, depth: usize) -> Option<Vec<Token>> {
        if !token.is_word() || token.painted || !self.complete {
            return None;
        }
        let definition = Rc::clone(self.defined.get(&token.text)?);
        let arguments = match &definition.parameters {
            None => Vec::new(),
            Some(parameters) => self.arguments(parameters.len(), input)?,
        };
        let arguments: Vec<Argument> =
            arguments.into_iter().map(|tokens| self.argument(tokens, depth)).collect();
        let body = definition.substitute(&arguments, self.left);
        self.pay(body.len() + 1).then_some(body)
    }

    /// Takes `tokens` tokens from the budget. Returns false once the budget is exhausted.
    fn pay(&mut self, tokens: usize) -> bool {
        self.complete &= tokens <= self.left;
        self.left = self.left.saturating_sub(tokens);
        self.complete
    }

    /// Removes the arguments of a macro call from `input` and returns them. Leaves `input` unchanged and
    /// returns `None` if there are no arguments, or if there are not exactly `wanted`.
    fn arguments(&mut self, wanted: usize, input: &mut Input) -> Option<Vec<Vec<Token>>> {
        let mut taken = Vec::new();
        let arguments = read_arguments(input, &mut taken);
        // Charges the budget even for an unclosed parenthesis, because it is read to the end.
        let paid = self.pay(taken.len());
        let arguments = arguments.filter(|arguments| {
            let none = wanted == 0 && matches!(&arguments[..], [only] if only.is_empty());
            paid && (arguments.len() == wanted || none)
        });
        if arguments.is_none() {
            input.push(taken, None);
        }
        arguments
    }

    fn argument(&mut self, tokens: Vec<Token>, depth: usize) -> Argument {
        let expanded =
            if depth == DEPTH { tokens.clone() } else { self.expand_nested(tokens.clone(), depth + 1) };
        Argument { tokens, expanded }
    }
}

impl Macro {
    /// Returns the body with its parameters replaced by `arguments`. If the result has more than `limit`
    /// tokens, it may be incomplete, because the caller discards it anyway.
    fn substitute(&self, arguments: &[Argument], limit: usize) -> Vec<Token> {
        let body = &self.body;
        let is_join = |at: usize| body.get(at).is_some_and(|token| token.is("##"));
        let mut out: Vec<Token> = Vec::new();
        let (mut joins, mut is_empty) = (false, true);
        for (at, token) in body.iter().enumerate() {
            if is_join(at) && at > 0 {
                joins = true;
                continue;
            }
            let argument = self.argument(token, arguments);
            let is_spelled = at > 0 && body[at - 1].is("#") && argument.is_some();
            let mut piece = match argument {
                // The content of a string has no effect here.
                Some(_) if is_spelled => {
                    out.pop();
                    [Token::new(Kind::Quoted, "\"\"")].into()
                }
                Some(argument) if joins || is_join(at + 1) => argument.tokens.clone(),
                Some(argument) => argument.expanded.clone(),
                None => [token.clone()].into(),
            };
            if joins && !is_empty && !piece.is_empty() {
                join(&mut out, piece.remove(0));
            } else {
                is_empty = piece.is_empty() && (is_empty || !joins);
            }
            joins = false;
            // The caller discards a body above the limit.
            if out.len() <= limit {
                out.extend(piece);
            }
        }
        out
    }

    /// Returns the argument for the parameter that `token` names, if it names one.
    fn argument<'a>(&self, token: &Token, arguments: &'a [Argument]) -> Option<&'a Argument> {
        let parameters = self.parameters.as_deref().unwrap_or_default();
        arguments.get(parameters.iter().position(|p| token.is_word() && *p == token.text)?)
    }
}

fn parameters(tokens: &[Token]) -> Option<Vec<Rc<str>>> {
    if tokens.is_empty() {
        return Some(Vec::new());
    }
    let parameter = |tokens: &[Token]| match tokens {
        [name] if name.is_word() => Some(name.text.clone()),
        _ => None,
    };
    tokens.split(|token| token.is(",")).map(parameter).collect()
}

/// Joins `right` to the last token of `out`, as `##` does.
fn join(out: &mut Vec<Token>, right: Token) {
    match out.pop() {
        Some(left) if left.text.len() + right.text.len() <= JOINED_BYTES => out.push(left.joined(&right)),
        left => out.extend(left.into_iter().chain([right])),
    }
}

/// Reads the argument list of a macro call. Appends every token that it reads to `taken`.
fn read_arguments(input: &mut Input, taken: &mut Vec<Token>) -> Option<Vec<Vec<Token>>> {
    taken.push(input.next()?);
    if !taken[0].is("(") {
        return None;
    }
    let mut arguments = Vec::from([Vec::new()]);
    let mut depth = 0_usize;
    loop {
        let token = input.next()?;
        taken.push(token.clone());
        match &*token.text {
            ")" if depth == 0 => return Some(arguments),
            "," if depth == 0 => {
                arguments.push(Vec::new());
                continue;
            }
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        arguments.last_mut()?.push(token);
    }
}

/// Tokens that remain to be read, as a stack. The tokens of the source are at the bottom, and the results of
/// active expansions are above them.
#[derive(Default)]
struct Input {
    frames: Vec<Frame>,
    /// Names of the macros whose expansions are active.
    active: BTreeSet<Rc<str>>,
}

struct Frame {
    tokens: alloc::vec::IntoIter<Token>,
    name: Option<Rc<str>>,
}

impl Input {
    fn push(&mut self, tokens: Vec<Token>, name: Option<Rc<str>>) {
        self.active.extend(name.clone());
        self.frames.push(Frame { tokens: tokens.into_iter(), name });
    }

    /// Returns the next token. Marks it as painted if it came from the expansion of the macro that it names.
    fn next(&mut self) -> Option<Token> {
        loop {
            let frame = self.frames.last_mut()?;
            if let Some(mut token) = frame.tokens.next() {
                token.painted |= self.active.contains(&token.text);
                return Some(token);
            }
            if let Some(name) = self.frames.pop().and_then(|frame| frame.name) {
                self.active.remove(&name);
            }
        }
    }
}
