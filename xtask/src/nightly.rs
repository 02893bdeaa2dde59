//! Implements `cargo xtask nightly`, which runs the checks that take too long for each commit, in named parts. If a
//! part fails, the remaining parts still run.
//!
//! Each part is a shell script, and this module knows only its exit status. A passed part is recorded with its
//! commit, so that a later run of the same commit skips it.

use crate::mutants::git;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Text of the parts.
const PARTS: &str = include_str!("../../.ci/parts");
/// Folder with one folder per commit, which contains one empty file per passed part. Relative to the root.
const PASSED: &str = "target/nightly";

/// Options of the nightly run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Parts to run. Default: all.
    parts: Vec<String>,
    /// Print the parts instead of running them.
    #[arg(long)]
    list: bool,
    /// Also run parts that have passed for this commit.
    #[arg(long)]
    again: bool,
}

/// Part of the nightly run.
struct Part<'a> {
    name: &'a str,
    about: &'a str,
    /// Shell command that fails if a tool that the part needs is missing.
    needs: &'a str,
    /// Shell script. `"$0"` runs this program.
    script: String,
}

/// Parses parts, in the format that [`PARTS`] describes.
fn parse(text: &str) -> Result<Vec<Part<'_>>, String> {
    let paragraphs = text.split("\n\n").filter(|part| !part.starts_with('#'));
    let part = |paragraph| {
        let mut lines = str::lines(paragraph).peekable();
        let (name, about) =
            lines.next().and_then(|line| line.split_once(": ")).ok_or(format!("no name: {paragraph}"))?;
        let needs = lines.next_if(|line| line.starts_with("needs ")).map_or("true", |line| &line[6..]);
        Ok(Part { name, about, needs, script: lines.collect::<Vec<_>>().join("\n") })
    };
    paragraphs.map(part).collect()
}

/// Runs the parts that `args` names and prints their results.
///
/// # Errors
/// Returns an error if a part failed, or if there is no such part.
pub(crate) fn run(root: &Path, args: &Args) -> Result<(), String> {
    let mut parts = parse(PARTS)?;
    if args.list {
        parts.iter().for_each(|part| println!("{:20} {}", part.name, part.about));
        return Ok(());
    }
    if let Some(name) = args.parts.iter().find(|name| !parts.iter().any(|part| part.name == **name)) {
        return Err(format!("no part {name}; `cargo xtask nightly --list` prints all parts"));
    }
    parts.retain(|part| args.parts.is_empty() || args.parts.iter().any(|name| part.name == name));
    let passed = passed(root);
    let xtask = std::env::current_exe().map_err(|e| e.to_string())?;
    let (table, failures) = run_parts(root, &parts, &xtask, passed.as_deref(), args.again)?;
    println!("== nightly\n{table}");
    if failures == 0 { Ok(()) } else { Err(format!("{failures} parts failed")) }
}

/// Returns the folder that records the passed parts of this commit, or `None` if the tree differs from its commit.
fn passed(root: &Path) -> Option<PathBuf> {
    let commit = git(root, &["rev-parse", "HEAD"]).ok()?;
    if !git(root, &["status", "--porcelain"]).is_ok_and(|changes| changes.is_empty()) {
        println!("the tree differs from its commit, so this run neither skips nor records parts");
        return None;
    }
    Some(root.join(PASSED).join(commit))
}

/// Runs `parts`, except those that `passed` records unless they are to run `again`. Returns a report with one line per
/// part, and the number of failed parts.
fn run_parts(
    root: &Path,
    parts: &[Part<'_>],
    xtask: &Path,
    passed: Option<&Path>,
    again: bool,
) -> Result<(String, usize), String> {
    let shell = |script: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-euo", "pipefail", "-c", script]).arg(xtask).current_dir(root);
        shell
    };
    let succeeds = |mut command: Command| command.status().is_ok_and(|status| status.success());
    let (mut table, mut failures) = (String::new(), 0);
    for Part { name, script, needs, .. } in parts {
        let record = passed.map(|folder| folder.join(name));
        if !again && record.as_ref().is_some_and(|file| file.exists()) {
            table.push_str(&format!("passed before  {name}\n"));
            continue;
        }
        let mut probe = shell(needs);
        probe.stdout(Stdio::null()).stderr(Stdio::null());
        if !succeeds(probe) {
            table.push_str(&format!("SKIPPED        {name} (`{needs}` fails)\n"));
            continue;
        }
        println!("== nightly {name}\n{script}");
        let start = Instant::now();
        let result = if succeeds(shell(script)) { "passed" } else { "FAILED" };
        let minutes = start.elapsed().as_secs_f64() / 60.0;
        println!("== nightly {name}: {result} in {minutes:.0} min");
        table.push_str(&format!("{result}         {name} ({minutes:.0} min)\n"));
        failures += usize::from(result == "FAILED");
        if let (Some(file), "passed") = (record, result) {
            let folder = file.parent().unwrap_or(root);
            let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&file, ""));
            written.map_err(|e| format!("{}: {e}", file.display()))?;
        }
    }
    Ok((table, failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(passed: &Path, again: bool) -> (Vec<String>, usize) {
        let text = "a: fails\nfalse\ntrue\n\nb: has no tool\nneeds no-such-tool\ntrue\n\nc: passes\ntest \"$0\" = x\n";
        let parts = parse(text).unwrap();
        let (table, failures) =
            run_parts(&crate::root(), &parts, Path::new("x"), Some(passed), again).unwrap();
        let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
        let start =
            |line| words(line).into_iter().take_while(|word| !word.starts_with('(')).collect::<Vec<_>>();
        (table.lines().map(|line| start(line).join(" ")).collect(), failures)
    }

    #[test]
    fn runs_the_other_parts_after_a_failure_and_passed_parts_only_again() {
        let folder = std::env::temp_dir().join(format!("nightly-{}", std::process::id()));
        let runs = [false, false, true].map(|again| starts(&folder, again));
        std::fs::remove_dir_all(&folder).unwrap();
        let expected = |last: &str| (["FAILED a", "SKIPPED b", last].map(String::from).to_vec(), 1);
        assert_eq!(runs, [expected("passed c"), expected("passed before c"), expected("passed c")]);
    }

    #[test]
    fn parts_have_scripts_and_names_of_their_own() {
        let parts = parse(PARTS).unwrap();
        let names: std::collections::BTreeSet<_> = parts.iter().map(|part| part.name).collect();
        assert!(names.len() == parts.len() && parts.iter().all(|part| !part.script.is_empty()));
        for part in parts {
            let checked = Command::new("bash").args(["-n", "-c", &part.script]).status().unwrap();
            assert!(checked.success(), "{}", part.name);
        }
        assert!(parse("no name").is_err());
    }
}
