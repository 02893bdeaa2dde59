//! Checks rules about source files: module headers, file lengths, places that may contain `unsafe`, banned
//! words, and impure calls in pure code.

use super::mask::{code, is_word};
use super::{Source, Violation};

/// Maximum number of lines in a source file.
const LINES: usize = 900;

/// Paths of code that may contain `unsafe`. A path is a file, or a folder that ends in a slash.
const UNSAFE: &[&str] = &[
    // The launch call, pinned regions, and their tests.
    "devices/hal/src/driver/script.rs",
    "devices/hal/src/host.rs",
    "devices/hal/src/region.rs",
    "devices/hal/src/checked/tests.rs",
    // The CPU backend passes bindings to kernels.
    "devices/cpu/src/script.rs",
    "devices/cpu/src/tests.rs",
    // OpenCL calls, and the code that passes them host memory, kernels and handles.
    "devices/opencl/src/api/",
    "devices/opencl/src/context.rs",
    "devices/opencl/src/memory.rs",
    "devices/opencl/src/queue.rs",
    // Vulkan calls, and the code that passes them host memory and command buffers.
    "devices/vulkan/src/api/",
    "devices/vulkan/src/queue.rs",
    "devices/vulkan/src/region.rs",
    // Unsafe functions of wgpu, queries to Vulkan, and the bytes of host regions.
    "devices/wgpu/src/program.rs",
    "devices/wgpu/src/script.rs",
    "devices/wgpu/src/vulkan.rs",
    // Calls of stream-based APIs, each with its safety requirements.
    "devices/stream/src/",
    // CUDA driver calls.
    "devices/cuda/src/api/",
    "devices/cuda/src/driver.rs",
    "devices/cuda/src/probe.rs",
    // HIP calls, and the code that passes them memory and kernels.
    "devices/hip/src/api/",
    "devices/hip/src/driver.rs",
    // Level Zero calls, and the code that passes them host memory, kernels and recorded lists.
    "devices/level-zero/src/api/",
    "devices/level-zero/src/context.rs",
    "devices/level-zero/src/queue.rs",
    "devices/level-zero/src/steps.rs",
    // Sets an environment variable for drivers before any other thread runs.
    "src/main.rs",
    // Libraries that replace a driver in tests.
    "tests/drivers/",
    // Benches that launch kernels directly.
    "devices/cpu/benches/",
    "kernels/benches/",
    // Kernels of the synthetic model in pipeline tests.
    "scheduler/tests/support/model.rs",
    // SIMD, and the launch functions that turn bindings into slices.
    "kernels/src/cpu/",
    // Launches of CPU kernels in tests.
    "kernels/tests/cpu.rs",
    // Calls of NVRTC.
    "xtask/src/kernels/nvrtc.rs",
    // Memory-mapped model files.
    "src/map.rs",
];

/// Crate roots that must contain `#![forbid(unsafe_code)]`.
const FORBID_UNSAFE: &[&str] = &[
    "chat/src/lib.rs",
    "compute/src/lib.rs",
    "graph/src/lib.rs",
    "transfer/src/lib.rs",
    "planner/src/lib.rs",
    "scheduler/src/lib.rs",
];

/// Paths of code that does no I/O, starts no thread and reads no clock.
const PURE: &[&str] = &[
    "chat/src/",
    "graph/src/",
    "kernels/src/",
    "transfer/src/",
    "planner/src/",
    "scheduler/src/compare/",
    "scheduler/src/core/",
    "scheduler/src/sampling.rs",
    "scheduler/src/transfers.rs",
];

/// Names that code in [`PURE`] must not use.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::process",
    "std::env",
    "thread::spawn",
    "thread::scope",
    "thread::sleep",
    "Instant::now",
    "SystemTime",
    "Timing::now_ns",
];

/// Strings that no source may contain, each with an alternative to suggest.
const BANNED: &[(&str, &str)] = &[
    ("todo!", "write it, or say in an error that it is unsupported"),
    ("unimplemented!", "write it, or say in an error that it is unsupported"),
    ("dbg!", "use tracing"),
    ("#[ignore", "a test runs, or skips visibly with the reason"),
];

/// Prefixes of absolute paths that exist on one machine only. Each prefix is split into two strings, because
/// the rule also checks this file.
const MACHINE_PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("C:", "\\"),
];

/// Checks all rules on a Rust source.
pub(super) fn check(source: &Source) -> Vec<Violation> {
    let masked = code(&source.text);
    let mut violations: Vec<_> = opening(source).into_iter().chain(length(source)).collect();
    violations.extend(banned(source, &masked));
    violations.extend(unsafe_code(source, &masked));
    violations.extend(impure(source, &masked));
    violations
}

fn within(path: &str, list: &[&str]) -> bool {
    list.iter().any(|entry| path == *entry || (entry.ends_with('/') && path.starts_with(entry)))
}

fn opening(source: &Source) -> Option<Violation> {
    let what = "a module must open with //! and its purpose";
    (!source.text.starts_with("//!")).then(|| Violation::new(&source.path, 1, what))
}

fn length(source: &Source) -> Option<Violation> {
    let lines = source.text.lines().count();
    let what = format!("{lines} lines; a file has one subject and at most {LINES} lines");
    (lines > LINES).then(|| Violation::new(&source.path, 0, what))
}

fn banned(source: &Source, masked: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (number, line) in (1..).zip(masked.lines()) {
        for (word, instead) in BANNED {
            if words(line, word).next().is_some() {
                violations.push(Violation::new(&source.path, number, format!("{word}: {instead}")));
            }
        }
    }
    violations
}

/// Returns the positions in `line` at which `word` is not part of a longer word.
pub(super) fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let open_end = !word.ends_with(is_word);
    line.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = line[..*at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && (open_end || !after.is_some_and(is_word))
    })
}

fn unsafe_code(source: &Source, masked: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let path = source.path.as_str();
    if FORBID_UNSAFE.contains(&path) && !masked.contains("#![forbid(unsafe_code)]") {
        violations.push(Violation::new(path, 0, "missing #![forbid(unsafe_code)]"));
    }
    let texts: Vec<_> = source.text.lines().collect();
    let codes: Vec<_> = masked.lines().collect();
    for (index, line) in codes.iter().enumerate() {
        if words(line, "unsafe").next().is_none() {
            continue;
        }
        if !within(path, UNSAFE) {
            let what = "unsafe is allowed only in the modules that xtask/src/tidy/sources.rs lists";
            violations.push(Violation::new(path, index + 1, what));
        }
        let needs_reason = words(line, "unsafe").any(|at| !is_function(&line[at..]));
        if needs_reason && !has_safety_comment(&texts, &codes, index) {
            violations.push(Violation::new(path, index + 1, "unsafe without a SAFETY: comment above it"));
        }
    }
    violations
}

/// Returns whether `code` declares an `unsafe fn`, possibly with a masked ABI string. An `unsafe fn` or a
/// function type only states a requirement, and clippy checks that public functions document it. In contrast,
/// `unsafe` blocks and impls need a comment that says why the requirement is met.
fn is_function(code: &str) -> bool {
    let rest = code.trim_start_matches("unsafe").trim_start();
    let rest = rest.strip_prefix("extern").unwrap_or(rest).trim_start();
    words(rest, "fn").next() == Some(0)
}

/// Returns whether a SAFETY: comment is on `line`, or above the statement that `line` belongs to.
fn has_safety_comment(texts: &[&str], codes: &[&str], line: usize) -> bool {
    let says = |at: usize| texts[at].find("//").is_some_and(|start| texts[at][start..].contains("SAFETY:"));
    if says(line) {
        return true;
    }
    // Go up through the statement and its comments, to the end of the previous statement.
    for at in (0..line).rev() {
        let ended = codes[at].trim_end().ends_with([';', '{', '}']);
        if ended || texts[at].trim().is_empty() {
            return false;
        }
        if says(at) {
            return true;
        }
    }
    false
}

fn impure(source: &Source, masked: &str) -> Vec<Violation> {
    let path = source.path.as_str();
    if !within(path, PURE) || path.ends_with("tests.rs") || path.contains("/tests/") {
        return Vec::new();
    }
    let mut violations = Vec::new();
    // Unit tests are at the end of a file and are exempt.
    for (number, line) in (1..).zip(masked.lines().take_while(|line| !line.starts_with("#[cfg(test)]"))) {
        for word in IMPURE.iter().filter(|word| words(line, word).next().is_some()) {
            let what = format!("{word}: this part does no I/O, starts no thread and reads no clock");
            violations.push(Violation::new(path, number, what));
        }
    }
    violations
}

/// Finds machine-specific paths in the text files of the tree.
pub(super) fn machine_paths(source: &Source) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (number, line) in (1..).zip(source.text.lines()) {
        for path in MACHINE_PATHS {
            // A match must start a path, so `../work/` and `https://x/home/` are valid.
            let begins = |(at, _): (usize, &str)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|c| is_word(c) || "./~-}>$".contains(c))
            };
            if line.match_indices(path).any(begins) {
                let what = format!("{path}…: a path that exists on one machine");
                violations.push(Violation::new(&source.path, number, what));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &str, text: &str) -> Vec<(usize, String)> {
        let source = Source { path: path.into(), text: text.into() };
        check(&source).into_iter().map(|v| (v.line, v.what)).collect()
    }

    const NONE: [usize; 0] = [];

    /// Checks `text` as the content of a file that may contain `unsafe`. Returns the lines with violations.
    fn lines(text: &str) -> Vec<usize> {
        at("src/map.rs", text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn a_module_must_open_with_a_header() {
        assert_eq!(lines("//! Why.\n"), NONE);
        assert_eq!(lines("// Why.\n"), [1]);
        assert_eq!(lines("\n//! Why.\n"), [1]);
    }

    #[test]
    fn the_length_of_a_file_is_bounded() {
        let text = |lines: usize| "//! Why.\n".repeat(lines);
        assert_eq!(lines(&text(LINES)), NONE);
        assert_eq!(lines(&text(LINES + 1)), [0]);
    }

    #[test]
    fn banned_words_are_found_only_in_code() {
        for word in ["todo!()", "unimplemented!(\"x\")", "dbg!(x)", "#[ignore]", "#[ignore = \"slow\"]"] {
            assert_eq!(lines(&format!("//! Why.\nfn f() {{\n    {word}\n}}\n")), [3], "{word}");
            assert_eq!(lines(&format!("//! No {word} here.\n")), NONE, "{word}");
        }
        assert_eq!(lines("//! Why.\nfn f() { g(\"todo!\"); not_todo!() }\n"), NONE);
    }

    #[test]
    fn unsafe_is_allowed_only_in_listed_modules() {
        let text = "//! Why.\nfn f() {\n    // SAFETY: it is.\n    unsafe { g() }\n}\n";
        for path in ["src/map.rs", "kernels/src/cpu/avx2.rs", "devices/hal/src/host.rs"] {
            assert_eq!(at(path, text), [], "{path}");
        }
        for path in ["src/lib.rs", "kernels/src/cpus.rs", "devices/hal/src/host/other.rs", "a/src/map.rs"] {
            assert!(
                matches!(&at(path, text)[..], [(4, what)] if what.contains("only in the modules")),
                "{path}"
            );
        }
        assert_eq!(at("src/lib.rs", "//! unsafe\nfn f() { not_unsafe(\"unsafe\") }\n"), []);
    }

    #[test]
    fn unsafe_needs_a_safety_comment_above_it() {
        let with = |code: &str| lines(&format!("//! Why.\nfn f() {{\n{code}\n}}\n"));
        assert_eq!(with("    unsafe { g() }"), [3]);
        assert_eq!(with("    // SAFETY: it is.\n    unsafe { g() }"), NONE);
        assert_eq!(with("    unsafe { g() } // SAFETY: it is."), NONE);
        assert_eq!(
            with("    // SAFETY: it is,\n    // at length.\n    let x =\n        unsafe { g() };"),
            NONE
        );
        assert_eq!(with("    // SAFETY: it is.\n    unsafe { g() };\n    unsafe { h() }"), [5]);
        assert_eq!(with("    // SAFETY: it is.\n\n    unsafe { g() }"), [5]);
        assert_eq!(with("    let s = \"SAFETY:\";\n    unsafe { g() }"), [4]);
        assert_eq!(lines("//! Why.\nunsafe impl Send for X {}\n"), [2]);
        assert_eq!(lines("//! Why.\n// SAFETY: it is.\nunsafe impl Send for X {}\n"), NONE);
        assert_eq!(lines("//! Why.\nunsafe extern \"C\" {}\n"), [2]);
        assert_eq!(lines("//! Why.\nunsafe fn f() {}\npub unsafe extern \"C\" fn g() {}\n"), NONE);
        assert_eq!(lines("//! Why.\ntype F = unsafe fn(u32);\ntype G = unsafe extern \"C\" fn();\n"), NONE);
        assert_eq!(lines("//! Why.\nunsafe fn f() { unsafe { g() } }\n"), [2]);
    }

    #[test]
    fn pure_crates_forbid_unsafe() {
        for path in FORBID_UNSAFE {
            assert_eq!(at(path, "//! Why.\n#![forbid(unsafe_code)]\n"), []);
            assert!(matches!(&at(path, "//! Why.\n// #![forbid(unsafe_code)]\n")[..], [(0, _)]));
        }
    }

    #[test]
    fn pure_parts_call_nothing_impure() {
        for call in ["std::fs::read(p)", "Instant::now()", "std::thread::spawn(f)", "SystemTime::now()"] {
            let text = format!("//! Why.\nfn f() {{ {call}; }}\n");
            for path in ["graph/src/gguf.rs", "planner/src/search/mod.rs", "scheduler/src/sampling.rs"] {
                assert!(
                    matches!(&at(path, &text)[..], [(2, what)] if what.contains("no clock")),
                    "{path} {call}"
                );
            }
            for path in
                ["src/map.rs", "scheduler/src/actor.rs", "graph/src/gguf/tests.rs", "graph/tests/golden.rs"]
            {
                assert_eq!(at(path, &text), [], "{path}");
            }
            let in_tests = format!("//! Why.\n#[cfg(test)]\nmod tests {{ fn f() {{ {call} }} }}\n");
            assert_eq!(at("graph/src/gguf.rs", &in_tests), []);
        }
    }

    #[test]
    fn finds_paths_of_a_machine_in_any_text() {
        let found = |text: &str| machine_paths(&Source { path: "README.md".into(), text: text.into() }).len();
        for path in MACHINE_PATHS {
            assert_eq!(found(&format!("see {path}me/x")), 1, "{path}");
            assert_eq!(found(&format!("`{path}x`\n\n\"{path}y\"")), 2, "{path}");
        }
        assert_eq!(found("https://example.org/home/x, ../work/x, $X/root/y, ~/work/z"), 0);
        assert_eq!(found("usr/home/x and homework/"), 0);
    }
}
