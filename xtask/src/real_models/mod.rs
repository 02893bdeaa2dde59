//! Implements `cargo xtask real-models`, which compares Ragtag with llama.cpp and `transformers` on released models,
//! vocabularies and chat templates. `.ci/install-models` fetches them, and `tests/support/golden/released.py` has written
//! the expected values.
//!
//! Numbers come from the command, as users run it. A check that fails does not stop the others.

mod distributions;
mod models;
mod templates;
mod tokens;

use crate::checks::Done;
use crate::skips;
use clap::ValueEnum;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Folder of the released files, relative to the root.
const FOLDER: &str = "target/real-models";
/// Returns the path of SmolLM2, which may be missing.
pub(crate) fn smollm2(root: &Path) -> PathBuf {
    root.join(FOLDER).join("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Builds the command with the tests. Building it alone would compile dependencies again with other features.
pub(crate) const BUILD: [&str; 4] = ["test", "--workspace", "--locked", "--no-run"];
/// Folder of the expected values, relative to the root.
const GOLDEN: &str = "tests/support/golden/released";
/// Settings of `.ci/run` that let drivers compile without optimisation. Real models run longer than they compile.
const UNOPTIMISED: [&str; 3] = ["POCL_EXTRA_BUILD_FLAGS", "GALLIVM_PERF", "CL_CONFIG_LLVM_OPTIONS"];

/// Options of `cargo xtask real-models`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Subjects to check. Default: all.
    subjects: Vec<Subject>,
    /// Run the models only on these devices. Default: all devices of this machine, alone and in pipelines.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    device: Vec<String>,
    /// Command to check. Default: target/debug/ragtag, built with the tests.
    #[arg(long, value_name = "FILE")]
    ragtag: Option<PathBuf>,
}

/// Subject of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// SmolLM2 135M Instruct in Q4_1.
    Smollm2,
    /// Gemma 3 270M in Q4_K_M.
    Gemma3,
    /// Tokens of released vocabularies.
    Tokens,
    /// Released chat templates.
    Templates,
}

impl Subject {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Extent of the checks of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// All prompts on the CPU, and one prompt on the first device of each other API and in the pipelines.
    Commit,
    /// All prompts on all devices.
    Full,
}

/// Checked command, its files, and the checks that failed.
struct Checks<'a> {
    root: &'a Path,
    ragtag: PathBuf,
    failures: Vec<String>,
}

impl Checks<'_> {
    /// Returns a file of the expected values.
    fn golden<T: DeserializeOwned>(&self, name: &str) -> Result<T, String> {
        let path = self.root.join(GOLDEN).join(name);
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Returns the path of a released or temporary file.
    fn file(&self, name: &str) -> PathBuf {
        self.root.join(FOLDER).join(name)
    }

    /// Runs the command.
    fn output(&self, arguments: &[&str]) -> Result<Output, String> {
        let mut command = Command::new(&self.ragtag);
        UNOPTIMISED.iter().for_each(|variable| _ = command.env_remove(variable));
        let output = command.args(arguments).env("RAGTAG_CACHE_DIR", self.file("cache")).output();
        output.map_err(|e| format!("{}: {e}", self.ragtag.display()))
    }

    /// Runs the command and returns its standard output.
    ///
    /// # Errors
    /// Fails if the command fails.
    fn printed(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.output(arguments)?;
        if !output.status.success() {
            let line = arguments.join(" ");
            let line = line.get(..200).unwrap_or(&line);
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("`ragtag {line}` failed ({}): {}", output.status, said.trim_end()));
        }
        String::from_utf8(output.stdout).map_err(|e| e.to_string())
    }

    fn fail(&mut self, what: String) {
        println!("WRONG {what}");
        self.failures.push(what);
    }

    /// Records a failure unless `is_right`. A comparison with NaN is false, so NaN fails.
    fn expect(&mut self, is_right: bool, what: impl FnOnce() -> String) {
        if !is_right {
            self.fail(what());
        }
    }

    fn run(
        &mut self,
        subject: Subject,
        depth: Depth,
        devices: &[String],
        done: &mut Done,
    ) -> Result<(), String> {
        match subject {
            Subject::Smollm2 | Subject::Gemma3 => models::check(self, &subject.name(), depth, devices, done),
            Subject::Tokens => tokens::check(self),
            Subject::Templates => templates::check(self),
        }
    }
}

/// Fetches the files of `subjects` that are missing.
fn fetch(root: &Path, subjects: &[Subject]) -> Result<(), String> {
    let mut command = Command::new(root.join(".ci/install-models"));
    let names = subjects.iter().map(|subject| subject.name());
    let output = command.arg(root.join(FOLDER)).args(names).output();
    let output = output.map_err(|e| format!(".ci/install-models: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("cannot fetch the released files: {}", said.lines().last().unwrap_or_default()))
    }
}

/// Checks `subjects` and collects all failures.
fn check(
    root: &Path,
    subjects: &[Subject],
    depth: Depth,
    args: &Args,
    done: &mut Done,
) -> Result<(), String> {
    let built = Path::new("target/debug/ragtag").with_extension(std::env::consts::EXE_EXTENSION);
    if args.ragtag.is_none() {
        done.cargo(root, &BUILD, &[])?;
    }
    let ragtag = args.ragtag.clone().unwrap_or_else(|| root.join(built));
    let mut checks = Checks { root, ragtag, failures: Vec::new() };
    for subject in subjects {
        println!("== released models: {}", subject.name());
        if let Err(error) = checks.run(*subject, depth, &args.device, done) {
            checks.fail(format!("{}: {error}", subject.name()));
        }
    }
    match checks.failures.len() {
        0 => Ok(()),
        count => Err(format!("released models: {count} checks failed:\n  {}", checks.failures.join("\n  "))),
    }
}

/// Fetches the released files and checks all that `args` select.
///
/// # Errors
/// Fails if a file cannot be fetched, or if Ragtag computes other values than the references.
pub(crate) fn run(root: &Path, args: &Args) -> Result<(), String> {
    let subjects = if args.subjects.is_empty() { Subject::value_variants() } else { &args.subjects };
    fetch(root, subjects)?;
    let mut done = Done::default();
    let result = check(root, subjects, Depth::Full, args, &mut done);
    println!("== skips\n{}", skips::sum(&done.skips));
    result
}

/// Checks the smallest model, as part of each commit's checks. Skips it without the file.
///
/// # Errors
/// Fails if Ragtag computes other values than the references.
pub(crate) fn ci(root: &Path, done: &mut Done) -> Result<(), String> {
    if let Err(why) = fetch(root, &[Subject::Smollm2]) {
        done.skip("released models", "SmolLM2", &why);
        return Ok(());
    }
    let args = Args { subjects: Vec::new(), device: Vec::new(), ragtag: None };
    let mut skips = Done::default();
    done.timed("released models", || check(root, &[Subject::Smollm2], Depth::Commit, &args, &mut skips))?;
    done.skips.append(&mut skips.skips);
    Ok(())
}
