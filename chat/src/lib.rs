//! Renders conversations to prompts with the chat templates of models.
//!
//! A chat template is a Jinja template that comes with a model. [`Template::render`] returns what
//! `apply_chat_template(…, tokenize=False)` of the Python library `transformers` returns, byte for byte.
//! Templates are untrusted: an interpreter with [`Limits`] bounds their time, memory and recursion. The crate
//! does no I/O and reads no clock.
//!
//! The crate has an interpreter of its own. minijinja 3.1, with its limit on steps, ends the process on hostile
//! templates: nested values and long expressions overflow its stack, values that share parts take unbounded
//! time, and a format width takes gigabytes. Its filters and methods can be replaced, but its operators cannot:
//! they compare, hash and print a value before they pay for it.
//!
//! ```
//! use ragtag_chat::{Conversation, Message, Template};
//!
//! # fn main() -> ragtag_chat::Result<()> {
//! let template = Template::compile(
//!     "{% for message in messages %}<{{ message.role }}>{{ message['content'] | trim }}\n{% endfor %}
//! {%- if add_generation_prompt %}<assistant>{% endif %}",
//! )?;
//! let mut conversation = Conversation::new(vec![Message::new("user", " Hello! ")]);
//! conversation.add_generation_prompt = true;
//! assert_eq!(template.render(&conversation)?, "<user>Hello!\n<assistant>");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod ast;
mod conversation;
mod error;
mod eval;
mod filters;
mod format;
mod interpreter;
mod json;
mod lexer;
mod meter;
mod methods;
mod operators;
mod parser;
mod reader;
mod strftime;
mod tests_of_values;
mod value;

pub use conversation::{Conversation, Data, Message, Object};
pub use error::{Error, JsonError, Limit, Result};
pub use json::to_json;
pub use meter::Limits;
pub use reader::from_json;
pub use strftime::Moment;

use interpreter::Interpreter;
use meter::{Fault, Meter, Sink};
use parser::Parsed;
use value::{Function, Value};

/// Maximum size of a template's source, in bytes. Templates of models have up to 20 kB.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// Maximum length of an error message.
const MAX_MESSAGE_CHARACTERS: usize = 300;

/// A compiled chat template. It can render any number of conversations, also on several threads.
#[derive(Debug)]
pub struct Template {
    parsed: Parsed,
    limits: Limits,
}

impl Template {
    /// Compiles the source of a template.
    ///
    /// # Errors
    /// Returns [`Error::Syntax`] if the source is invalid or uses a tag, filter or test that is unknown.
    pub fn compile(source: &str) -> Result<Template> {
        if source.len() > MAX_SOURCE_BYTES {
            let what = format!("the template has more than {MAX_SOURCE_BYTES} bytes");
            return Err(Error::Syntax { line: 1, what });
        }
        let parsed = parser::parse(lexer::tokens(source)?)?;
        Ok(Template { parsed, limits: Limits::default() })
    }

    /// Replaces the limits of a rendering.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Template {
        self.limits = limits;
        self
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// Returns [`Error::Raised`] if the template rejects the conversation, [`Error::Evaluation`] if an
    /// operation fails, and [`Error::Limit`] if the rendering exceeds a limit.
    pub fn render(&self, conversation: &Conversation) -> Result<String> {
        let meter = Meter::new(&self.limits);
        let mut line = 1;
        self.render_metered(conversation, &meter, &mut line).map_err(|fault| match *fault {
            Fault::Raised(message) => Error::Raised { message },
            Fault::Limit(limit) => Error::Limit { line, limit },
            Fault::Wrong(what) => Error::Evaluation { line, what: shown(&what) },
        })
    }

    fn render_metered(
        &self,
        conversation: &Conversation,
        meter: &Meter,
        line: &mut u32,
    ) -> meter::Evaluated<String> {
        let variables = conversation.values(meter)?;
        let global = |name: &str| variables.get(name).cloned().or_else(|| function(name));
        let mut interpreter = Interpreter::new(&self.parsed, meter, conversation.now, global);
        let mut out = Sink::output(meter, self.limits.output_bytes);
        let result = interpreter.render(&self.parsed.body, &mut out);
        *line = interpreter.line;
        result.map(|()| out.finish())
    }
}

/// Escapes and truncates a message, because it may quote texts of the template.
fn shown(what: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    what.chars().take(MAX_MESSAGE_CHARACTERS).map(escape).collect()
}

/// Returns a function of the environment.
fn function(name: &str) -> Option<Value> {
    Some(Value::Function(match name {
        "range" => Function::Range,
        "dict" => Function::Dict,
        "namespace" => Function::Namespace,
        "raise_exception" => Function::RaiseException,
        "strftime_now" => Function::StrftimeNow,
        _ => return None,
    }))
}
