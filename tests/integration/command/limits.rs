//! Runs the command with limits of the system: of the process (`ulimit`) and of a control group. It must give
//! the text or the error that the model does not fit. The kernel must never end it.

use super::*;
use std::path::PathBuf;

const DOES_NOT_FIT: i32 = 6;
const RUN: [&str; 9] = ["run", "-p", "The wolf", "-n", "4", "--temp", "0", "-q", "--no-echo"];

/// Runs the command in a shell after `prepare`. Returns whether the model fits.
fn fits(prepare: &str, limit_bytes: u64) -> bool {
    let model = file(LLAMA);
    let arguments = [&RUN[..1], &[&model], &RUN[1..]].concat();
    let output = support::shell(&format!("{prepare} && exec \"$0\" \"$@\""), &arguments).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    let case = format!("{prepare}, {limit_bytes} bytes: {:?}: {err}", output.status);
    match output.status.code() {
        Some(0) => assert_eq!(output.stdout, done(&arguments).out.as_bytes(), "{case}"),
        Some(DOES_NOT_FIT) => {
            assert!(output.stdout.is_empty() && !err.contains("panicked"), "{case}");
            assert!(err.contains(" lacks ") || err.contains(" of host memory "), "{case}");
        }
        _ => panic!("{case}"),
    }
    output.status.success()
}

#[test]
fn a_limit_of_the_process_ends_in_the_text_or_a_clear_error() {
    let fits = |mebibytes: u64| fits(&format!("ulimit -d {}", mebibytes << 10), mebibytes << 20);
    assert!(!fits(48));
    for mebibytes in [96, 128, 160] {
        fits(mebibytes);
    }
    assert!(fits(2048));
}

#[test]
fn a_limit_of_a_control_group_ends_in_the_text_or_a_clear_error() {
    let group = match ControlGroup::new() {
        Ok(group) => group,
        Err(error) => return test_support::skip!("control groups", "{error}"),
    };
    let fits = |mebibytes: u64| {
        std::fs::write(group.0.join(group.1), (mebibytes << 20).to_string()).unwrap();
        let procs = group.0.join("cgroup.procs");
        fits(&format!("echo $$ > {}", text(&procs)), mebibytes << 20)
    };
    assert!(!fits(48));
    for mebibytes in [64, 80, 96] {
        fits(mebibytes);
    }
    assert!(fits(512));
}

/// Folder of a control group, and the name of the file with its limit. Dropping removes the group.
struct ControlGroup(PathBuf, &'static str);

impl ControlGroup {
    /// Creates a group below the group of this process.
    fn new() -> std::io::Result<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup")?;
        let own = |line: &str, controller: &str| {
            let (found, path) = line.split_once(':')?.1.split_once(':')?;
            found.split(',').any(|one| one == controller).then(|| path.trim_start_matches('/').to_owned())
        };
        let mounted = Path::new("/sys/fs/cgroup");
        let first = |controller: &str| groups.lines().find_map(|line| own(line, controller));
        let (folder, limit) = match (first("memory"), first("")) {
            (Some(path), _) => (mounted.join("memory").join(path), "memory.limit_in_bytes"),
            (None, path) => (mounted.join(path.unwrap_or_default()), "memory.max"),
        };
        let folder = folder.join(format!("ragtag-test-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let group = Self(folder, limit);
        // Without the controller, the group has no such file.
        std::fs::metadata(group.0.join(limit)).map(|_| group)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}
