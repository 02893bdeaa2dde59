//! Runs seeded samples of the mutants that cargo-mutants generates. Checks that the tests of an area detect
//! each mutant.
//!
//! A mutant survives if no test fails on it. The task fails if docs/mutants.md does not accept a surviving
//! mutant and give the reason.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Options of `cargo xtask mutants`.
#[derive(clap::Args)]
pub struct Args {
    /// Area of the code to change.
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(areas()))]
    area: String,
    /// Seed that selects the sample.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of mutants to try.
    #[arg(long, default_value_t = 50)]
    sample: usize,
}

/// Area of the code, with the tests that should detect its mutants.
struct Area {
    name: &'static str,
    /// Globs that match the area's source files.
    files: &'static [&'static str],
    /// Package that contains the tests to run.
    package: &'static str,
    /// Cargo arguments that select test targets of the package.
    targets: &'static [&'static str],
    /// Arguments of the test binaries that select which tests run.
    filter: &'static [&'static str],
    /// Optimisation level of the package. It is 0, unless an optimised build saves more test time than it
    /// costs in compile time.
    level: u8,
}

const LIB: &[&str] = &["--lib"];
/// Filter that skips the tokenizer tests and the tests of randomly damaged files. These take most of the test
/// time.
const WITHOUT_TEXTS: &[&str] = &["--skip", "tokenizer::", "--skip", "hostile::any_change"];
/// Filter that skips the slow tests of models.
const WITHOUT_MODELS: &[&str] = &["--skip", "checkpoint::", "--skip", "compile::", "--skip", "segment::"];

const AREAS: [Area; 9] = [
    Area {
        name: "scheduler-core",
        files: &["scheduler/src/core/**"],
        package: "ragtag-scheduler",
        targets: LIB,
        // Skips a test that depends on the clock, and the slow tests of simulated plans.
        filter: &["core::", "sim::tests::", "--skip", "a_long_queue"],
        level: 0,
    },
    Area {
        name: "planner",
        // All files except `trial.rs`.
        files: &["planner/src/search/[!t]*", "planner/src/search/problem/**", "planner/src/search/solver/**"],
        package: "ragtag-planner",
        targets: LIB,
        filter: &["search::"],
        level: 1,
    },
    Area {
        name: "planner-trials",
        files: &["planner/src/search/trial.rs"],
        package: "ragtag-scheduler",
        targets: &["--test=trials"],
        filter: &[],
        level: 1,
    },
    Area {
        name: "transfer",
        files: &["transfer/src/**"],
        package: "ragtag-transfer",
        targets: &["--lib", "--test=staged"],
        filter: &[],
        level: 0,
    },
    Area {
        name: "hal-checked",
        files: &["devices/hal/src/checked.rs", "devices/hal/src/checked/**"],
        package: "ragtag-hal",
        targets: LIB,
        filter: &["checked::"],
        level: 0,
    },
    Area {
        name: "graph-arch",
        files: &["graph/src/arch/**"],
        package: "ragtag-graph",
        targets: &["--lib", "--test=snapshots"],
        filter: WITHOUT_TEXTS,
        level: 0,
    },
    Area {
        name: "graph-compile",
        files: &["graph/src/compile/**", "graph/src/ops/**"],
        package: "ragtag-graph",
        targets: &["--lib", "--test=snapshots"],
        filter: WITHOUT_TEXTS,
        level: 0,
    },
    Area {
        name: "graph-tokenizer",
        files: &["graph/src/tokenizer/**"],
        package: "ragtag-graph",
        targets: &["--lib", "--test=byte_level", "--test=directory"],
        filter: WITHOUT_MODELS,
        level: 0,
    },
    Area {
        name: "cpu-kernels",
        files: &["kernels/src/cpu/**"],
        package: "ragtag-kernels",
        targets: &["--test=cpu"],
        filter: &[],
        level: 1,
    },
];

/// Source files to exclude, because their code runs only on other CI machines.
const ELSEWHERE: [&str; 2] = ["kernels/src/cpu/neon.rs", "kernels/src/cpu/avx512.rs"];

/// Environment variables that reduce the time per mutant. They disable debug information, enable incremental
/// builds and reduce the number of simulated seeds.
const CHEAP: [(&str, &str); 3] =
    [("CARGO_PROFILE_DEV_DEBUG", "none"), ("CARGO_INCREMENTAL", "1"), ("RAGTAG_SIM_SEEDS", "100")];

/// Time limit for the tests of a mutant, in seconds. If the tests take longer, the mutant counts as caught.
const TIMEOUT_S: &str = "300";

/// Page that lists the accepted survivors.
const ACCEPTED: &str = "docs/mutants.md";

/// Returns the names of all areas.
fn areas() -> impl Iterator<Item = &'static str> {
    AREAS.iter().map(|area| area.name)
}

/// Tests a sample of an area's mutants and prints the mutants that survive.
///
/// # Errors
/// Returns an error if [`ACCEPTED`] does not list a surviving mutant. Also returns an error if cargo-mutants
/// is missing or fails.
pub fn run(root: &Path, args: &Args) -> Result<(), String> {
    let area = AREAS.iter().find(|area| area.name == args.area).ok_or("no such area")?;
    let listed = std::fs::read_to_string(root.join(ACCEPTED)).map_err(|e| format!("{ACCEPTED}: {e}"))?;
    let accepted = accepted(&listed)?;
    let tree = tree(root)?;
    let all = list(&tree, area)?;
    let order = shuffled(&all, args.seed);
    let (chosen, left_out) = order.split_at(args.sample.min(order.len()));
    println!("{}: {} of {} mutants, seed {}", area.name, chosen.len(), all.len(), args.seed);
    let results = root.join("target/mutants").join(area.name);
    try_out(root, &tree, area, left_out, &results)?;
    let outcome = |name: &str| -> Result<Vec<String>, String> {
        let path = results.join("mutants.out").join(name);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    let (caught, missed) = (outcome("caught.txt")?.len(), outcome("missed.txt")?);
    let (unviable, timeouts) = (outcome("unviable.txt")?.len(), outcome("timeout.txt")?.len());
    // A hanging test counts as a failed test.
    let (noticed, viable) = (caught + timeouts, caught + timeouts + missed.len());
    let share = 100.0 * noticed as f64 / viable.max(1) as f64;
    println!("caught {caught}, missed {}, timeouts {timeouts}, unviable {unviable}", missed.len());
    println!("{share:.0} % of the {viable} that compile were noticed");
    let mut unlisted = 0;
    for mutant in &missed {
        let reason = accepted.get(&*without_position(mutant));
        unlisted += usize::from(reason.is_none());
        println!("survived: {mutant} ({})", reason.unwrap_or(&"not accepted"));
    }
    match unlisted {
        0 => Ok(()),
        _ => Err(format!(
            "{unlisted} survivors: write tests for them, or list them in {ACCEPTED} with a reason"
        )),
    }
}

/// Creates a git work tree with the current commit and all changes of tracked files. Its path is fixed, so
/// that cargo rebuilds only mutated crates.
fn tree(root: &Path) -> Result<PathBuf, String> {
    let tree = root.join("target/mutants/tree");
    let changed = git(root, &["stash", "create"])?;
    let commit = if changed.is_empty() { git(root, &["rev-parse", "HEAD"])? } else { changed };
    if !tree.exists() {
        git(root, &["worktree", "add", "--force", "--detach", &tree.to_string_lossy(), &commit])?;
    }
    git(&tree, &["reset", "--hard", &commit])?;
    // Failed tests leave files, such as seeds of proptest.
    git(&tree, &["clean", "-fdq"])?;
    Ok(tree)
}

/// Runs git and returns its output.
pub(crate) fn git(folder: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").current_dir(folder).args(args).stderr(Stdio::inherit()).output();
    let Output { status, stdout, .. } = output.map_err(|e| format!("cannot start git: {e}"))?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&stdout).trim().to_owned()),
        false => Err(format!("git {} failed", args.join(" "))),
    }
}

/// Returns a cargo-mutants command that is restricted to the area's files.
fn mutants(tree: &Path, area: &Area) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(tree).args(["mutants", "--workspace", "--colors", "never"]);
    command.args(area.files.iter().flat_map(|glob| ["--file", glob]));
    command.args(ELSEWHERE.iter().flat_map(|glob| ["--exclude", glob]));
    command
}

/// Returns the names of all mutants of an area.
fn list(tree: &Path, area: &Area) -> Result<Vec<String>, String> {
    let output = mutants(tree, area).arg("--list").stderr(Stdio::piped()).output();
    let Output { status, stdout, stderr } = output.map_err(|e| format!("cannot start cargo: {e}"))?;
    let complaint = String::from_utf8_lossy(&stderr);
    if complaint.contains("no such command") {
        return Err("cargo-mutants is not installed: cargo install cargo-mutants --locked".into());
    }
    if !status.success() {
        return Err(format!("cargo mutants --list failed: {complaint}"));
    }
    Ok(String::from_utf8_lossy(&stdout).lines().map(str::to_owned).collect())
}

/// Returns all mutants, sorted by a hash of the seed and the mutant's name.
fn shuffled(all: &[String], seed: u64) -> Vec<&str> {
    let rank = |mutant: &&str| {
        let mut hasher = DefaultHasher::new();
        (seed, *mutant).hash(&mut hasher);
        hasher.finish()
    };
    let mut order: Vec<&str> = all.iter().map(String::as_str).collect();
    order.sort_by_cached_key(rank);
    order
}

/// Builds and tests each mutant of an area, except those in `left_out`. Keeps the build directory for the
/// next run.
fn try_out(root: &Path, tree: &Path, area: &Area, left_out: &[&str], results: &Path) -> Result<(), String> {
    // cargo-mutants skips the mutants in this file. Name patterns cannot exclude mutants that delete fields.
    let output = results.join("mutants.out");
    let _ = std::fs::remove_dir_all(&output);
    std::fs::create_dir_all(&output).map_err(|e| format!("{}: {e}", output.display()))?;
    let previous = output.join("previously_caught.txt");
    std::fs::write(&previous, left_out.join("\n")).map_err(|e| format!("{}: {e}", previous.display()))?;
    let mut command = mutants(tree, area);
    command.env("CARGO_TARGET_DIR", root.join("target/mutants")).envs(CHEAP);
    command.args(["--in-place", "--iterate", "--output"]).arg(results);
    // Nextest stops at the first failed test.
    command.args(["--test-tool", "nextest", "--test-package", area.package, "--timeout", TIMEOUT_S]);
    // These arguments also apply to building. Arguments after `--` only apply to testing.
    command
        .arg("--cargo-arg=--locked")
        .args(area.targets.iter().map(|target| format!("--cargo-arg={target}")));
    let Area { package, level, .. } = area;
    // Unoptimised kernels are fast enough unless the area is the kernels. With many codegen units, a mutant
    // recompiles only one of them.
    for setting in [
        "ragtag-kernels.opt-level=0",
        &format!("{package}.opt-level={level}"),
        &format!("{package}.codegen-units=256"),
    ] {
        command.arg(format!("--cargo-arg=--config=profile.dev.package.{setting}"));
    }
    command.args(["--", "--"]).args(area.filter);
    let status = command.status().map_err(|e| format!("cannot start cargo: {e}"))?;
    match status.code() {
        // The codes mean, in this order, that all mutants were caught, that some survived, and that some
        // timed out.
        Some(0 | 2 | 3) => Ok(()),
        _ => Err(format!("cargo mutants failed ({status}); {} has its logs", results.display())),
    }
}

/// Returns the name of `mutant` without its line and column, so that the name stays valid when code moves.
/// `mutant` has the form `file:line:column: change`.
fn without_position(mutant: &str) -> String {
    let mut parts = mutant.splitn(4, ':');
    match [parts.next(), parts.next(), parts.next(), parts.next()] {
        [Some(file), Some(_), Some(_), Some(change)] => format!("{file}:{change}"),
        _ => mutant.to_owned(),
    }
}

/// Parses the accepted mutants in `page`. Returns the reason for each mutant. A line has the form "-
/// `mutant`: reason".
fn accepted(page: &str) -> Result<BTreeMap<&str, &str>, String> {
    let entry = |line| {
        let (mutant, reason): (&str, &str) =
            str::split_once(line, "`: ").ok_or_else(|| format!("{ACCEPTED}: no reason for {line}"))?;
        Ok((mutant, reason))
    };
    page.lines().filter_map(|line| line.strip_prefix("- `")).map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_depends_on_its_seed_alone() {
        let all: Vec<String> = (0..200).map(|n| format!("mutant {n}")).collect();
        let order = shuffled(&all, 7);
        let reversed: Vec<String> = all.iter().rev().cloned().collect();
        assert_eq!(order, shuffled(&reversed, 7));
        assert_ne!(order[..50], shuffled(&all, 8)[..50]);
        assert_eq!(order.iter().collect::<std::collections::BTreeSet<_>>().len(), 200);
    }

    #[test]
    fn accepted_mutants_are_found_wherever_their_line_is() {
        let page = "# Title\n- `a/b.rs: replace || with && in f`: Both are the same.\n";
        let found = accepted(page).unwrap();
        let name = without_position("a/b.rs:12:34: replace || with && in f");
        assert_eq!(found.get(&*name), Some(&"Both are the same."));
        assert!(!found.contains_key(&*without_position("a/b.rs:12:34: replace || with && in g")));
        assert!(accepted("- `a/b.rs: replace f with ()`\n").unwrap_err().contains("no reason"));
    }
}
