//! Values of a template, with Python's types and conversions to text.

use crate::error::Limit;
use crate::meter::{Evaluated, Fault, Meter, Sink, wrong};
use indexmap::{Equivalent, IndexMap};
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Maximum depth of nested lists and dictionaries. Functions over values recurse to this depth.
pub(crate) const MAX_DEPTH: u32 = 140;

/// Value of an expression. Cloning is cheap. Values are immutable, as in the sandbox that `transformers`
/// uses.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Missing variable or item, with the message of the error that its use raises.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    /// Integer outside the range of `Int`, in decimal. Templates only print and compare it.
    Big(Arc<str>),
    Float(f64),
    Str(Arc<str>),
    List(Arc<Items>),
    Tuple(Arc<Items>),
    /// Items of a filter such as `map`. It can only be iterated.
    Iterator(Arc<Items>),
    Dict(Arc<Dict>),
    /// Keys, values or items of a dictionary.
    View(Arc<Dict>, View),
    /// Numbers from the first to before the second, with a step.
    Range(i64, i64, i64),
    /// Index of a namespace in the interpreter.
    Namespace(usize),
    /// Index of a macro in the interpreter.
    Macro(usize),
    /// Index of a running loop in the interpreter, and the loop's unique number.
    Loop(usize, u64),
    Function(Function),
    /// Method of a value.
    Method(Arc<(Value, Arc<str>)>),
}

/// Functions of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
}

/// Part of a dictionary that a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Keys,
    Values,
    Items,
}

/// Items of a list or tuple.
#[derive(Debug, Default)]
pub(crate) struct Items {
    pub(crate) items: Vec<Value>,
    /// Number of levels of nested values.
    depth: u32,
}

/// A dictionary, in the order of insertion.
#[derive(Debug, Default)]
pub(crate) struct Dict {
    pub(crate) map: IndexMap<Key, Value>,
    depth: u32,
}

/// A hashable value. Equal numbers are equal keys, whatever their type.
#[derive(Clone, Debug)]
pub(crate) struct Key(Value);

fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(b) => Some(f64::from(u8::from(*b))),
        Value::Int(i) => Some(*i as f64),
        Value::Float(f) => Some(*f),
        Value::Big(digits) => digits.parse().ok(),
        _ => None,
    }
}

impl Key {
    /// Returns the key for `value`, or the error of an unhashable type. Pays for one use of the key.
    pub(crate) fn new(value: Value, meter: &Meter) -> Evaluated<Key> {
        let key = Key(value);
        key.pay(meter)?;
        Ok(key)
    }

    /// Pays for hashing the key and comparing it with an equal one.
    pub(crate) fn pay(&self, meter: &Meter) -> Evaluated<()> {
        pay_for_key(&self.0, meter)
    }

    pub(crate) fn text(text: impl Into<Arc<str>>) -> Key {
        Key(Value::Str(text.into()))
    }

    pub(crate) fn value(&self) -> &Value {
        &self.0
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }
}

fn pay_for_key(value: &Value, meter: &Meter) -> Evaluated<()> {
    match value {
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => meter.steps(1),
        Value::Str(text) | Value::Big(text) => meter.read(text.len()),
        Value::Tuple(items) => {
            meter.steps(1)?;
            items.items.iter().try_for_each(|item| pay_for_key(item, meter))
        }
        other => wrong(format!("a {} cannot be a key of a dictionary", other.type_name())),
    }
}

fn keys_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => a == b,
        (Value::None, Value::None) => true,
        (Value::Tuple(a), Value::Tuple(b)) => {
            a.items.len() == b.items.len() && a.items.iter().zip(&b.items).all(|(a, b)| keys_equal(a, b))
        }
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Big(a), Value::Big(b)) => a == b,
        (a, b) => matches!((number_of(a), number_of(b)), (Some(a), Some(b)) if a == b),
    }
}

fn hash_key<H: Hasher>(value: &Value, state: &mut H) {
    match value {
        Value::Str(text) => text.hash(state),
        Value::Tuple(items) => items.items.iter().for_each(|item| hash_key(item, state)),
        // `0.0` equals `-0.0`.
        other => number_of(other).map_or(0, |number| (number + 0.0).to_bits()).hash(state),
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        keys_equal(&self.0, &other.0)
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_key(&self.0, state);
    }
}

/// Text that looks up a key without an allocation.
#[derive(Hash)]
pub(crate) struct TextKey<'a>(pub(crate) &'a str);

impl Equivalent<Key> for TextKey<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        key.as_str() == Some(self.0)
    }
}

fn depth_above(values: impl Iterator<Item = u32>) -> Evaluated<u32> {
    let depth = values.max().unwrap_or(0) + 1;
    if depth > MAX_DEPTH { Err(Box::new(Fault::Limit(Limit::Depth))) } else { Ok(depth) }
}

impl Items {
    pub(crate) fn new(items: Vec<Value>) -> Evaluated<Arc<Items>> {
        let depth = depth_above(items.iter().map(Value::depth))?;
        Ok(Arc::new(Items { items, depth }))
    }
}

impl Dict {
    pub(crate) fn new(map: IndexMap<Key, Value>) -> Evaluated<Arc<Dict>> {
        // A key may be a tuple.
        let depths = map.iter().map(|(key, value)| key.0.depth().max(value.depth()));
        let depth = depth_above(depths)?;
        Ok(Arc::new(Dict { map, depth }))
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(&TextKey(key))
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Str(text.into())
    }
}

impl Value {
    pub(crate) fn list(items: Vec<Value>) -> Evaluated<Value> {
        Items::new(items).map(Value::List)
    }

    pub(crate) fn tuple(items: Vec<Value>) -> Evaluated<Value> {
        Items::new(items).map(Value::Tuple)
    }

    /// Returns an undefined value whose use raises `message`.
    pub(crate) fn undefined(message: impl Into<Arc<str>>) -> Value {
        Value::Undefined(message.into())
    }

    fn depth(&self) -> u32 {
        match self {
            Value::List(items) | Value::Tuple(items) | Value::Iterator(items) => items.depth,
            Value::Dict(dict) | Value::View(dict, _) => dict.depth,
            Value::Method(method) => method.0.depth() + 1,
            _ => 0,
        }
    }

    /// Returns the name of the value's type in Python.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Big(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Iterator(_) => "generator",
            Value::Dict(_) => "dict",
            Value::View(_, View::Keys) => "dict_keys",
            Value::View(_, View::Values) => "dict_values",
            Value::View(_, View::Items) => "dict_items",
            Value::Range(..) => "range",
            Value::Namespace(_) => "Namespace",
            Value::Macro(_) => "Macro",
            Value::Loop(..) => "LoopContext",
            Value::Function(_) => "function",
            Value::Method(_) => "method",
        }
    }

    /// Returns the size of a text in bytes.
    pub(crate) fn text_bytes(&self) -> Option<usize> {
        if let Value::Str(text) = self { Some(text.len()) } else { None }
    }

    pub(crate) fn is_callable(&self) -> bool {
        matches!(self, Value::Macro(_) | Value::Loop(..) | Value::Function(_) | Value::Method(_))
    }

    pub(crate) fn truth(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(i) => *i != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::List(items) | Value::Tuple(items) => !items.items.is_empty(),
            Value::Dict(dict) | Value::View(dict, _) => !dict.map.is_empty(),
            Value::Range(..) => self.length() != Some(0),
            _ => true,
        }
    }

    /// Returns the number of items, or `None` if the value has no length.
    pub(crate) fn length(&self) -> Option<usize> {
        match self {
            Value::Undefined(_) => Some(0),
            Value::Str(text) => Some(text.chars().count()),
            Value::List(items) | Value::Tuple(items) => Some(items.items.len()),
            Value::Dict(dict) | Value::View(dict, _) => Some(dict.map.len()),
            Value::Range(start, end, step) => {
                let (span, step) = match *step > 0 {
                    true => (i128::from(*end) - i128::from(*start), i128::from(*step)),
                    false => (i128::from(*start) - i128::from(*end), -i128::from(*step)),
                };
                Some(usize::try_from(((span + step - 1) / step).max(0)).unwrap_or(usize::MAX))
            }
            _ => None,
        }
    }

    /// Returns the items over which Python iterates.
    pub(crate) fn items(&self, meter: &Meter) -> Evaluated<Vec<Value>> {
        match self {
            Value::Undefined(_) => Ok(Vec::new()),
            Value::Str(text) => {
                meter.make_items(text.len())?;
                Ok(text.chars().map(|c| Value::from(&*c.encode_utf8(&mut [0; 4]))).collect())
            }
            Value::List(items) | Value::Tuple(items) | Value::Iterator(items) => {
                meter.make_items(items.items.len())?;
                Ok(items.items.clone())
            }
            Value::Dict(dict) => view_items(dict, View::Keys, meter),
            Value::View(dict, view) => view_items(dict, *view, meter),
            Value::Range(start, _, step) => {
                let count = self.length().unwrap_or_default();
                meter.make_items(count)?;
                let at = |n: usize| i128::from(*start) + n as i128 * i128::from(*step);
                Ok((0..count).map(|n| Value::Int(at(n))).collect())
            }
            other => wrong(format!("a {} cannot be iterated", other.type_name())),
        }
    }

    /// Returns whether two values are equal.
    pub(crate) fn equals(&self, other: &Value, meter: &Meter) -> Evaluated<bool> {
        meter.steps(1)?;
        Ok(match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a), Value::Str(b)) => {
                meter.read(a.len().min(b.len()))?;
                a == b
            }
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Big(a), Value::Big(b)) => {
                meter.read(a.len().min(b.len()))?;
                a == b
            }
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, meter)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Dict(a), Value::Dict(b)) => {
                if a.map.len() != b.map.len() {
                    return Ok(false);
                }
                for (key, value) in &a.map {
                    key.pay(meter)?;
                    match b.map.get(key) {
                        Some(other) if value.equals(other, meter)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Range(..), Value::Range(..)) => {
                self.items(meter)?.iter().map(number_of).eq(other.items(meter)?.iter().map(number_of))
            }
            (Value::Namespace(a), Value::Namespace(b)) | (Value::Macro(a), Value::Macro(b)) => a == b,
            (Value::Loop(_, a), Value::Loop(_, b)) => a == b,
            (Value::Function(a), Value::Function(b)) => a == b,
            (a, b) => matches!((number_of(a), number_of(b)), (Some(a), Some(b)) if a == b),
        })
    }

    /// Compares two values. Values of different types have no order, except numbers.
    pub(crate) fn compare(&self, other: &Value, meter: &Meter) -> Evaluated<Option<Ordering>> {
        meter.steps(1)?;
        match (self, other) {
            (Value::Undefined(message), _) | (_, Value::Undefined(message)) => wrong(message.to_string()),
            (Value::Int(a), Value::Int(b)) => Ok(Some(a.cmp(b))),
            (Value::Str(a), Value::Str(b)) => {
                meter.read(a.len().min(b.len()))?;
                Ok(Some(a.cmp(b)))
            }
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, meter)? {
                        return a.compare(b, meter);
                    }
                }
                Ok(Some(a.items.len().cmp(&b.items.len())))
            }
            (a, b) => match (number_of(a), number_of(b)) {
                (Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
                _ => wrong(format!("a {} and a {} have no order", a.type_name(), b.type_name())),
            },
        }
    }

    /// Writes the value as Python's `str` does.
    pub(crate) fn write(&self, out: &mut Sink<'_>) -> Evaluated<()> {
        match self {
            Value::Undefined(_) => Ok(()),
            Value::Str(text) => out.push(text),
            other => other.write_repr(out),
        }
    }

    /// Returns the value as text, as Python's `str` does.
    pub(crate) fn to_text(&self, meter: &Meter) -> Evaluated<Arc<str>> {
        if let Value::Str(text) = self {
            return Ok(Arc::clone(text));
        }
        let mut out = Sink::new(meter);
        self.write(&mut out)?;
        Ok(out.finish().into())
    }

    /// Writes the value as Python's `repr` does.
    pub(crate) fn write_repr(&self, out: &mut Sink<'_>) -> Evaluated<()> {
        out.meter().steps(1)?;
        match self {
            Value::Undefined(_) => out.push("Undefined"),
            Value::None => out.push("None"),
            Value::Bool(true) => out.push("True"),
            Value::Bool(false) => out.push("False"),
            Value::Int(i) => out.push(&i.to_string()),
            Value::Big(digits) => out.push(digits),
            Value::Float(f) => out.push(&float_repr(*f)),
            Value::Str(text) => write_text_repr(text, out),
            Value::List(items) => write_sequence(&items.items, "[", "]", out),
            Value::Tuple(items) if items.items.len() == 1 => write_sequence(&items.items, "(", ",)", out),
            Value::Tuple(items) => write_sequence(&items.items, "(", ")", out),
            Value::Dict(dict) => write_dict(dict, out),
            Value::View(dict, view) => {
                out.push(self.type_name())?;
                write_sequence(&view_items(dict, *view, out.meter())?, "([", "])", out)
            }
            Value::Range(start, end, 1) => out.push(&format!("range({start}, {end})")),
            Value::Range(start, end, step) => out.push(&format!("range({start}, {end}, {step})")),
            // Python prints addresses here.
            other => out.push(&format!("<{}>", other.type_name())),
        }
    }
}

fn view_items(dict: &Dict, view: View, meter: &Meter) -> Evaluated<Vec<Value>> {
    meter.make_items(dict.map.len())?;
    Ok(match view {
        View::Keys => dict.map.keys().map(|key| key.0.clone()).collect(),
        View::Values => dict.map.values().cloned().collect(),
        View::Items => {
            meter.make_items(dict.map.len().saturating_mul(3))?;
            let pairs = dict.map.iter().map(|(key, value)| Value::tuple(vec![key.0.clone(), value.clone()]));
            pairs.collect::<Evaluated<_>>()?
        }
    })
}

fn write_sequence(items: &[Value], open: &str, close: &str, out: &mut Sink<'_>) -> Evaluated<()> {
    out.push(open)?;
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(", ")?;
        }
        item.write_repr(out)?;
    }
    out.push(close)
}

fn write_dict(dict: &Dict, out: &mut Sink<'_>) -> Evaluated<()> {
    out.push("{")?;
    for (index, (key, value)) in dict.map.iter().enumerate() {
        if index > 0 {
            out.push(", ")?;
        }
        key.0.write_repr(out)?;
        out.push(": ")?;
        value.write_repr(out)?;
    }
    out.push("}")
}

/// Formats a number as Python's `repr` does: the shortest digits that parse to the same number.
pub(crate) fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn write_text_repr(text: &str, out: &mut Sink<'_>) -> Evaluated<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\\' => out.push("\\\\")?,
            c if c == quote => out.push(&format!("\\{c}"))?,
            c if is_printable(c) => out.push_char(c)?,
            c if u32::from(c) <= 0xFF => out.push(&format!("\\x{:02x}", u32::from(c)))?,
            c if u32::from(c) <= 0xFFFF => out.push(&format!("\\u{:04x}", u32::from(c)))?,
            c => out.push(&format!("\\U{:08x}", u32::from(c)))?,
        }
    }
    out.push_char(quote)
}

/// Returns whether `repr` shows a character as it is. Python and Rust escape the same categories. Rust also
/// escapes a combining character, but only at the start of a text.
fn is_printable(c: char) -> bool {
    matches!(c, ' '..='~') || (!c.is_ascii() && !format!("a{c}").escape_debug().any(|c| c == '\\'))
}

/// Returns whether Python counts `c` as whitespace.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}
