//! Syntax tree of a template. Chains of operators are lists, so that the depth of the tree stays below the
//! parser's limits, whatever the length of the template.

use crate::value::Value;
use std::sync::Arc;

/// Index of a name in the template's table of names.
pub(crate) type Name = usize;

#[derive(Debug)]
pub(crate) enum Expr {
    Const(Value),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    /// Operand and what follows it: attributes, items, calls, filters and tests.
    Postfix(Box<Expr>, Vec<(Post, u32)>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Plus(Box<Expr>),
    /// Left-associative operators of one precedence.
    Binary(Box<Expr>, Vec<(Binary, Expr)>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Compare, Expr)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Conditional(Box<Conditional>),
}

#[derive(Debug)]
pub(crate) struct Conditional {
    pub(crate) test: Expr,
    pub(crate) then: Expr,
    pub(crate) otherwise: Option<Expr>,
}

/// An operation that follows its operand.
#[derive(Debug)]
pub(crate) enum Post {
    Attribute(Arc<str>),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Arguments),
    Filter(Arc<str>, Arguments),
    Test(Arc<str>, Arguments, bool),
}

#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) positional: Vec<Expr>,
    pub(crate) named: Vec<(Arc<str>, Expr)>,
    pub(crate) rest: Option<Box<Expr>>,
    pub(crate) named_rest: Option<Box<Expr>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

impl Binary {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Binary::Add => "+",
            Binary::Subtract => "-",
            Binary::Multiply => "*",
            Binary::Divide => "/",
            Binary::FloorDivide => "//",
            Binary::Modulo => "%",
            Binary::Power => "**",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Compare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

/// Target of an assignment.
#[derive(Debug)]
pub(crate) enum Target {
    Name(Name),
    Tuple(Vec<Target>),
    /// Attribute of a namespace.
    Attribute(Name, Arc<str>),
}

/// A statement with the line on which it starts.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) kind: Kind,
    pub(crate) line: u32,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Text(Arc<str>),
    Output(Expr),
    If(Vec<(Expr, Vec<Statement>)>, Vec<Statement>),
    For(Box<For>),
    Set(Target, Expr),
    SetBlock(Target, Vec<(Post, u32)>, Vec<Statement>),
    With(Vec<(Target, Expr)>, Vec<Statement>),
    Macro(Name, Arc<Macro>),
    /// Call of a macro with a body that the macro can render.
    CallBlock(Arc<Macro>, Expr),
    FilterBlock(Vec<(Post, u32)>, Vec<Statement>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(crate) struct For {
    pub(crate) target: Target,
    pub(crate) items: Expr,
    pub(crate) test: Option<Expr>,
    pub(crate) recursive: bool,
    pub(crate) body: Vec<Statement>,
    pub(crate) otherwise: Vec<Statement>,
}

#[derive(Debug)]
pub(crate) struct Macro {
    pub(crate) name: Arc<str>,
    pub(crate) parameters: Vec<(Name, Option<Expr>)>,
    pub(crate) body: Vec<Statement>,
    /// Whether the body uses `varargs`, `kwargs` or `caller`. Otherwise surplus arguments are an error.
    pub(crate) takes_rest: bool,
    pub(crate) takes_named_rest: bool,
    pub(crate) takes_caller: bool,
}
