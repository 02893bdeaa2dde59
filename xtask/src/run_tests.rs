//! Runs the workspace's tests, then reports times, skips and failures.

use crate::checks::{Done, cargo};
use crate::skips;
use crate::timing::Run;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// File to which tests append their skips, relative to the root of the workspace.
const SKIPS: &str = "target/skips.txt";
/// Number of tests in the report's list of the slowest tests.
const SLOWEST: usize = 10;
/// Target whose tests may run beside the others. They take most of the time, and some of them wait.
const BESIDE: &str = "integration";
/// Minimum duration of a step with its own line in the report. Shorter steps share one line.
const SHORT: Duration = Duration::from_secs(1);

/// Options for skipped tests.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Fail if a skipped test is not in this list. Lines are `MISSING<TAB>PACKAGE<TAB>TEST`, sorted; `#`
    /// starts a comment.
    #[arg(long, value_name = "FILE")]
    skips: Option<PathBuf>,
    /// Write the skips of this run to this file, in the format of such a list.
    #[arg(long, value_name = "FILE")]
    write_skips: Option<PathBuf>,
    /// Whether the tests of [`BESIDE`] run at the same time as the others. On real devices, they would take each
    /// other's memory.
    #[arg(skip)]
    overlaps: bool,
    /// Tests that do not run, because they run for other commits.
    #[arg(skip)]
    others: Vec<&'static str>,
}

impl TestArgs {
    /// Runs the tests of [`BESIDE`] at the same time as the others, and leaves out the tests in `others`.
    pub(crate) fn overlapping(self, others: Vec<&'static str>) -> Self {
        Self { overlaps: true, others, ..self }
    }
}

/// Builds and runs all tests, then prints the report.
///
/// # Errors
/// Returns an error if a test failed, or if the list of allowed skips lacks a skipped test.
pub(crate) fn run(root: &Path, args: &TestArgs, mut done: Done) -> Result<(), String> {
    let mut names = BTreeMap::new();
    done.timed("building tests", || build(root, &mut names))?;
    let Done { mut times, mut skips } = done;
    let file = root.join(SKIPS);
    match std::fs::remove_file(&file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(format!("{}: {e}", file.display())),
        _ => {}
    }
    let (run, statuses) = all(root, &file, &names, args)?;
    times.extend(run.binaries.iter().map(|binary| (binary.end - binary.start, binary.name.clone())));

    let recorded = test_support::recorded(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    skips.extend(recorded);
    println!("== slowest tests\n{}", table(&run.tests(threads())[..], SLOWEST));
    times.sort_by(|a, b| b.cmp(a));
    let long = times.iter().take_while(|(time, _)| *time >= SHORT).count();
    println!("== parts\n{}", table(&times, long));
    println!("== skips\n{}", skips::sum(&skips));
    if !args.others.is_empty() {
        let (count, list) = (args.others.len(), args.others.join("\n  "));
        println!("{count} long tests run for other commits, and if RAGTAG_TEST_ALL is set:\n  {list}\n");
    }
    if let Some(to) = &args.write_skips {
        std::fs::write(to, skips::list(&skips)).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    let allow = |list: &PathBuf| skips::check(&skips, list, &args.others);
    let allowed = args.skips.as_ref().map_or(Ok(String::new()), allow);
    verdict(&run, &statuses, allowed)
}

/// Runs all tests, in one or two cargo commands at a time. Returns the results, and the exit status of each
/// command.
fn all(
    root: &Path,
    skips: &Path,
    names: &BTreeMap<String, String>,
    args: &TestArgs,
) -> Result<(Run, Vec<ExitStatus>), String> {
    let start = Instant::now();
    let one = |arguments: &[String]| -> Result<(Run, ExitStatus), String> {
        let mut run = Run::default();
        let status = stream(root, skips, arguments, |line| run.line(line, start.elapsed(), names))?;
        Ok((run, status))
    };
    let lanes = if args.overlaps { lanes(names.values(), &args.others) } else { vec![vec![Vec::new()]] };
    let in_turn = |lane: &Vec<Vec<String>>| lane.iter().map(|arguments| one(arguments)).collect::<Vec<_>>();
    let done: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = lanes.iter().map(|lane| scope.spawn(|| in_turn(lane))).collect();
        let ended = |lane: std::thread::ScopedJoinHandle<'_, _>| lane.join().expect("a lane does not panic");
        running.into_iter().flat_map(ended).collect()
    });
    let (mut run, mut statuses) = (Run::default(), Vec::new());
    for part in done {
        let (part, status) = part?;
        run.add(part);
        statuses.push(status);
    }
    Ok((run, statuses))
}

/// Divides the tests into two lanes of cargo commands and returns the arguments of each command. `names` are the
/// packages and targets of all test binaries. The commands leave out the tests in `skipped`.
fn lanes<'a>(names: impl Iterator<Item = &'a String>, skipped: &[&str]) -> Vec<Vec<Vec<String>>> {
    let target = |name: &'a String| name.split_once(" test ").map(|(_, target)| target);
    let others: BTreeSet<_> = names.filter_map(target).filter(|name| *name != BESIDE).collect();
    let mut second: Vec<_> = others.into_iter().flat_map(|name| ["--test", name]).collect();
    second.extend(["--lib", "--bins"]);
    let skips: Vec<_> = skipped.iter().flat_map(|name| ["--skip", name]).collect();
    let owned = |arguments: &[&[&str]]| arguments.concat().into_iter().map(String::from).collect();
    let without = |targets: &[&str]| owned(&[targets, &["--", "--exact"], &skips]);
    vec![vec![without(&["--test", BESIDE])], vec![without(&second), owned(&[&["--doc"]])]]
}

/// Prints notes on allowed skips that did not happen. If tests failed or the list does not allow a skip,
/// returns one error that names them all.
fn verdict(run: &Run, statuses: &[ExitStatus], allowed: Result<String, String>) -> Result<(), String> {
    let mut errors = Vec::new();
    if let Some(status) = statuses.iter().find(|status| !status.success()) {
        let lines = |names: &[String]| names.iter().map(|name| format!("\n  {name}")).collect::<String>();
        let binaries = lines(&run.failed_binaries);
        errors.push(format!("tests failed ({status}):{binaries}\nthese tests:{}", lines(&run.failed)));
    }
    match allowed {
        Ok(notes) => print!("{notes}"),
        Err(error) => errors.push(error),
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// Formats the first `count` entries of `times`, one per line, and the sum of the remaining ones.
fn table(times: &[(Duration, String)], count: usize) -> String {
    let (first, others) = times.split_at(count.min(times.len()));
    let line = |time: Duration, name: &str| format!("{:8.1} s  {name}\n", time.as_secs_f64());
    let mut text: String = first.iter().map(|(time, name)| line(*time, name)).collect();
    if !others.is_empty() {
        let sum = others.iter().map(|(time, _)| *time).sum();
        text.push_str(&line(sum, &format!("all {} others", others.len())));
    }
    text
}

/// Returns the number of threads on which libtest runs tests.
fn threads() -> usize {
    let set = std::env::var("RUST_TEST_THREADS").ok().and_then(|threads| threads.parse().ok());
    set.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1)
}

/// Returns a `cargo test` command for all crates of the workspace.
fn cargo_test(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.args(["test", "--workspace", "--locked"]).args(arguments).current_dir(root);
    command
}

/// Compiles the tests. Adds the package and target of each test binary to `names`, under the binary's file
/// name.
fn build(root: &Path, names: &mut BTreeMap<String, String>) -> Result<(), String> {
    let arguments = ["--no-run", "--message-format=json-render-diagnostics"];
    let output = cargo_test(root, &arguments).stderr(Stdio::inherit()).output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!("cannot compile the tests ({})", output.status));
    }
    for line in output.stdout.lines() {
        let line = line.map_err(|e| e.to_string())?;
        let message: serde_json::Value = serde_json::from_str(&line).map_err(|e| format!("{e}: {line}"))?;
        let (Some(file), target) = (message["executable"].as_str(), &message["target"]) else { continue };
        let file = Path::new(file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let package = manifest.parent().and_then(|folder| folder.strip_prefix(root).ok());
        let package = package.filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("ragtag"));
        let [kind, name] = [&target["kind"][0], &target["name"]].map(|v| v.as_str().unwrap_or_default());
        names.insert(file, format!("{} {kind} {name}", package.display()));
    }
    Ok(())
}

/// Runs the tests that `arguments` select, even after a failure. Prints each line of the output as it arrives, and
/// passes the line to `line`.
fn stream(
    root: &Path,
    skips: &Path,
    arguments: &[String],
    mut line: impl FnMut(&str),
) -> Result<ExitStatus, String> {
    let mut command = cargo_test(root, &["--no-fail-fast", "--color=never"]);
    command.args(arguments);
    // The report lists the tests that the arguments after `--` leave out.
    let targets = arguments.split(|argument| argument == "--").next().unwrap_or_default();
    println!("== cargo test --workspace --locked --no-fail-fast {}", targets.join(" "));
    // Both streams share one pipe, so that cargo's lines stay in order with libtest's.
    let (reader, writer) = std::io::pipe().map_err(|e| e.to_string())?;
    command.stdout(writer.try_clone().map_err(|e| e.to_string())?).stderr(writer);
    let mut child = command.env("RAGTAG_TEST_SKIPS", skips).spawn().map_err(|e| e.to_string())?;
    // The command holds the write ends, which would keep the pipe open.
    drop(command);
    for text in BufReader::new(reader).split(b'\n') {
        let text = text.map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        line(&text);
    }
    child.wait().map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_is_in_one_lane() {
        let names = [
            "ragtag lib ragtag",
            "ragtag test integration",
            "kernels test cpu",
            "conformance lib ragtag_conformance",
            "conformance test cpu",
            "conformance test hip",
            "xtask bin xtask",
        ];
        let lanes = lanes(names.map(String::from).iter(), &["gpus::a", "b"]);
        let said: Vec<Vec<String>> =
            lanes.iter().map(|lane| lane.iter().map(|args| args.join(" ")).collect()).collect();
        let [first, second] = ["--test integration", "--test cpu --test hip --lib --bins"]
            .map(|targets| format!("{targets} -- --exact --skip gpus::a --skip b"));
        assert_eq!(said, [vec![&*first], vec![&*second, "--doc"]]);
    }
}
