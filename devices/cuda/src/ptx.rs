//! Properties of the functions in PTX: the number of parameters, and whether a function waits for the
//! previous kernel.
//!
//! See the PTX ISA, sections 5.2 (`.entry` and its parameters) and 9.7.12.14 (`griddepcontrol`). The parser
//! handles only the PTX that compilers emit. The driver's assembler validates the source.

use std::collections::HashMap;

/// Properties of a kernel function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Number of parameters.
    pub(crate) parameters: usize,
    /// Whether the function contains `griddepcontrol.wait`. If so, the function may start before the previous
    /// kernel has ended.
    pub(crate) waits_for_grids: bool,
}

/// Returns the kernel functions in a PTX source, by name.
pub(crate) fn entries(text: &str) -> HashMap<String, Entry> {
    let text = without_comments(text);
    let mut entries = HashMap::new();
    for part in text.split(".entry").skip(1) {
        // The text up to the next entry may also contain functions that are not kernels.
        let part = part.split(".func").next().unwrap_or(part);
        let name: String = part.trim_start().chars().take_while(|&c| is_name(c)).collect();
        let head = part.split('{').next().unwrap_or(part);
        let parameters = head.matches(".param").count();
        let waits_for_grids = part.contains("griddepcontrol.wait");
        entries.insert(name, Entry { parameters, waits_for_grids });
    }
    entries
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
.version 8.2
.target sm_90a
// griddepcontrol.wait in a comment, and .entry as well
.visible .entry add(
	.param .u64 add_param_0,
	.param .u64 .ptr .global .align 16 add_param_1,
	.param .u32 add_param_2
)
.maxntid 256, 1, 1
{
	griddepcontrol.wait;
	ret;
}
	// .globl	plain
.visible .entry plain()
{
	griddepcontrol.launch_dependents;
	ret;
}
.func (.param .b32 out) helper(.param .b32 in)
{
	griddepcontrol.wait;
	ret;
}
.entry last$1(.param .align 4 .b8 last_param_0[8]) { ret; }
";

    #[test]
    fn entries_have_parameters_and_may_wait() {
        let found = entries(TEXT);
        let of = |name: &str| found.get(name).map(|entry| (entry.parameters, entry.waits_for_grids));
        assert_eq!(of("add"), Some((3, true)));
        assert_eq!(
            of("plain"),
            Some((0, false)),
            "ignores what it starts and what another function waits for"
        );
        assert_eq!(of("last$1"), Some((1, false)));
        assert_eq!((of("helper"), found.len()), (None, 3));
    }

    #[test]
    fn any_text_is_accepted() {
        for end in 0..TEXT.len() {
            if let Some(part) = TEXT.get(..end) {
                assert!(entries(part).len() <= 3);
            }
        }
        assert!(entries("").is_empty());
    }
}
