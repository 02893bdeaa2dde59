//! Descriptions of process exit statuses, for reports about crashed drivers and compilers.
//!
//! This module does not depend on what the process does.

use std::process::ExitStatus;

/// Describes an exit status in words, such as `SIGSEGV (segmentation fault)` or `exit code 3`.
pub fn exit_in_words(status: ExitStatus) -> String {
    match (signal(status), status.code()) {
        (Some(number), _) => match NAMES.iter().find(|(known, _)| *known == number) {
            Some((_, name)) => (*name).into(),
            None => format!("signal {number}"),
        },
        (None, Some(code)) => match CODES.iter().find(|(known, _)| *known == code as u32) {
            Some((_, name)) => (*name).into(),
            None => format!("exit code {code}"),
        },
        (None, None) => status.to_string(),
    }
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal(_: ExitStatus) -> Option<i32> {
    None
}

/// Signals that end a process, and their numbers on Linux (x86-64 and AArch64).
const NAMES: &[(i32, &str)] = &[
    (4, "SIGILL (illegal instruction)"),
    (5, "SIGTRAP (trap)"),
    (6, "SIGABRT (abort)"),
    (7, "SIGBUS (bus error)"),
    (8, "SIGFPE (arithmetic error)"),
    (9, "SIGKILL (killed, possibly by the out-of-memory killer)"),
    (11, "SIGSEGV (segmentation fault)"),
    (13, "SIGPIPE (broken pipe)"),
    (15, "SIGTERM (termination requested)"),
    (31, "SIGSYS (forbidden system call)"),
];

/// Exit codes of crashed processes on Windows.
const CODES: &[(u32, &str)] = &[
    (0xc000_0005, "access violation"),
    (0xc000_001d, "illegal instruction"),
    (0xc000_00fd, "stack overflow"),
    (0xc000_0409, "abort"),
];

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn signals_and_codes_are_described() {
        // Raw statuses, as `wait` reports them. The low seven bits hold the signal, and bits 8 to 15 hold the
        // exit code.
        let words = |raw| exit_in_words(ExitStatus::from_raw(raw));
        assert_eq!(words(11), "SIGSEGV (segmentation fault)");
        assert_eq!(words(6 | 0x80), "SIGABRT (abort)", "with a core file");
        assert_eq!(words(64), "signal 64");
        assert_eq!(words(3 << 8), "exit code 3");
        assert_eq!(words(0), "exit code 0");
    }
}
