//! Checks rules about manifests (Cargo.toml). Crates must inherit the workspace's lints, a comment must
//! justify every dependency, and every published package must have the keys that describe it.
//!
//! Reads manifests line by line as text. The module `imports` uses the output of `cargo metadata` instead.

use super::{TextFile, Violation};

/// Manifests of crates that cargo-fuzz requires to be outside the workspace.
const OUTSIDE: &[&str] = &["fuzz/Cargo.toml"];

/// Keys and sections that describe a package. They are required unless the manifest has `publish = false`.
const PUBLISHED: &[&str] = &["description", "include", "license", "readme", "[package.metadata.docs.rs]"];

/// Checks all rules on all manifests.
pub(super) fn check(manifests: &[&TextFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for manifest in manifests {
        violations.extend(reasons(manifest));
        violations.extend(published(manifest));
        if !OUTSIDE.contains(&manifest.path.as_str()) {
            violations.extend(lints(manifest));
        }
    }
    violations
}

/// Checks that a crate of the workspace inherits the workspace's lints.
fn lints(manifest: &TextFile) -> Option<Violation> {
    let mut section = "";
    for line in manifest.text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if section == "[lints]" && line.replace(' ', "") == "workspace=true" {
            return None;
        }
    }
    Some(Violation::new(
        &manifest.path,
        0,
        "the crate does not inherit the lints: add [lints] workspace = true",
    ))
}

/// Checks that a published package describes itself to registries.
fn published(manifest: &TextFile) -> Option<Violation> {
    let has = |wanted: &str| {
        let mut keys = manifest.text.lines().map(|line| line.split(['=', ' ']).next().unwrap_or_default());
        keys.any(|key| key == wanted || key.strip_suffix(".workspace") == Some(wanted))
    };
    let missing: Vec<_> = PUBLISHED.iter().copied().filter(|key| !has(key)).collect();
    let what = format!("a crate without `publish = false` also has {}", missing.join(", "));
    (!has("publish") && !missing.is_empty()).then(|| Violation::new(&manifest.path, 0, what))
}

/// Checks that the line above every dependency is a comment that gives the reason for the dependency. Crates
/// of the workspace are exempt, because the import rule covers them. Dependencies that a manifest inherits
/// from `[workspace.dependencies]` are also exempt, because that section gives the reason.
fn reasons(manifest: &TextFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut within = false;
    let mut above = "";
    for (number, line) in (1..).zip(manifest.text.lines().map(str::trim)) {
        let dependency = if line.starts_with('[') {
            let header = line.trim_matches(['[', ']']);
            within = header.ends_with("dependencies");
            // In a section `[dependencies.name]`, the header is the dependency.
            header
                .rsplit_once('.')
                .filter(|(section, _)| !within && section.ends_with("dependencies"))
                .map(|h| h.1)
        } else if within {
            dependency_of(line)
        } else {
            None
        };
        if let Some(name) = dependency.filter(|name| !name.starts_with("ragtag") && !above.starts_with('#')) {
            let what = format!("the dependency {name} has no reason: add a comment above it");
            violations.push(Violation::new(&manifest.path, number, what));
        }
        above = line;
    }
    violations
}

/// Returns the name of the dependency that `line` declares, unless the manifest inherits it from the
/// workspace.
fn dependency_of(line: &str) -> Option<&str> {
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if key.is_empty() || !key.chars().all(plain) || !key.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let inherited = key.ends_with(".workspace") || value.replace(' ', "").contains("workspace=true");
    (!inherited).then(|| key.split('.').next().unwrap_or(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(text: &str) -> TextFile {
        TextFile { path: "a/Cargo.toml".into(), text: text.into() }
    }

    fn names(text: &str) -> Vec<(usize, String)> {
        let name = |v: Violation| (v.line, v.what.split(' ').nth(2).unwrap_or_default().to_owned());
        reasons(&manifest(text)).into_iter().map(name).collect()
    }

    #[test]
    fn a_dependency_without_reason_is_found() {
        assert_eq!(names("[dependencies]\nrand = \"1\"\n"), [(2, "rand".into())]);
        assert_eq!(names("[dependencies]\n# Dice.\nrand = \"1\"\nserde = \"1\"\n"), [(4, "serde".into())]);
        assert_eq!(names("[dev-dependencies]\n\nrand = { version = \"1\" }\n"), [(3, "rand".into())]);
        assert_eq!(names("[workspace.dependencies]\nrand.version = \"1\"\n"), [(2, "rand".into())]);
        assert_eq!(names("[target.'cfg(unix)'.dependencies]\nlibc = \"1\"\n"), [(2, "libc".into())]);
        assert_eq!(names("[dependencies.rand]\nversion = \"1\"\n"), [(1, "rand".into())]);
    }

    #[test]
    fn dependencies_with_reasons_pass() {
        for text in [
            "[dependencies]\n# Dice.\nrand = \"1\"\n",
            "[dependencies]\nrand.workspace = true\nserde = { workspace = true, optional = true }\n",
            "[dependencies]\nragtag-hal = { path = \"../hal\" }\n",
            "# Dice.\n[dependencies.rand]\nversion = \"1\"\n",
            "[dev-dependencies]\n[[bench]]\nname = \"b\"\n",
            "[features]\ndefault = []\n[package]\nname = \"x\"\n",
            "[dependencies]\n# Dice.\nrand = { version = \"1\", features = [\n    \"a\",\n] }\n",
        ] {
            assert_eq!(names(text), [], "{text}");
        }
    }

    #[test]
    fn packages_say_what_they_are() {
        let all = "[package]\ndescription = \"x\"\nlicense.workspace = true\nreadme = \"README.md\"\ninclude = []\n\
                   [package.metadata.docs.rs]\n";
        assert_eq!(published(&manifest(all)), None);
        assert_eq!(published(&manifest("[package]\npublish = false\n")), None);
        for key in ["description", "include", "license.workspace", "readme", "[package.metadata.docs.rs]"] {
            let found = published(&manifest(&all.replace(key, "other"))).expect(key);
            assert!(found.what.ends_with(key.trim_end_matches(".workspace")), "{found}");
        }
    }

    #[test]
    fn lints_must_be_inherited() {
        assert!(lints(&manifest("[lints]\nworkspace = true\n")).is_none());
        assert!(lints(&manifest("[package]\nname = \"x\"\n")).is_some());
        assert!(lints(&manifest("[dependencies]\nworkspace = true\n")).is_some());
        assert!(lints(&manifest("[lints]\nworkspace = false\n")).is_some());
        let outside = TextFile { path: "fuzz/Cargo.toml".into(), text: "publish = false\n".into() };
        assert_eq!(check(&[&outside]), []);
        assert_eq!(check(&[&manifest("[dependencies]\nrand = \"1\"\n")]).len(), 3);
    }
}
