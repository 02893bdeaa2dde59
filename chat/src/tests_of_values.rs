//! Jinja's tests, such as `x is defined`.

use crate::filters;
use crate::interpreter::{Interpreter, Values};
use crate::meter::{Evaluated, wrong};
use crate::methods;
use crate::operators;
use crate::value::Value;
use std::sync::Arc;

const NAMES: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// Returns whether a test has this name.
pub(crate) fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Returns whether a test holds for `value`.
pub(crate) fn holds(with: &Interpreter<'_>, name: &str, value: &Value, values: Values) -> Evaluated<bool> {
    // A test may be unknown as long as the template does not use it.
    if !exists(name) {
        return wrong(format!("no test is called {name:.40}"));
    }
    if let Some(comparison) = filters::comparison(name) {
        let [other] = values.bind(name, ["other"])?;
        let Some(other) = other else { return wrong(format!("the test {name} needs a value")) };
        return with.compare(comparison, value, &other);
    }
    if name == "divisibleby" || name == "sameas" {
        let [other] = values.bind(name, ["other"])?;
        let Some(other) = other else { return wrong(format!("the test {name} needs a value")) };
        return match name {
            "sameas" => Ok(same(value, &other)),
            _ => Ok(!remainder(value, &other, with)?.truth()),
        };
    }
    let [] = values.bind(name, [])?;
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_) | Value::Big(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Int(_) | Value::Big(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        // Python can call an undefined value, which raises an error.
        "callable" => value.is_callable() || matches!(value, Value::Undefined(_)),
        "escaped" => false,
        "iterable" => is_iterable(value),
        // Whatever has a length and items: also texts and dictionaries.
        "sequence" => matches!(
            value,
            Value::Undefined(_)
                | Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(..)
        ),
        "odd" => remainder(value, &Value::Int(2), with)?.equals(&Value::Int(1), with.meter)?,
        "even" => !remainder(value, &Value::Int(2), with)?.truth(),
        "filter" => matches!(value, Value::Str(name) if filters::exists(name)),
        "test" => matches!(value, Value::Str(name) if exists(name)),
        "lower" | "upper" => {
            let method = if name == "lower" { "islower" } else { "isupper" };
            let text = Value::Str(value.to_text(with.meter)?);
            methods::call(&text, method, Values::default(), with.meter)?.truth()
        }
        other => return wrong(format!("no test is called {other}")),
    })
}

fn is_iterable(value: &Value) -> bool {
    let is_sequence = matches!(value, Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Range(..));
    let is_other = matches!(value, Value::Dict(_) | Value::View(..) | Value::Iterator(_) | Value::Loop(..));
    is_sequence || is_other || matches!(value, Value::Undefined(_))
}

/// Returns whether both are the same object.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        // CPython keeps one object for each small number and for each name-like text.
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Str(a), Value::Str(b)) => a == b,
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => Arc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => Arc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) | (Value::Macro(a), Value::Macro(b)) => a == b,
        _ => false,
    }
}

fn remainder(value: &Value, divisor: &Value, with: &Interpreter<'_>) -> Evaluated<Value> {
    if matches!(value, Value::Str(_)) {
        return wrong("a text has no remainder");
    }
    operators::binary(crate::ast::Binary::Modulo, value, divisor, with.meter)
}
