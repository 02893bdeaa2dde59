//! Refused and failed requests, in the shape of each API.

use ragtag_engine::{Error, Refusal as Refused, RunError};
use serde_json::{Value, json};

/// Maximum length of a message in characters.
const MAX_MESSAGE: usize = 500;

/// Kind of a refusal. It sets the status code and the type of the error in each API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Invalid,
    Unauthorized,
    Forbidden,
    NotFound,
    Method,
    Slow,
    TooLarge,
    Busy,
    Internal,
    Unavailable,
}

/// A request that gets no answer, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// Name of the field that is at fault.
    pub(crate) param: Option<String>,
    /// Machine-readable cause, as OpenAI's clients know it.
    pub(crate) code: Option<&'static str>,
}

/// APIs with shapes of their own for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    OpenAi,
    Anthropic,
}

impl Refusal {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        // Messages may quote requests.
        let message = message.into().chars().take(MAX_MESSAGE).collect();
        Self { kind, message, param: None, code: None }
    }

    /// Refuses the value of a field.
    pub(crate) fn of(param: &str, message: impl Into<String>) -> Self {
        let param = param.chars().take(MAX_MESSAGE).collect();
        Self { param: Some(param), ..Self::new(Kind::Invalid, message) }
    }

    /// Refuses a field that the server cannot obey.
    pub(crate) fn unsupported(param: &str) -> Self {
        let message = format!("{param} is not supported: leave it out");
        Self { code: Some("unsupported_parameter"), ..Self::of(param, message) }
    }

    pub(crate) fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn status(&self) -> u16 {
        match self.kind {
            Kind::Invalid => 400,
            Kind::Unauthorized => 401,
            Kind::Forbidden => 403,
            Kind::NotFound => 404,
            Kind::Method => 405,
            Kind::Slow => 408,
            Kind::TooLarge => 413,
            Kind::Busy => 429,
            Kind::Internal => 500,
            Kind::Unavailable => 503,
        }
    }

    pub(crate) fn body(&self, shape: Shape) -> Value {
        match shape {
            Shape::OpenAi => json!({ "error": {
                "message": self.message,
                "type": self.openai_type(),
                "param": self.param,
                "code": self.code,
            }}),
            Shape::Anthropic => json!({
                "type": "error",
                "error": { "type": self.anthropic_type(), "message": self.message },
            }),
        }
    }

    fn openai_type(&self) -> &'static str {
        match self.kind {
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::Busy => "rate_limit_error",
            Kind::Internal | Kind::Unavailable => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.kind {
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::NotFound => "not_found_error",
            Kind::TooLarge => "request_too_large",
            Kind::Busy => "rate_limit_error",
            Kind::Internal => "api_error",
            Kind::Unavailable => "overloaded_error",
            Kind::Invalid | Kind::Method | Kind::Slow => "invalid_request_error",
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Usage(_) | Error::Template { .. } | Error::NoTemplate { .. } | Error::Tokenizer { .. } => {
                Self::new(Kind::Invalid, message)
            }
            Error::Run(RunError::Refused(Refused::Busy { .. })) => {
                Self::new(Kind::Busy, message).code("rate_limit_exceeded")
            }
            Error::Run(RunError::Refused(_)) => Self::new(Kind::Invalid, message),
            Error::Run(RunError::Sampling { .. }) => Self::new(Kind::Internal, message),
            _ => Self::new(Kind::Unavailable, message),
        }
    }
}

impl From<serde_json::Error> for Refusal {
    fn from(cause: serde_json::Error) -> Self {
        let message = cause.to_string();
        let field = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        Self {
            param: field.map(str::to_owned),
            ..Self::new(Kind::Invalid, format!("invalid request: {message}"))
        }
    }
}
