//! What a probe says in a process of its own: loaders and drivers read variables once in a process.

use ragtag_hal::Backend;
use test_support::Child;

/// What stands before a line of a probe.
const MARK: &str = "probed: ";

/// The body of the test `test`: prints what a probe says, one line for each adapter, if this process was started for that.
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

/// The lines that a process of [`prints_its_probe`] prints.
pub fn probed(child: Child) -> Vec<String> {
    let text = String::from_utf8_lossy(&child.passes().stdout).into_owned();
    // The first line follows what the test runner says.
    text.lines().filter_map(|line| Some(line.split_once(MARK)?.1.to_string())).collect()
}
