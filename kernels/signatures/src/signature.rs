//! Parses tokens into the signatures of the kernels that are defined at file scope: their names, attributes
//! and parameters.

use crate::condition::evaluate;
use crate::lexer::{Token, spelled};
use crate::preprocessor::preprocess;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// Address space of a parameter. In CUDA and HIP kernels, a pointer without a qualifier is global.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressSpace {
    /// `__global`.
    Global,
    /// `__local`.
    Local,
    /// `__constant`.
    Constant,
    /// `__private`, or no qualifier: the parameter is passed by value.
    Private,
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelArg {
    /// Name of the parameter, or empty if it has no name.
    pub name: String,
    /// Address space of the data that a pointer points to, or of the value itself.
    pub qualifier: AddressSpace,
    /// Type without qualifiers, with its words separated by spaces: `uint4`, `unsigned int`, `struct pair`.
    /// For a pointer, this is the type of the pointee: `float` for `float *`, and `float *` for `float **`.
    pub type_name: String,
    /// Whether the parameter is a pointer or an array. C passes arrays as pointers.
    pub is_pointer: bool,
    /// Whether the value, or the data that a pointer points to, is `const`.
    pub is_const: bool,
}

/// Interface of a kernel, with all information that a host needs for a launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSignature {
    /// Name of the kernel function.
    pub name: String,
    /// Parameters in the order in which the source declares them.
    pub args: Vec<KernelArg>,
    /// Work-group size from `reqd_work_group_size` or `__launch_bounds__`. `__launch_bounds__` gives a
    /// one-dimensional size.
    pub work_group: Option<[u32; 3]>,
}

/// Returns the kernels that `source` defines, in source order. Skips parts that it cannot parse, and never
/// fails. Stops expanding macros after hundreds of thousands of tokens and leaves the remaining macros
/// unexpanded. [`crate::validate_kernel_source`] reports such a source.
pub fn parse_kernel_signatures(source: &str) -> Vec<KernelSignature> {
    signatures(&preprocess(source).tokens)
}

/// Returns whether `source` defines a kernel named `name`.
pub fn source_contains_kernel(source: &str, name: &str) -> bool {
    parse_kernel_signatures(source).iter().any(|kernel| kernel.name == name)
}

/// Returns the kernels among the declarations in `tokens`. A declaration ends at `;`, at the start of a body,
/// or at the end of the tokens.
pub(crate) fn signatures(tokens: &[Token]) -> Vec<KernelSignature> {
    let (mut kernels, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, token) in tokens.iter().enumerate() {
        match &*token.text {
            "{" => {
                if depth == 0 {
                    kernels.extend(signature(&tokens[start..at]));
                }
                depth += 1;
            }
            "}" => depth = depth.saturating_sub(1),
            ";" => {}
            _ => continue,
        }
        start = at + 1;
    }
    kernels
}

/// Keywords that mark a function as a kernel.
const KEYWORDS: [&str; 3] = ["__kernel", "kernel", CPP_KEYWORD];
/// Keyword that marks a kernel in CUDA C++ and HIP C++. The host can look up a kernel by its source name only
/// if it is declared `extern "C"`.
const CPP_KEYWORD: &str = "__global__";

/// Returns the signature of the kernel in `declaration`, the tokens before a function body. Returns `None` if
/// the function is not a kernel.
fn signature(declaration: &[Token]) -> Option<KernelSignature> {
    let (declaration, attributes) = without_attributes(declaration);
    let keyword = declaration.iter().position(|t| KEYWORDS.iter().any(|keyword| t.is(keyword)))?;
    let is_cpp = declaration[keyword].is(CPP_KEYWORD);
    let is_extern_c = |pair: &[Token]| pair[0].is("extern") && &*pair[1].text == "\"C\"";
    if is_cpp && !declaration[..keyword].windows(2).any(is_extern_c) {
        return None;
    }
    let declaration = &declaration[keyword + 1..];
    let open = declaration.iter().position(|t| t.is("("))?;
    let name = open.checked_sub(1).map(|at| &declaration[at]).filter(|name| name.is_word())?;
    let close = closing(declaration, open)?;
    let mut args = arguments(&declaration[open + 1..close]);
    for arg in args.iter_mut().filter(|arg| is_cpp && arg.is_pointer) {
        arg.qualifier = AddressSpace::Global;
    }
    Some(KernelSignature { name: name.text.to_string(), args, work_group: work_group(&attributes) })
}

/// Returns the position of the parenthesis that closes the parenthesis at `open`.
fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match &*token.text {
            "(" => depth += 1,
            ")" => depth = depth.checked_sub(1)?,
            _ => continue,
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Separates the `__attribute__((…))` and `__launch_bounds__(…)` attributes from all other tokens. Returns
/// the other tokens, then the attributes.
fn without_attributes(mut tokens: &[Token]) -> (Vec<Token>, Vec<Token>) {
    let (mut others, mut attributes) = (Vec::new(), Vec::new());
    while let Some((first, rest)) = tokens.split_first() {
        let is_bounds = first.is("__launch_bounds__");
        let is_attribute = is_bounds || first.is("__attribute__") || first.is("__attribute");
        let has_list = rest.first().is_some_and(|t| t.is("("));
        tokens = match closing(rest, 0).filter(|_| is_attribute && has_list) {
            Some(close) => {
                attributes.extend(is_bounds.then(|| first.clone()));
                attributes.extend_from_slice(&rest[..=close]);
                &rest[close + 1..]
            }
            None => {
                others.push(first.clone());
                rest
            }
        };
    }
    (others, attributes)
}

/// Returns the work-group size: the arguments of `reqd_work_group_size`, or the first argument of
/// `__launch_bounds__`.
fn work_group(attributes: &[Token]) -> Option<[u32; 3]> {
    if let Some(figures) = figures(attributes, "reqd_work_group_size") {
        return figures.try_into().ok();
    }
    Some([*figures(attributes, "launch_bounds")?.first()?, 1, 1])
}

/// Returns the numeric arguments of the attribute named `name`.
fn figures(attributes: &[Token], name: &str) -> Option<Vec<u32>> {
    let name = attributes.iter().position(|t| t.text.trim_matches('_') == name)?;
    attributes.get(name + 1).filter(|t| t.is("("))?;
    let figures = &attributes[name + 2..closing(attributes, name + 1)?];
    let figure = |tokens: &[Token]| u32::try_from(evaluate(tokens)?).ok();
    figures.split(|t| t.is(",")).map(figure).collect()
}

fn arguments(tokens: &[Token]) -> Vec<KernelArg> {
    let (mut args, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, token) in tokens.iter().enumerate() {
        match &*token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            "," if depth == 0 => {
                args.push(argument(&tokens[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = &tokens[start..];
    // `()` and `(void)` declare no parameters.
    let is_none = args.is_empty() && (last.is_empty() || matches!(last, [only] if only.is("void")));
    args.extend((!is_none).then(|| argument(last)));
    args
}

fn argument(tokens: &[Token]) -> KernelArg {
    let starts = |t: &Token| t.is("*") || t.is("[") || t.is("(");
    let (specifiers, declarator) = tokens.split_at(tokens.iter().position(starts).unwrap_or(tokens.len()));
    let stars = declarator.iter().filter(|t| t.is("*")).count();
    let levels = stars + usize::from(declarator.iter().any(|t| t.is("[")));
    // The name follows the stars and precedes the brackets. Without stars, it may be the last word before the
    // brackets.
    let mut words = nouns(specifiers);
    let declared = nouns(declarator.split(|t| t.is("[")).next().unwrap_or_default());
    let name =
        declared.last().copied().or_else(|| words.pop_if(|_| stars == 0 && ends_with_name(specifiers)));
    let mut type_name = spelled(words);
    if levels > 1 {
        type_name.push(' ');
        type_name.extend((1..levels).map(|_| '*'));
    }
    let qualifier = tokens.iter().find_map(address_space).unwrap_or(AddressSpace::Private);
    KernelArg {
        name: name.map_or_else(String::new, |name| name.text.to_string()),
        qualifier,
        type_name,
        is_pointer: levels > 0,
        is_const: qualifier == AddressSpace::Constant || specifiers.iter().any(|t| t.is("const")),
    }
}

fn address_space(token: &Token) -> Option<AddressSpace> {
    match token.text.strip_prefix("__").unwrap_or(&token.text) {
        "global" => Some(AddressSpace::Global),
        "local" => Some(AddressSpace::Local),
        "constant" => Some(AddressSpace::Constant),
        "private" => Some(AddressSpace::Private),
        _ => None,
    }
}

/// Returns the words in `tokens` that are not qualifiers. They form a type, a parameter name, or both.
fn nouns(tokens: &[Token]) -> Vec<&Token> {
    let qualifiers = ["const", "volatile", "restrict", "read_only", "write_only", "read_write"];
    let is_qualifier =
        |t: &Token| qualifiers.contains(&t.text.trim_matches('_')) || address_space(t).is_some();
    tokens.iter().filter(|t| t.is_word() && !is_qualifier(t)).collect()
}

/// Returns whether the last word of `specifiers` is a parameter name rather than part of a type.
fn ends_with_name(specifiers: &[Token]) -> bool {
    let words: Vec<&str> = nouns(specifiers).into_iter().map(|t| &*t.text).collect();
    match words[..] {
        [] | [_] | ["struct" | "union" | "enum", _] => false,
        [.., last] => {
            !["char", "short", "int", "long", "float", "double", "half", "signed", "unsigned"].contains(&last)
        }
    }
}
