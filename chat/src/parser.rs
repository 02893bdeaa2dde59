//! Parses the tokens of a template into its syntax tree, by Jinja's grammar.

use crate::ast::{
    Arguments, Binary, Compare, Conditional, Expr, For, Kind, Macro, Name, Post, Statement, Target,
};
use crate::error::{Error, Result};
use crate::lexer::{Placed, Token};
use crate::value::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum depth of nested expressions, and of nested blocks.
const MAX_DEPTH: u32 = 48;

/// Tags that Jinja knows and that chat templates cannot use.
const UNSUPPORTED: [&str; 9] =
    ["extends", "include", "import", "from", "block", "autoescape", "do", "trans", "debug"];

/// A parsed template.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) body: Vec<Statement>,
    pub(crate) names: Vec<Arc<str>>,
}

/// Names that the interpreter assigns, at the start of the table of names.
pub(crate) const LOOP: Name = 0;
pub(crate) const VARARGS: Name = 1;
pub(crate) const KWARGS: Name = 2;
pub(crate) const CALLER: Name = 3;
const SPECIAL: [&str; 4] = ["loop", "varargs", "kwargs", "caller"];

/// Table of the names in a template.
#[derive(Default)]
struct Names {
    all: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, Name>,
}

impl Names {
    fn id(&mut self, name: &Arc<str>) -> Name {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        self.all.push(Arc::clone(name));
        self.ids.insert(Arc::clone(name), self.all.len() - 1);
        self.all.len() - 1
    }
}

struct Parser {
    tokens: std::vec::IntoIter<Placed>,
    /// The next token. At the end of the template, `None`.
    token: Option<Token>,
    line: u32,
    names: Names,
    depth: u32,
    /// Number of loops around the current statement, for `break` and `continue`.
    loops: u32,
    /// Names that the body of the current macro uses.
    used: Vec<Arc<str>>,
}

/// Parses a template.
pub(crate) fn parse(tokens: Vec<Placed>) -> Result<Parsed> {
    let mut parser = Parser {
        tokens: tokens.into_iter(),
        token: None,
        line: 1,
        names: Names::default(),
        depth: 0,
        loops: 0,
        used: Vec::new(),
    };
    for special in SPECIAL {
        parser.names.id(&special.into());
    }
    parser.advance();
    let (body, _) = parser.statements(&[])?;
    Ok(Parsed { body, names: parser.names.all })
}

impl Parser {
    fn advance(&mut self) -> Option<Token> {
        let next = self.tokens.next();
        if let Some((_, line)) = &next {
            self.line = *line;
        }
        std::mem::replace(&mut self.token, next.map(|(token, _)| token))
    }

    fn wrong<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Error::Syntax { line: self.line, what: what.into() })
    }

    fn unexpected<T>(&self, expected: &str) -> Result<T> {
        let found = match &self.token {
            None => "the end of the template".to_owned(),
            Some(Token::Data(_)) => "text".into(),
            Some(Token::ExpressionBegin) => "{{".into(),
            Some(Token::ExpressionEnd) => "}}".into(),
            Some(Token::BlockBegin) => "{%".into(),
            Some(Token::BlockEnd) => "%}".into(),
            Some(Token::Name(name)) => name.to_string(),
            Some(Token::Str(_)) => "a text".into(),
            Some(Token::Int(_) | Token::Float(_)) => "a number".into(),
            Some(Token::Operator(operator)) => (*operator).into(),
        };
        self.wrong(format!("expected {expected}, found {found:.40}"))
    }

    /// Runs `parse` one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            return self.wrong(format!("expressions or blocks are nested deeper than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn is_operator(&self, operator: &str) -> bool {
        matches!(&self.token, Some(Token::Operator(found)) if *found == operator)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(&self.token, Some(Token::Name(found)) if **found == *name)
    }

    /// Skips an operator. Returns false if it is not next.
    fn skip(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        if found {
            self.advance();
        }
        found
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, operator: &str) -> Result<()> {
        if self.skip(operator) { Ok(()) } else { self.unexpected(operator) }
    }

    fn expect_name(&mut self, name: &str) -> Result<()> {
        if self.skip_name(name) { Ok(()) } else { self.unexpected(name) }
    }

    fn name(&mut self) -> Result<Arc<str>> {
        match &self.token {
            Some(Token::Name(name)) => {
                let name = Arc::clone(name);
                self.advance();
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn block_end(&mut self) -> Result<()> {
        match self.token {
            Some(Token::BlockEnd) => {
                self.advance();
                Ok(())
            }
            _ => self.unexpected("%}"),
        }
    }

    // ---- statements ----

    /// Parses statements up to a tag with one of the names in `ends`. Returns that name, whose tag is open.
    fn statements(&mut self, ends: &[&str]) -> Result<(Vec<Statement>, Arc<str>)> {
        let mut body = Vec::new();
        loop {
            let line = self.line;
            let kind = match self.advance() {
                None if ends.is_empty() => return Ok((body, "".into())),
                None => return self.wrong(format!("the tag {} is missing", ends.join(" or "))),
                Some(Token::Data(text)) => Kind::Text(text),
                Some(Token::ExpressionBegin) => {
                    let expression = self.tuple(true)?;
                    match self.advance() {
                        Some(Token::ExpressionEnd) => Kind::Output(expression),
                        other => {
                            self.token = other;
                            return self.unexpected("}}");
                        }
                    }
                }
                Some(Token::BlockBegin) => {
                    let name = self.name()?;
                    if ends.contains(&&*name) {
                        return Ok((body, name));
                    }
                    self.nested(|parser| parser.statement(&name))?
                }
                Some(_) => return self.wrong("unexpected token between tags"),
            };
            body.push(Statement { kind, line });
        }
    }

    /// Parses the statements of a block, after its opening tag's end.
    fn body(&mut self, ends: &[&str]) -> Result<(Vec<Statement>, Arc<str>)> {
        self.block_end()?;
        self.statements(ends)
    }

    /// Parses the statements of a block with only one possible end, and the end.
    fn whole_body(&mut self, end: &str) -> Result<Vec<Statement>> {
        let (body, _) = self.body(&[end])?;
        self.block_end()?;
        Ok(body)
    }

    /// Parses a statement after the name of its tag.
    fn statement(&mut self, name: &str) -> Result<Kind> {
        match name {
            "if" => self.if_statement(),
            "for" => self.for_statement(),
            "set" => self.set_statement(),
            "with" => self.with_statement(),
            "macro" => {
                let name = self.name()?;
                let parsed = self.macro_rest(Arc::clone(&name), "endmacro")?;
                Ok(Kind::Macro(self.names.id(&name), Arc::new(parsed)))
            }
            "call" => self.call_statement(),
            "filter" => {
                let mut filters = Vec::new();
                self.filter(&mut filters)?;
                self.filters(&mut filters)?;
                Ok(Kind::FilterBlock(filters, self.whole_body("endfilter")?))
            }
            // `transformers` uses this tag to mark the tokens of the assistant. Variables that the block sets
            // are local.
            "generation" => Ok(Kind::With(Vec::new(), self.whole_body("endgeneration")?)),
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.wrong(format!("{name} is outside a loop"));
                }
                self.block_end()?;
                Ok(if name == "break" { Kind::Break } else { Kind::Continue })
            }
            name if UNSUPPORTED.contains(&name) => {
                self.wrong(format!("the tag {name} is not supported in chat templates"))
            }
            name => self.wrong(format!("unexpected tag {name:.40}")),
        }
    }

    fn if_statement(&mut self) -> Result<Kind> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(false)?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            branches.push((test, body));
            match &*end {
                "elif" => {}
                "else" => return Ok(Kind::If(branches, self.whole_body("endif")?)),
                _ => {
                    self.block_end()?;
                    return Ok(Kind::If(branches, Vec::new()));
                }
            }
        }
    }

    fn for_statement(&mut self) -> Result<Kind> {
        let target = self.targets(false)?;
        self.expect_name("in")?;
        let items = self.tuple(false)?;
        let test = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.loops += 1;
        let (body, end) = self.body(&["else", "endfor"])?;
        self.loops -= 1;
        let otherwise = if &*end == "else" {
            self.whole_body("endfor")?
        } else {
            self.block_end()?;
            Vec::new()
        };
        Ok(Kind::For(Box::new(For { target, items, test, recursive, body, otherwise })))
    }

    fn set_statement(&mut self) -> Result<Kind> {
        let target = self.targets(true)?;
        if self.skip("=") {
            let value = self.tuple(true)?;
            self.block_end()?;
            return Ok(Kind::Set(target, value));
        }
        let mut filters = Vec::new();
        self.filters(&mut filters)?;
        Ok(Kind::SetBlock(target, filters, self.whole_body("endset")?))
    }

    fn with_statement(&mut self) -> Result<Kind> {
        let mut values = Vec::new();
        while self.token != Some(Token::BlockEnd) {
            if !values.is_empty() {
                self.expect(",")?;
            }
            let target = self.targets(false)?;
            self.expect("=")?;
            values.push((target, self.expression()?));
        }
        Ok(Kind::With(values, self.whole_body("endwith")?))
    }

    fn call_statement(&mut self) -> Result<Kind> {
        let parameters = if self.is_operator("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(&call, Expr::Postfix(_, posts) if matches!(posts.last(), Some((Post::Call(_), _)))) {
            return self.wrong("the tag call needs a call");
        }
        let body = self.macro_body("caller".into(), parameters, "endcall")?;
        Ok(Kind::CallBlock(Arc::new(body), call))
    }

    /// Parses the parameters and the body of a macro.
    fn macro_rest(&mut self, name: Arc<str>, end: &str) -> Result<Macro> {
        let parameters = self.parameters()?;
        self.macro_body(name, parameters, end)
    }

    fn macro_body(
        &mut self,
        name: Arc<str>,
        parameters: Vec<(Name, Option<Expr>)>,
        end: &str,
    ) -> Result<Macro> {
        let (loops, outer) = (std::mem::take(&mut self.loops), std::mem::take(&mut self.used));
        let body = self.whole_body(end)?;
        self.loops = loops;
        let used = std::mem::replace(&mut self.used, outer);
        let uses = |name: &str| used.iter().any(|used| **used == *name);
        let parsed = Macro {
            takes_rest: uses("varargs"),
            takes_named_rest: uses("kwargs"),
            takes_caller: uses("caller"),
            name,
            parameters,
            body,
        };
        for special in used {
            // A macro within this macro may use the special names of this macro.
            if !self.used.contains(&special) {
                self.used.push(special);
            }
        }
        Ok(parsed)
    }

    fn parameters(&mut self) -> Result<Vec<(Name, Option<Expr>)>> {
        let mut parameters: Vec<(Name, Option<Expr>)> = Vec::new();
        self.expect("(")?;
        while !self.is_operator(")") {
            if !parameters.is_empty() {
                self.expect(",")?;
            }
            let name = self.name()?;
            let default = if self.skip("=") { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return self.wrong("a parameter without a default follows one with a default");
            }
            parameters.push((self.names.id(&name), default));
        }
        self.expect(")")?;
        Ok(parameters)
    }

    /// Parses the targets of an assignment.
    fn targets(&mut self, with_attributes: bool) -> Result<Target> {
        let mut targets = vec![self.target(with_attributes)?];
        let mut is_tuple = false;
        while self.skip(",") {
            is_tuple = true;
            match &self.token {
                Some(Token::Name(name)) if &**name != "in" => targets.push(self.target(with_attributes)?),
                Some(Token::Operator("(")) => targets.push(self.target(with_attributes)?),
                _ => break,
            }
        }
        match targets.pop() {
            Some(only) if !is_tuple && targets.is_empty() => Ok(only),
            last => {
                targets.extend(last);
                Ok(Target::Tuple(targets))
            }
        }
    }

    fn target(&mut self, with_attributes: bool) -> Result<Target> {
        if self.skip("(") {
            let inner = self.nested(|parser| parser.targets(with_attributes))?;
            self.expect(")")?;
            return Ok(inner);
        }
        let name = self.name()?;
        if ["true", "false", "none", "True", "False", "None"].contains(&&*name) {
            return self.wrong(format!("cannot assign to {name}"));
        }
        let id = self.names.id(&name);
        if with_attributes && self.skip(".") {
            return Ok(Target::Attribute(id, self.name()?));
        }
        Ok(Target::Name(id))
    }

    // ---- expressions ----

    /// Parses an expression, or several that form a tuple.
    fn tuple(&mut self, conditional: bool) -> Result<Expr> {
        let parse = |parser: &mut Self| if conditional { parser.expression() } else { parser.or() };
        let first = self.nested(parse)?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip(",") {
            let ends = matches!(
                self.token,
                None | Some(Token::ExpressionEnd | Token::BlockEnd | Token::Operator(")"))
            );
            if ends || self.is_name("recursive") || self.is_name("if") {
                break;
            }
            items.push(self.nested(parse)?);
        }
        Ok(Expr::Tuple(items))
    }

    /// Parses an expression, which may be conditional.
    fn expression(&mut self) -> Result<Expr> {
        self.nested(Self::conditional)
    }

    fn conditional(&mut self) -> Result<Expr> {
        let mut then = self.or()?;
        // Without `else`, the whole is the operand of the next `if`, so this loop deepens the tree.
        let mut deeper = 0;
        while self.skip_name("if") {
            let test = self.or()?;
            let otherwise = if self.skip_name("else") { Some(self.expression()?) } else { None };
            then = Expr::Conditional(Box::new(Conditional { test, then, otherwise }));
            deeper += 1;
            if deeper > MAX_DEPTH {
                return self.wrong("an expression has too many conditions without else");
            }
        }
        Ok(then)
    }

    fn or(&mut self) -> Result<Expr> {
        self.chain("or", Self::and, Expr::Or)
    }

    fn and(&mut self) -> Result<Expr> {
        self.chain("and", Self::not, Expr::And)
    }

    fn chain(
        &mut self,
        word: &str,
        operand: fn(&mut Self) -> Result<Expr>,
        build: fn(Vec<Expr>) -> Expr,
    ) -> Result<Expr> {
        let first = operand(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.skip_name(word) {
            operands.push(operand(self)?);
        }
        Ok(build(operands))
    }

    fn not(&mut self) -> Result<Expr> {
        if self.skip_name("not") {
            return Ok(Expr::Not(Box::new(self.nested(Self::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(operator) = self.comparison() {
            rest.push((operator, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    /// Skips a comparison operator.
    fn comparison(&mut self) -> Option<Compare> {
        let operator = match &self.token {
            Some(Token::Operator(operator)) => match *operator {
                "==" => Compare::Equal,
                "!=" => Compare::NotEqual,
                "<" => Compare::Less,
                "<=" => Compare::LessEqual,
                ">" => Compare::Greater,
                ">=" => Compare::GreaterEqual,
                _ => return None,
            },
            Some(Token::Name(name)) if &**name == "in" => Compare::In,
            Some(Token::Name(name)) if &**name == "not" => {
                let next = self.tokens.as_slice().first();
                if !matches!(next, Some((Token::Name(next), _)) if &**next == "in") {
                    return None;
                }
                self.advance();
                Compare::NotIn
            }
            _ => return None,
        };
        self.advance();
        Some(operator)
    }

    fn sum(&mut self) -> Result<Expr> {
        self.binary(&[("+", Binary::Add), ("-", Binary::Subtract)], Self::concat)
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.skip("~") {
            operands.push(self.product()?);
        }
        Ok(Expr::Concat(operands))
    }

    fn product(&mut self) -> Result<Expr> {
        let operators = [
            ("*", Binary::Multiply),
            ("/", Binary::Divide),
            ("//", Binary::FloorDivide),
            ("%", Binary::Modulo),
        ];
        self.binary(&operators, Self::power)
    }

    fn power(&mut self) -> Result<Expr> {
        self.binary(&[("**", Binary::Power)], |parser| parser.unary(true))
    }

    fn binary(
        &mut self,
        operators: &[(&str, Binary)],
        operand: fn(&mut Self) -> Result<Expr>,
    ) -> Result<Expr> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(text, _)| self.is_operator(text)) {
            self.advance();
            rest.push((*operator, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Binary(Box::new(first), rest) })
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        let operand = if self.skip("-") {
            Expr::Negate(Box::new(self.nested(|parser| parser.unary(false))?))
        } else if self.skip("+") {
            Expr::Plus(Box::new(self.nested(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        let mut posts = Vec::new();
        self.postfixes(&mut posts)?;
        if with_filters {
            self.filters_and_tests(&mut posts)?;
        }
        Ok(if posts.is_empty() { operand } else { Expr::Postfix(Box::new(operand), posts) })
    }

    fn primary(&mut self) -> Result<Expr> {
        match &self.token {
            Some(Token::Name(_)) => {
                let name = self.name()?;
                Ok(match &*name {
                    "true" | "True" => Expr::Const(Value::Bool(true)),
                    "false" | "False" => Expr::Const(Value::Bool(false)),
                    "none" | "None" => Expr::Const(Value::None),
                    special => {
                        if ["varargs", "kwargs", "caller"].contains(&special) {
                            self.used.push(Arc::clone(&name));
                        }
                        Expr::Name(self.names.id(&name))
                    }
                })
            }
            Some(Token::Str(text)) => {
                let mut text = text.to_string();
                self.advance();
                // Adjacent texts form one text.
                while let Some(Token::Str(more)) = &self.token {
                    text.push_str(more);
                    self.advance();
                }
                Ok(Expr::Const(Value::Str(text.into())))
            }
            Some(Token::Int(number)) => {
                let number = *number;
                self.advance();
                Ok(Expr::Const(Value::Int(number)))
            }
            Some(Token::Float(number)) => {
                let number = *number;
                self.advance();
                Ok(Expr::Const(Value::Float(number)))
            }
            Some(Token::Operator("(")) => {
                self.advance();
                let inner = if self.is_operator(")") { Expr::Tuple(Vec::new()) } else { self.tuple(true)? };
                self.expect(")")?;
                Ok(inner)
            }
            Some(Token::Operator("[")) => {
                self.advance();
                Ok(Expr::List(self.list("]", Self::expression)?))
            }
            Some(Token::Operator("{")) => {
                self.advance();
                let pair = |parser: &mut Self| {
                    let key = parser.expression()?;
                    parser.expect(":")?;
                    Ok((key, parser.expression()?))
                };
                Ok(Expr::Dict(self.list("}", pair)?))
            }
            _ => self.unexpected("an expression"),
        }
    }

    /// Parses items separated by commas, and the bracket that ends them.
    fn list<T>(&mut self, end: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.is_operator(end) {
            if !items.is_empty() {
                self.expect(",")?;
                if self.is_operator(end) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        self.expect(end)?;
        Ok(items)
    }

    /// Parses attributes, items and calls.
    fn postfixes(&mut self, posts: &mut Vec<(Post, u32)>) -> Result<()> {
        loop {
            let line = self.line;
            let post = if self.skip(".") {
                match self.token {
                    Some(Token::Int(index)) => {
                        self.advance();
                        Post::Item(Expr::Const(Value::Int(index)))
                    }
                    _ => Post::Attribute(self.name()?),
                }
            } else if self.skip("[") {
                self.subscript()?
            } else if self.is_operator("(") {
                Post::Call(self.arguments()?)
            } else {
                return Ok(());
            };
            posts.push((post, line));
        }
    }

    fn subscript(&mut self) -> Result<Post> {
        if self.is_operator("]") {
            return self.unexpected("an index");
        }
        let part = |parser: &mut Self| match &parser.token {
            Some(Token::Operator(":" | "]")) => Ok(None),
            _ => parser.expression().map(Some),
        };
        let start = part(self)?;
        if !self.skip(":") {
            let Some(mut index) = start else { return self.unexpected("an index") };
            if self.skip(",") {
                let mut items = vec![index];
                items.extend(self.list("]", Self::expression)?);
                index = Expr::Tuple(items);
            } else {
                self.expect("]")?;
            }
            return Ok(Post::Item(index));
        }
        let end = part(self)?;
        let step = if self.skip(":") { part(self)? } else { None };
        self.expect("]")?;
        Ok(Post::Slice(Box::new([start, end, step])))
    }

    fn filters_and_tests(&mut self, posts: &mut Vec<(Post, u32)>) -> Result<()> {
        loop {
            let line = self.line;
            if self.is_operator("|") {
                self.filters(posts)?;
            } else if self.is_name("is") {
                posts.push((self.test()?, line));
            } else if self.is_operator("(") {
                posts.push((Post::Call(self.arguments()?), line));
            } else {
                return Ok(());
            }
        }
    }

    /// Parses filters, each after a bar.
    fn filters(&mut self, posts: &mut Vec<(Post, u32)>) -> Result<()> {
        while self.skip("|") {
            self.filter(posts)?;
        }
        Ok(())
    }

    fn filter(&mut self, posts: &mut Vec<(Post, u32)>) -> Result<()> {
        let line = self.line;
        let name = self.name()?;
        let arguments = if self.is_operator("(") { self.arguments()? } else { Arguments::default() };
        posts.push((Post::Filter(name, arguments), line));
        Ok(())
    }

    fn test(&mut self) -> Result<Post> {
        self.expect_name("is")?;
        let negated = self.skip_name("not");
        let name = self.name()?;
        let takes_operand = match &self.token {
            Some(Token::Name(word)) => !["else", "or", "and"].contains(&&**word),
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_)) => true,
            Some(Token::Operator(operator)) => ["[", "{"].contains(operator),
            _ => false,
        };
        let mut arguments = Arguments::default();
        if self.is_operator("(") {
            arguments = self.arguments()?;
        } else if takes_operand {
            if self.is_name("is") {
                return self.wrong("tests cannot be chained (use parentheses)");
            }
            let operand = self.nested(Self::primary)?;
            let mut posts = Vec::new();
            self.postfixes(&mut posts)?;
            let operand = if posts.is_empty() { operand } else { Expr::Postfix(Box::new(operand), posts) };
            arguments.positional.push(operand);
        }
        Ok(Post::Test(name, arguments, negated))
    }

    fn arguments(&mut self) -> Result<Arguments> {
        self.expect("(")?;
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.is_operator(")") {
            if !first {
                self.expect(",")?;
                if self.is_operator(")") {
                    break;
                }
            }
            first = false;
            self.argument(&mut arguments)?;
        }
        self.expect(")")?;
        Ok(arguments)
    }

    fn argument(&mut self, arguments: &mut Arguments) -> Result<()> {
        let no_rest = arguments.rest.is_none() && arguments.named_rest.is_none();
        let next_is_assign = matches!(self.tokens.as_slice().first(), Some((Token::Operator("="), _)));
        let valid = if self.skip("*") {
            arguments.rest = Some(Box::new(self.expression()?));
            no_rest
        } else if self.skip("**") {
            let valid = arguments.named_rest.is_none();
            arguments.named_rest = Some(Box::new(self.expression()?));
            valid
        } else if matches!(self.token, Some(Token::Name(_))) && next_is_assign {
            let name = self.name()?;
            self.expect("=")?;
            arguments.named.push((name, self.expression()?));
            arguments.named_rest.is_none()
        } else {
            arguments.positional.push(self.expression()?);
            no_rest && arguments.named.is_empty()
        };
        if valid { Ok(()) } else { self.wrong("the arguments of a call are in an invalid order") }
    }
}
