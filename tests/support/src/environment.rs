//! The environment of commands that tests start. Nothing of the user reaches them: no cache, home folder, locale
//! or setting. `.cargo/config.toml` gives test programs themselves caches in the target folder.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Starts of the names of variables that change what Ragtag, its drivers or its output do.
const REMOVED: [&str; 12] = [
    "RAGTAG_",
    "XDG_",
    "VK_",
    "OCL_",
    "LC_",
    "LANG",
    "RUST_LOG",
    "NO_COLOR",
    "CLICOLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "LINES",
];
/// Starts of the names of variables that stay. They configure tests, stand-ins for drivers, and Vulkan's validation
/// layers.
const KEPT: [&str; 4] = ["RAGTAG_TEST_", "RAGTAG_FAKE_", "RAGTAG_VULKAN_", "VK_LAYER_"];

/// Returns the changes that make the environment of a command independent of the user: the value of each
/// variable to set, and `None` for each variable to remove. Tests of drivers set their variables again.
///
/// # Panics
/// Panics if the private folder of this process cannot be created.
#[track_caller]
pub fn clean_environment() -> Vec<(OsString, Option<OsString>)> {
    let names = std::env::vars_os().map(|(name, _)| name);
    let removed = names.filter(|name| is_removed(&name.to_string_lossy())).map(|name| (name, None));
    let home = home();
    let folder = |name: &str| Some(home.join(name).into_os_string());
    // Drivers compile for minutes without a cache, which all processes can share.
    let cache = || folder("../cache");
    let set = [
        ("HOME", folder("")),
        ("LOCALAPPDATA", cache()),
        ("XDG_CACHE_HOME", cache()),
        ("XDG_CONFIG_HOME", folder("config")),
        ("XDG_DATA_HOME", folder("data")),
        ("RAGTAG_CACHE_DIR", folder("ragtag")),
        ("LC_ALL", Some("C.UTF-8".into())),
    ];
    removed.chain(set.map(|(name, value)| (name.into(), value))).collect()
}

fn is_removed(name: &str) -> bool {
    let starts = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    starts(&REMOVED) && !starts(&KEPT)
}

/// Returns an empty folder for the commands of this process, in the target folder.
#[track_caller]
fn home() -> &'static PathBuf {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    HOME.get_or_init(|| {
        let test = std::env::current_exe().expect("the path of the test binary");
        // The binary is in `target/PROFILE/deps`.
        let target = test.ancestors().nth(3).expect("a test binary is in the target folder");
        let folder = target.join("test-home").join(std::process::id().to_string());
        // Another process may have had the same number.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        folder
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Child, child};

    #[test]
    fn settings_of_users_go_and_settings_of_tests_stay() {
        const NAME: &str = "environment::tests::settings_of_users_go_and_settings_of_tests_stay";
        let user = ["RAGTAG_DEVICES", "XDG_RUNTIME_DIR", "VK_ICD_FILENAMES", "OCL_ICD_FILENAMES", "LANGUAGE"];
        let test = ["RAGTAG_TEST_WORD", "RAGTAG_FAKE_ARCH", "VK_LAYER_PATH", "PATH"];
        if !Child::inside(NAME) {
            child(NAME)
                .envs(user.map(|name| (name, "nonsense")))
                .envs(test.map(|name| (name, "kept")))
                .passes();
            return;
        }
        let changes = clean_environment();
        let change = |name: &str| changes.iter().find(|(changed, _)| *changed == name).map(|(_, to)| to);
        assert!(user.iter().all(|name| change(name) == Some(&None)), "{changes:?}");
        assert!(test.iter().all(|name| change(name).is_none()), "{changes:?}");
        for name in ["HOME", "XDG_CACHE_HOME", "RAGTAG_CACHE_DIR"] {
            let last = changes.iter().rev().find(|(changed, _)| *changed == name);
            let folder = last.and_then(|(_, to)| to.clone()).map(PathBuf::from);
            assert!(folder.is_some_and(|folder| folder.starts_with(home())), "{name}: {changes:?}");
        }
    }

    #[test]
    fn cargo_gives_tests_caches_in_the_target_folder() {
        for name in ["RAGTAG_CACHE_DIR", "XDG_CACHE_HOME"] {
            let folder =
                std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: start tests with cargo"));
            assert!(folder.contains("test-home"), "{name} is {folder}");
        }
    }
}
