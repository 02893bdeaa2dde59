//! Checks rules about source files: module headers, places that may contain `unsafe`, ignored tests, and impure calls
//! in pure code. Clippy checks that each `unsafe` block has a `SAFETY:` comment.
//!
//! The rules read texts line by line. Comments do not count as code, and few strings contain the words.

use super::{TextFile, Violation};

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
    // Opens drivers' libraries in a child process.
    "devices/src/library.rs",
    // Calls of NVIDIA's management library.
    "devices/src/sensors/nvml.rs",
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
    // Spells out examples of this rule.
    "xtask/src/tidy/sources.rs",
    // Calls of NVRTC.
    "xtask/src/kernels/nvrtc.rs",
];

/// Crate roots that must contain `#![forbid(unsafe_code)]`.
const FORBID_UNSAFE: &[&str] = &[
    "chat/src/lib.rs",
    "compute/src/lib.rs",
    "engine/src/lib.rs",
    "graph/src/lib.rs",
    "transfer/src/lib.rs",
    "planner/src/lib.rs",
    "scheduler/src/lib.rs",
    "server/src/lib.rs",
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
    "scheduler/src/sampling/",
    "scheduler/src/transfers.rs",
    "server/src/answer.rs",
    "server/src/anthropic.rs",
    "server/src/constraint.rs",
    "server/src/exchange.rs",
    "server/src/job.rs",
    "server/src/load/events.rs",
    "server/src/load/prompt.rs",
    "server/src/load/report.rs",
    "server/src/logs.rs",
    "server/src/openai.rs",
    "server/src/refusal.rs",
    "server/src/responses.rs",
    "server/src/tools.rs",
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

/// Attribute that no source may contain. It is split into two strings, because the rule also checks this file.
const IGNORED: &str = concat!("#[ig", "nore");

/// Prefixes of absolute paths that exist on one machine only. Each prefix is split into two strings, because
/// the rule also checks this file.
const MACHINE_PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
    concat!("C:", "\\"),
];

/// CPU kernels, which are generic over instruction sets.
const CPU_KERNELS: &[&str] = &["kernels/src/cpu/", "kernels/src/types/"];

/// Checks all rules on a Rust source.
pub(super) fn check(source: &TextFile) -> Vec<Violation> {
    let mut violations: Vec<_> = opening(source).into_iter().collect();
    violations.extend(forbids_unsafe(source));
    let is_pure =
        within(&source.path, PURE) && !source.path.ends_with("tests.rs") && !source.path.contains("/tests/");
    let mut in_tests = false;
    for (number, line) in (1..).zip(source.text.lines()) {
        // Unit tests are at the end of a file and are exempt from the rule about pure code.
        in_tests |= line.starts_with("#[cfg(test)]");
        let line = line.split("//").next().unwrap_or_default();
        let mut broken = |what: String| violations.push(Violation::new(&source.path, number, what));
        if line.contains(IGNORED) {
            broken(format!("{IGNORED}]: a test runs, or skips visibly with the reason"));
        }
        if !within(&source.path, UNSAFE) && words(line, "unsafe").any(|at| is_unsafe(&line[at..])) {
            broken("unsafe is allowed only in the modules that xtask/src/tidy/sources.rs lists".into());
        }
        for word in IMPURE.iter().filter(|word| is_pure && !in_tests && words(line, word).next().is_some()) {
            broken(format!("{word}: this part does no I/O, starts no thread and reads no clock"));
        }
        if within(&source.path, CPU_KERNELS) && calls_operation_in_closure(line) {
            broken("a closure calls an operation of `Isa`: use a loop (kernels/src/cpu/isa.rs)".into());
        }
    }
    violations
}

/// Returns whether a closure for `map` or `from_fn` calls an operation of an instruction set, whose value is `s`.
fn calls_operation_in_closure(line: &str) -> bool {
    let bodies = ["map(|", "from_fn(|"].iter().filter_map(|call| line.split_once(call));
    bodies
        .filter_map(|(_, rest)| rest.split_once('|'))
        .any(|(_, body)| words(body, "s").any(|at| body[at + 1..].starts_with('.')))
}

/// Returns whether `code`, which starts with the word `unsafe`, opens a block or declares an item.
fn is_unsafe(code: &str) -> bool {
    let rest = code.trim_start_matches("unsafe");
    rest.trim().is_empty()
        || [" {", " fn", " impl", " extern", " trait", "("].iter().any(|next| rest.starts_with(next))
}

/// Returns whether a character may be part of an identifier.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn within(path: &str, list: &[&str]) -> bool {
    list.iter().any(|entry| path == *entry || (entry.ends_with('/') && path.starts_with(entry)))
}

fn opening(source: &TextFile) -> Option<Violation> {
    let what = "a module must open with //! and its purpose";
    (!source.text.starts_with("//!")).then(|| Violation::new(&source.path, 1, what))
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

fn forbids_unsafe(source: &TextFile) -> Option<Violation> {
    let is_missing = FORBID_UNSAFE.contains(&&*source.path)
        && !source.text.lines().any(|line| line == "#![forbid(unsafe_code)]");
    is_missing.then(|| Violation::new(&source.path, 0, "missing #![forbid(unsafe_code)]"))
}

/// Finds machine-specific paths in the text files of the tree.
pub(super) fn machine_paths(source: &TextFile) -> Vec<Violation> {
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
        let source = TextFile { path: path.into(), text: text.into() };
        check(&source).into_iter().map(|v| (v.line, v.what)).collect()
    }

    const NONE: [usize; 0] = [];

    /// Checks `text` as the content of a file that may contain `unsafe`. Returns the lines with violations.
    fn lines(text: &str) -> Vec<usize> {
        at("src/main.rs", text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn a_module_must_open_with_a_header() {
        assert_eq!(lines("//! Why.\n"), NONE);
        assert_eq!(lines("// Why.\n"), [1]);
        assert_eq!(lines("\n//! Why.\n"), [1]);
    }

    #[test]
    fn ignored_tests_are_found() {
        assert_eq!(lines(&format!("//! Why.\n{IGNORED}]\n    {IGNORED} = \"slow\"]\n")), [2, 3]);
        assert_eq!(lines(&format!("//! No {IGNORED}] here.\n")), NONE);
    }

    #[test]
    fn unsafe_is_allowed_only_in_listed_modules() {
        let text = "//! Why.\nfn f() {\n    // SAFETY: it is.\n    unsafe { g() }\n}\n";
        for path in ["src/main.rs", "kernels/src/cpu/avx2.rs", "devices/hal/src/host.rs"] {
            assert_eq!(at(path, text), [], "{path}");
        }
        for path in ["src/lib.rs", "kernels/src/cpus.rs", "devices/hal/src/host/other.rs", "a/src/main.rs"] {
            assert!(
                matches!(&at(path, text)[..], [(4, what)] if what.contains("only in the modules")),
                "{path}"
            );
        }
    }

    #[test]
    fn unsafe_code_is_found_in_every_form() {
        for code in ["unsafe { g() }", "unsafe fn f() {}", "unsafe impl A for B {}", "let x = unsafe"] {
            assert_eq!(at("src/lib.rs", &format!("//! Why.\n{code}\n")).len(), 1, "{code}");
        }
        for code in ["// unsafe { g() }", "not_unsafe(\"unsafe\")", "let unsafes = 1;"] {
            assert_eq!(at("src/lib.rs", &format!("//! Why.\n{code}\n")), [], "{code}");
        }
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
                ["src/main.rs", "scheduler/src/actor.rs", "graph/src/gguf/tests.rs", "graph/tests/golden.rs"]
            {
                assert_eq!(at(path, &text), [], "{path}");
            }
            let in_tests = format!("//! Why.\n#[cfg(test)]\nmod tests {{ fn f() {{ {call} }} }}\n");
            assert_eq!(at("graph/src/gguf.rs", &in_tests), []);
        }
    }

    #[test]
    fn operations_of_instruction_sets_in_closures_are_found() {
        let found = |line: &str| at("kernels/src/types/q4_0/mod.rs", &format!("//! Why.\n{line}\n")).len();
        assert_eq!(found("let quads = quads.map(|quad| s.look_up(quad, &TABLE));"), 1);
        assert_eq!(found("let sums = std::array::from_fn(|i| s.load(&sums[i]));"), 1);
        assert_eq!(found("s.load(&codes.map(|code| codes.of(code)))"), 0);
        assert_eq!(at("kernels/src/lib.rs", "//! Why.\nx.map(|x| s.load(x));\n"), []);
    }

    #[test]
    fn finds_paths_of_a_machine_in_any_text() {
        let found =
            |text: &str| machine_paths(&TextFile { path: "README.md".into(), text: text.into() }).len();
        for path in MACHINE_PATHS {
            assert_eq!(found(&format!("see {path}me/x")), 1, "{path}");
            assert_eq!(found(&format!("`{path}x`\n\n\"{path}y\"")), 2, "{path}");
        }
        assert_eq!(found("https://example.org/home/x, ../work/x, $X/root/y, ~/work/z"), 0);
        assert_eq!(found("usr/home/x and homework/"), 0);
    }
}
