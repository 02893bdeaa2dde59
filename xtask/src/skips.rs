//! Counts the skips of a test run by missing requirement, and compares them with the list of allowed skips
//! for continuous integration.
//!
//! A line of a list is `MISSING<TAB>PACKAGE<TAB>TEST`. Lines that start with `#` are comments. This module
//! runs no tests.

use std::collections::BTreeMap;
use std::path::Path;
use test_support::Skip;

/// Debian commands that install the most common missing requirements.
const REMEDIES: &[(&str, &str)] = &[
    ("AMD's HIP library", "apt install libamdhip64-5 libhiprtc-builtins5 rocm-device-libs"),
    ("C compiler", "apt install gcc"),
    ("Graphviz", "apt install graphviz"),
    ("NVRTC", ".ci/install-compilers FOLDER, with FOLDER/nvrtc in LD_LIBRARY_PATH"),
    ("OpenCL driver", "apt install pocl-opencl-icd ocl-icd-libopencl1"),
    ("Vulkan driver", "apt install mesa-vulkan-drivers libvulkan1"),
    ("browser", "apt install chromium"),
];

/// Reasons of skipped tests. Maps each missing requirement to the skipped tests by package and name, and each
/// test to its reason.
type Skips = BTreeMap<String, BTreeMap<(String, String), String>>;

fn by_missing(skips: &[Skip]) -> Skips {
    let mut sum = Skips::new();
    for Skip { missing, package, test, why } in skips {
        let tests = sum.entry(missing.clone()).or_default();
        tests.entry((package.clone(), test.clone())).or_insert_with(|| why.clone());
    }
    sum
}

/// Formats the number of skipped tests per missing requirement.
pub(crate) fn sum(skips: &[Skip]) -> String {
    if skips.is_empty() {
        return "no test was skipped\n".into();
    }
    let mut text = "skipped in whole or in part, by missing requirement:\n".to_owned();
    for (missing, tests) in by_missing(skips) {
        let plural = if tests.len() == 1 { "" } else { "s" };
        text.push_str(&format!("  {missing}: {} test{plural}", tests.len()));
        // The report gives one reason, although the reasons of different devices may differ.
        if let Some(why) = tests.values().next() {
            text.push_str(&format!(" ({why})"));
        }
        if let Some((_, remedy)) = REMEDIES.iter().find(|(thing, _)| *thing == missing) {
            text.push_str(&format!("\n    {remedy}"));
        }
        text.push('\n');
    }
    text
}

/// Formats `skips` as a file that allows them.
pub(crate) fn list(skips: &[Skip]) -> String {
    lines(skips).into_iter().map(|line| line + "\n").collect()
}

/// Formats each skip as one line of a list, and sorts the lines.
fn lines(skips: &[Skip]) -> Vec<String> {
    let line = |(missing, tests): (String, BTreeMap<(String, String), String>)| {
        tests.into_keys().map(move |(package, test)| format!("{missing}\t{package}\t{test}"))
    };
    by_missing(skips).into_iter().flat_map(line).collect()
}

/// Compares the skips with the list of allowed skips in `file`. Returns a note for each skip in the list that
/// did not happen.
///
/// # Errors
/// Returns an error with the lines to add if the list does not allow all skips.
pub(crate) fn check(skips: &[Skip], file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    compare(&lines(skips), &text).map_err(|e| format!("{}: {e}", file.display()))
}

fn compare(lines: &[String], list: &str) -> Result<String, String> {
    let allowed: Vec<_> = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    if let Some(line) = allowed.iter().find(|line| line.split('\t').count() != 3) {
        return Err(format!("expected MISSING<TAB>PACKAGE<TAB>TEST, got {line:?}"));
    }
    if let Some(pair) = allowed.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(format!("lines are not sorted: {:?} comes before {:?}", pair[0], pair[1]));
    }
    let unexpected: String = lines
        .iter()
        .filter(|line| !allowed.contains(&line.as_str()))
        .map(|line| format!("\n{line}"))
        .collect();
    if !unexpected.is_empty() {
        return Err(format!("skipped tests that must run; to allow them, add:{unexpected}"));
    }
    let unused = allowed.iter().filter(|line| !lines.iter().any(|found| found == *line));
    Ok(unused.map(|line| format!("note: this allowed skip did not happen: {line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(missing: &str, test: &str, why: &str) -> Skip {
        let [missing, package, test, why] = [missing, "ragtag-opencl", test, why].map(str::to_owned);
        Skip { missing, package, test, why }
    }

    #[test]
    fn the_sum_counts_tests_by_missing_requirement() {
        assert_eq!(sum(&[]), "no test was skipped\n");
        let skips = [
            skip("OpenCL driver", "a", "no library"),
            skip("OpenCL driver", "a", "another reason"),
            skip("OpenCL driver", "b", "no library"),
            skip("luck", "c", "none left"),
        ];
        let expected = "skipped in whole or in part, by missing requirement:\n  OpenCL driver: 2 tests (no library)\n    \
                        apt install pocl-opencl-icd ocl-icd-libopencl1\n  luck: 1 test (none left)\n";
        assert_eq!(sum(&skips), expected);
        assert_eq!(compare(&lines(&skips), &list(&skips)), Ok(String::new()));
    }

    #[test]
    fn a_skip_that_is_not_listed_fails_with_the_line_to_add() {
        let lines = lines(&[skip("luck", "a", ""), skip("luck", "b", "")]);
        let error = compare(&lines, "# why\n\nluck\tragtag-opencl\ta\n").unwrap_err();
        assert!(error.ends_with("add:\nluck\tragtag-opencl\tb"), "{error}");
    }

    #[test]
    fn a_listed_skip_that_did_not_happen_is_noted() {
        let list = "luck\tragtag-hal\ta\nluck\tragtag-opencl\ta\n";
        let note = compare(&lines(&[skip("luck", "a", "")]), list);
        assert_eq!(note.unwrap(), "note: this allowed skip did not happen: luck\tragtag-hal\ta\n");
    }

    #[test]
    fn bad_lists_are_refused() {
        for (list, what) in [("luck\tb", "expected MISSING"), ("luck\tb\ta\nluck\ta\ta\n", "not sorted")] {
            assert!(compare(&[], list).unwrap_err().contains(what), "{list:?}");
        }
    }
}
