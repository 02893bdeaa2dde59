//! Checks which dependencies a build of the command and a build of the library compile, and with which features.

use crate::checks::cargo;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Crates that only the command and its pictures need.
const OF_COMMAND: [&str; 7] =
    ["clap", "clap_complete", "comfy-table", "indicatif", "maud", "rustyline", "tracing-subscriber"];
/// All backends, without the command.
const BACKENDS: &str = "cpu,cuda,hip,level-zero,opencl,vulkan,wgpu";

/// Checks both.
///
/// # Errors
/// Returns an error that names the crates.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    for library in ["ragtag-engine", "ragtag"] {
        without_command(root, &["-p", library, "--no-default-features", "--features", BACKENDS])?;
    }
    let changed = changed(&tree(root, "normal,build", &[])?, &tree(root, "normal,build,dev", &[])?);
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "examples and tests compile these crates of the command again, with more features: {}. Enable the features in \
         Cargo.toml, beside those of getrandom.",
        changed.join("; ")
    ))
}

/// Checks that the build with `arguments` compiles no crate that only the command needs.
///
/// # Errors
/// Returns an error that names the crates.
pub(crate) fn without_command(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let extra = of_command(&tree(root, "normal", arguments)?);
    match extra.is_empty() {
        true => Ok(()),
        false => Err(format!("a build with {} compiles {}", arguments.join(" "), extra.join(", "))),
    }
}

/// Returns the crates that a build compiles, each with its version and its features.
fn tree(root: &Path, edges: &str, arguments: &[&str]) -> Result<BTreeSet<String>, String> {
    let fixed = [
        "tree",
        "--locked",
        "--offline",
        "--no-dedupe",
        "--prefix=none",
        "--format={p} {f}",
        "--edges",
        edges,
    ];
    let output = Command::new(cargo()).args(fixed).args(arguments).current_dir(root).output();
    let output = output.map_err(|e| format!("cargo tree: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Returns the crates of `tree` that only the command may need.
fn of_command(tree: &BTreeSet<String>) -> Vec<String> {
    let names = tree.iter().filter_map(|line| line.split(' ').next());
    names.filter(|name| OF_COMMAND.contains(name)).map(str::to_owned).collect()
}

/// Returns the crates that both builds compile, with the features that only one of them enables.
fn changed(command: &BTreeSet<String>, tests: &BTreeSet<String>) -> Vec<String> {
    command.difference(tests).map(|line| line.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> BTreeSet<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn crates_of_the_command_and_changed_features_are_found() {
        let tree = lines(&["ragtag v0.1.0 (/x) cpu", "clap v4.5.0 derive", "clapper v1.0.0 "]);
        assert_eq!(of_command(&tree), ["clap"]);
        let tests =
            lines(&["ragtag v0.1.0 (/x) cpu", "clap v4.5.0 derive,env", "clapper v1.0.0 ", "new v1.0.0 "]);
        assert_eq!(changed(&tree, &tests), ["clap v4.5.0 derive"]);
    }
}
