//! Finds a few patterns of convoluted English in all texts. Each file has an allowance, which is its maximum
//! number of matches. Allowances may only shrink.
//!
//! The committed file [`ALLOWANCE`] lists the allowances. It has one row `count<TAB>path` per file, sorted by
//! path.

use super::mask::is_word;
use super::{Source, Violation};
use std::collections::BTreeMap;
use std::path::Path;

/// File with the allowances, relative to the root.
pub(super) const ALLOWANCE: &str = "xtask/prose-allowance.txt";
/// Path of this file. The rule does not check it, because it spells the patterns out.
const OWN: &str = "xtask/src/tidy/prose.rs";
/// Extensions of the files that the rule checks.
const KINDS: [&str; 6] = [".rs", ".md", ".toml", ".wgsl", ".cl", ".cu"];

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

/// Maximum number of matches in each file, by path.
type Allowance = BTreeMap<String, usize>;

/// Compares the number of matches in each text with its allowance.
pub(super) fn check(texts: &[Source]) -> Vec<Violation> {
    let allowance = texts.iter().find(|source| source.path == ALLOWANCE).map_or("", |source| &source.text);
    let allowed = match parse(allowance) {
        Ok(allowed) => allowed,
        Err(violation) => return vec![violation],
    };
    let (found, mut violations) = (matches(texts), Vec::new());
    for (path, found) in &found {
        let allowed = allowed.get(*path).copied().unwrap_or(0);
        if found.len() > allowed {
            let sum = format!("{} matches, {allowed} allowed by {ALLOWANCE}", found.len());
            let one = |(line, pattern, rule): &(usize, &str, &str)| {
                Violation::new(path, *line, format!("`{pattern}`: {rule} ({sum})"))
            };
            violations.extend(found.iter().map(one));
        }
    }
    for (path, allowed) in allowed {
        let found = found.get(path.as_str()).map_or(0, Vec::len);
        if found < allowed {
            let what = format!(
                "{ALLOWANCE} allows {allowed} matches of prose patterns, the file has {found}: \
                 run `cargo xtask tidy --shrink-prose`"
            );
            violations.push(Violation::new(&path, 0, what));
        }
    }
    violations
}

/// Lowers each row of the allowance file to the number of matches in the row's file. Never raises or adds a
/// row.
pub(super) fn shrink(root: &Path, texts: &mut [Source]) -> Result<(), String> {
    let missing = || format!("cannot shrink {ALLOWANCE}: the file is missing");
    let at = texts.iter().position(|source| source.path == ALLOWANCE).ok_or_else(missing)?;
    let allowed = parse(&texts[at].text).map_err(|violation| violation.to_string())?;
    let text = format(&shrunk(allowed, texts));
    std::fs::write(root.join(ALLOWANCE), &text).map_err(|e| format!("cannot write {ALLOWANCE}: {e}"))?;
    texts[at].text = text;
    Ok(())
}

fn shrunk(mut allowed: Allowance, texts: &[Source]) -> Allowance {
    let found = matches(texts);
    allowed.retain(|path, allowed| {
        *allowed = found.get(path.as_str()).map_or(0, Vec::len).min(*allowed);
        *allowed > 0
    });
    allowed
}

fn parse(text: &str) -> Result<Allowance, Violation> {
    let row =
        |line: &str| Some((line.split_once('\t')?.1.to_owned(), line.split_once('\t')?.0.parse().ok()?));
    let rows: Option<Allowance> = text.lines().map(row).collect();
    let what = "expected rows `count<TAB>path`, sorted by path, each path once";
    rows.filter(|rows| format(rows) == text).ok_or_else(|| Violation::new(ALLOWANCE, 0, what))
}

fn format(allowed: &Allowance) -> String {
    allowed.iter().map(|(path, count)| format!("{count}\t{path}\n")).collect()
}

/// Returns the line, the pattern and the advice for each match, by path. A pattern counts at most once per
/// line.
fn matches(texts: &[Source]) -> BTreeMap<&str, Vec<(usize, &'static str, &'static str)>> {
    let mut all = BTreeMap::new();
    for Source { path, text } in texts {
        if path == OWN || !KINDS.iter().any(|kind| path.ends_with(kind)) {
            continue;
        }
        let mut found = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let doc = line.trim_start();
            let doc = doc.strip_prefix("/// ").or_else(|| doc.strip_prefix("//! ")).unwrap_or("");
            let opening = OPENINGS
                .into_iter()
                .find(|word| doc.strip_prefix(word).is_some_and(|rest| !rest.starts_with(is_word)));
            found.extend(opening.map(|word| (number, word, OPENING_RULE)));
            let lower = line.to_lowercase();
            let phrases =
                PHRASES.iter().filter(|(phrase, _)| super::sources::words(&lower, phrase).next().is_some());
            found.extend(phrases.map(|(phrase, rule)| (number, *phrase, *rule)));
        }
        if !found.is_empty() {
            all.insert(path.as_str(), found);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(files: &[(&str, &str)]) -> Vec<Source> {
        files.iter().map(|(path, text)| Source { path: (*path).into(), text: (*text).into() }).collect()
    }

    fn found(text: &str) -> Vec<(usize, &'static str)> {
        let texts = texts(&[("a.rs", text)]);
        let found = matches(&texts).remove("a.rs").unwrap_or_default();
        found.into_iter().map(|(line, pattern, _)| (line, pattern)).collect()
    }

    #[test]
    fn finds_patterns_as_whole_words() {
        assert_eq!(found("//! How it is.\n    /// Which one.\n"), [(1, "How"), (2, "Which")]);
        assert_eq!(
            found("// One in so many,\n// of which Nobody is told."),
            [(1, "so many"), (2, "of which"), (2, "told"), (2, "nobody")]
        );
        assert_eq!(found("/// However.\n// What.\n/// Says what.\nfn is_told() {}\n"), []);
    }

    #[test]
    fn skips_this_file_and_files_without_prose() {
        let text = "/// What is told.\n";
        assert!(matches(&texts(&[(OWN, text), ("a.json", text), ("b.txt", text)])).is_empty());
        assert_eq!(matches(&texts(&[("a.md", text)]))["a.md"].len(), 2);
    }

    #[test]
    fn compares_with_the_allowance() {
        let check = |rows: &str, text: &str| {
            let violations = check(&texts(&[(ALLOWANCE, rows), ("a.rs", text)]));
            violations.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(check("", "/// That.\n").is_empty());
        assert!(check("2\ta.rs\n", "/// What.\n// told\n").is_empty());
        let more = check("1\ta.rs\n", "/// What.\n// told\n");
        assert!(more[0].starts_with("a.rs:1: `What`: open a doc comment with"), "{more:?}");
        assert!(more[1].ends_with("(2 matches, 1 allowed by xtask/prose-allowance.txt)"), "{more:?}");
        let fewer = check("3\ta.rs\n1\tgone.rs\n", "// told\n");
        assert!(fewer[0].starts_with("a.rs: ") && fewer[0].contains("--shrink-prose"), "{fewer:?}");
        assert!(fewer[1].starts_with("gone.rs: "), "{fewer:?}");
        for rows in ["1 a.rs\n", "x\ta.rs\n", "1\tb.rs\n1\ta.rs\n", "1\ta.rs\n1\ta.rs\n", "1\ta.rs"] {
            assert!(check(rows, "// told\n")[0].contains("count<TAB>path"), "{rows:?}");
        }
    }

    #[test]
    fn shrinks_but_never_grows() {
        let allowed = parse("1\ta.rs\n5\tb.rs\n2\tc.rs\n").unwrap();
        let texts = texts(&[("a.rs", "// told\n// told\n"), ("b.rs", "// told\n"), ("new.rs", "// told\n")]);
        assert_eq!(format(&shrunk(allowed, &texts)), "1\ta.rs\n1\tb.rs\n");
    }
}
