//! What an adapter is known not to do.
//!
//! A list of such failures is for adapters that are pinned, as in continuous integration: there a test that fails is news,
//! and so is one that passes again. This module must not know any adapter; the tests of adapters bring their lists.

use crate::report::{Outcome, Verdict};

/// Tests that fail on an adapter, and why that is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFailure {
    /// Part of the tests' names, as in [`crate::Suite::only`].
    pub tests: &'static str,
    /// What the adapter lacks, or what is wrong with it.
    pub reason: &'static str,
}

/// Whether a name holds a pattern: the parts between its `*`, in this order.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut rest = Some(name);
    for part in pattern.split('*') {
        rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, after)| after);
    }
    rest.is_some()
}

/// Judges outcomes by what is known. A known failure is a skip with its reason; a test that passes against the list fails,
/// and so does a list with an entry under which nothing was tried.
pub(crate) fn judge(tests: &mut Vec<Outcome>, known: &[KnownFailure]) {
    for test in tests.iter_mut() {
        let Some(known) = known.iter().find(|known| matches(known.tests, &test.name)) else { continue };
        test.verdict = match &test.verdict {
            Verdict::Failed { why } => Verdict::skipped(format!("known failure: {} ({why})", known.reason)),
            Verdict::Passed { .. } => {
                let why = format!("passed, but is listed as a known failure: {}", known.reason);
                Verdict::Failed { why }
            }
            Verdict::Skipped { .. } => continue,
        };
    }
    for known in known {
        let was_tried = |test: &Outcome| {
            let judged = match &test.verdict {
                Verdict::Skipped { reason } => reason.starts_with("known failure: "),
                Verdict::Passed { .. } | Verdict::Failed { .. } => true,
            };
            judged && matches(known.tests, &test.name)
        };
        if !tests.iter().any(was_tried) {
            let why =
                format!("the list of known failures names {:?}, and no such test was tried", known.tests);
            let name = format!("known-failures/{}", known.tests);
            tests.push(Outcome { name, verdict: Verdict::Failed { why }, class: None, duration_us: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_parts_in_order() {
        for (pattern, holds) in [
            ("", true),
            ("*", true),
            ("kernel/add/avx2", true),
            ("kernel/", true),
            ("avx2", true),
            ("kernel*avx2", true),
            ("*add*2*", true),
            ("avx2*kernel", false),
            ("avx512", false),
            ("add*add", false),
            ("Add", false),
        ] {
            assert_eq!(matches(pattern, "kernel/add/avx2"), holds, "{pattern}");
        }
    }
}
