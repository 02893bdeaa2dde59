//! Evaluates expressions.

use crate::ast::{Arguments, Binary, Compare, Expr, Post};
use crate::interpreter::{Interpreter, Scope, Values};
use crate::meter::{Evaluated, Fault, Sink, wrong};
use crate::operators;
use crate::strftime::strftime;
use crate::value::{Dict, Function, Key, Value};
use crate::{filters, methods, tests_of_values};
use indexmap::IndexMap;
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum number of items of a range, as in Jinja's sandbox.
const MAX_RANGE: usize = 100_000;

impl<'t> Interpreter<'t> {
    /// Returns the value of an expression.
    pub(crate) fn eval(&mut self, expression: &'t Expr, scope: &Rc<Scope>) -> Evaluated<Value> {
        self.meter.steps(1)?;
        match expression {
            Expr::Const(value) => Ok(value.clone()),
            Expr::Name(name) => self.variable(*name, scope),
            composite => self.nested(|inner| inner.composite(composite, scope)),
        }
    }

    fn composite(&mut self, expression: &'t Expr, scope: &Rc<Scope>) -> Evaluated<Value> {
        match expression {
            Expr::Const(value) => Ok(value.clone()),
            Expr::Name(name) => self.variable(*name, scope),
            Expr::List(items) => Value::list(self.all(items, scope)?),
            Expr::Tuple(items) => Value::tuple(self.all(items, scope)?),
            Expr::Dict(pairs) => self.dict(pairs, scope),
            Expr::Postfix(operand, posts) => {
                let value = self.eval(operand, scope)?;
                self.postfixes(value, posts, scope)
            }
            Expr::Not(operand) => Ok(Value::Bool(!self.eval(operand, scope)?.truth())),
            Expr::Negate(operand) => operators::negate(&self.eval(operand, scope)?),
            Expr::Plus(operand) => operators::plus(&self.eval(operand, scope)?),
            Expr::Binary(first, rest) => self.binary(first, rest, scope),
            Expr::Concat(operands) => self.concat(operands, scope),
            Expr::Compare(first, rest) => self.comparison(first, rest, scope),
            Expr::And(operands) => self.logic(operands, false, scope),
            Expr::Or(operands) => self.logic(operands, true, scope),
            Expr::Conditional(parts) => match (self.eval(&parts.test, scope)?.truth(), &parts.otherwise) {
                (true, _) => self.eval(&parts.then, scope),
                (false, Some(otherwise)) => self.eval(otherwise, scope),
                (false, None) => Ok(Value::undefined("a condition without else is false")),
            },
        }
    }

    fn all(&mut self, items: &'t [Expr], scope: &Rc<Scope>) -> Evaluated<Vec<Value>> {
        self.meter.make_items(items.len())?;
        items.iter().map(|item| self.eval(item, scope)).collect()
    }

    fn dict(&mut self, pairs: &'t [(Expr, Expr)], scope: &Rc<Scope>) -> Evaluated<Value> {
        self.meter.make_items(pairs.len() * 4)?;
        let mut map = IndexMap::new();
        for (key, value) in pairs {
            let key = Key::new(self.eval(key, scope)?, self.meter)?;
            map.insert(key, self.eval(value, scope)?);
        }
        Dict::new(map).map(Value::Dict)
    }

    fn binary(&mut self, first: &'t Expr, rest: &'t [(Binary, Expr)], scope: &Rc<Scope>) -> Evaluated<Value> {
        let mut value = self.eval(first, scope)?;
        for (operator, operand) in rest {
            let operand = self.eval(operand, scope)?;
            self.meter.steps(1)?;
            value = operators::binary(*operator, &value, &operand, self.meter)?;
        }
        Ok(value)
    }

    fn concat(&mut self, operands: &'t [Expr], scope: &Rc<Scope>) -> Evaluated<Value> {
        let mut text = Sink::new(self.meter);
        for operand in operands {
            self.eval(operand, scope)?.write(&mut text)?;
        }
        Ok(Value::Str(text.finish().into()))
    }

    /// Evaluates a chain of comparisons, such as `0 < x <= 9`.
    fn comparison(
        &mut self,
        first: &'t Expr,
        rest: &'t [(Compare, Expr)],
        scope: &Rc<Scope>,
    ) -> Evaluated<Value> {
        let mut left = self.eval(first, scope)?;
        for (operator, right) in rest {
            let right = self.eval(right, scope)?;
            if !self.compare(*operator, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    pub(crate) fn compare(&self, operator: Compare, left: &Value, right: &Value) -> Evaluated<bool> {
        let order = || left.compare(right, self.meter);
        Ok(match operator {
            Compare::Equal => left.equals(right, self.meter)?,
            Compare::NotEqual => !left.equals(right, self.meter)?,
            Compare::In => operators::contains(right, left, self.meter)?,
            Compare::NotIn => !operators::contains(right, left, self.meter)?,
            Compare::Less => order()? == Some(Ordering::Less),
            Compare::LessEqual => matches!(order()?, Some(Ordering::Less | Ordering::Equal)),
            Compare::Greater => order()? == Some(Ordering::Greater),
            Compare::GreaterEqual => matches!(order()?, Some(Ordering::Greater | Ordering::Equal)),
        })
    }

    /// Returns the first operand whose truth is `decisive`, or else the last operand.
    fn logic(&mut self, operands: &'t [Expr], decisive: bool, scope: &Rc<Scope>) -> Evaluated<Value> {
        let mut value = Value::None;
        for operand in operands {
            value = self.eval(operand, scope)?;
            if value.truth() == decisive {
                break;
            }
        }
        Ok(value)
    }

    /// Applies attributes, items, calls, filters and tests to a value.
    pub(crate) fn postfixes(
        &mut self,
        mut value: Value,
        posts: &'t [(Post, u32)],
        scope: &Rc<Scope>,
    ) -> Evaluated<Value> {
        let mut posts = posts.iter().peekable();
        while let Some((post, line)) = posts.next() {
            self.meter.steps(1)?;
            if let (Post::Attribute(name), Some((Post::Call(arguments), _))) = (post, posts.peek()) {
                // Calls a method without creating a value for it.
                if methods::exists(&value, name) {
                    posts.next();
                    let values = self.arguments(arguments, scope)?;
                    self.line = *line;
                    value = methods::call(&value, name, values, self.meter)?;
                    continue;
                }
            }
            value = self.postfix(value, post, *line, scope)?;
        }
        Ok(value)
    }

    fn postfix(&mut self, value: Value, post: &'t Post, line: u32, scope: &Rc<Scope>) -> Evaluated<Value> {
        match post {
            Post::Attribute(name) => {
                self.line = line;
                self.attribute(&value, name)
            }
            Post::Item(index) => {
                let index = self.eval(index, scope)?;
                self.line = line;
                self.item(&value, &index)
            }
            Post::Slice(parts) => {
                let mut bounds = [const { Value::None }; 3];
                for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                    if let Some(part) = part {
                        *bound = self.eval(part, scope)?;
                    }
                }
                self.line = line;
                operators::slice(&value, &bounds, self.meter)
            }
            Post::Call(arguments) => {
                let values = self.arguments(arguments, scope)?;
                self.line = line;
                self.call(&value, values)
            }
            Post::Filter(name, arguments) => {
                let values = self.arguments(arguments, scope)?;
                self.line = line;
                filters::apply(self, name, value, values)
            }
            Post::Test(name, arguments, negated) => {
                let values = self.arguments(arguments, scope)?;
                self.line = line;
                Ok(Value::Bool(tests_of_values::holds(self, name, &value, values)? != *negated))
            }
        }
    }

    fn arguments(&mut self, arguments: &'t Arguments, scope: &Rc<Scope>) -> Evaluated<Values> {
        let mut values = Values { positional: self.all(&arguments.positional, scope)?, named: Vec::new() };
        for (name, value) in &arguments.named {
            values.named.push((Arc::clone(name), self.eval(value, scope)?));
        }
        if let Some(rest) = &arguments.rest {
            values.positional.extend(self.eval(rest, scope)?.items(self.meter)?);
        }
        if let Some(rest) = &arguments.named_rest {
            let Value::Dict(dict) = self.eval(rest, scope)? else {
                return wrong("the operand of ** in a call is not a dictionary");
            };
            self.meter.make_items(dict.map.len() * 2)?;
            for (key, value) in &dict.map {
                let Some(name) = key.as_str() else {
                    return wrong("the operand of ** in a call has a key that is not a text");
                };
                values.named.push((name.into(), value.clone()));
            }
        }
        Ok(values)
    }

    /// Calls a macro with a caller.
    pub(crate) fn call_with_caller(
        &mut self,
        call: &'t Expr,
        caller: Value,
        scope: &Rc<Scope>,
    ) -> Evaluated<Value> {
        let Expr::Postfix(operand, posts) = call else { return wrong("the tag call needs a call") };
        let Some(((Post::Call(arguments), _), before)) = posts.split_last() else {
            return wrong("the tag call needs a call");
        };
        let value = self.eval(operand, scope)?;
        let callee = self.postfixes(value, before, scope)?;
        let mut values = self.arguments(arguments, scope)?;
        values.named.push(("caller".into(), caller));
        self.call(&callee, values)
    }

    pub(crate) fn call(&mut self, callee: &Value, values: Values) -> Evaluated<Value> {
        match callee {
            Value::Macro(index) => self.call_macro(*index, values),
            Value::Loop(place, id) => {
                let [items] = values.bind("loop", ["items"])?;
                self.recurse(*place, *id, items.unwrap_or_else(|| Value::undefined("loop needs items")))
            }
            Value::Method(method) => match (&method.0, &*method.1) {
                (Value::Loop(place, id), name) => self.loop_method(*place, *id, name, values),
                (value, name) => methods::call(value, name, values, self.meter),
            },
            Value::Function(function) => self.function(*function, values),
            Value::Undefined(message) => wrong(message.to_string()),
            other => wrong(format!("a {} cannot be called", other.type_name())),
        }
    }

    fn function(&mut self, function: Function, values: Values) -> Evaluated<Value> {
        match function {
            Function::Range => range(values),
            Function::Dict => self.new_dict(values).map(Value::Dict),
            Function::Namespace => {
                let dict = self.new_dict(values)?;
                self.namespaces.push(IndexMap::new());
                let index = self.namespaces.len() - 1;
                for (key, value) in &dict.map {
                    let Some(name) = key.as_str() else {
                        return wrong("the name of a namespace attribute is not a text");
                    };
                    self.set_in_namespace(index, name.into(), value.clone())?;
                }
                Ok(Value::Namespace(index))
            }
            Function::RaiseException => {
                let [message] = values.bind("raise_exception", ["message"])?;
                let Some(message) = message else { return wrong("raise_exception needs a message") };
                let message = message.to_text(self.meter)?;
                Err(Box::new(Fault::Raised(message.to_string())))
            }
            Function::StrftimeNow => {
                let [format] = values.bind("strftime_now", ["format"])?;
                let Some(Value::Str(format)) = format else {
                    return wrong("strftime_now needs a format");
                };
                let Some(now) = &self.now else {
                    return wrong("strftime_now needs the current time, which the conversation lacks");
                };
                let mut text = Sink::new(self.meter);
                strftime(now, &format, &mut text)?;
                Ok(Value::Str(text.finish().into()))
            }
        }
    }

    /// Creates a dictionary from pairs or another dictionary, and from named values.
    fn new_dict(&mut self, values: Values) -> Evaluated<Arc<Dict>> {
        let mut map = IndexMap::new();
        if values.positional.len() > 1 {
            return wrong("a dictionary is made from at most one value");
        }
        self.meter.make_items((1 + values.named.len()) * 4)?;
        match values.positional.first() {
            None => {}
            Some(Value::Dict(dict)) => {
                self.meter.make_items(dict.map.len() * 4)?;
                dict.map.keys().try_for_each(|key| key.pay(self.meter))?;
                map.extend(dict.map.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            Some(pairs) => {
                for pair in pairs.items(self.meter)? {
                    let Ok([key, value]) = <[Value; 2]>::try_from(pair.items(self.meter)?) else {
                        return wrong("an item of a new dictionary is not a pair");
                    };
                    self.meter.make_items(4)?;
                    map.insert(Key::new(key, self.meter)?, value);
                }
            }
        }
        map.extend(values.named.into_iter().map(|(name, value)| (Key::text(name), value)));
        Dict::new(map)
    }

    /// Returns an attribute as Jinja does: a method, or else the item of this name.
    pub(crate) fn attribute(&mut self, value: &Value, name: &Arc<str>) -> Evaluated<Value> {
        if let Value::Undefined(message) = value {
            return wrong(message.to_string());
        }
        self.meter.read(name.len())?;
        if let Some(found) = self.own_attribute(value, name)? {
            return Ok(found);
        }
        match value {
            Value::Dict(dict) if dict.get(name).is_some() => {
                Ok(dict.get(name).cloned().unwrap_or(Value::None))
            }
            other => Ok(Value::undefined(format!("a {} has no attribute {name:.60}", other.type_name()))),
        }
    }

    /// Returns an attribute that belongs to the type of the value.
    fn own_attribute(&mut self, value: &Value, name: &Arc<str>) -> Evaluated<Option<Value>> {
        if methods::exists(value, name) {
            return Ok(Some(Value::Method(Arc::new((value.clone(), Arc::clone(name))))));
        }
        if methods::is_mutating(value, name) {
            let message = format!("{name} would change a {}, which templates may not do", value.type_name());
            return Ok(Some(Value::undefined(message)));
        }
        match value {
            Value::Namespace(index) => {
                Ok(self.namespaces.get(*index).and_then(|namespace| namespace.get(name)).cloned())
            }
            Value::Loop(place, id) => self.loop_attribute(*place, *id, name),
            Value::Macro(index) if &**name == "name" => {
                Ok(self.macros.get(*index).map(|found| Value::Str(Arc::clone(&found.code.name))))
            }
            _ => Ok(None),
        }
    }

    fn loop_attribute(&mut self, place: usize, id: u64, name: &Arc<str>) -> Evaluated<Option<Value>> {
        let running = self.running(place, id)?;
        let (index, length) = (running.index as i128, running.items.items.len() as i128);
        let neighbor = |at: Option<usize>, which: &str| match at.and_then(|at| running.items.items.get(at)) {
            Some(item) => item.clone(),
            None => Value::undefined(format!("there is no {which} item")),
        };
        Ok(Some(match &**name {
            "index" => Value::Int(index + 1),
            "index0" => Value::Int(index),
            "revindex" => Value::Int(length - index),
            "revindex0" => Value::Int(length - index - 1),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(index + 1 == length),
            "length" => Value::Int(length),
            "depth" => Value::Int(running.depth as i128 + 1),
            "depth0" => Value::Int(running.depth as i128),
            "previtem" => neighbor(running.index.checked_sub(1), "previous"),
            "nextitem" => neighbor(Some(running.index + 1), "next"),
            "cycle" | "changed" => Value::Method(Arc::new((Value::Loop(place, id), Arc::clone(name)))),
            _ => return Ok(None),
        }))
    }

    fn loop_method(&mut self, place: usize, id: u64, name: &str, values: Values) -> Evaluated<Value> {
        let meter = self.meter;
        let running = self.running(place, id)?;
        let values = values.positional;
        if name == "cycle" {
            return match running.index.checked_rem(values.len()) {
                Some(at) => Ok(values[at].clone()),
                None => wrong("loop.cycle needs at least one value"),
            };
        }
        let mut same = running.last.as_ref().is_some_and(|last| last.len() == values.len());
        for (old, new) in running.last.iter().flatten().zip(&values) {
            same = same && old.equals(new, meter)?;
        }
        running.last = Some(values);
        Ok(Value::Bool(!same))
    }

    /// Returns an item as Jinja does: the item, or else the attribute of this name.
    pub(crate) fn item(&mut self, value: &Value, index: &Value) -> Evaluated<Value> {
        if let Value::Str(name) = index {
            self.meter.read(name.len())?;
        }
        match (value, index) {
            (Value::Undefined(message), _) => wrong(message.to_string()),
            (_, Value::Undefined(_)) if !matches!(value, Value::Dict(_)) => {
                Ok(Value::undefined("an index is undefined"))
            }
            (Value::Dict(dict), Value::Str(name)) => match dict.get(name) {
                Some(found) => Ok(found.clone()),
                None => self.attribute(value, name),
            },
            (Value::Dict(dict), key) => match Key::new(key.clone(), self.meter) {
                Err(fault) if matches!(*fault, Fault::Limit(_)) => Err(fault),
                Ok(key) if dict.map.contains_key(&key) => Ok(dict.map[&key].clone()),
                _ => {
                    Ok(Value::undefined(format!("a dict has no item for a key of type {}", key.type_name())))
                }
            },
            (_, Value::Str(name)) => self.attribute(value, name),
            (_, Value::Int(_) | Value::Bool(_)) => operators::indexed(value, index, self.meter),
            (_, other) => Ok(Value::undefined(format!("a {} is not an index", other.type_name()))),
        }
    }
}

fn range(values: Values) -> Evaluated<Value> {
    let mut numbers = Vec::new();
    for value in &values.positional {
        match value {
            Value::Int(number) => numbers.push(*number),
            Value::Bool(flag) => numbers.push(i128::from(*flag)),
            other => return wrong(format!("range needs whole numbers, not a {}", other.type_name())),
        }
    }
    let (start, end, step) = match numbers[..] {
        [end] if values.named.is_empty() => (0, end, 1),
        [start, end] if values.named.is_empty() => (start, end, 1),
        [start, end, step] if values.named.is_empty() => (start, end, step),
        _ => return wrong("range needs one to three numbers"),
    };
    let narrow = |number: i128| i64::try_from(number);
    let (Ok(start), Ok(end), Ok(step)) = (narrow(start), narrow(end), narrow(step)) else {
        return wrong("a number of a range is too large");
    };
    if step == 0 {
        return wrong("the step of a range is 0");
    }
    let range = Value::Range(start, end, step);
    if range.length().is_some_and(|length| length > MAX_RANGE) {
        return wrong(format!("a range has more than {MAX_RANGE} items"));
    }
    Ok(range)
}
