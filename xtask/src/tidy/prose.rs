//! Finds a few patterns of convoluted English in all texts.

use super::sources::is_word;
use super::{TextFile, Violation};

/// Files that the rule does not check, because they spell the patterns out.
const QUOTES: [&str; 2] = ["CONTRIBUTING.md", "xtask/src/tidy/prose.rs"];
/// Extensions of the files that the rule checks. It leaves out OpenCL C and CUDA C++, because the committed programs
/// have digests of these sources with their comments.
const KINDS: [&str; 4] = [".rs", ".md", ".toml", ".wgsl"];

/// Words that open a noun clause. A doc comment must not start with one of them.
const OPENINGS: [&str; 5] = ["What", "Who", "Which", "How", "Where"];
const OPENING_RULE: &str = "open a doc comment with a noun phrase or a third-person verb";

/// Phrases to avoid, in lower case, each with advice to print on a match. Phrases match in any case, as whole
/// words.
const PHRASES: [(&str, &str); 5] = [
    ("so many", "name the number or the unit"),
    ("of which", "split the sentence in two"),
    ("told", "name who acts, in the active voice"),
    ("whoever", "name who acts: the driver, the planner, the user"),
    ("nobody", "name who acts: the driver, the planner, the user"),
];

/// Finds the patterns in a text. A pattern counts at most once per line.
pub(super) fn check(file: &TextFile) -> Vec<Violation> {
    if QUOTES.contains(&&*file.path) || !KINDS.iter().any(|kind| file.path.ends_with(kind)) {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        let doc = line.trim_start();
        let doc = doc.strip_prefix("/// ").or_else(|| doc.strip_prefix("//! ")).unwrap_or("");
        let opens = |word: &&str| doc.strip_prefix(*word).is_some_and(|rest| !rest.starts_with(is_word));
        let openings = OPENINGS.into_iter().filter(opens).map(|word| (word, OPENING_RULE));
        let lower = line.to_lowercase();
        let phrases =
            PHRASES.into_iter().filter(|(phrase, _)| super::sources::words(&lower, phrase).next().is_some());
        let found = openings.chain(phrases);
        violations.extend(
            found.map(|(word, rule)| Violation::new(&file.path, number, format!("`{word}`: {rule}"))),
        );
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let violations = check(&TextFile { path: path.into(), text: text.into() });
        let pattern = |what: &str| what.split('`').nth(1).unwrap().to_owned();
        violations.into_iter().map(|violation| (violation.line, pattern(&violation.what))).collect()
    }

    #[test]
    fn finds_patterns_as_whole_words() {
        let named = |text: &str| -> Vec<String> {
            found("a.rs", text).into_iter().map(|(line, pattern)| format!("{line} {pattern}")).collect()
        };
        assert_eq!(named("//! How it is.\n    /// Which one.\n"), ["1 How", "2 Which"]);
        assert_eq!(
            named("// One in so many,\n// of which Nobody is told."),
            ["1 so many", "2 of which", "2 told", "2 nobody"]
        );
        assert_eq!(named("/// However.\n// What.\n/// Says what.\nfn is_told() {}\n"), [""; 0]);
    }

    #[test]
    fn skips_quotes_and_files_without_prose() {
        let text = "/// What is told.\n";
        for path in [QUOTES[0], QUOTES[1], "a.json", "b.cl"] {
            assert!(found(path, text).is_empty(), "{path}");
        }
        assert_eq!(found("a.md", text).len(), 2);
    }
}
