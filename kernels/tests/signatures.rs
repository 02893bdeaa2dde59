//! Checks that every kernel function has the parameters of its ABI. A driver would not report a mismatch.
//!
//! The sources of the C family write every kernel in one form, which [`functions`] reads: a line starts with
//! `KERNEL(items) name(parameters) {`, or with `extern "C" __global__ void … __launch_bounds__(items)` if the
//! macro does not fit. A parameter is `const GLOBAL TYPE *RESTRICT name`, the same without
//! `const`, or `uint name`.

use ragtag_hal::{Access, EntryAbi, KernelLanguage};
use ragtag_kernels::{Code, variants};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A kernel function that a variant launches, with its ABI.
struct Launch {
    label: String,
    function: &'static str,
    work_group: [u32; 3],
    abi: &'static EntryAbi,
}

/// Returns every program of the C family, along with the functions that variants launch. Variants with equal
/// sources in the same language share a program.
fn programs() -> BTreeMap<(KernelLanguage, Arc<str>), Vec<Launch>> {
    let mut programs = BTreeMap::<_, Vec<Launch>>::new();
    for variant in variants() {
        if let Code::Text(text) = variant.code
            && text.language != KernelLanguage::Wgsl
        {
            let label = format!("{} ({})", variant.kernel, variant.name);
            programs.entry((text.language, text.text())).or_default().push(Launch {
                label,
                function: text.function,
                work_group: text.work_group,
                abi: variant.abi,
            });
        }
    }
    programs
}

/// A kernel function in a source.
struct Function<'a> {
    name: &'a str,
    /// Number of work items per group, with macros.
    items: &'a str,
    parameters: Vec<&'a str>,
}

/// Returns the kernel functions in `source`.
fn functions(source: &str) -> Vec<Function<'_>> {
    fn function(text: &str) -> Option<Function<'_>> {
        // Other attributes stand before the bounds of the launch.
        let text = text.trim_start();
        let text = &text[text.lines().next()?.find("__launch_bounds__").unwrap_or(0)..];
        let (items, text) = text.split_once('(')?.1.split_once(") ")?;
        let (name, text) = text.split_once('(')?;
        let (parameters, _) = text.split_once(") {")?;
        let items = items.split(',').next()?;
        Some(Function { name, items, parameters: parameters.split(',').map(str::trim).collect() })
    }
    let starts = ["\nKERNEL(", "\nextern \"C\" __global__ "];
    starts
        .into_iter()
        .flat_map(|start| source.match_indices(start))
        .filter_map(|(at, _)| function(&source[at..]))
        .collect()
}

/// Returns the value of a sum or product of numbers and macros that `source` defines.
fn value(source: &str, text: &str) -> Option<u32> {
    let text = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text);
    if let Some((a, b)) = text.split_once(" * ") {
        return value(source, a)?.checked_mul(value(source, b)?);
    }
    if let Some((a, b)) = text.split_once(" + ") {
        return value(source, a)?.checked_add(value(source, b)?);
    }
    match source.split_once(&format!("\n#define {text} ")) {
        Some((_, definition)) => value(source, definition.lines().next()?),
        None => text.parse().ok(),
    }
}

/// Returns an error if a function in a program does not match a launch, or if the program defines a kernel
/// that no variant launches.
fn check(source: &str, launches: &[Launch]) -> Result<(), String> {
    // A macro has the parameters that only kernels with partials take.
    let more = if source.contains("\n#define PARTIAL 1\n") { ", uint splits, uint word" } else { "" };
    let source = &source.replace("uint cap PARTIAL_PARAMETERS", &format!("uint cap{more}"));
    let functions = functions(source);
    let defined: Vec<_> = functions.iter().map(|function| function.name).collect();
    let launched: BTreeSet<_> = launches.iter().map(|launch| launch.function).collect();
    if defined.len() != launched.len() {
        return Err(format!("defines {defined:?}, but variants launch {launched:?}"));
    }
    for launch in launches {
        let function = functions.iter().find(|function| function.name == launch.function);
        let function = function.ok_or_else(|| format!("{}: no {}", launch.label, launch.function))?;
        check_launch(source, function, launch)
            .map_err(|e| format!("{}: {}: {e}", launch.label, function.name))?;
    }
    Ok(())
}

/// Checks that the parameters of `function` match the ABI. Bindings must be global pointers, and `const` if
/// they are read-only. Those that a launch reads and writes need no RESTRICT. The constants must follow as `uint`
/// parameters.
fn check_launch(source: &str, function: &Function<'_>, launch: &Launch) -> Result<(), String> {
    let (bindings, constants) = (launch.abi.bindings, launch.abi.constants);
    let items = value(source, function.items);
    if items.map(|items| [items, 1, 1]) != Some(launch.work_group) {
        return Err(format!("groups of {items:?}, not {:?}", launch.work_group));
    }
    if function.parameters.len() != bindings.len() + constants {
        return Err(format!(
            "{} parameters, not {} + {constants}",
            function.parameters.len(),
            bindings.len()
        ));
    }
    for (i, parameter) in function.parameters.iter().enumerate() {
        let words: Vec<_> = parameter.split_whitespace().collect();
        let is_right = match bindings.get(i) {
            Some(Access::Read) => matches!(words[..], ["const", "GLOBAL", _, "*RESTRICT", _]),
            Some(Access::ReadWrite) if words.len() == 3 => words[0] == "GLOBAL" && words[2].starts_with('*'),
            Some(_) => matches!(words[..], ["GLOBAL", _, "*RESTRICT", _]),
            None => matches!(words[..], ["uint", _]),
        };
        if !is_right {
            return Err(format!("parameter {i} is {parameter}, but the ABI has {:?}", bindings.get(i)));
        }
    }
    Ok(())
}

#[test]
fn kernel_functions_match_their_abis() {
    let programs = programs();
    for language in [KernelLanguage::OpenClC, KernelLanguage::CudaC, KernelLanguage::HipC] {
        let of_language = programs.iter().filter(|((l, _), _)| *l == language);
        let wrong: Vec<_> =
            of_language.clone().filter_map(|((_, text), launches)| check(text, launches).err()).collect();
        assert!(wrong.is_empty(), "{language:?}: {wrong:#?}");
        assert!(of_language.count() > 0, "no variant is in {language:?}");
    }
}

#[test]
fn detects_mutated_sources() {
    let programs = programs();
    let has_add = |launch: &Launch| launch.abi.name == "add";
    let ((_, source), launches) =
        programs.iter().find(|(_, launches)| launches.iter().any(has_add)).expect("a program of row kernels");
    assert_eq!(check(source, launches), Ok(()));
    let (params, x, y) =
        ("const GLOBAL uint *RESTRICT params", "GLOBAL float *RESTRICT x", "const GLOBAL float *RESTRICT y");
    let start = source.find(") add(").expect("the function") - "\nKERNEL(ITEMS".len();
    let (before, function) = source.split_at(start);
    for (right, wrong, why) in [
        ("KERNEL(ITEMS)", "KERNEL(32)", "groups of Some(32)"),
        ("KERNEL(ITEMS)", "KERNEL(THREADS)", "groups of None"),
        ("KERNEL(ITEMS)", "static void", "but variants launch"),
        (") add(", ") added(", "no add"),
        (") {", ");", "parameters"),
        (", uint width", "", "5 parameters, not 3 + 3"),
        ("uint width", "uint width, uint k", "7 parameters, not 3 + 3"),
        ("uint width", "float width", "parameter 5"),
        ("uint width", "int width", "parameter 5"),
        ("uint width", "const GLOBAL uint *RESTRICT width", "parameter 5"),
        (x, "const GLOBAL float *RESTRICT x", "parameter 1"),
        (x, "LOCAL float *RESTRICT x", "parameter 1"),
        (x, "uint x", "parameter 1"),
        (y, "GLOBAL float *RESTRICT y", "parameter 2"),
        (y, "CONSTANT float *RESTRICT y", "parameter 2"),
        (params, "uint params", "parameter 0"),
        (&format!("{x}, {y}"), &format!("{y}, {x}"), "parameter 1"),
    ] {
        assert!(function.contains(right), "{right}: {}", &function[..300]);
        let found = check(&[before, &function.replacen(right, wrong, 1)].concat(), launches);
        assert!(found.as_ref().is_err_and(|e| e.contains(why)), "{right} → {wrong}: {found:?}");
    }
    let unused = check(&[source, "\nKERNEL(64) unused(uint a) {}"].concat(), launches);
    assert!(unused.is_err_and(|e| e.contains("unused")));
}
