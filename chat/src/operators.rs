//! Python's operators: arithmetic, membership, indices and slices.

use crate::ast::Binary;
use crate::format;
use crate::meter::{Evaluated, Meter, Sink, wrong};
use crate::value::{Key, Value};

/// A number in an operation. Python computes with whole numbers as long as both operands are whole.
enum Pair {
    Whole(i128, i128),
    Real(f64, f64),
}

fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Int(number) => Some(*number),
        Value::Bool(flag) => Some(i128::from(*flag)),
        _ => None,
    }
}

pub(crate) fn real(value: &Value) -> Option<f64> {
    match value {
        Value::Float(number) => Some(*number),
        other => whole(other).map(|number| number as f64),
    }
}

fn pair(left: &Value, right: &Value) -> Option<Pair> {
    match (whole(left), whole(right)) {
        (Some(a), Some(b)) => Some(Pair::Whole(a, b)),
        _ => Some(Pair::Real(real(left)?, real(right)?)),
    }
}

fn in_range(number: Option<i128>) -> Evaluated<Value> {
    number.map_or_else(|| wrong("the result of an operation is too large"), |number| Ok(Value::Int(number)))
}

/// Returns the result of an operator with two operands.
pub(crate) fn binary(operator: Binary, left: &Value, right: &Value, meter: &Meter) -> Evaluated<Value> {
    if let Value::Undefined(message) = left {
        return wrong(message.to_string());
    }
    match (operator, left, right) {
        (Binary::Modulo, Value::Str(text), _) => format::percent(text, right, meter),
        (_, _, Value::Undefined(message)) => wrong(message.to_string()),
        (Binary::Add, Value::Str(a), Value::Str(b)) => {
            let mut text = Sink::new(meter);
            text.push(a)?;
            text.push(b)?;
            Ok(Value::Str(text.finish().into()))
        }
        (Binary::Add, Value::List(a), Value::List(b)) => Value::list(joined(&a.items, &b.items, meter)?),
        (Binary::Add, Value::Tuple(a), Value::Tuple(b)) => Value::tuple(joined(&a.items, &b.items, meter)?),
        (Binary::Multiply, sequence @ (Value::Str(_) | Value::List(_) | Value::Tuple(_)), count)
        | (Binary::Multiply, count, sequence @ (Value::Str(_) | Value::List(_) | Value::Tuple(_)))
            if whole(count).is_some() =>
        {
            repeated(sequence, whole(count).unwrap_or_default(), meter)
        }
        _ => match pair(left, right) {
            Some(numbers) => arithmetic(operator, numbers),
            None => {
                let (symbol, names) = (operator.symbol(), (left.type_name(), right.type_name()));
                wrong(format!("the operator {symbol} does not work on a {} and a {}", names.0, names.1))
            }
        },
    }
}

fn joined(a: &[Value], b: &[Value], meter: &Meter) -> Evaluated<Vec<Value>> {
    meter.make_items(a.len() + b.len())?;
    Ok(a.iter().chain(b).cloned().collect())
}

fn repeated(sequence: &Value, count: i128, meter: &Meter) -> Evaluated<Value> {
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    match sequence {
        Value::Str(text) => {
            let mut all = Sink::new(meter);
            all.push_repeated(text, count)?;
            Ok(Value::Str(all.finish().into()))
        }
        Value::List(items) | Value::Tuple(items) => {
            meter.make_items(items.items.len().saturating_mul(count))?;
            let length = items.items.len() * count;
            let all = items.items.iter().cycle().take(length).cloned().collect();
            if matches!(sequence, Value::List(_)) { Value::list(all) } else { Value::tuple(all) }
        }
        _ => wrong("only texts and lists can be repeated"),
    }
}

fn arithmetic(operator: Binary, numbers: Pair) -> Evaluated<Value> {
    match numbers {
        Pair::Whole(_, 0) | Pair::Real(_, 0.0)
            if matches!(operator, Binary::Divide | Binary::FloorDivide | Binary::Modulo) =>
        {
            wrong("a division by zero")
        }
        Pair::Whole(a, b) => match operator {
            Binary::Add => in_range(a.checked_add(b)),
            Binary::Subtract => in_range(a.checked_sub(b)),
            Binary::Multiply => in_range(a.checked_mul(b)),
            Binary::Divide => Ok(Value::Float(a as f64 / b as f64)),
            Binary::FloorDivide => in_range(floor_divide(a, b)),
            Binary::Modulo => in_range(floor_divide(a, b).map(|quotient| a - quotient * b)),
            Binary::Power if b < 0 && a == 0 => wrong("a division by zero"),
            Binary::Power if b < 0 => Ok(Value::Float((a as f64).powf(b as f64))),
            Binary::Power if a == 0 || a == 1 => in_range(Some(if b == 0 { 1 } else { a })),
            Binary::Power => in_range(u32::try_from(b).ok().and_then(|b| a.checked_pow(b))),
        },
        Pair::Real(a, b) => Ok(Value::Float(match operator {
            Binary::Add => a + b,
            Binary::Subtract => a - b,
            Binary::Multiply => a * b,
            Binary::Divide => a / b,
            Binary::FloorDivide => (a / b).floor(),
            Binary::Modulo => {
                let rest = a % b;
                if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
            }
            Binary::Power => {
                let power = a.powf(b);
                if power.is_infinite() && a.is_finite() && b.is_finite() {
                    return wrong("the result of an operation is too large");
                }
                power
            }
        })),
    }
}

/// Divides and rounds down.
fn floor_divide(a: i128, b: i128) -> Option<i128> {
    let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
    Some(if rest != 0 && (rest < 0) != (b < 0) { quotient - 1 } else { quotient })
}

pub(crate) fn negate(value: &Value) -> Evaluated<Value> {
    match value {
        Value::Float(number) => Ok(Value::Float(-number)),
        Value::Undefined(message) => wrong(message.to_string()),
        other => match whole(other) {
            Some(number) => in_range(number.checked_neg()),
            None => wrong(format!("a {} has no negative", other.type_name())),
        },
    }
}

pub(crate) fn plus(value: &Value) -> Evaluated<Value> {
    match value {
        Value::Float(_) => Ok(value.clone()),
        Value::Undefined(message) => wrong(message.to_string()),
        other => match whole(other) {
            Some(number) => Ok(Value::Int(number)),
            None => wrong(format!("a {} is not a number", other.type_name())),
        },
    }
}

/// Returns whether `container` contains `item`.
pub(crate) fn contains(container: &Value, item: &Value, meter: &Meter) -> Evaluated<bool> {
    match (container, item) {
        (Value::Undefined(_), _) => Ok(false),
        (Value::Str(text), Value::Str(part)) => {
            meter.read(text.len())?;
            Ok(text.contains(&**part))
        }
        (Value::Str(_), Value::Undefined(message)) => wrong(message.to_string()),
        (Value::Str(_), other) => wrong(format!("a text cannot contain a {}", other.type_name())),
        (Value::Dict(dict), key) => match key {
            Value::Undefined(_) => Ok(false),
            key => Ok(dict.map.contains_key(&Key::new(key.clone(), meter)?)),
        },
        (other, item) => {
            for candidate in other.items(meter)? {
                if candidate.equals(item, meter)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// Returns the item at an index, which may count from the end.
pub(crate) fn indexed(value: &Value, index: &Value, meter: &Meter) -> Evaluated<Value> {
    let index = whole(index).unwrap_or_default();
    let place = |length: usize| {
        let from_start = if index < 0 { index.saturating_add(length as i128) } else { index };
        usize::try_from(from_start).ok().filter(|at| *at < length)
    };
    let missing = || Value::undefined(format!("a {} has no item {index}", value.type_name()));
    match value {
        Value::List(items) | Value::Tuple(items) => {
            Ok(place(items.items.len()).map_or_else(missing, |at| items.items[at].clone()))
        }
        Value::Str(text) => {
            meter.read(text.len())?;
            let at = if text.is_ascii() { place(text.len()) } else { place(text.chars().count()) };
            Ok(at
                .and_then(|at| text.chars().nth(at))
                .map_or_else(missing, |c| Value::from(&*c.encode_utf8(&mut [0; 4]))))
        }
        Value::Range(start, _, step) => {
            let item = |at: usize| Value::Int(i128::from(*start) + at as i128 * i128::from(*step));
            Ok(place(value.length().unwrap_or_default()).map_or_else(missing, item))
        }
        _ => Ok(missing()),
    }
}

/// Returns the indices that a slice `start:end:step` selects from `length` items.
fn slice_places(bounds: &[Value; 3], length: usize) -> Evaluated<Vec<usize>> {
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(bounds) {
        *number = match bound {
            Value::None => None,
            other => match whole(other) {
                Some(whole) => Some(whole),
                None => return wrong(format!("a slice needs whole numbers, not a {}", other.type_name())),
            },
        };
    }
    let [start, end, step] = numbers;
    let (step, length) = (step.unwrap_or(1), length as i128);
    if step == 0 {
        return wrong("the step of a slice is 0");
    }
    // With a negative step, the places before the first item and after the last one are valid ends.
    let (least, most) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |bound: Option<i128>, default: i128| match bound {
        None => default,
        Some(at) => (if at < 0 { at.saturating_add(length) } else { at }).clamp(least, most),
    };
    let (mut at, end) = match step > 0 {
        true => (place(start, least), place(end, most)),
        false => (place(start, most), place(end, least)),
    };
    let mut places = Vec::new();
    while (step > 0 && at < end) || (step < 0 && at > end) {
        places.extend(usize::try_from(at));
        at = at.saturating_add(step);
    }
    Ok(places)
}

/// Returns the items that a slice selects.
pub(crate) fn slice(value: &Value, bounds: &[Value; 3], meter: &Meter) -> Evaluated<Value> {
    if let Value::Undefined(message) = value {
        return wrong(message.to_string());
    }
    let pick = |items: &[Value]| -> Evaluated<Vec<Value>> {
        meter.make_items(items.len())?;
        let places = slice_places(bounds, items.len())?;
        Ok(places.into_iter().filter_map(|at| items.get(at).cloned()).collect())
    };
    match value {
        Value::List(items) => Value::list(pick(&items.items)?),
        Value::Tuple(items) => Value::tuple(pick(&items.items)?),
        Value::Range(..) => Value::list(pick(&value.items(meter)?)?),
        Value::Str(text) => {
            // The characters and the places take more memory than the text.
            meter.make(text.len().saturating_mul(16))?;
            let characters: Vec<char> = text.chars().collect();
            let places = slice_places(bounds, characters.len())?;
            let picked: String = places.into_iter().filter_map(|at| characters.get(at)).collect();
            Ok(Value::Str(picked.into()))
        }
        other => wrong(format!("a {} has no slices", other.type_name())),
    }
}
