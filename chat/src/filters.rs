//! Jinja's filters.

use crate::ast::{Binary, Compare};
use crate::format;
use crate::interpreter::{Interpreter, Values};
use crate::json;
use crate::meter::{Evaluated, Fault, Meter, Sink, wrong};
use crate::methods;
use crate::operators;
use crate::tests_of_values;
use crate::value::{Items, Key, Value, View};
use std::cmp::Ordering;
use std::sync::Arc;

const NAMES: [&str; 45] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "wordcount",
];

/// Returns whether a filter has this name.
pub(crate) fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Applies a filter.
pub(crate) fn apply(to: &mut Interpreter<'_>, name: &str, value: Value, values: Values) -> Evaluated<Value> {
    match name {
        // A filter may be unknown as long as the template does not use it.
        unknown if !exists(unknown) => wrong(format!("no filter is called {unknown:.40}")),
        "attr" | "default" | "d" | "safe" | "string" | "list" | "length" | "count" | "items" | "first"
        | "last" => basic(to, name, value, values),
        "abs" | "int" | "float" | "round" | "sum" | "min" | "max" => numeric(to, name, value, values),
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => selection(to, name, &value, values),
        "sort" | "dictsort" | "unique" | "reverse" | "batch" | "slice" => sequence(to, name, &value, values),
        "tojson" => json::tojson(&value, values, to.meter),
        _ => text(to, name, &value, values),
    }
}

fn basic(to: &mut Interpreter<'_>, name: &str, value: Value, values: Values) -> Evaluated<Value> {
    let meter = to.meter;
    match name {
        "default" | "d" => {
            let [default, boolean] = values.bind(name, ["default_value", "boolean"])?;
            let empty = matches!(value, Value::Undefined(_))
                || (boolean.is_some_and(|boolean| boolean.truth()) && !value.truth());
            Ok(if empty { default.unwrap_or_else(|| Value::from("")) } else { value })
        }
        "attr" => {
            let [attribute] = values.bind(name, ["name"])?;
            let attribute = attribute.unwrap_or(Value::None).to_text(meter)?;
            match &value {
                // The filter ignores items.
                Value::Dict(_) if !methods::exists(&value, &attribute) => {
                    Ok(Value::undefined(format!("a dict has no attribute {attribute:.60}")))
                }
                _ => to.attribute(&value, &attribute),
            }
        }
        _ => {
            let [] = values.bind(name, [])?;
            match name {
                "safe" => Ok(value),
                "string" => value.to_text(meter).map(Value::Str),
                "list" => Value::list(value.items(meter)?),
                "items" => match value {
                    Value::Undefined(_) => Value::list(Vec::new()),
                    Value::Dict(dict) => {
                        let pairs = Value::View(dict, View::Items).items(meter)?;
                        Ok(Value::Iterator(Items::new(pairs)?))
                    }
                    other => wrong(format!("items needs a dictionary, not a {}", other.type_name())),
                },
                "first" | "last" => {
                    let items = value.items(meter)?;
                    let found = if name == "first" { items.first() } else { items.last() };
                    Ok(found.cloned().unwrap_or_else(|| Value::undefined("the sequence is empty")))
                }
                _ => {
                    meter.read(if let Value::Str(text) = &value { text.len() } else { 0 })?;
                    match value.length() {
                        Some(length) => Ok(Value::Int(length as i128)),
                        None => wrong(format!("a {} has no length", value.type_name())),
                    }
                }
            }
        }
    }
}

/// Parses a whole number as Python's `int` does.
fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = methods::strip(text, "strip", None);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find_map(|(prefix, radix)| {
        let matches =
            base == radix && digits.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        matches.then(|| &digits[2..])
    });
    let digits = prefixed.unwrap_or(digits);
    let valid =
        digits.starts_with(|c: char| c.is_digit(base)) && digits.ends_with(|c: char| c.is_digit(base));
    if !valid || digits.contains("__") {
        return None;
    }
    let number = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if negative { -number } else { number })
}

/// Parses a number as Python's `float` does.
fn parse_float(text: &str) -> Option<f64> {
    methods::strip(text, "strip", None).replace('_', "").parse().ok()
}

fn truncated(number: f64) -> Option<i128> {
    // The bounds are exact powers of two.
    (number.abs() < 1.7e38).then_some(number.trunc() as i128)
}

fn to_int(value: &Value, default: Value, base: i128, meter: &Meter) -> Evaluated<Value> {
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
    let Some(base) = base else { return wrong("the base of int is not from 2 to 36") };
    let number = match value {
        Value::Undefined(message) => return wrong(message.to_string()),
        Value::Str(text) => {
            meter.read(text.len())?;
            parse_int(text, base).or_else(|| parse_float(text).and_then(truncated))
        }
        Value::Float(number) => truncated(*number),
        Value::Int(number) => Some(*number),
        Value::Bool(flag) => Some(i128::from(*flag)),
        Value::Big(_) => return Ok(value.clone()),
        _ => None,
    };
    Ok(number.map_or(default, Value::Int))
}

fn numeric(to: &mut Interpreter<'_>, name: &str, value: Value, values: Values) -> Evaluated<Value> {
    let meter = to.meter;
    match name {
        "abs" => {
            let [] = values.bind(name, [])?;
            match value {
                Value::Float(number) => Ok(Value::Float(number.abs())),
                other => match operators::plus(&other)? {
                    Value::Int(number) if number < 0 => operators::negate(&Value::Int(number)),
                    number => Ok(number),
                },
            }
        }
        "int" => {
            let [default, base] = values.bind(name, ["default", "base"])?;
            to_int(&value, default.unwrap_or(Value::Int(0)), methods::whole(base, 10, name)?, meter)
        }
        "float" => {
            let [default] = values.bind(name, ["default"])?;
            let number = match &value {
                Value::Undefined(message) => return wrong(message.to_string()),
                Value::Str(text) => {
                    meter.read(text.len())?;
                    parse_float(text)
                }
                other => operators::real(other),
            };
            Ok(number.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "round" => round(&value, values),
        "sum" => {
            let [attribute, start] = values.bind(name, ["attribute", "start"])?;
            let mut sum = start.unwrap_or(Value::Int(0));
            for item in value.items(meter)? {
                let item = to.path(&item, attribute.as_ref(), None)?;
                if matches!(sum, Value::Str(_)) {
                    return wrong("sum cannot add texts (use join)");
                }
                sum = operators::binary(Binary::Add, &sum, &item, meter)?;
            }
            Ok(sum)
        }
        _ => {
            let [sensitive, attribute] = values.bind(name, ["case_sensitive", "attribute"])?;
            let sensitive = sensitive.is_some_and(|sensitive| sensitive.truth());
            let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
            let mut best: Option<(Value, Value)> = None;
            for item in value.items(meter)? {
                let key = to.sort_key(&item, attribute.as_ref(), sensitive)?;
                let better = match &best {
                    None => true,
                    Some((old, _)) => key.compare(old, meter)? == Some(wanted),
                };
                if better {
                    best = Some((key, item));
                }
            }
            Ok(best.map_or_else(|| Value::undefined("the sequence is empty"), |(_, item)| item))
        }
    }
}

fn round(value: &Value, values: Values) -> Evaluated<Value> {
    let [precision, method] = values.bind("round", ["precision", "method"])?;
    let digits = methods::whole(precision, 0, "round")?;
    let digits = i32::try_from(digits).unwrap_or(0).clamp(-300, 300);
    let method = match &method {
        None => "common",
        Some(Value::Str(method)) => method,
        Some(_) => return wrong("the method of round is not a text"),
    };
    let whole = matches!(value, Value::Int(_) | Value::Bool(_));
    let Some(number) = operators::real(value) else {
        return wrong(format!("round needs a number, not a {}", value.type_name()));
    };
    match method {
        // Python rounds whole numbers to whole numbers.
        "common" if whole && digits >= 0 => operators::plus(value),
        "common" if digits >= 0 => {
            // Formatting rounds the exact value, half to even.
            let text = format!("{number:.*}", usize::try_from(digits).unwrap_or(0));
            Ok(Value::Float(text.parse().unwrap_or(number)))
        }
        "common" => {
            let scale = 10f64.powi(-digits);
            let rounded = (number / scale).round_ties_even() * scale;
            Ok(if whole { Value::Int(rounded as i128) } else { Value::Float(rounded) })
        }
        "ceil" | "floor" => {
            let scale = 10f64.powi(digits);
            let scaled = number * scale;
            Ok(Value::Float(if method == "ceil" { scaled.ceil() } else { scaled.floor() } / scale + 0.0))
        }
        _ => wrong("the method of round is not common, ceil or floor"),
    }
}

fn selection(to: &mut Interpreter<'_>, name: &str, value: &Value, mut values: Values) -> Evaluated<Value> {
    let meter = to.meter;
    // Jinja takes whatever is false for an empty list.
    let items = if value.truth() { value.items(meter)? } else { Vec::new() };
    let mut results = Vec::new();
    if name == "map" && items.is_empty() {
        return Ok(Value::Iterator(Items::new(results)?));
    }
    if name == "map" {
        let by_attribute = values.positional.is_empty();
        if by_attribute {
            let [attribute, default] = values.bind(name, ["attribute", "default"])?;
            if attribute.is_none() {
                return wrong("map needs the name of a filter or an attribute");
            }
            for item in items {
                results.push(to.path(&item, attribute.as_ref(), default.as_ref())?);
            }
        } else {
            let filter = filter_name(values.positional.remove(0))?;
            for item in items {
                meter.steps(1 + values.positional.len() + values.named.len())?;
                results.push(to.nested(|inner| apply(inner, &filter, item, values.clone()))?);
            }
        }
        return Ok(Value::Iterator(Items::new(results)?));
    }
    let attribute = match name {
        "selectattr" | "rejectattr" if values.positional.is_empty() => {
            return wrong(format!("{name} needs the name of an attribute"));
        }
        "selectattr" | "rejectattr" => Some(values.positional.remove(0)),
        _ => None,
    };
    let test = match values.positional.is_empty() {
        true => None,
        false => Some(test_name(values.positional.remove(0))?),
    };
    for item in items {
        meter.steps(1 + values.positional.len() + values.named.len())?;
        let tested = to.path(&item, attribute.as_ref(), None)?;
        let holds = match &test {
            None => tested.truth(),
            Some(test) => to.nested(|inner| tests_of_values::holds(inner, test, &tested, values.clone()))?,
        };
        if holds != name.starts_with("reject") {
            results.push(item);
        }
    }
    Ok(Value::Iterator(Items::new(results)?))
}

fn filter_name(value: Value) -> Evaluated<Arc<str>> {
    match value {
        Value::Str(name) => Ok(name),
        _ => wrong("the name of a filter is not a text"),
    }
}

fn test_name(value: Value) -> Evaluated<Arc<str>> {
    match value {
        Value::Str(name) => Ok(name),
        _ => wrong("the name of a test is not a text"),
    }
}

impl Interpreter<'_> {
    /// Returns the value at an attribute path such as `function.name`.
    fn path(&mut self, item: &Value, attribute: Option<&Value>, default: Option<&Value>) -> Evaluated<Value> {
        let path = match attribute {
            None | Some(Value::None) => return Ok(item.clone()),
            Some(Value::Str(path)) => Arc::clone(path),
            Some(index) => return self.item(item, index),
        };
        let mut value = item.clone();
        for part in path.split('.') {
            self.meter.steps(1)?;
            let index = match part.parse() {
                Ok(number) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(number),
                _ => Value::from(part),
            };
            value = self.item(&value, &index)?;
            if let (Value::Undefined(_), Some(default)) = (&value, default) {
                value = default.clone();
            }
        }
        Ok(value)
    }

    fn sort_key(&mut self, item: &Value, attribute: Option<&Value>, sensitive: bool) -> Evaluated<Value> {
        match self.path(item, attribute, None)? {
            Value::Str(text) if !sensitive => {
                self.meter.make(text.len())?;
                Ok(Value::Str(text.to_lowercase().into()))
            }
            other => Ok(other),
        }
    }

    /// Sorts items by key. The sort is stable.
    fn sorted(&self, mut keyed: Vec<(Value, Value)>, reverse: bool) -> Evaluated<Vec<(Value, Value)>> {
        let mut fault: Option<Box<Fault>> = None;
        keyed.sort_by(|(a, _), (b, _)| match a.compare(b, self.meter) {
            Ok(order) => {
                let order = order.unwrap_or(Ordering::Equal);
                if reverse { order.reverse() } else { order }
            }
            Err(cause) => {
                fault.get_or_insert(cause);
                Ordering::Equal
            }
        });
        fault.map_or(Ok(keyed), Err)
    }
}

fn sequence(to: &mut Interpreter<'_>, name: &str, value: &Value, values: Values) -> Evaluated<Value> {
    let meter = to.meter;
    match name {
        "reverse" => {
            let [] = values.bind(name, [])?;
            if let Value::Str(text) = value {
                meter.make(text.len())?;
                return Ok(Value::Str(text.chars().rev().collect::<String>().into()));
            }
            let mut items = value.items(meter)?;
            items.reverse();
            Ok(Value::Iterator(Items::new(items)?))
        }
        "sort" => {
            let [reverse, sensitive, attribute] =
                values.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let sensitive = sensitive.is_some_and(|sensitive| sensitive.truth());
            let mut keyed = Vec::new();
            for item in value.items(meter)? {
                keyed.push((to.sort_key(&item, attribute.as_ref(), sensitive)?, item));
            }
            let sorted = to.sorted(keyed, reverse.is_some_and(|reverse| reverse.truth()))?;
            Value::list(sorted.into_iter().map(|(_, item)| item).collect())
        }
        "dictsort" => dict_sort(to, value, values),
        "unique" => {
            let [sensitive, attribute] = values.bind(name, ["case_sensitive", "attribute"])?;
            let sensitive = sensitive.is_some_and(|sensitive| sensitive.truth());
            let mut seen = std::collections::HashSet::new();
            let mut kept = Vec::new();
            for item in value.items(meter)? {
                let key = to.sort_key(&item, attribute.as_ref(), sensitive)?;
                if seen.insert(Key::new(key, meter)?) {
                    kept.push(item);
                }
            }
            Ok(Value::Iterator(Items::new(kept)?))
        }
        _ => batches(name, value, values, meter),
    }
}

fn dict_sort(to: &mut Interpreter<'_>, value: &Value, values: Values) -> Evaluated<Value> {
    let [sensitive, by, reverse] = values.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let sensitive = sensitive.is_some_and(|sensitive| sensitive.truth());
    let Value::Dict(dict) = value else {
        return wrong(format!("dictsort needs a dictionary, not a {}", value.type_name()));
    };
    let by = match &by {
        None => "key",
        Some(Value::Str(by)) => by,
        Some(_) => "",
    };
    to.meter.make_items(dict.map.len() * 4)?;
    let mut keyed = Vec::new();
    for (key, item) in &dict.map {
        let sorted_by = match by {
            "key" => key.value(),
            "value" => item,
            _ => return wrong("dictsort sorts by key or by value"),
        };
        let pair = Value::tuple(vec![key.value().clone(), item.clone()])?;
        keyed.push((to.sort_key(sorted_by, None, sensitive)?, pair));
    }
    let sorted = to.sorted(keyed, reverse.is_some_and(|reverse| reverse.truth()))?;
    Value::list(sorted.into_iter().map(|(_, pair)| pair).collect())
}

/// Splits a sequence into lists of a length (`batch`) or into a number of lists (`slice`).
fn batches(name: &str, value: &Value, values: Values, meter: &Meter) -> Evaluated<Value> {
    let [count, fill] = values.bind(name, ["count", "fill_with"])?;
    let count = usize::try_from(methods::whole(count, 0, name)?).unwrap_or(0);
    if count == 0 {
        return wrong(format!("{name} needs a positive number"));
    }
    let items = value.items(meter)?;
    // The filler may fill up to `count` places.
    meter.make_items(items.len().saturating_add(count))?;
    let mut lists = Vec::new();
    if name == "batch" {
        for chunk in items.chunks(count) {
            let mut list = chunk.to_vec();
            if let Some(fill) = &fill {
                list.resize(count, fill.clone());
            }
            lists.push(Value::list(list)?);
        }
    } else {
        let (each, longer) = (items.len() / count, items.len() % count);
        let mut rest = items.as_slice();
        for index in 0..count {
            let (head, tail) = rest.split_at((each + usize::from(index < longer)).min(rest.len()));
            let mut list = head.to_vec();
            if let Some(fill) = fill.as_ref().filter(|_| index >= longer) {
                list.push(fill.clone());
            }
            lists.push(Value::list(list)?);
            rest = tail;
        }
    }
    Ok(Value::Iterator(Items::new(lists)?))
}

fn text(to: &mut Interpreter<'_>, name: &str, value: &Value, values: Values) -> Evaluated<Value> {
    let meter = to.meter;
    if name == "join" {
        return join(to, value, values);
    }
    if name == "indent" && !matches!(value, Value::Str(_)) {
        return wrong(format!("{name} needs a text, not a {}", value.type_name()));
    }
    let text = value.to_text(meter)?;
    meter.read(text.len())?;
    match name {
        "lower" | "upper" | "capitalize" => {
            let [] = values.bind(name, [])?;
            meter.make(text.len().saturating_mul(3))?;
            Ok(Value::Str(methods::change_case(&text, name).into()))
        }
        "title" => {
            let [] = values.bind(name, [])?;
            meter.make(text.len().saturating_mul(3))?;
            Ok(Value::Str(title(&text).into()))
        }
        "trim" => {
            let [chars] = values.bind(name, ["chars"])?;
            let chars = match chars {
                None | Some(Value::None) => None,
                Some(Value::Str(chars)) => Some(chars),
                Some(other) => return wrong(format!("trim needs a text, not a {}", other.type_name())),
            };
            let trimmed = methods::strip(&text, "strip", chars.as_deref());
            meter.make(trimmed.len())?;
            Ok(Value::from(trimmed))
        }
        "replace" => {
            let [old, new, count] = values.bind(name, ["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else { return wrong("replace needs two texts") };
            let count = count.filter(|count| !matches!(count, Value::None));
            let count = usize::try_from(methods::whole(count, -1, name)?).unwrap_or(usize::MAX);
            methods::replace(&text, &old.to_text(meter)?, &new.to_text(meter)?, count, meter)
        }
        "indent" => indent(&text, values, meter),
        "format" => format::percent_with(&text, values, meter),
        "center" => {
            let [width] = values.bind(name, ["width"])?;
            let width = width.unwrap_or(Value::Int(80));
            let values = Values { positional: vec![width], named: Vec::new() };
            methods::call(&Value::Str(text), name, values, meter)
        }
        "truncate" => truncate(&text, values, meter),
        "wordcount" => {
            let [] = values.bind(name, [])?;
            let is_word = |c: char| c == '_' || c.is_alphanumeric();
            Ok(Value::Int(text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count() as i128))
        }
        _ => {
            let [] = values.bind(name, [])?;
            let mut escaped = Sink::new(meter);
            for c in text.chars() {
                match c {
                    '&' => escaped.push("&amp;")?,
                    '<' => escaped.push("&lt;")?,
                    '>' => escaped.push("&gt;")?,
                    '\'' => escaped.push("&#39;")?,
                    '"' => escaped.push("&#34;")?,
                    c => escaped.push_char(c)?,
                }
            }
            Ok(Value::Str(escaped.finish().into()))
        }
    }
}

/// Capitalizes words. Unlike Python's method, an apostrophe does not start a word.
fn title(text: &str) -> String {
    let starts = |c: char| crate::value::is_space(c) || "-({[<".contains(c);
    let mut titled = String::new();
    let mut at_start = true;
    for c in text.chars() {
        match at_start {
            true => titled.extend(c.to_uppercase()),
            false => titled.extend(c.to_lowercase()),
        }
        at_start = starts(c);
    }
    titled
}

fn join(to: &mut Interpreter<'_>, value: &Value, values: Values) -> Evaluated<Value> {
    let [separator, attribute] = values.bind("join", ["d", "attribute"])?;
    let separator = separator.unwrap_or_else(|| Value::from("")).to_text(to.meter)?;
    let mut joined = Sink::new(to.meter);
    for (index, item) in value.items(to.meter)?.iter().enumerate() {
        if index > 0 {
            joined.push(&separator)?;
        }
        to.path(item, attribute.as_ref(), None)?.write(&mut joined)?;
    }
    Ok(Value::Str(joined.finish().into()))
}

fn indent(text: &str, values: Values, meter: &Meter) -> Evaluated<Value> {
    let [width, first, blank] = values.bind("indent", ["width", "first", "blank"])?;
    let mut indentation = Sink::new(meter);
    match width {
        Some(Value::Str(width)) => indentation.push(&width)?,
        width => {
            let width = usize::try_from(methods::whole(width, 4, "indent")?).unwrap_or(0);
            indentation.push_repeated(" ", width)?;
        }
    }
    let indentation = indentation.finish();
    let blank = blank.is_some_and(|blank| blank.truth());
    let mut indented = Sink::new(meter);
    if first.is_some_and(|first| first.truth()) {
        indented.push(&indentation)?;
    }
    // A text that ends with a line break has an empty last line.
    let with_break = format!("{text}\n");
    for (index, line) in methods::lines(&with_break, false).into_iter().enumerate() {
        if index > 0 {
            indented.push("\n")?;
            if blank || !line.is_empty() {
                indented.push(&indentation)?;
            }
        }
        indented.push(line)?;
    }
    Ok(Value::Str(indented.finish().into()))
}

fn truncate(text: &str, values: Values, meter: &Meter) -> Evaluated<Value> {
    let [length, kill, end, leeway] = values.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let length = usize::try_from(methods::whole(length, 255, "truncate")?).unwrap_or(0);
    let leeway = usize::try_from(methods::whole(leeway, 5, "truncate")?).unwrap_or(0);
    let end = end.unwrap_or_else(|| Value::from("...")).to_text(meter)?;
    let kept = length.checked_sub(end.chars().count());
    let Some(kept) = kept else { return wrong("truncate needs a length that its end fits into") };
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(Value::from(text));
    }
    let cut = text.char_indices().nth(kept).map_or(text.len(), |(at, _)| at);
    let mut start = &text[..cut];
    if !kill.is_some_and(|kill| kill.truth()) {
        start = start.rsplit_once(' ').map_or(start, |(before, _)| before);
    }
    let mut truncated = Sink::new(meter);
    truncated.push(start)?;
    truncated.push(&end)?;
    Ok(Value::Str(truncated.finish().into()))
}

/// Returns whether a comparison named like an operator or a test holds.
pub(crate) fn comparison(name: &str) -> Option<Compare> {
    Some(match name {
        "eq" | "equalto" | "==" => Compare::Equal,
        "ne" | "!=" => Compare::NotEqual,
        "gt" | "greaterthan" | ">" => Compare::Greater,
        "ge" | ">=" => Compare::GreaterEqual,
        "lt" | "lessthan" | "<" => Compare::Less,
        "le" | "<=" => Compare::LessEqual,
        "in" => Compare::In,
        _ => return None,
    })
}
