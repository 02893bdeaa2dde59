//! Who may import whom. The list is the architecture: a new edge is a decision, made here and in ARCHITECTURE.md.

use super::Violation;

/// A dependency of one crate of the workspace on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub from: String,
    pub to: String,
    /// A dev-dependency.
    pub tests_only: bool,
}

/// For each crate the crates that it may import.
const ALLOWED: &[(&str, &[&str])] = &[
    ("ragtag-hal", &[]),
    // Reads texts, and knows nothing of what is in them.
    ("ragtag-signatures", &[]),
    ("ragtag-kernels", &["ragtag-hal"]),
    ("ragtag-graph", &["ragtag-hal", "ragtag-kernels"]),
    ("ragtag-transfer", &["ragtag-hal"]),
    // A backend knows no operator and no model.
    ("ragtag-cpu", &["ragtag-hal"]),
    ("ragtag-opencl", &["ragtag-hal"]),
    ("ragtag-vulkan", &["ragtag-hal"]),
    ("ragtag-wgpu", &["ragtag-hal"]),
    // What backends with streams have in common.
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
            "ragtag-opencl",
            "ragtag-vulkan",
            "ragtag-wgpu",
        ],
    ),
    ("ragtag-conformance", &["ragtag-hal", "ragtag-kernels", "ragtag-devices"]),
    // The planner knows no runtime and no simulator.
    ("ragtag-planner", &["ragtag-hal", "ragtag-kernels", "ragtag-graph", "ragtag-transfer"]),
    ("ragtag-compute", &["ragtag-hal", "ragtag-kernels", "ragtag-devices"]),
    // The scheduler names no backend.
    (
        "ragtag-scheduler",
        &["ragtag-hal", "ragtag-kernels", "ragtag-graph", "ragtag-transfer", "ragtag-planner"],
    ),
    (
        "ragtag",
        &[
            "ragtag-hal",
            "ragtag-kernels",
            "ragtag-graph",
            "ragtag-devices",
            "ragtag-transfer",
            "ragtag-planner",
            "ragtag-scheduler",
            "ragtag-compute",
            // `ragtag selftest`.
            "ragtag-conformance",
        ],
    ),
    // Writes made-up models.
    ("ragtag-synth", &["ragtag-kernels", "ragtag-graph"]),
    // Every crate may use it in tests; see `FOR_ALL_TESTS`.
    ("test-support", &[]),
    // Builds those below and loads them at run time.
    ("test-drivers", &["test-support", "hip-on-opencl", "vulkan-faults"]),
    // Stand-ins for AMD's driver, for tests: they export the functions that the backend lists.
    ("hip-shim", &["ragtag-hip"]),
    ("hip-on-opencl", &["ragtag-hip", "hip-shim"]),
    ("hip-on-cuda", &["ragtag-hip", "hip-shim"]),
    // What tests of backends have in common: a device, with the stand-ins that make it fail.
    ("device-bench", &["ragtag-hal", "ragtag-cpu", "test-drivers", "test-support"]),
    // A layer over Vulkan's drivers, for tests.
    ("vulkan-faults", &[]),
    // Writes made-up models, kernels for devices by their features, translated as a backend does, and schemas.
    // It counts the skips that tests record, too.
    (
        "xtask",
        &["ragtag-hal", "ragtag-kernels", "ragtag-vulkan", "ragtag-planner", "ragtag-synth", "test-support"],
    ),
];

/// The crate that the tests of every crate may use.
const FOR_ALL_TESTS: &str = "test-support";

/// Edges that tests may have besides.
const ALLOWED_IN_TESTS: &[(&str, &[&str])] = &[
    // Kernel sources are held to their ABIs.
    ("ragtag-kernels", &["ragtag-signatures"]),
    // Tests load stand-ins for AMD's driver.
    ("ragtag-hip", &["device-bench", "test-drivers"]),
    // Tests that all backends share.
    ("ragtag-cpu", &["device-bench"]),
    ("ragtag-stream", &["device-bench"]),
    ("ragtag-opencl", &["device-bench"]),
    ("ragtag-cuda", &["device-bench"]),
    ("ragtag-vulkan", &["device-bench", "test-drivers"]),
    ("ragtag-wgpu", &["device-bench", "test-drivers"]),
    // The suite is tested on the one device that is everywhere.
    ("ragtag-conformance", &["ragtag-cpu", "test-drivers"]),
    // Programs are compiled for, and run on, that device as well.
    ("ragtag-graph", &["ragtag-cpu"]),
    // Pipelines are tested on that device, too.
    ("ragtag-scheduler", &["ragtag-cpu"]),
    // Benchmarks make their models in memory.
    ("ragtag", &["ragtag-synth", "test-drivers"]),
];

/// Every edge that is not in the lists, every crate that the lists do not know.
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
        // Each crate imports only crates that come before it, in some order: peel off those that import nothing left.
        let mut left: Vec<_> = ALLOWED.to_vec();
        while !left.is_empty() {
            let names: Vec<_> = left.iter().map(|(name, _)| *name).collect();
            let before = left.len();
            left.retain(|(_, to)| to.iter().any(|t| names.contains(t)));
            assert!(left.len() < before, "a cycle among {names:?}");
        }
    }
}
