//! Executes the statements of a template: scopes, loops, macros and assignments.

use crate::ast::{For, Kind, Macro, Name, Post, Statement, Target};
use crate::error::Limit;
use crate::meter::{Evaluated, Fault, Meter, Sink, wrong};
use crate::parser::{CALLER, KWARGS, LOOP, Parsed, VARARGS};
use crate::strftime::Moment;
use crate::value::{Dict, Items, Key, Value};
use indexmap::IndexMap;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Maximum depth of nested statements and expressions, including those of called macros.
const MAX_DEPTH: u32 = 320;

/// Variables of a block. Blocks such as loops have their own scope.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    variables: RefCell<Vec<(Name, Value)>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    fn within(parent: &Rc<Scope>) -> Rc<Scope> {
        Rc::new(Scope { variables: RefCell::default(), parent: Some(Rc::clone(parent)) })
    }
}

/// Arguments of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Arc<str>, Value)>,
}

impl Values {
    /// Assigns the arguments to the parameters called `names`.
    pub(crate) fn bind<const N: usize>(self, of: &str, names: [&str; N]) -> Evaluated<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            return wrong(format!("{of} takes at most {N} arguments, not {}", self.positional.len()));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|known| **known == *name) {
                Some(index) if bound[index].is_none() => bound[index] = Some(value),
                Some(_) => return wrong(format!("{of} has two values for its argument {name}")),
                None => return wrong(format!("{of} has no argument called {name}")),
            }
        }
        Ok(bound)
    }
}

/// A macro with the scope of its definition.
pub(crate) struct BoundMacro<'t> {
    pub(crate) code: &'t Macro,
    scope: Rc<Scope>,
}

/// State of a running loop.
pub(crate) struct Loop<'t> {
    pub(crate) id: u64,
    pub(crate) items: Arc<Items>,
    pub(crate) index: usize,
    /// Number of loops of the same recursion around this one.
    pub(crate) depth: usize,
    /// The loop's code, if `loop(…)` may run it again.
    recursive: Option<(&'t For, Rc<Scope>)>,
    /// Arguments of the last call of `loop.changed`.
    pub(crate) last: Option<Vec<Value>>,
}

/// Effect of a statement on the loop around it.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Next,
    Break,
    Continue,
}

pub(crate) struct Interpreter<'t> {
    pub(crate) names: &'t [Arc<str>],
    pub(crate) meter: &'t Meter,
    pub(crate) now: Option<Moment>,
    /// Values of the template's names from outside the template.
    globals: Vec<Option<Value>>,
    pub(crate) namespaces: Vec<IndexMap<Arc<str>, Value>>,
    pub(crate) macros: Vec<BoundMacro<'t>>,
    pub(crate) loops: Vec<Loop<'t>>,
    next_loop: u64,
    depth: u32,
    /// Line of the current statement.
    pub(crate) line: u32,
}

impl<'t> Interpreter<'t> {
    /// Creates an interpreter. `global` returns the value of a variable.
    pub(crate) fn new(
        parsed: &'t Parsed,
        meter: &'t Meter,
        now: Option<Moment>,
        global: impl Fn(&str) -> Option<Value>,
    ) -> Self {
        Interpreter {
            names: &parsed.names,
            meter,
            now,
            globals: parsed.names.iter().map(|name| global(name)).collect(),
            namespaces: Vec::new(),
            macros: Vec::new(),
            loops: Vec::new(),
            next_loop: 0,
            depth: 0,
            line: 1,
        }
    }

    /// Renders the statements of a template.
    pub(crate) fn render(&mut self, body: &'t [Statement], out: &mut Sink<'t>) -> Evaluated<()> {
        self.body(body, &Rc::new(Scope::default()), out).map(|_| ())
    }

    /// Runs `run` one level deeper. Nested statements, expressions and calls share the depth.
    pub(crate) fn nested<T>(&mut self, run: impl FnOnce(&mut Self) -> Evaluated<T>) -> Evaluated<T> {
        if self.depth >= MAX_DEPTH {
            return Err(Box::new(Fault::Limit(Limit::Depth)));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    /// Returns the value of a variable.
    pub(crate) fn variable(&self, name: Name, scope: &Scope) -> Evaluated<Value> {
        let mut scope = Some(scope);
        while let Some(current) = scope {
            let variables = current.variables.borrow();
            self.meter.steps(1 + variables.len() / 16)?;
            if let Some((_, value)) = variables.iter().find(|(known, _)| *known == name) {
                return Ok(value.clone());
            }
            scope = current.parent.as_deref();
        }
        match self.globals.get(name).and_then(Option::as_ref) {
            Some(value) => Ok(value.clone()),
            None => Ok(Value::undefined(format!("{:.60} is undefined", self.names[name]))),
        }
    }

    fn assign(&self, name: Name, value: Value, scope: &Scope) -> Evaluated<()> {
        let mut variables = scope.variables.borrow_mut();
        self.meter.steps(1 + variables.len() / 16)?;
        match variables.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => {
                self.meter.make_items(2)?;
                variables.push((name, value));
            }
        }
        Ok(())
    }

    fn assign_target(&mut self, target: &Target, value: Value, scope: &Scope) -> Evaluated<()> {
        match target {
            Target::Name(name) => self.assign(*name, value, scope),
            Target::Tuple(targets) => {
                let items = value.items(self.meter)?;
                if items.len() != targets.len() {
                    return wrong(format!("cannot assign {} values to {} names", items.len(), targets.len()));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign_target(target, item, scope)?;
                }
                Ok(())
            }
            Target::Attribute(name, attribute) => {
                let Value::Namespace(index) = self.variable(*name, scope)? else {
                    let name = &self.names[*name];
                    return wrong(format!("cannot assign to {name}.{attribute}: {name} is not a namespace"));
                };
                self.set_in_namespace(index, Arc::clone(attribute), value)
            }
        }
    }

    pub(crate) fn set_in_namespace(&mut self, index: usize, name: Arc<str>, value: Value) -> Evaluated<()> {
        if name.starts_with('_') {
            return wrong(format!("the namespace attribute {name} starts with an underscore"));
        }
        self.meter.make_items(4)?;
        if let Some(namespace) = self.namespaces.get_mut(index) {
            namespace.insert(name, value);
        }
        Ok(())
    }

    fn body(&mut self, body: &'t [Statement], scope: &Rc<Scope>, out: &mut Sink<'t>) -> Evaluated<Flow> {
        for statement in body {
            self.line = statement.line;
            self.meter.steps(1)?;
            let flow = match &statement.kind {
                Kind::Text(text) => {
                    out.push(text)?;
                    Flow::Next
                }
                Kind::Output(expression) => {
                    self.eval(expression, scope)?.write(out)?;
                    Flow::Next
                }
                _ => self.nested(|inner| inner.block(statement, scope, out))?,
            };
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    /// Executes a statement that is not text or output.
    fn block(&mut self, statement: &'t Statement, scope: &Rc<Scope>, out: &mut Sink<'t>) -> Evaluated<Flow> {
        match &statement.kind {
            Kind::Text(_) | Kind::Output(_) => {}
            Kind::Break => return Ok(Flow::Break),
            Kind::Continue => return Ok(Flow::Continue),
            Kind::If(branches, otherwise) => {
                for (test, body) in branches {
                    if self.eval(test, scope)?.truth() {
                        return self.body(body, scope, out);
                    }
                }
                return self.body(otherwise, scope, out);
            }
            Kind::For(code) => {
                let items = self.eval(&code.items, scope)?;
                return self.for_loop(code, items, 0, scope, out);
            }
            Kind::Set(target, value) => {
                let value = self.eval(value, scope)?;
                self.assign_target(target, value, scope)?;
            }
            Kind::SetBlock(target, filters, body) => {
                let value = self.captured(body, filters, scope)?;
                self.assign_target(target, value, scope)?;
            }
            Kind::FilterBlock(filters, body) => self.captured(body, filters, scope)?.write(out)?,
            Kind::With(values, body) => {
                let inner = Scope::within(scope);
                for (target, value) in values {
                    let value = self.eval(value, scope)?;
                    self.assign_target(target, value, &inner)?;
                }
                return self.body(body, &inner, out);
            }
            Kind::Macro(name, code) => {
                let value = self.bind_macro(code, scope)?;
                self.assign(*name, value, scope)?;
            }
            Kind::CallBlock(code, call) => {
                let caller = self.bind_macro(code, scope)?;
                self.call_with_caller(call, caller, scope)?.write(out)?;
            }
        }
        Ok(Flow::Next)
    }

    /// Returns the text that a block renders to, after filters.
    fn captured(
        &mut self,
        body: &'t [Statement],
        filters: &'t [(Post, u32)],
        scope: &Rc<Scope>,
    ) -> Evaluated<Value> {
        let mut text = Sink::new(self.meter);
        self.body(body, &Scope::within(scope), &mut text)?;
        let text = Value::Str(text.finish().into());
        self.postfixes(text, filters, scope)
    }

    // ---- loops ----

    fn for_loop(
        &mut self,
        code: &'t For,
        items: Value,
        depth: usize,
        scope: &Rc<Scope>,
        out: &mut Sink<'t>,
    ) -> Evaluated<Flow> {
        let mut items = match items {
            Value::List(items) | Value::Tuple(items) | Value::Iterator(items) => items,
            other => Items::new(other.items(self.meter)?)?,
        };
        if let Some(test) = &code.test {
            self.meter.make_items(items.items.len())?;
            let mut kept = Vec::new();
            for item in &items.items {
                let inner = Scope::within(scope);
                self.assign_target(&code.target, item.clone(), &inner)?;
                if self.eval(test, &inner)?.truth() {
                    kept.push(item.clone());
                }
            }
            items = Items::new(kept)?;
        }
        if items.items.is_empty() {
            return self.body(&code.otherwise, &Scope::within(scope), out);
        }
        self.next_loop += 1;
        self.loops.push(Loop {
            id: self.next_loop,
            items,
            index: 0,
            depth,
            recursive: code.recursive.then(|| (code, Rc::clone(scope))),
            last: None,
        });
        let flow = self.iterations(code, scope, out);
        self.loops.pop();
        flow
    }

    /// Runs the innermost loop.
    fn iterations(&mut self, code: &'t For, scope: &Rc<Scope>, out: &mut Sink<'t>) -> Evaluated<Flow> {
        let place = self.loops.len() - 1;
        let value = Value::Loop(place, self.loops[place].id);
        let items = Arc::clone(&self.loops[place].items);
        for (index, item) in items.items.iter().enumerate() {
            self.loops[place].index = index;
            let inner = Scope::within(scope);
            self.assign(LOOP, value.clone(), &inner)?;
            self.assign_target(&code.target, item.clone(), &inner)?;
            if self.body(&code.body, &inner, out)? == Flow::Break {
                break;
            }
        }
        Ok(Flow::Next)
    }

    /// Returns a running loop.
    pub(crate) fn running(&mut self, place: usize, id: u64) -> Evaluated<&mut Loop<'t>> {
        match self.loops.get_mut(place) {
            Some(found) if found.id == id => Ok(found),
            _ => wrong("the loop has ended"),
        }
    }

    /// Runs a recursive loop again, with other items.
    pub(crate) fn recurse(&mut self, place: usize, id: u64, items: Value) -> Evaluated<Value> {
        let running = self.running(place, id)?;
        let Some((code, scope)) = running.recursive.clone() else {
            return wrong("loop can be called only in a loop that is marked as recursive");
        };
        let depth = running.depth + 1;
        let mut text = Sink::new(self.meter);
        self.nested(|inner| inner.for_loop(code, items, depth, &scope, &mut text))?;
        Ok(Value::Str(text.finish().into()))
    }

    // ---- macros ----

    fn bind_macro(&mut self, code: &'t Macro, scope: &Rc<Scope>) -> Evaluated<Value> {
        self.meter.make_items(2)?;
        self.macros.push(BoundMacro { code, scope: Rc::clone(scope) });
        Ok(Value::Macro(self.macros.len() - 1))
    }

    /// Calls a macro and returns the text that it renders.
    pub(crate) fn call_macro(&mut self, index: usize, mut values: Values) -> Evaluated<Value> {
        let Some(found) = self.macros.get(index) else { return wrong("the macro does not exist") };
        let (code, inner) = (found.code, Scope::within(&found.scope));
        let caller = values.named.iter().position(|(name, _)| code.takes_caller && &**name == "caller");
        let caller = caller.map(|at| values.named.swap_remove(at).1);
        self.meter.steps(code.parameters.len().saturating_mul(1 + values.named.len()))?;
        let mut positional = values.positional.into_iter();
        for (name, default) in &code.parameters {
            let text = &self.names[*name];
            let named = values.named.iter().position(|(given, _)| given == text);
            let value = match (positional.next(), named, default) {
                (Some(_), Some(_), _) => {
                    return wrong(format!("{} has two values for its argument {text}", code.name));
                }
                (Some(value), None, _) => value,
                (None, Some(at), _) => values.named.remove(at).1,
                (None, None, Some(default)) => self.eval(default, &inner)?,
                (None, None, None) => Value::undefined(format!("parameter {text:.60} was not provided")),
            };
            self.assign(*name, value, &inner)?;
        }
        self.assign_rest(code, positional.collect(), values.named, &inner)?;
        if code.takes_caller {
            let missing = || Value::undefined("no caller defined");
            self.assign(CALLER, caller.unwrap_or_else(missing), &inner)?;
        }
        let mut text = Sink::new(self.meter);
        self.nested(|interpreter| interpreter.body(&code.body, &inner, &mut text))?;
        Ok(Value::Str(text.finish().into()))
    }

    /// Assigns the arguments that have no parameter.
    fn assign_rest(
        &self,
        code: &Macro,
        positional: Vec<Value>,
        named: Vec<(Arc<str>, Value)>,
        scope: &Scope,
    ) -> Evaluated<()> {
        if code.takes_rest {
            self.assign(VARARGS, Value::Tuple(Items::new(positional)?), scope)?;
        } else if !positional.is_empty() {
            return wrong(format!("{} takes at most {} arguments", code.name, code.parameters.len()));
        }
        if code.takes_named_rest {
            let map: IndexMap<_, _> =
                named.into_iter().map(|(name, value)| (Key::text(name), value)).collect();
            self.assign(KWARGS, Value::Dict(Dict::new(map)?), scope)?;
        } else if let Some((name, _)) = named.first() {
            return wrong(format!("{} has no argument called {name}", code.name));
        }
        Ok(())
    }
}
