//! Checks the project's own rules about its source tree, which neither the compiler nor clippy checks.
//!
//! Each rule is a pure function from texts to violations, with its own tests. This module reads the tree and
//! runs the rules.

mod barriers;
mod imports;
mod manifests;
mod prose;
mod sources;

use std::fmt;
use std::path::Path;
use std::process::Command;

/// Maximum total size of all tracked files, in bytes.
const TREE_BYTES: u64 = 32 << 20;

/// Place in the tree that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Path of the file, relative to the root.
    path: String,
    /// Line number from 1, or 0 for the file as a whole.
    line: usize,
    /// Description of the defect and the fix.
    what: String,
}

impl Violation {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// Text file of the tree.
#[derive(Debug)]
struct TextFile {
    path: String,
    text: String,
}

/// Runs every rule over the tree. Returns an error if a rule is broken.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let paths = tracked(root)?;
    let (bytes, texts) = read(root, &paths)?;
    let mut violations: Vec<_> = tree_size(bytes).into_iter().collect();
    for source in &texts {
        violations.extend(sources::machine_paths(source));
        violations.extend(prose::check(source));
        if source.path.ends_with(".rs") {
            violations.extend(sources::check(source));
        }
    }
    violations.extend(barriers::check(&texts));
    let manifest = |source: &&TextFile| source.path == "Cargo.toml" || source.path.ends_with("/Cargo.toml");
    let manifests: Vec<_> = texts.iter().filter(manifest).collect();
    violations.extend(manifests::check(&manifests));
    violations.extend(imports::check(&edges(root)?));
    for violation in &violations {
        eprintln!("{violation}");
    }
    match violations.len() {
        0 => {
            println!("tidy: {} files, {:.1} MiB", paths.len(), bytes as f64 / f64::from(1 << 20));
            Ok(())
        }
        1 => Err("tidy found a violation".into()),
        n => Err(format!("tidy found {n} violations")),
    }
}

fn tree_size(bytes: u64) -> Option<Violation> {
    let what = format!("the tracked files have {bytes} bytes in total; {TREE_BYTES} are allowed");
    (bytes > TREE_BYTES).then(|| Violation::new(".", 0, what))
}

/// Returns the paths of all tracked files, and of the untracked files that git does not ignore.
fn tracked(root: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("git ls-files: {e}"))?;
    if !output.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let list = String::from_utf8(output.stdout).map_err(|_| "a path is not UTF-8")?;
    let mut paths: Vec<String> = list.split('\0').filter(|p| !p.is_empty()).map(Into::into).collect();
    paths.sort_unstable();
    paths.dedup();
    // Skip files that are deleted but still in the index.
    paths.retain(|path| root.join(path).is_file());
    if paths.is_empty() {
        return Err("git lists no file".into());
    }
    Ok(paths)
}

/// Reads all files. Returns their total size in bytes, and the texts of the files that are valid UTF-8. A link counts
/// with the length of its target's path.
fn read(root: &Path, paths: &[String]) -> Result<(u64, Vec<TextFile>), String> {
    let (mut bytes, mut texts) = (0, Vec::new());
    for path in paths {
        let failed = |cause: std::io::Error| format!("{path}: {cause}");
        let found = std::fs::symlink_metadata(root.join(path)).map_err(failed)?;
        if found.is_symlink() {
            bytes += found.len();
            continue;
        }
        let content = std::fs::read(root.join(path)).map_err(failed)?;
        bytes += content.len() as u64;
        if let Ok(text) = String::from_utf8(content) {
            texts.push(TextFile { path: path.clone(), text });
        }
    }
    Ok((bytes, texts))
}

/// Returns the dependencies between crates of the workspace, from `cargo metadata`.
fn edges(root: &Path) -> Result<Vec<imports::Edge>, String> {
    let mut edges = Vec::new();
    for package in crate::metadata::read(root)?.packages {
        for dependency in package.dependencies.into_iter().filter(|d| d.path.is_some()) {
            let tests_only = dependency.kind.as_deref() == Some("dev");
            edges.push(imports::Edge { from: package.name.clone(), to: dependency.name, tests_only });
        }
    }
    Ok(edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_the_tree_is_bounded() {
        assert_eq!(tree_size(TREE_BYTES), None);
        assert!(tree_size(TREE_BYTES + 1).is_some_and(|v| v.what.contains("allowed")));
    }

    #[test]
    fn violations_name_path_and_line() {
        assert_eq!(Violation::new("a.rs", 3, "wrong").to_string(), "a.rs:3: wrong");
        assert_eq!(Violation::new("a.rs", 0, "wrong").to_string(), "a.rs: wrong");
    }

    #[test]
    fn cargo_and_git_answer() {
        let root = crate::root();
        let edges = edges(&root).expect("cargo metadata");
        assert!(edges.iter().any(|e| e.from == "ragtag-kernels" && e.to == "ragtag-hal" && !e.tests_only));
        let paths = tracked(&root).expect("git ls-files");
        assert!(paths.iter().any(|p| p == "xtask/src/tidy/mod.rs"));
        assert!(!paths.iter().any(|p| p.starts_with("target/")));
    }
}
