//! Runs tests in separate processes: the test binary starts itself again for one test.

use std::ffi::OsStr;
use std::process::{Command, Output};

/// Environment variable that holds the test's name. [`Child`] sets it in the process that it starts.
const INSIDE: &str = "RAGTAG_TEST_INSIDE";

/// Test of the current binary that runs in a separate process.
#[derive(Debug)]
pub struct Child {
    test: String,
    command: Command,
}

/// Prepares a process that runs one test of this binary. `test` is the full name, such as `module::name`.
///
/// # Panics
/// Panics if the system does not report the path of the test binary.
#[track_caller]
pub fn child(test: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("the path of the test binary"));
    command.args(["--exact", test, "--nocapture", "--include-ignored"]).env(INSIDE, test);
    Child { test: test.into(), command }
}

impl Child {
    /// Returns whether a [`Child`] started the current process to run `test`.
    pub fn inside(test: &str) -> bool {
        std::env::var(INSIDE).is_ok_and(|inside| inside == test)
    }

    /// Sets an environment variable in the child process.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Sets environment variables in the child process.
    #[must_use]
    pub fn envs<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        self.command.envs(variables);
        self
    }

    /// Removes an environment variable from the child process.
    #[must_use]
    pub fn env_remove(mut self, key: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(key);
        self
    }

    /// Runs the test, prints its output, and returns the output.
    ///
    /// # Panics
    /// Panics if the test fails, or if the binary has no test of this name, so that a wrong name does not
    /// pass silently.
    #[track_caller]
    pub fn passes(mut self) -> Output {
        let output = self.command.output().expect("a test starts its own binary");
        let text = String::from_utf8_lossy(&output.stdout);
        print!("{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{} failed in its own process: {}", self.test, output.status);
        assert!(ran_one(&text), "{} is not a test of this binary", self.test);
        output
    }
}

/// Returns whether libtest reports that exactly one test passed.
fn ran_one(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("test result: ok. 1 passed;"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_runs_only_the_named_test() {
        const NAME: &str = "child::tests::a_child_runs_only_the_named_test";
        if Child::inside(NAME) {
            return println!("said by the child: {}", std::env::var("RAGTAG_TEST_WORD").unwrap());
        }
        let output = child(NAME).env("RAGTAG_TEST_WORD", "tale").passes();
        assert!(String::from_utf8_lossy(&output.stdout).contains("said by the child: tale"));
    }

    #[test]
    #[should_panic(expected = "is not a test of this binary")]
    fn an_unknown_test_name_fails() {
        child("child::tests::renamed").passes();
    }
}
