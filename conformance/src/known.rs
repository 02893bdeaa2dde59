//! Known failures of an adapter.
//!
//! Lists of known failures are meant for adapters with pinned driver versions, as in continuous integration.
//! On such an adapter, the suite fails if an unlisted test fails or a listed test passes. This module
//! contains no lists: the tests of each adapter supply their own.

use crate::report::{Outcome, Verdict};

/// Tests that fail on an adapter, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFailure {
    /// Pattern that matches the names of the tests, as in [`crate::Suite::only`].
    pub tests: &'static str,
    /// Feature that the adapter lacks, or a defect that it has.
    pub reason: &'static str,
}

/// Returns whether `name` contains all parts of `pattern` in order. A `*` in `pattern` separates two parts.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut rest = Some(name);
    for part in pattern.split('*') {
        rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, after)| after);
    }
    rest.is_some()
}

/// Applies the known failures to the outcomes. A known failure becomes a skip that states the reason. A
/// listed test that passes counts as a failure, and so does an entry that matches no test.
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
            let why = format!("the list of known failures names {:?}, but no such test ran", known.tests);
            let name = format!("known-failures/{}", known.tests);
            tests.push(Outcome { name, verdict: Verdict::Failed { why }, class: None, duration_us: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_parts_in_order() {
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
