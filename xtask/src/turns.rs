//! Long tests that take turns: `cargo xtask ci` runs half of them for each commit.

/// List of the tests. Lines are `HALF<TAB>FILE<TAB>TEST`; `#` starts a comment.
const LIST: &str = include_str!("../../.ci/turns");

/// Returns half, source file and name of each listed test.
fn listed() -> impl Iterator<Item = [&'static str; 3]> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split('\t').collect::<Vec<_>>().try_into().expect("a test checks the list"))
}

/// Returns the names of the tests that do not run for a commit with this seed.
pub(crate) fn others(seed: u64) -> Vec<&'static str> {
    // Tests select their shares by the remainder of the seed. Higher bits let every share meet every half.
    let own = if (seed >> 16).is_multiple_of(2) { "0" } else { "1" };
    listed().filter(|[half, ..]| *half != own).map(|[.., test]| test).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listed_test_exists_and_runs_for_half_of_the_commits() {
        let tests: Vec<_> = listed().collect();
        assert!(tests.is_sorted() && !tests.is_empty());
        for [half, file, test] in &tests {
            assert!(["0", "1"].contains(half), "{test}");
            let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
            let text = std::fs::read_to_string(format!("{root}/{file}")).expect(file);
            let name = test.rsplit("::").next().unwrap();
            assert!(text.contains(&format!("#[test]\nfn {name}()")), "{file}: {test}");
        }
        let halves = [others(0xffff), others(0x10000)];
        assert_eq!(halves[0].len() + halves[1].len(), tests.len());
        assert!(halves[0].iter().all(|test| !halves[1].contains(test)));
    }
}
