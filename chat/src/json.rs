//! The filter `tojson`, which writes what Python's `json.dumps` writes.

use crate::conversation::Message;
use crate::interpreter::Values;
use crate::meter::{Evaluated, Limits, Meter, Sink, wrong};
use crate::methods;
use crate::value::{Dict, Key, Value, float_repr};

/// Format of the output.
struct Style {
    ascii: bool,
    /// Text of one level of indentation, if the output has several lines.
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// Writes `value` as JSON.
pub(crate) fn tojson(value: &Value, values: Values, meter: &Meter) -> Evaluated<Value> {
    let [ascii, indent, separators, sort_keys] =
        values.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let flag = |value: Option<Value>| value.is_some_and(|value| value.truth());
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(indent)) => Some(indent.to_string()),
        width => {
            let width = usize::try_from(methods::whole(width, 0, "the indent of tojson")?).unwrap_or(0);
            let mut indent = Sink::new(meter);
            indent.push_repeated(" ", width)?;
            Some(indent.finish())
        }
    };
    let separators = match separators {
        None | Some(Value::None) => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
        Some(pair) => {
            let pair: Vec<_> = pair.items(meter)?;
            let [Value::Str(item), Value::Str(key)] = &pair[..] else {
                return wrong("the separators of tojson are not two texts");
            };
            [item.to_string(), key.to_string()]
        }
    };
    let [item_separator, key_separator] = separators;
    let style =
        Style { ascii: flag(ascii), indent, item_separator, key_separator, sort_keys: flag(sort_keys) };
    let mut out = Sink::new(meter);
    style.write(value, 0, &mut out)?;
    Ok(Value::Str(out.finish().into()))
}

/// Writes messages as JSON, so that [`from_json`](crate::from_json) reads the same messages.
pub fn to_json(messages: &[Message]) -> String {
    let limits = Limits { steps: u64::MAX, value_bytes: u64::MAX, output_bytes: u64::MAX };
    let meter = Meter::new(&limits);
    let style = Style {
        ascii: false,
        indent: Some("  ".into()),
        item_separator: ",".into(),
        key_separator: ": ".into(),
        sort_keys: false,
    };
    let mut out = Sink::new(&meter);
    let write = |at: usize, out: &mut Sink<'_>| style.dict(messages[at].dict(), 1, out);
    style
        .sequence("[", "]", messages.len(), 0, &mut out, write)
        .expect("messages are JSON, and have no limits");
    out.finish()
}

impl Style {
    fn write(&self, value: &Value, level: usize, out: &mut Sink<'_>) -> Evaluated<()> {
        out.meter().steps(1)?;
        match value {
            Value::None => out.push("null"),
            Value::Bool(true) => out.push("true"),
            Value::Bool(false) => out.push("false"),
            Value::Int(number) => out.push(&number.to_string()),
            Value::Big(digits) => out.push(digits),
            Value::Float(number) => out.push(&float(*number)),
            Value::Str(text) => self.text(text, out),
            Value::List(items) | Value::Tuple(items) => {
                let write =
                    |index: usize, out: &mut Sink<'_>| self.write(&items.items[index], level + 1, out);
                self.sequence("[", "]", items.items.len(), level, out, write)
            }
            Value::Dict(dict) => self.dict(dict, level, out),
            other => wrong(format!("a {} cannot be written as JSON", other.type_name())),
        }
    }

    fn dict(&self, dict: &Dict, level: usize, out: &mut Sink<'_>) -> Evaluated<()> {
        let mut entries: Vec<(&Key, &Value)> = dict.map.iter().collect();
        out.meter().make_items(entries.len())?;
        if self.sort_keys {
            let meter = out.meter();
            if entries.iter().any(|(key, _)| key.as_str().is_none()) {
                return wrong("tojson sorts only keys that are texts");
            }
            meter.steps(entries.len() * 16)?;
            entries.sort_by_key(|(key, _)| key.as_str());
        }
        let write = |index: usize, out: &mut Sink<'_>| {
            let (key, value) = entries[index];
            match key.value() {
                Value::Str(text) => self.text(text, out)?,
                Value::Float(number) => self.text(&float(*number), out)?,
                Value::Tuple(_) => return wrong("a tuple cannot be a key in JSON"),
                other => {
                    out.push("\"")?;
                    self.write(other, level, out)?;
                    out.push("\"")?;
                }
            }
            out.push(&self.key_separator)?;
            self.write(value, level + 1, out)
        };
        self.sequence("{", "}", entries.len(), level, out, write)
    }

    fn sequence<'m>(
        &self,
        open: &str,
        close: &str,
        count: usize,
        level: usize,
        out: &mut Sink<'m>,
        write: impl Fn(usize, &mut Sink<'m>) -> Evaluated<()>,
    ) -> Evaluated<()> {
        out.push(open)?;
        for index in 0..count {
            if index > 0 {
                out.push(&self.item_separator)?;
            }
            self.line_break(level + 1, out)?;
            write(index, out)?;
        }
        if count > 0 {
            self.line_break(level, out)?;
        }
        out.push(close)
    }

    fn line_break(&self, level: usize, out: &mut Sink<'_>) -> Evaluated<()> {
        match &self.indent {
            None => Ok(()),
            Some(indent) => {
                out.push("\n")?;
                out.push_repeated(indent, level)
            }
        }
    }

    fn text(&self, text: &str, out: &mut Sink<'_>) -> Evaluated<()> {
        out.push("\"")?;
        for c in text.chars() {
            match c {
                '"' => out.push("\\\"")?,
                '\\' => out.push("\\\\")?,
                '\n' => out.push("\\n")?,
                '\r' => out.push("\\r")?,
                '\t' => out.push("\\t")?,
                '\x08' => out.push("\\b")?,
                '\x0c' => out.push("\\f")?,
                c if c < ' ' => out.push(&format!("\\u{:04x}", u32::from(c)))?,
                c if self.ascii && c > '~' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push(&format!("\\u{unit:04x}"))?;
                    }
                }
                c => out.push_char(c)?,
            }
        }
        out.push("\"")
    }
}

fn float(number: f64) -> String {
    match number {
        number if number.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        number => float_repr(number),
    }
}
