//! Python's formatting of values: the operator `%` and the method `format` of texts.

use crate::interpreter::Values;
use crate::meter::{Evaluated, Meter, Sink, wrong};
use crate::operators::real;
use crate::value::{Value, float_repr};

/// Format of one value.
#[derive(Clone, Debug)]
struct Spec {
    fill: char,
    /// `<`, `>`, `^`, or `=` for filling between the sign and the digits.
    align: Option<char>,
    sign: char,
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: char,
}

impl Default for Spec {
    fn default() -> Self {
        let (fill, sign, kind) = (' ', '-', '\0');
        Spec { fill, align: None, sign, alternate: false, width: 0, grouping: None, precision: None, kind }
    }
}

/// Maximum width and precision. Larger ones would exceed the memory limit anyway.
const MAX_WIDTH: usize = 1 << 20;
/// Maximum number of digits after the point.
const MAX_DIGITS: usize = 1000;

fn number(digits: &str, most: usize) -> Evaluated<Option<usize>> {
    if digits.is_empty() {
        return Ok(None);
    }
    match digits.parse() {
        Ok(number) if number <= most => Ok(Some(number)),
        _ => wrong("a width or precision of a format is too large"),
    }
}

/// Splits `text` after its leading digits.
fn leading_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

// ---- the operator % ----

/// Formats `value` by the operator `%`.
pub(crate) fn percent(text: &str, value: &Value, meter: &Meter) -> Evaluated<Value> {
    let (positional, mapping) = match value {
        Value::Tuple(items) => (items.items.clone(), None),
        // As in Python, values with items may be left over.
        Value::Dict(_) | Value::List(_) | Value::Undefined(_) | Value::Range(..) => {
            (vec![value.clone()], Some(value))
        }
        other => (vec![other.clone()], None),
    };
    percent_values(text, &positional, mapping, meter)
}

/// Formats the arguments of the filter `format`.
pub(crate) fn percent_with(text: &str, values: Values, meter: &Meter) -> Evaluated<Value> {
    if values.named.is_empty() {
        return percent_values(text, &values.positional, None, meter);
    }
    if !values.positional.is_empty() {
        return wrong("format takes either positional or named values");
    }
    let named = values.named.into_iter().map(|(name, value)| (crate::value::Key::text(name), value));
    let mapping = Value::Dict(crate::value::Dict::new(named.collect())?);
    percent_values(text, &[], Some(&mapping), meter)
}

fn percent_values(
    text: &str,
    positional: &[Value],
    mapping: Option<&Value>,
    meter: &Meter,
) -> Evaluated<Value> {
    let mut out = Sink::new(meter);
    let mut arguments = positional.iter();
    let mut rest = text;
    let mut used_names = false;
    while let Some(at) = rest.find('%') {
        meter.steps(1)?;
        out.push(&rest[..at])?;
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            out.push("%")?;
            rest = after;
            continue;
        }
        let mut named = None;
        if let Some(inner) = rest.strip_prefix('(') {
            let Some((name, after)) = inner.split_once(')') else { return wrong("a format lacks a )") };
            let Some(Value::Dict(dict)) = mapping else {
                return wrong("a format with names needs a dictionary");
            };
            let Some(value) = dict.get(name) else {
                return wrong(format!("a format has no value for {name}"));
            };
            (named, rest, used_names) = (Some(value.clone()), after, true);
        }
        let (spec, after) = percent_spec(rest)?;
        rest = after;
        let value = match named {
            Some(value) => value,
            None => match arguments.next() {
                Some(value) => value.clone(),
                None => return wrong("a format has more places than values"),
            },
        };
        write_percent(&value, spec, &mut out)?;
    }
    if arguments.next().is_some() && mapping.is_none() && !used_names {
        return wrong("a format has fewer places than values");
    }
    out.push(rest)?;
    Ok(Value::Str(out.finish().into()))
}

/// Parses the specification after `%`. Returns the text after it.
fn percent_spec(text: &str) -> Evaluated<(Spec, &str)> {
    let mut spec = Spec { align: Some('>'), ..Spec::default() };
    let mut rest = text;
    let mut zero = false;
    while let Some(flag) = rest.chars().next().filter(|c| "-+ #0".contains(*c)) {
        match flag {
            '-' => spec.align = Some('<'),
            '#' => spec.alternate = true,
            '0' => zero = true,
            sign if spec.sign != '+' => spec.sign = sign,
            _ => {}
        }
        rest = &rest[1..];
    }
    let (width, after) = leading_digits(rest);
    spec.width = number(width, MAX_WIDTH)?.unwrap_or(0);
    rest = after;
    if let Some(after) = rest.strip_prefix('.') {
        let (digits, after) = leading_digits(after);
        spec.precision = Some(number(digits, MAX_WIDTH)?.unwrap_or(0));
        rest = after;
    }
    rest = rest.trim_start_matches(['h', 'l', 'L']);
    let Some(kind) = rest.chars().next() else { return wrong("a format ends after %") };
    spec.kind = kind;
    if zero && spec.align == Some('>') && !"srac".contains(kind) {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    Ok((spec, &rest[kind.len_utf8()..]))
}

fn write_percent(value: &Value, mut spec: Spec, out: &mut Sink<'_>) -> Evaluated<()> {
    if let Value::Undefined(message) = value
        && !"sra".contains(spec.kind)
    {
        return wrong(message.to_string());
    }
    match spec.kind {
        's' | 'r' | 'a' => {
            let mut text = Sink::new(out.meter());
            if spec.kind == 's' {
                value.write(&mut text)?
            } else {
                value.write_repr(&mut text)?
            }
            spec.kind = 's';
            write_text(&text.finish(), &spec, out)
        }
        'c' => match value {
            Value::Str(text) if text.chars().count() == 1 => write_text(text, &spec, out),
            Value::Int(code) => match u32::try_from(*code).ok().and_then(char::from_u32) {
                Some(c) => write_text(c.encode_utf8(&mut [0; 4]), &spec, out),
                None => wrong("%c needs a character"),
            },
            _ => wrong("%c needs a character"),
        },
        'd' | 'i' | 'u' => {
            spec.kind = 'd';
            match value {
                Value::Float(number) if number.is_finite() => {
                    write_number(&Value::Int(number.trunc() as i128), &spec, out)
                }
                other => write_number(other, &spec, out),
            }
        }
        'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => write_number(value, &spec, out),
        other => wrong(format!("a format has the unknown type %{other}")),
    }
}

// ---- the method format ----

/// Formats `values` by the method `format`.
pub(crate) fn braces(text: &str, values: &Values, meter: &Meter) -> Evaluated<Value> {
    let mut out = Sink::new(meter);
    let mut next = 0;
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        meter.steps(1 + values.named.len())?;
        out.push(&rest[..at])?;
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push(brace)?;
            rest = after;
            continue;
        }
        if brace == "}" {
            return wrong("a format has a single }");
        }
        let Some((field, after)) = rest.split_once('}') else { return wrong("a format lacks a }") };
        if field.contains('{') {
            return wrong("a format within a format is not supported");
        }
        rest = after;
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (field, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = field_value(field, values, &mut next)?;
        let value = match conversion {
            "" => value,
            "s" => Value::Str(value.to_text(meter)?),
            "r" | "a" => {
                let mut repr = Sink::new(meter);
                value.write_repr(&mut repr)?;
                Value::Str(repr.finish().into())
            }
            _ => return wrong("a format has an unknown conversion"),
        };
        write_formatted(&value, spec, &mut out)?;
    }
    out.push(rest)?;
    Ok(Value::Str(out.finish().into()))
}

/// Returns the value of a field such as `0`, `name`, `name.attribute` or `name[key]`.
fn field_value(field: &str, values: &Values, next: &mut usize) -> Evaluated<Value> {
    let (first, mut path) = field.split_at(field.find(['.', '[']).unwrap_or(field.len()));
    let missing = || format!("a format has no value for {first:?}");
    let mut value = if first.is_empty() {
        *next += 1;
        values.positional.get(*next - 1).cloned()
    } else if let Ok(index) = first.parse::<usize>() {
        values.positional.get(index).cloned()
    } else {
        values.named.iter().find(|(name, _)| **name == *first).map(|(_, value)| value.clone())
    };
    while let Some(found) = value.as_ref().filter(|_| !path.is_empty()) {
        let (name, after) = match path.strip_prefix('[') {
            Some(inner) => inner.split_once(']').unwrap_or((inner, "")),
            None => {
                let inner = &path[1..];
                inner.split_at(inner.find(['.', '[']).unwrap_or(inner.len()))
            }
        };
        value = match (found, name.parse::<usize>()) {
            (Value::List(items) | Value::Tuple(items), Ok(index)) => items.items.get(index).cloned(),
            (Value::Dict(dict), _) => dict.get(name).cloned(),
            _ => None,
        };
        path = after;
    }
    value.map_or_else(|| wrong(missing()), Ok)
}

fn parse_spec(text: &str) -> Evaluated<Spec> {
    let mut spec = Spec::default();
    let mut rest = text;
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(fill), Some(align)) if "<>=^".contains(align) => {
            (spec.fill, spec.align) = (fill, Some(align));
            rest = chars.as_str();
        }
        (Some(align), _) if "<>=^".contains(align) => {
            spec.align = Some(align);
            rest = &rest[1..];
        }
        _ => {}
    }
    if let Some(sign) = rest.chars().next().filter(|c| "+- ".contains(*c)) {
        spec.sign = sign;
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('#') {
        spec.alternate = true;
        rest = after;
    }
    if rest.starts_with('0') && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    let (width, after) = leading_digits(rest);
    spec.width = number(width, MAX_WIDTH)?.unwrap_or(0);
    rest = after;
    if let Some(grouping) = rest.chars().next().filter(|c| ",_".contains(*c)) {
        spec.grouping = Some(grouping);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('.') {
        let (digits, after) = leading_digits(after);
        spec.precision = number(digits, MAX_WIDTH)?;
        rest = after;
    }
    let mut kinds = rest.chars();
    spec.kind = kinds.next().unwrap_or('\0');
    if kinds.next().is_some() { wrong(format!("the format {text:.40} is invalid")) } else { Ok(spec) }
}

fn write_formatted(value: &Value, spec: &str, out: &mut Sink<'_>) -> Evaluated<()> {
    if spec.is_empty() {
        return value.write(out);
    }
    let spec = parse_spec(spec)?;
    match value {
        Value::Str(text) if matches!(spec.kind, '\0' | 's') => write_text(text, &spec, out),
        Value::Int(_) | Value::Float(_) | Value::Bool(_) => write_number(value, &spec, out),
        other => wrong(format!("a {} does not support this format", other.type_name())),
    }
}

// ---- common ----

fn write_text(text: &str, spec: &Spec, out: &mut Sink<'_>) -> Evaluated<()> {
    let text = match spec.precision {
        Some(most) => text.char_indices().nth(most).map_or(text, |(at, _)| &text[..at]),
        None => text,
    };
    write_padded("", text, spec, '<', out)
}

/// Writes a sign and a body, filled up to the width.
fn write_padded(sign: &str, body: &str, spec: &Spec, align: char, out: &mut Sink<'_>) -> Evaluated<()> {
    let missing = spec.width.saturating_sub(sign.len() + body.chars().count());
    let (left, middle, right) = match spec.align.unwrap_or(align) {
        '<' => (0, 0, missing),
        '^' => (missing / 2, 0, missing - missing / 2),
        '=' => (0, missing, 0),
        _ => (missing, 0, 0),
    };
    let fill = spec.fill.to_string();
    out.push_repeated(&fill, left)?;
    out.push(sign)?;
    out.push_repeated(&fill, middle)?;
    out.push(body)?;
    out.push_repeated(&fill, right)
}

fn write_number(value: &Value, spec: &Spec, out: &mut Sink<'_>) -> Evaluated<()> {
    let whole = match value {
        Value::Int(number) => Some(*number),
        Value::Bool(flag) => Some(i128::from(*flag)),
        _ => None,
    };
    let Some(float) = real(value) else {
        return wrong(format!("a number format does not work on a {}", value.type_name()));
    };
    let negative = whole.map_or(float.is_sign_negative() && !float.is_nan(), |whole| whole < 0);
    let mut body = match (whole, spec.kind) {
        (Some(whole), '\0' | 'd' | 'n') => whole.unsigned_abs().to_string(),
        (Some(whole), 'x' | 'X' | 'o' | 'b') => radix(whole.unsigned_abs(), spec),
        (None, 'd' | 'n' | 'x' | 'X' | 'o' | 'b') => return wrong("this format needs a whole number"),
        (_, kind) => digits(float.abs(), kind, spec)?,
    };
    if let Some(separator) = spec.grouping {
        body = grouped(&body, separator);
    }
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, '+') => "+",
        (false, ' ') => " ",
        _ => "",
    };
    write_padded(sign, &body, spec, '>', out)
}

fn radix(number: u128, spec: &Spec) -> String {
    match (spec.kind, spec.alternate) {
        ('x', false) => format!("{number:x}"),
        ('x', true) => format!("{number:#x}"),
        ('X', false) => format!("{number:X}"),
        ('X', true) => format!("0X{number:X}"),
        ('o', false) => format!("{number:o}"),
        ('o', true) => format!("{number:#o}"),
        (_, false) => format!("{number:b}"),
        (_, true) => format!("{number:#b}"),
    }
}

/// Formats a number that is not negative.
fn digits(number: f64, kind: char, spec: &Spec) -> Evaluated<String> {
    let precision = spec.precision.unwrap_or(6);
    if precision > MAX_DIGITS {
        return wrong(format!("a format has more than {MAX_DIGITS} digits"));
    }
    if !number.is_finite() {
        let text = if number.is_nan() { "nan" } else { "inf" };
        return Ok(if kind.is_ascii_uppercase() { text.to_uppercase() } else { text.to_owned() });
    }
    let text = match kind {
        'f' | 'F' => format!("{number:.precision$}"),
        '%' => format!("{:.precision$}%", number * 100.0),
        'e' | 'E' => exponent(&format!("{number:.precision$e}")),
        'g' | 'G' => general(number, precision.max(1), spec.alternate),
        '\0' => match spec.precision {
            None => float_repr(number),
            Some(precision) => general(number, precision.max(1), false),
        },
        other => return wrong(format!("a format has the unknown type {other}")),
    };
    Ok(if kind.is_ascii_uppercase() { text.to_uppercase() } else { text })
}

/// Rewrites an exponent with a sign and at least two digits.
fn exponent(text: &str) -> String {
    let (digits, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

fn general(number: f64, precision: usize, keep_zeros: bool) -> String {
    let scientific = format!("{number:.*e}", precision - 1);
    let power: i32 = scientific.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let trim = |text: String| match text.contains('.') && !keep_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    if power < -4 || i64::from(power) >= precision as i64 {
        let (digits, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        return exponent(&format!("{}e{power}", trim(digits.to_owned())));
    }
    let decimals = usize::try_from(precision as i64 - 1 - i64::from(power)).unwrap_or(0);
    trim(format!("{number:.decimals$}"))
}

/// Separates groups of three digits.
fn grouped(body: &str, separator: char) -> String {
    let end = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(body.len());
    let mut grouped = String::new();
    for (index, digit) in body[..end].chars().enumerate() {
        if index > 0 && (end - index) % 3 == 0 {
            grouped.push(separator);
        }
        grouped.push(digit);
    }
    grouped + &body[end..]
}
