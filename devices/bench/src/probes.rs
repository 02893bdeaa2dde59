//! Probes devices in a child process, because loaders and drivers read environment variables once per
//! process.

use ragtag_hal::Backend;
use test_support::Child;

/// Prefix of each line of a probe's result.
const MARK: &str = "probed: ";

/// Prints the probe result, one line per adapter, if this process is the child that runs the test `test`.
pub fn prints_its_probe(test: &str, backend: &dyn Backend) {
    if !Child::inside(test) {
        return;
    }
    match backend.probe() {
        Ok(adapters) => {
            adapters.iter().for_each(|one| println!("{MARK}{} {} {}", one.label(), one.name, one.driver));
        }
        Err(unavailable) => println!("{MARK}unavailable: {unavailable}"),
    }
}

/// Runs a child process that calls [`prints_its_probe`], and returns the lines that it prints.
pub fn probed(child: Child) -> Vec<String> {
    let text = String::from_utf8_lossy(&child.passes().stdout).into_owned();
    // On the first line, output of the test runner may precede the prefix.
    text.lines().filter_map(|line| Some(line.split_once(MARK)?.1.to_string())).collect()
}
