//! How a process ended, in words: drivers and their compilers crash, and whoever started them has to tell.
//!
//! This module must not know what the process was for.

use std::process::ExitStatus;

/// `SIGSEGV (segmentation fault)`, `exit code 3`.
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

/// Signals that end a process, by the numbers that Linux gives them on x86-64 and AArch64.
const NAMES: &[(i32, &str)] = &[
    (4, "SIGILL (illegal instruction)"),
    (5, "SIGTRAP (trap)"),
    (6, "SIGABRT (abort)"),
    (7, "SIGBUS (bus error)"),
    (8, "SIGFPE (arithmetic error)"),
    (9, "SIGKILL (killed, perhaps for want of memory)"),
    (11, "SIGSEGV (segmentation fault)"),
    (13, "SIGPIPE (broken pipe)"),
    (15, "SIGTERM (told to end)"),
    (31, "SIGSYS (forbidden system call)"),
];

/// Codes that Windows ends a crashed process with.
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
    fn signals_and_codes_have_words() {
        // As wait() reports them: a signal in the low bits, a code above them.
        let words = |raw| exit_in_words(ExitStatus::from_raw(raw));
        assert_eq!(words(11), "SIGSEGV (segmentation fault)");
        assert_eq!(words(6 | 0x80), "SIGABRT (abort)", "with a core file");
        assert_eq!(words(64), "signal 64");
        assert_eq!(words(3 << 8), "exit code 3");
        assert_eq!(words(0), "exit code 0");
    }
}
