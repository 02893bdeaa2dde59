//! Implements `cargo xtask nightly`, which runs all checks that take too long for each commit. If a part
//! fails, the remaining parts still run.
//!
//! Each part is a shell command, and this module knows only its exit status.

use crate::mutants;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Options of the nightly run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Options for `cargo xtask ci`, which is one of the parts.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    ci: Vec<String>,
}

/// Part of the nightly run. Its shell command can use `"$0"` for this program and `"$@"` for the options of
/// `ci`.
struct Part {
    command: String,
    /// Shell command that fails if a tool that the part needs is missing.
    needs: &'static str,
}

/// Name of each fuzz target, and its libFuzzer options. `-max_len` is the maximum input size in bytes.
const FUZZ_TARGETS: [(&str, &str); 6] = [
    ("gguf", "-max_len=40000 -dict=fuzz/gguf.dict"),
    ("safetensors", "-max_len=20000 -dict=fuzz/checkpoint.dict"),
    ("tokenizer", "-max_len=4000 -dict=fuzz/checkpoint.dict"),
    ("plan", "-max_len=4000"),
    ("chat", "-max_len=12000 -dict=fuzz/chat.dict"),
    ("conversation", "-max_len=4000 -dict=fuzz/chat.dict"),
];

/// Returns all parts of the nightly run, in order.
fn parts() -> Vec<Part> {
    let part = |command: &str, needs| Part { command: command.into(), needs };
    let mut parts = vec![
        part(r#"RAGTAG_TEST_ALL=1 "$0" ci "$@""#, "true"),
        part("RAGTAG_SIM_SEEDS=100000 cargo test -p ragtag-scheduler --lib --locked sim::tests", "true"),
        part(".ci/debian target/debian", "mmdebstrap --version"),
        part(
            ".ci/debian target/debian mesa-vulkan-drivers pocl-opencl-icd ocl-icd-libopencl1",
            "mmdebstrap --version",
        ),
    ];
    parts.extend(FUZZ_TARGETS.map(|(target, options)| {
        let corpus = format!("fuzz/corpus/{target}");
        let limits = "-max_total_time=600 -malloc_limit_mb=64";
        let run =
            format!("cargo +nightly fuzz run {target} {corpus} fuzz/seeds/{target} -- {limits} {options}");
        part(&format!("mkdir -p {corpus} && {run}"), "cargo +nightly fuzz --version")
    }));
    let mutants = mutants::areas().map(|area| format!(r#""$0" mutants --area {area}"#));
    parts.extend(mutants.map(|command| part(&command, "cargo mutants --version && cargo nextest --version")));
    parts
}

/// Runs all parts and prints their results.
///
/// # Errors
/// Returns an error if a part failed.
pub(crate) fn run(root: &Path, args: &Args) -> Result<(), String> {
    let xtask = std::env::current_exe().map_err(|e| e.to_string())?;
    let (table, failures) = run_parts(root, &parts(), &xtask, &args.ci);
    println!("== nightly\n{table}");
    if failures == 0 { Ok(()) } else { Err(format!("{failures} parts failed")) }
}

/// Runs `parts`. Returns a report with one line per part, and the number of failed parts.
fn run_parts(root: &Path, parts: &[Part], xtask: &Path, options: &[String]) -> (String, usize) {
    let shell = |command: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).arg(xtask).args(options).current_dir(root);
        shell
    };
    let succeeds = |mut command: Command| command.status().is_ok_and(|status| status.success());
    let (mut table, mut failures) = (String::new(), 0);
    for Part { command, needs } in parts {
        let mut probe = shell(needs);
        probe.stdout(Stdio::null()).stderr(Stdio::null());
        if !succeeds(probe) {
            table.push_str(&format!("SKIPPED  {command} (`{needs}` fails)\n"));
            continue;
        }
        println!("== {command}");
        let start = Instant::now();
        let passed = succeeds(shell(command));
        failures += usize::from(!passed);
        let minutes = start.elapsed().as_secs_f64() / 60.0;
        table.push_str(&format!(
            "{}  {command} ({minutes:.0} min)\n",
            if passed { "passed " } else { "FAILED " }
        ));
    }
    (table, failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_the_other_parts_after_a_failure_or_a_missing_tool() {
        let part = |command: &str, needs| Part { command: command.into(), needs };
        let parts =
            [part("false", "true"), part("true", "no-such-tool"), part(r#"test "$0 $*" = "x a b""#, "true")];
        let options = ["a".to_owned(), "b".to_owned()];
        let (table, failures) = run_parts(&crate::root(), &parts, Path::new("x"), &options);
        let starts: Vec<_> = table.lines().map(|line| &line[..13]).collect();
        assert_eq!((&starts[..], failures), (&["FAILED   fals", "SKIPPED  true", "passed   test"][..], 1));
    }
}
