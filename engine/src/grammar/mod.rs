//! Grammars that constrain generated text: JSON schemas, regular expressions, Lark and GBNF.
//!
//! Every grammar becomes one in Lark, which llguidance compiles for a vocabulary. Sources come from clients, so size,
//! depth and work are bounded. Knows nothing about APIs or calls of tools.

mod dates;
mod gbnf;
#[cfg(test)]
mod tests;

use crate::session::MaskSource;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, regex_to_lark};
use ragtag_graph::Tokenizer;
use ragtag_scheduler::TokenMask;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum size of a grammar in bytes.
const MAX_BYTES: usize = 256 << 10;
/// Maximum depth of a JSON schema.
const MAX_DEPTH: usize = 64;
/// Maximum number of colons in Lark.
const MAX_COLONS: usize = gbnf::MAX_RULES;
/// Stack of the thread that compiles, which visits rules recursively. The system provides only the part that is used.
const STACK_BYTES: usize = 256 << 20;
/// Number of compiled grammars that a compiler keeps.
const KEPT: usize = 32;
/// White space between the parts of JSON: a space, or line ends with an indentation. Without a bound, small models
/// write white space until the limit of tokens.
const SPACE: &str = r"(?: |\n{1,2}[ \t]{0,20})";

/// A set of texts.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Grammar {
    /// JSON that is valid for a schema. White space between its parts is bounded.
    JsonSchema(Value),
    /// Texts that a regular expression matches as a whole.
    Regex(String),
    /// Texts of a grammar in Lark, with the extensions of llguidance.
    Lark(String),
    /// Texts of a grammar in llama.cpp's GBNF.
    Gbnf(String),
    /// One text.
    Text(String),
    /// One token, which may be a control token.
    Token(u32),
    /// All text up to the first occurrence of a marker, with the marker.
    Through(String),
    /// Texts of several grammars, one after the other.
    Sequence(Vec<Grammar>),
    /// Texts of any of these grammars.
    Choice(Vec<Grammar>),
    /// Up to this many texts of a grammar, at least one.
    Repeat(Box<Grammar>, u32),
}

/// A grammar that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot compile the grammar: {0}")]
pub struct GrammarError(String);

impl Grammar {
    /// Returns the grammar of any text up to `marker`, followed by a text of this grammar. Answers whose reasoning has
    /// begun in the prompt need it.
    pub fn after(self, marker: &str) -> Self {
        let space = Self::Regex(r"[ \n]{0,3}".into());
        Self::Sequence(vec![Self::Through(marker.into()), space, self])
    }

    /// Returns the grammar in Lark.
    fn to_lark(&self) -> Result<String, String> {
        if let Self::Lark(source) = self {
            return checked(source).map(str::to_owned);
        }
        let mut rules = String::new();
        let start = self.add_to(&mut rules, &mut 0)?;
        Ok(format!("start: {start}\n{rules}"))
    }

    /// Adds rules. `next` is the number of the next rule. Returns an expression for the grammar.
    fn add_to(&self, rules: &mut String, next: &mut u32) -> Result<String, String> {
        let all = |parts: &[Self], rules: &mut String, next: &mut u32| {
            parts.iter().map(|part| part.add_to(rules, next)).collect::<Result<Vec<_>, _>>()
        };
        let (attributes, body) = match self {
            Self::JsonSchema(schema) => (String::new(), format!("%json {}", bounded(schema)?)),
            Self::Regex(regex) => (String::new(), format!("/{}/", regex_to_lark(regex, ""))),
            Self::Lark(source) => (String::new(), format!("%lark {{\n{}\n}}", checked(source)?)),
            Self::Gbnf(source) => (String::new(), format!("%lark {{\n{}\n}}", gbnf::to_lark(source)?)),
            Self::Text(text) => return Ok(quoted(text)),
            Self::Token(id) => return Ok(format!("<[{id}]>")),
            Self::Through(marker) => (format!("[suffix={}]", quoted(marker)), "/(?s:.*)/".into()),
            Self::Sequence(parts) => (String::new(), all(parts, rules, next)?.join(" ")),
            Self::Choice(parts) => (String::new(), all(parts, rules, next)?.join(" | ")),
            Self::Repeat(part, most) => (String::new(), format!("{}{{1,{most}}}", part.add_to(rules, next)?)),
        };
        let name = format!("g{next}");
        *next += 1;
        let _ = writeln!(rules, "{name}{attributes}: {body}");
        Ok(name)
    }
}

/// Checks the number of rules of a grammar in Lark. Each has a colon.
fn checked(source: &str) -> Result<&str, String> {
    match source.matches(':').count() {
        0..=MAX_COLONS => Ok(source),
        _ => Err(format!("it has more than {MAX_COLONS} colons, and so too many rules")),
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\x7f', "\\u007f")
}

/// Returns a schema with bounded white space and exact dates.
fn bounded(schema: &Value) -> Result<Value, String> {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Object(_) if depth(schema) > MAX_DEPTH => {
            return Err(format!("the schema is nested more than {MAX_DEPTH} deep"));
        }
        Value::Object(_) => schema.clone(),
        _ => return Err("a JSON schema must be an object".into()),
    };
    dates::make_exact(&mut schema);
    schema["x-guidance"] = json!({ "whitespace_flexible": true, "whitespace_pattern": SPACE });
    Ok(schema)
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Compiles grammars for the vocabulary of a tokenizer. It keeps the grammars that were used last.
pub struct GrammarCompiler {
    factory: ParserFactory,
    /// Compiled grammars by their sources, the last used ones at the end.
    kept: Mutex<VecDeque<(String, CompiledGrammar)>>,
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// Creates a compiler. Sorts the vocabulary, which takes a fraction of a second.
    ///
    /// # Errors
    /// Returns an error if the vocabulary is not usable, for example because a token is too long.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let make = || {
            let environment = environment(tokenizer);
            let slices = SlicedBiasComputer::general_slices();
            let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices);
            let mut factory = factory.map_err(|error| error.to_string())?;
            factory.quiet();
            let limits = factory.limits_mut();
            limits.verbose_errors = false;
            limits.max_grammar_size = 200_000;
            limits.max_lexer_states = 20_000;
            Ok(factory)
        };
        Ok(Self { factory: on_a_stack(make)?, kept: Mutex::default() })
    }

    /// Compiles a grammar, unless it is kept.
    ///
    /// # Errors
    /// Returns an error if the grammar is invalid, too large, or too complex.
    pub fn compile(&self, grammar: &Grammar) -> Result<CompiledGrammar, GrammarError> {
        let source = grammar.to_lark().map_err(GrammarError)?;
        if source.len() > MAX_BYTES {
            let kib = MAX_BYTES >> 10;
            return Err(GrammarError(format!(
                "it has {} bytes, at most {kib} KiB are allowed",
                source.len()
            )));
        }
        if let Some(kept) = self.kept(&source) {
            return Ok(kept);
        }
        let matcher = on_a_stack(|| {
            let parser = self.factory.create_parser(TopLevelGrammar::from_lark(source.clone()));
            let mut matcher = Matcher::new(parser);
            // The first mask also checks that the grammar accepts some text.
            match matcher.compute_mask() {
                Ok(mask) if mask.is_zero() => Err("it accepts no text".into()),
                Ok(_) => Ok(matcher),
                Err(error) => Err(error.to_string()),
            }
        })?;
        let compiled = CompiledGrammar { matcher: Arc::new(Mutex::new(matcher)) };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((source, compiled.clone()));
        Ok(compiled)
    }

    fn kept(&self, source: &str) -> Option<CompiledGrammar> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(other, _)| other == source)?;
        let entry = kept.remove(at)?;
        let compiled = entry.1.clone();
        kept.push_back(entry);
        Some(compiled)
    }
}

/// Runs `work` on a thread with a large stack. A panic becomes an error.
fn on_a_stack<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, GrammarError> {
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("ragtag grammar".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| format!("no thread: {error}"))?;
        thread.join().unwrap_or_else(|_| Err("the compiler failed".into()))
    });
    done.map_err(|cause| GrammarError(cause.lines().next().unwrap_or_default().to_owned()))
}

/// Returns the vocabulary as llguidance takes it. Control tokens begin with a byte that no text has.
fn environment(tokenizer: &Tokenizer) -> TokEnv {
    let mut words: Vec<Vec<u8>> = (0..tokenizer.vocabulary_size() as u32)
        .map(|id| match tokenizer.bytes(id) {
            Some(bytes) => bytes.into_owned(),
            None => [&[TokTrie::SPECIAL_TOKEN_MARKER], format!("[{id}]").as_bytes()].concat(),
        })
        .collect();
    let mut ends: Vec<u32> =
        tokenizer.eos().iter().copied().filter(|id| (*id as usize) < words.len()).collect();
    if ends.is_empty() {
        // A token beyond the vocabulary. The generation ends without it as soon as no text may follow.
        ends.push(words.len() as u32);
        words.push([&[TokTrie::SPECIAL_TOKEN_MARKER], &b"<end>"[..]].concat());
    }
    let info = TokRxInfo::new(words.len() as u32, ends[0]);
    Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words).with_eos_tokens(&ends)))
}

/// A grammar that is compiled for a vocabulary.
#[derive(Clone)]
pub struct CompiledGrammar {
    /// State at the start of a text.
    matcher: Arc<Mutex<Matcher>>,
}

impl fmt::Debug for CompiledGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledGrammar").finish_non_exhaustive()
    }
}

impl CompiledGrammar {
    /// Returns a mask for one text.
    pub fn mask(&self) -> Box<dyn TokenMask> {
        let matcher = self.matcher.lock().unwrap_or_else(PoisonError::into_inner);
        // A deep copy shares no lock with other sequences.
        Box::new(GrammarMask { matcher: matcher.deep_clone() })
    }
}

impl From<CompiledGrammar> for MaskSource {
    fn from(grammar: CompiledGrammar) -> Self {
        MaskSource::new(move || grammar.mask())
    }
}

/// Tokens that may follow the text so far.
struct GrammarMask {
    matcher: Matcher,
}

impl TokenMask for GrammarMask {
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
        for (token, logit) in logits.iter_mut().enumerate() {
            if token >= mask.len() || !mask.get(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        self.matcher.consume_token(token).map_err(|error| error.to_string())?;
        Ok(self.matcher.is_stopped())
    }
}
