//! Checks the dependencies between the crates of the workspace. The lists in this file define the
//! architecture. A new dependency is a design decision; record it here and in ARCHITECTURE.md.

use super::Violation;

/// Dependency of one crate of the workspace on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub from: String,
    pub to: String,
    /// Whether only the crate's tests use the dependency.
    pub tests_only: bool,
}

/// Crates of the workspace that each crate may import.
const ALLOWED: &[(&str, &[&str])] = &[
    ("ragtag-hal", &[]),
    // Reads source texts, and knows nothing about their content.
    // Renders templates, and knows nothing about models.
    ("ragtag-chat", &[]),
    ("ragtag-kernels", &["ragtag-hal"]),
    ("ragtag-graph", &["ragtag-hal", "ragtag-kernels"]),
    ("ragtag-transfer", &["ragtag-hal"]),
    // A backend knows no operator and no model.
    ("ragtag-cpu", &["ragtag-hal"]),
    ("ragtag-opencl", &["ragtag-hal"]),
    ("ragtag-level-zero", &["ragtag-hal"]),
    ("ragtag-vulkan", &["ragtag-hal"]),
    ("ragtag-wgpu", &["ragtag-hal"]),
    // The common part of backends with streams.
    ("ragtag-stream", &["ragtag-hal"]),
    ("ragtag-cuda", &["ragtag-hal", "ragtag-stream"]),
    ("ragtag-hip", &["ragtag-hal", "ragtag-stream"]),
    (
        "ragtag-devices",
        &[
            "ragtag-hal",
            "ragtag-cpu",
            "ragtag-cuda",
            "ragtag-hip",
            "ragtag-level-zero",
            "ragtag-opencl",
            "ragtag-vulkan",
            "ragtag-wgpu",
        ],
    ),
    ("ragtag-conformance", &["ragtag-hal", "ragtag-kernels", "ragtag-devices"]),
    // The planner knows neither the runtime nor the simulator.
    ("ragtag-planner", &["ragtag-hal", "ragtag-kernels", "ragtag-graph", "ragtag-transfer"]),
    ("ragtag-compute", &["ragtag-hal", "ragtag-kernels", "ragtag-devices"]),
    // The scheduler names no backend.
    (
        "ragtag-scheduler",
        &["ragtag-hal", "ragtag-kernels", "ragtag-graph", "ragtag-transfer", "ragtag-planner"],
    ),
    // The library knows no command and prints nothing.
    (
        "ragtag-engine",
        &[
            "ragtag-hal",
            "ragtag-kernels",
            "ragtag-graph",
            "ragtag-devices",
            "ragtag-transfer",
            "ragtag-planner",
            "ragtag-scheduler",
            "ragtag-chat",
            // Tests kernels at the first use of a device.
            "ragtag-conformance",
        ],
    ),
    // The server needs no more than any program that uses the library.
    ("ragtag-server", &["ragtag-engine"]),
    (
        "ragtag",
        &[
            "ragtag-engine",
            "ragtag-server",
            "ragtag-hal",
            "ragtag-kernels",
            "ragtag-graph",
            "ragtag-devices",
            "ragtag-transfer",
            "ragtag-planner",
            "ragtag-scheduler",
            "ragtag-compute",
            "ragtag-chat",
            // Only `ragtag selftest` needs it.
            "ragtag-conformance",
        ],
    ),
    // Writes models with random weights.
    ("ragtag-synth", &["ragtag-kernels", "ragtag-graph"]),
    // The tests of every crate may use it; see `FOR_ALL_TESTS`.
    ("test-support", &[]),
    // Builds these test drivers and loads them at run time.
    ("test-drivers", &["test-support", "hip-on-opencl", "level-zero-on-opencl", "vulkan-faults"]),
    // Stand-ins for AMD's driver, for tests. They export the functions that the backend lists.
    ("hip-shim", &["ragtag-hip"]),
    ("hip-on-opencl", &["ragtag-hip", "hip-shim"]),
    ("hip-on-cuda", &["ragtag-hip", "hip-shim"]),
    // Shared by the tests of all backends: a device, and the stand-ins that make it fail.
    ("device-bench", &["ragtag-hal", "ragtag-cpu", "test-drivers", "test-support"]),
    // A Level Zero driver for tests.
    ("level-zero-on-opencl", &[]),
    // A layer over Vulkan's drivers, for tests.
    ("vulkan-faults", &[]),
    // Writes models with random weights and schemas. Also writes kernels, selected by device features and
    // translated as a backend translates them, checks tokenizers, and counts the skips that tests record.
    (
        "xtask",
        &[
            "ragtag-hal",
            "ragtag-kernels",
            "ragtag-graph",
            "ragtag-vulkan",
            "ragtag-planner",
            "ragtag-synth",
            "test-support",
        ],
    ),
];

/// Name of the crate that the tests of every crate may import.
const FOR_ALL_TESTS: &str = "test-support";

/// Additional crates that the tests of a crate may import.
const ALLOWED_IN_TESTS: &[(&str, &[&str])] = &[
    // Tests load the driver through Level Zero's loader.
    ("level-zero-on-opencl", &["test-drivers"]),
    // Tests load stand-ins for AMD's driver.
    ("ragtag-hip", &["device-bench", "test-drivers"]),
    // Tests that all backends share.
    ("ragtag-cpu", &["device-bench"]),
    ("ragtag-stream", &["device-bench"]),
    ("ragtag-opencl", &["device-bench"]),
    ("ragtag-level-zero", &["device-bench", "test-drivers"]),
    ("ragtag-cuda", &["device-bench"]),
    ("ragtag-vulkan", &["device-bench", "test-drivers"]),
    ("ragtag-wgpu", &["device-bench", "test-drivers"]),
    // The tests run the operators on the test driver of Level Zero.
    ("ragtag-compute", &["test-drivers"]),
    // The tests run the suite on the CPU device, which every machine has.
    ("ragtag-conformance", &["device-bench", "ragtag-cpu", "test-drivers"]),
    // Programs are compiled for the CPU device and run on it.
    ("ragtag-graph", &["ragtag-cpu"]),
    // Tests run pipelines on the CPU device.
    ("ragtag-scheduler", &["ragtag-cpu"]),
    // A test breaks the context of the driver. Another one makes a mixture of experts in memory.
    ("ragtag-engine", &["device-bench", "ragtag-synth"]),
    // Benchmarks make their models in memory.
    ("ragtag", &["ragtag-synth", "test-drivers"]),
];

/// Returns a violation for every dependency that the lists do not allow, and for every crate that the lists
/// do not contain.
pub(super) fn check(edges: &[Edge]) -> Vec<Violation> {
    edges.iter().filter_map(check_edge).collect()
}

fn check_edge(edge: &Edge) -> Option<Violation> {
    let list = |lists: &[(&str, &'static [&'static str])]| {
        lists.iter().find(|(from, _)| *from == edge.from).map(|(_, to)| *to)
    };
    let Some(allowed) = list(ALLOWED) else {
        let what = "the list of imports in xtask/src/tidy/imports.rs does not know this crate";
        return Some(Violation::new(&edge.from, 0, what));
    };
    if edge.tests_only && edge.to == FOR_ALL_TESTS {
        return None;
    }
    let in_tests = list(ALLOWED_IN_TESTS).filter(|_| edge.tests_only).unwrap_or_default();
    if allowed.iter().chain(in_tests).any(|to| *to == edge.to) {
        return None;
    }
    let Edge { from, to, .. } = edge;
    let tests = if edge.tests_only { " in its tests" } else { "" };
    let what = format!("{from} must not import {to}{tests} (see ARCHITECTURE.md: who may import whom)");
    Some(Violation::new(from, 0, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: &str, to: &str, tests_only: bool) -> Edge {
        Edge { from: from.into(), to: to.into(), tests_only }
    }

    #[test]
    fn forbidden_edges_are_found() {
        for (from, to) in [
            ("ragtag-scheduler", "ragtag-cpu"),
            ("ragtag-scheduler", "ragtag-devices"),
            ("ragtag-planner", "ragtag-scheduler"),
            ("ragtag-cpu", "ragtag-kernels"),
            ("ragtag-hal", "ragtag-kernels"),
            ("ragtag-transfer", "ragtag-graph"),
            ("ragtag", "ragtag-cpu"),
            ("ragtag-engine", "ragtag"),
            ("ragtag-engine", "ragtag-compute"),
            ("ragtag", "xtask"),
        ] {
            let found = check(&[edge(from, to, false)]);
            assert!(matches!(&found[..], [v] if v.what.contains("must not import")), "{from} -> {to}");
        }
    }

    #[test]
    fn allowed_edges_pass_and_test_edges_only_in_tests() {
        assert_eq!(check(&[edge("ragtag-graph", "ragtag-kernels", false)]), []);
        assert_eq!(check(&[edge("ragtag-cpu", "device-bench", true)]), []);
        assert_eq!(check(&[edge("ragtag-hal", "test-support", true)]), []);
        assert_eq!(check(&[edge("ragtag-cpu", "device-bench", false)]).len(), 1);
        assert_eq!(check(&[edge("ragtag-hal", "test-support", false)]).len(), 1);
        assert_eq!(check(&[edge("ragtag-planner", "ragtag-cpu", true)]).len(), 1);
    }

    #[test]
    fn a_crate_that_the_list_lacks_is_found() {
        let found = check(&[edge("ragtag-abacus", "ragtag-hal", false)]);
        assert!(matches!(&found[..], [v] if v.what.contains("does not know this crate")));
    }

    #[test]
    fn the_list_has_no_cycle() {
        // Each crate may import only crates that come before it in some order. Repeatedly remove the crates
        // that import no remaining crate.
        let mut left: Vec<_> = ALLOWED.to_vec();
        while !left.is_empty() {
            let names: Vec<_> = left.iter().map(|(name, _)| *name).collect();
            let before = left.len();
            left.retain(|(_, to)| to.iter().any(|t| names.contains(t)));
            assert!(left.len() < before, "a cycle among {names:?}");
        }
    }
}
