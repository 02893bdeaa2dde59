//! Probing in a child process, because loaders and drivers read environment variables once per process.

use ragtag_hal::Backend;
use test_support::Child;

/// Prefix of a line of a probe's result.
const MARK: &str = "probed: ";

/// Body of the test `test`: in a child process, prints the probe result, one line per adapter.
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

/// Returns the lines that a child process with [`prints_its_probe`] prints.
pub fn probed(child: Child) -> Vec<String> {
    let text = String::from_utf8_lossy(&child.passes().stdout).into_owned();
    // The first line follows output of the test runner.
    text.lines().filter_map(|line| Some(line.split_once(MARK)?.1.to_string())).collect()
}
