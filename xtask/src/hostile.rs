//! Runs tests as on the machine of a user who has used Ragtag: with a full cache, a German locale, a read-only
//! home folder, and variables set. Also empties the caches of tests before a run.

use crate::checks::Done;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Caches of test programs, which `.cargo/config.toml` names, and home folders of the commands that they start.
const TEST_HOME: &str = "target/test-home";
/// Home folder of the user.
const HOME: &str = "target/hostile-home";

/// Commands that fill the user's cache.
const USES: [&[&str]; 3] = [
    &["calibrate", "--device", "cpu", "--cpu-devices", "2"],
    &["devices", "--links", "--device", "cpu", "--cpu-devices", "2"],
    &["run", "--device", "cpu", "-n", "1", "-p", "Once"],
];

/// Settings of the user. Each breaks commands or changes their output, if it reaches them.
const SETTINGS: [(&str, &str); 17] = [
    ("LANG", "de_DE.UTF-8"),
    ("LC_ALL", "de_DE.UTF-8"),
    ("LANGUAGE", "de"),
    ("RAGTAG_DEVICES", "nonsense"),
    ("RAGTAG_MEMORY", "nonsense"),
    ("RAGTAG_STRICT", "1"),
    ("RAGTAG_PROBE_LIMIT", "nonsense"),
    ("RAGTAG_NO_CALIBRATION", "nonsense"),
    ("RAGTAG_MAX_LOAD", "nonsense"),
    ("RUST_LOG", "trace"),
    ("NO_COLOR", "1"),
    ("CLICOLOR_FORCE", "1"),
    ("COLUMNS", "40"),
    ("LINES", "3"),
    ("VK_LOADER_DEBUG", "all"),
    ("VK_ICD_FILENAMES", "/nonsense.json"),
    ("OCL_ICD_FILENAMES", "/nonsense.so"),
];

/// Modules of the integration tests that start commands whose results the user's files and settings can change.
const TESTS: [&str; 4] = ["command::", "bad_input::", "template::", "chat::"];

/// Empties the caches of tests, so that no run depends on an earlier one.
pub(crate) fn empty_caches(root: &Path) -> Result<(), String> {
    emptied(&root.join(TEST_HOME)).map(|_| ())
}

/// Runs [`TESTS`] with the user's files and [`SETTINGS`]. Then checks that the user's files are unchanged.
pub(crate) fn check(root: &Path, done: &mut Done) -> Result<(), String> {
    let tests = ["test", "--workspace", "--locked", "--test", "integration"];
    done.cargo(root, &[&tests[..], &["--no-run"]].concat(), &[])?;
    let home = emptied(&root.join(HOME))?;
    let cache = home.join(".cache/ragtag");
    let ragtag = Path::new("target/debug/ragtag").with_extension(std::env::consts::EXE_EXTENSION);
    for arguments in USES {
        let mut command = Command::new(root.join(&ragtag));
        let output = command.args(arguments).env("RAGTAG_CACHE_DIR", &cache).output();
        let output = output.map_err(|e| format!("{}: {e}", ragtag.display()))?;
        if !output.status.success() {
            return Err(format!("ragtag {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    let before = files(&home)?;
    if !before.keys().any(|path| path.starts_with(cache.join("profiles"))) {
        return Err(format!("no command has filled {}", cache.display()));
    }
    set_read_only(&home, true)?;
    let variables = variables(&home)?;
    let borrowed: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let result = done.cargo(root, &[&tests[..], &["--"], &TESTS].concat(), &borrowed);
    set_read_only(&home, false)?;
    result?;
    if files(&home)? == before { Ok(()) } else { Err(format!("tests have changed {}", home.display())) }
}

/// Returns the user's environment. Cargo finds its own folders as before.
fn variables(home: &Path) -> Result<Vec<(&'static str, String)>, String> {
    let own = std::env::home_dir().ok_or("no home folder")?;
    let folder = |variable: &str, name: &str| {
        let set = std::env::var_os(variable).map_or_else(|| own.join(name), PathBuf::from);
        set.display().to_string()
    };
    let mut variables: Vec<_> = SETTINGS.map(|(name, value)| (name, value.to_owned())).into();
    variables.extend([
        ("CARGO_HOME", folder("CARGO_HOME", ".cargo")),
        ("RUSTUP_HOME", folder("RUSTUP_HOME", ".rustup")),
        ("HOME", home.display().to_string()),
        ("XDG_CONFIG_HOME", home.display().to_string()),
        ("RAGTAG_CACHE_DIR", home.join(".cache/ragtag").display().to_string()),
    ]);
    Ok(variables)
}

/// Replaces a folder by an empty one and returns its path.
fn emptied(folder: &Path) -> Result<PathBuf, String> {
    let error = |e: std::io::Error| format!("{}: {e}", folder.display());
    if folder.exists() {
        set_read_only(folder, false)?;
        fs::remove_dir_all(folder).map_err(error)?;
    }
    fs::create_dir_all(folder).map_err(error)?;
    Ok(folder.to_path_buf())
}

/// Returns the content of all files in a folder and below.
fn files(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, String> {
    let mut files = BTreeMap::new();
    for path in entries(folder)? {
        if path.is_dir() {
            files.extend(self::files(&path)?);
        } else {
            let content = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            files.insert(path, content);
        }
    }
    Ok(files)
}

/// Makes a folder and all that it contains read-only, or writable again.
fn set_read_only(path: &Path, read_only: bool) -> Result<(), String> {
    let change = || {
        let mut permissions = fs::metadata(path)?.permissions();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = permissions.mode();
            permissions.set_mode(if read_only { mode & !0o222 } else { mode | 0o200 });
        }
        #[cfg(not(unix))]
        permissions.set_readonly(read_only);
        fs::set_permissions(path, permissions)
    };
    if path.is_dir() {
        entries(path)?.iter().try_for_each(|entry| set_read_only(entry, read_only))?;
    }
    change().map_err(|e| format!("{}: {e}", path.display()))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.map(|e| Ok(e?.path())).collect());
    entries.map_err(|e| format!("{}: {e}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_only_until_the_folder_is_emptied() {
        let root = std::env::temp_dir().join(format!("ragtag-hostile-{}", std::process::id()));
        let folder = emptied(&root).unwrap();
        fs::create_dir(folder.join("cache")).unwrap();
        fs::write(folder.join("cache/profile"), "times").unwrap();
        assert_eq!(files(&folder).unwrap(), [(folder.join("cache/profile"), b"times".to_vec())].into());
        set_read_only(&folder, true).unwrap();
        assert!(fs::metadata(folder.join("cache/profile")).unwrap().permissions().readonly());
        emptied(&root).unwrap();
        assert!(files(&folder).unwrap().is_empty());
        fs::remove_dir_all(&root).unwrap();
    }
}
