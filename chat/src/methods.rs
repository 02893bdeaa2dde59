//! Methods of Python's texts, lists and dictionaries. Methods that would change a value do not exist, as in
//! the sandbox that `transformers` uses.

use crate::format;
use crate::interpreter::Values;
use crate::meter::{Evaluated, Meter, Sink, wrong};
use crate::value::{Value, View, is_space};
use std::sync::Arc;

const TEXT: [&str; 37] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
];
const MORE_TEXT: [&str; 4] = ["upper", "zfill", "rindex", "expandtabs"];
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const LIST: [&str; 3] = ["copy", "count", "index"];
const TUPLE: [&str; 2] = ["count", "index"];

/// Returns whether values of this type have the method.
pub(crate) fn exists(value: &Value, name: &str) -> bool {
    match value {
        Value::Str(_) => TEXT.contains(&name) || MORE_TEXT.contains(&name),
        Value::Dict(_) => DICT.contains(&name),
        Value::List(_) => LIST.contains(&name),
        Value::Tuple(_) => TUPLE.contains(&name),
        _ => false,
    }
}

/// Returns whether the method would change the value.
pub(crate) fn is_mutating(value: &Value, name: &str) -> bool {
    match value {
        Value::Dict(_) => ["clear", "pop", "popitem", "setdefault", "update"].contains(&name),
        Value::List(_) => {
            ["append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"].contains(&name)
        }
        _ => false,
    }
}

/// Calls a method.
pub(crate) fn call(value: &Value, name: &str, values: Values, meter: &Meter) -> Evaluated<Value> {
    match value {
        Value::Str(text) => text_method(text, name, values, meter),
        Value::Dict(dict) => match name {
            "get" => {
                let [key, default] = values.bind("get", ["key", "default"])?;
                let default = default.unwrap_or(Value::None);
                let key = match key {
                    Some(Value::Undefined(_)) => return Ok(default),
                    Some(key) => crate::value::Key::new(key, meter)?,
                    None => return wrong("get needs a key"),
                };
                Ok(dict.map.get(&key).cloned().unwrap_or(default))
            }
            _ => {
                let [] = values.bind(name, [])?;
                Ok(match name {
                    "items" => Value::View(Arc::clone(dict), View::Items),
                    "keys" => Value::View(Arc::clone(dict), View::Keys),
                    "values" => Value::View(Arc::clone(dict), View::Values),
                    _ => value.clone(),
                })
            }
        },
        Value::List(items) | Value::Tuple(items) => {
            if name == "copy" {
                return Ok(value.clone());
            }
            let [wanted] = values.bind(name, ["value"])?;
            let Some(wanted) = wanted else { return wrong(format!("{name} needs a value")) };
            let mut count = 0;
            for (at, item) in items.items.iter().enumerate() {
                if item.equals(&wanted, meter)? {
                    if name == "index" {
                        return Ok(Value::Int(at as i128));
                    }
                    count += 1;
                }
            }
            if name == "index" { wrong("the list does not contain the value") } else { Ok(Value::Int(count)) }
        }
        other => wrong(format!("a {} has no method {name}", other.type_name())),
    }
}

fn text_of(value: Option<Value>, method: &str) -> Evaluated<Arc<str>> {
    match value {
        Some(Value::Str(text)) => Ok(text),
        Some(Value::Undefined(message)) => wrong(message.to_string()),
        Some(other) => wrong(format!("{method} needs a text, not a {}", other.type_name())),
        None => wrong(format!("{method} needs a text")),
    }
}

fn optional_text(value: Option<Value>, method: &str) -> Evaluated<Option<Arc<str>>> {
    match value {
        None | Some(Value::None) => Ok(None),
        some => text_of(some, method).map(Some),
    }
}

/// Returns a whole number, or `default` if there is none.
pub(crate) fn whole(value: Option<Value>, default: i128, method: &str) -> Evaluated<i128> {
    match value {
        None => Ok(default),
        Some(Value::Int(number)) => Ok(number),
        Some(Value::Bool(flag)) => Ok(i128::from(flag)),
        Some(other) => wrong(format!("{method} needs a whole number, not a {}", other.type_name())),
    }
}

fn made(text: String, meter: &Meter) -> Evaluated<Value> {
    meter.make(text.len())?;
    Ok(Value::Str(text.into()))
}

fn texts<'a>(parts: impl IntoIterator<Item = &'a str>, meter: &Meter) -> Evaluated<Vec<Value>> {
    let mut values = Vec::new();
    for part in parts {
        meter.make_items(2)?;
        meter.make(part.len())?;
        values.push(Value::from(part));
    }
    Ok(values)
}

/// Pays for the list of the parts of a text, whose separators have at least `separator` bytes.
fn pay_for_parts(text: &str, separator: usize, meter: &Meter) -> Evaluated<()> {
    meter.make((text.len() / separator).saturating_mul(size_of::<&str>()))
}

fn text_method(text: &Arc<str>, name: &str, values: Values, meter: &Meter) -> Evaluated<Value> {
    // Every method reads the text. Changes of case may make it longer.
    meter.read(text.len())?;
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = values.bind(name, ["chars"])?;
            made(strip(text, name, optional_text(chars, name)?.as_deref()).to_owned(), meter)
        }
        "split" | "rsplit" => {
            let [separator, most] = values.bind(name, ["sep", "maxsplit"])?;
            let most = whole(most, -1, name)?;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let shortest = separator.as_ref().and_then(Value::text_bytes).unwrap_or(1).max(1);
            pay_for_parts(text, shortest, meter)?;
            let parts = match optional_text(separator, name)? {
                Some(separator) if separator.is_empty() => return wrong("the separator of split is empty"),
                Some(separator) => split(text, &separator, most, name == "rsplit"),
                None => split_words(text, most, name == "rsplit"),
            };
            Value::list(texts(parts, meter)?)
        }
        "partition" | "rpartition" => {
            let [separator] = values.bind(name, ["sep"])?;
            let separator = text_of(separator, name)?;
            let cut = if name == "partition" {
                text.split_once(&*separator)
            } else {
                text.rsplit_once(&*separator)
            };
            let parts = match cut {
                _ if separator.is_empty() => return wrong(format!("the separator of {name} is empty")),
                Some((before, after)) => [before, &separator, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::tuple(texts(parts, meter)?)
        }
        "splitlines" => {
            let [keep] = values.bind(name, ["keepends"])?;
            pay_for_parts(text, 1, meter)?;
            Value::list(texts(lines(text, keep.is_some_and(|keep| keep.truth())), meter)?)
        }
        "startswith" | "endswith" => affix(text, name, values, meter),
        "removeprefix" | "removesuffix" => {
            let [affix] = values.bind(name, ["affix"])?;
            let affix = text_of(affix, name)?;
            let rest = match name {
                "removeprefix" => text.strip_prefix(&*affix),
                _ => text.strip_suffix(&*affix),
            };
            made(rest.unwrap_or(text).to_owned(), meter)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, name, values, meter),
        "replace" => {
            let [old, new, count] = values.bind(name, ["old", "new", "count"])?;
            let count = usize::try_from(whole(count, -1, name)?).unwrap_or(usize::MAX);
            replace(text, &text_of(old, name)?, &text_of(new, name)?, count, meter)
        }
        "join" => {
            let [items] = values.bind(name, ["iterable"])?;
            let Some(items) = items else { return wrong("join needs a list") };
            let mut joined = Sink::new(meter);
            for (index, item) in items.items(meter)?.iter().enumerate() {
                let Value::Str(item) = item else {
                    return wrong(format!("join needs texts, but item {index} is a {}", item.type_name()));
                };
                if index > 0 {
                    joined.push(text)?;
                }
                joined.push(item)?;
            }
            Ok(Value::Str(joined.finish().into()))
        }
        "format" => format::braces(text, &values, meter),
        "center" | "ljust" | "rjust" | "zfill" => pad(text, name, values, meter),
        "expandtabs" => {
            let [size] = values.bind(name, ["tabsize"])?;
            expand_tabs(text, whole(size, 8, name)?, meter)
        }
        "capitalize" | "casefold" | "lower" | "swapcase" | "title" | "upper" => {
            let [] = values.bind(name, [])?;
            // Some characters become three characters.
            meter.make(text.len().saturating_mul(3))?;
            Ok(Value::Str(change_case(text, name).into()))
        }
        _ => {
            let [] = values.bind(name, [])?;
            Ok(Value::Bool(is_kind(text, name)))
        }
    }
}

/// Removes whitespace, or the characters in `chars`, from one end or both ends.
pub(crate) fn strip<'a>(text: &'a str, method: &str, chars: Option<&str>) -> &'a str {
    let removes = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let text = if method == "rstrip" { text } else { text.trim_start_matches(removes) };
    if method == "lstrip" { text } else { text.trim_end_matches(removes) }
}

fn split<'a>(text: &'a str, separator: &str, most: usize, from_end: bool) -> Vec<&'a str> {
    let parts = most.saturating_add(1);
    if !from_end {
        return text.splitn(parts, separator).collect();
    }
    let mut parts: Vec<_> = text.rsplitn(parts, separator).collect();
    parts.reverse();
    parts
}

/// Splits at runs of whitespace.
fn split_words(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = strip(text, if from_end { "rstrip" } else { "lstrip" }, None);
    while !rest.is_empty() {
        let cut = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        match cut.filter(|_| words.len() < most) {
            // The last word that `most` allows keeps its inner whitespace, and that on the other side.
            None => words.push(std::mem::take(&mut rest)),
            Some(at) if from_end => {
                let after = rest[at..].trim_start_matches(is_space);
                words.push(after);
                rest = rest[..at].trim_end_matches(is_space);
            }
            Some(at) => {
                words.push(&rest[..at]);
                rest = rest[at..].trim_start_matches(is_space);
            }
        }
    }
    if from_end {
        words.reverse();
    }
    words
}

/// Splits at the line breaks that Python knows.
pub(crate) fn lines(text: &str, keep_breaks: bool) -> Vec<&str> {
    let is_break = |c: char| {
        matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_break) {
        let width = match rest[at..].starts_with("\r\n") {
            true => 2,
            false => rest[at..].chars().next().map_or(1, char::len_utf8),
        };
        lines.push(&rest[..if keep_breaks { at + width } else { at }]);
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Returns the byte range of the characters from `start` to before `end`, which may count from the end.
fn window(
    text: &str,
    start: Option<Value>,
    end: Option<Value>,
    name: &str,
) -> Evaluated<Option<(usize, usize)>> {
    if start.is_none() && end.is_none() {
        return Ok(Some((0, text.len())));
    }
    let length = text.chars().count() as i128;
    let place = |bound: Option<Value>, default: i128| -> Evaluated<i128> {
        let bound = bound.filter(|bound| !matches!(bound, Value::None));
        let at = whole(bound, default, name)?;
        Ok((if at < 0 { at.saturating_add(length) } else { at }).max(0))
    };
    let (start, end) = (place(start, 0)?, place(end, length)?.min(length));
    if start > end {
        return Ok(None);
    }
    let byte = |at: i128| {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte)
    };
    Ok(Some((byte(start), byte(end))))
}

fn affix(text: &str, name: &str, values: Values, meter: &Meter) -> Evaluated<Value> {
    let [affixes, start, end] = values.bind(name, ["affix", "start", "end"])?;
    let Some((start, end)) = window(text, start, end, name)? else { return Ok(Value::Bool(false)) };
    let text = &text[start..end];
    let has =
        |affix: &str| if name == "startswith" { text.starts_with(affix) } else { text.ends_with(affix) };
    match affixes {
        Some(Value::Tuple(affixes)) => {
            meter.steps(affixes.items.len())?;
            for affix in &affixes.items {
                if has(&text_of(Some(affix.clone()), name)?) {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        other => Ok(Value::Bool(has(&text_of(other, name)?))),
    }
}

fn search(text: &str, name: &str, values: Values, meter: &Meter) -> Evaluated<Value> {
    let [part, start, end] = values.bind(name, ["sub", "start", "end"])?;
    let part = text_of(part, name)?;
    // Finding the bounds reads the text again.
    meter.read(text.len())?;
    let found = window(text, start, end, name)?;
    let within = found.map(|(start, end)| (start, &text[start..end]));
    if name == "count" {
        let count = within.map_or(0, |(_, window)| window.matches(&*part).count());
        return Ok(Value::Int(count as i128));
    }
    let at = within.and_then(|(start, window)| {
        let at = if name.starts_with('r') { window.rfind(&*part) } else { window.find(&*part) };
        at.map(|at| text[..start + at].chars().count() as i128)
    });
    match at {
        Some(at) => Ok(Value::Int(at)),
        None if name.ends_with("index") => wrong("the text does not contain the part"),
        None => Ok(Value::Int(-1)),
    }
}

/// Replaces up to `count` occurrences.
pub(crate) fn replace(text: &str, old: &str, new: &str, count: usize, meter: &Meter) -> Evaluated<Value> {
    let mut replaced = Sink::new(meter);
    let mut rest = 0;
    for (at, _) in text.match_indices(old).take(count) {
        replaced.push(&text[rest..at])?;
        replaced.push(new)?;
        rest = at + old.len();
    }
    replaced.push(&text[rest..])?;
    Ok(Value::Str(replaced.finish().into()))
}

fn pad(text: &str, name: &str, values: Values, meter: &Meter) -> Evaluated<Value> {
    let [width, fill] = values.bind(name, ["width", "fillchar"])?;
    let fill = match optional_text(fill, name)? {
        None if name == "zfill" => "0".into(),
        None => " ".into(),
        Some(fill) if fill.chars().count() == 1 && name != "zfill" => fill,
        Some(_) => return wrong(format!("{name} needs one character to fill with")),
    };
    let length = text.chars().count();
    let width = usize::try_from(whole(width, 0, name)?).unwrap_or(0);
    let missing = width.saturating_sub(length);
    let left = match name {
        "ljust" => 0,
        // Python puts the odd character on the left if the width is odd.
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let mut padded = Sink::new(meter);
    let sign = text.starts_with(['-', '+']) && name == "zfill";
    padded.push(if sign { &text[..1] } else { "" })?;
    padded.push_repeated(&fill, left)?;
    padded.push(if sign { &text[1..] } else { text })?;
    padded.push_repeated(&fill, missing - left)?;
    Ok(Value::Str(padded.finish().into()))
}

fn expand_tabs(text: &str, size: i128, meter: &Meter) -> Evaluated<Value> {
    let size = usize::try_from(size).unwrap_or(0);
    let mut expanded = Sink::new(meter);
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                expanded.push_repeated(" ", size - column % size)?;
                column = 0;
                continue;
            }
            '\t' => continue,
            '\n' | '\r' => column = 0,
            _ => column += 1,
        }
        expanded.push_char(c)?;
    }
    Ok(Value::Str(expanded.finish().into()))
}

/// Returns the character at the start of a word in a title.
fn title_case(c: char) -> String {
    let mut upper = c.to_uppercase();
    match upper.next() {
        // A character such as `ß` becomes two letters. Only the first one is upper case.
        Some(first) => std::iter::once(first).chain(upper.flat_map(char::to_lowercase)).collect(),
        None => String::new(),
    }
}

/// Changes the case of all letters.
pub(crate) fn change_case(text: &str, method: &str) -> String {
    match method {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        "casefold" => text.to_lowercase().replace('ß', "ss").replace('ς', "σ"),
        "capitalize" => {
            let mut chars = text.chars();
            let first = chars.next().map(title_case).unwrap_or_default();
            // Lowers the whole text, because the lower case of a letter may depend on those before it.
            let lower = text.to_lowercase();
            let skipped = text.chars().next().map_or(0, |c| c.to_lowercase().map(char::len_utf8).sum());
            first + lower.get(skipped..).unwrap_or_default()
        }
        "swapcase" => text
            .chars()
            .flat_map(|c| -> Vec<char> {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            })
            .collect(),
        _ => {
            let mut title = String::new();
            let mut in_word = false;
            for c in text.chars() {
                let cased = c.is_lowercase() || c.is_uppercase();
                match in_word {
                    true => title.extend(c.to_lowercase()),
                    false => title.push_str(&title_case(c)),
                }
                in_word = cased;
            }
            title
        }
    }
}

fn is_kind(text: &str, method: &str) -> bool {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    let has_cased = text.chars().any(|c| c.is_lowercase() || c.is_uppercase());
    match method {
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" | "isdigit" | "isnumeric" => all(char::is_numeric),
        "islower" => has_cased && !text.chars().any(char::is_uppercase),
        "isupper" => has_cased && !text.chars().any(char::is_lowercase),
        "isspace" => all(is_space),
        _ => has_cased && change_case(text, "title") == text,
    }
}
