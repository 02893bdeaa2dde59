//! Compiles sources in a child process, because the compiler may abort the process in which it runs.
//!
//! The application starts itself or another program as the child, which calls [`compile_child`]. The parent
//! writes the request to the child's standard input. The child writes the answer to its standard output,
//! after any output of libraries.

use crate::api::{Code, Compiler};
use ragtag_hal::{Error, Result, exit_in_words};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Output, Stdio};

/// Marker that precedes an answer in the child's output.
const MARK: &[u8] = b"\nragtag: compiled\n";
/// Maximum size of a request, in bytes.
const MAX_REQUEST_BYTES: u64 = 64 << 20;
/// Maximum number of bytes quoted from the output of a crashed child.
const MAX_LAST_WORDS: usize = 2000;

/// A source to compile, the compiler library, and the options.
pub(crate) struct Request<'a> {
    /// Name under which the compiler library was loaded.
    pub(crate) library: &'a str,
    pub(crate) options: &'a [String],
    pub(crate) text: &'a str,
}

/// Compiles a source in a child process, which `command` starts.
///
/// # Errors
/// Returns [`Error::Compile`] with the compiler's log, or with the exit status of a child that gave no
/// answer.
pub(crate) fn compile(command: &[OsString], request: &Request<'_>) -> Result<Code> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| Error::invalid("the compiler command is empty"))?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let said = |error: io::Error| Error::Compile {
        log: format!("cannot run the compiler process {}: {error}", program.display()),
    };
    let output = child.and_then(|child| converse(child, request)).map_err(said)?;
    answer(&output.stdout).unwrap_or_else(|| Err(Error::Compile { log: no_answer(&output) }))
}

/// Sends the request and collects the output of the child.
fn converse(mut child: Child, request: &Request<'_>) -> io::Result<Output> {
    if let Some(mut input) = child.stdin.take() {
        // The error is ignored: if a child exits before it has read the whole request, its output gives the
        // reason.
        let _ = input.write_all(&encoded(request));
    }
    child.wait_with_output()
}

/// Encodes the library, the source and the options. Each part is preceded by its length.
fn encoded(request: &Request<'_>) -> Vec<u8> {
    let parts = [request.library, request.text].into_iter().chain(request.options.iter().map(String::as_str));
    let part = |part: &str| [&(part.len() as u64).to_le_bytes(), part.as_bytes()].concat();
    parts.flat_map(part).collect()
}

/// Decodes the parts of a request. Returns `None` if the request is incomplete.
fn decoded(mut request: &[u8]) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    while !request.is_empty() {
        let (part, rest) = split(request)?;
        parts.push(String::from_utf8(part.to_vec()).ok()?);
        request = rest;
    }
    Some(parts)
}

/// Reads a length and the part that follows it. Returns the part and the remaining bytes.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

/// Extracts the child's answer from its output: the code object or the error. Returns `None` if the output
/// contains no answer.
fn answer(said: &[u8]) -> Option<Result<Code>> {
    let at = said.windows(MARK.len()).position(|window| window == MARK)?;
    let (kind, rest) = said[at + MARK.len()..].split_first()?;
    let (content, _) = split(rest)?;
    Some(match kind {
        0 => Ok(content.to_vec()),
        _ => Err(Error::Compile { log: String::from_utf8_lossy(content).into_owned() }),
    })
}

/// Returns a message about a child that exited without an answer.
fn no_answer(output: &Output) -> String {
    let words = String::from_utf8_lossy(&output.stderr);
    let words = words.trim();
    let last = words.char_indices().rev().nth(MAX_LAST_WORDS).map_or(words, |(at, _)| &words[at..]);
    let last = if last.is_empty() { String::new() } else { format!(": {last}") };
    format!("the compiler process ended without an answer ({}){last}", exit_in_words(output.status))
}

/// Entry point of the child process. It reads a request from standard input, compiles the source, and writes
/// the answer to standard output. The program that [`HipConfig::compiler`](crate::HipConfig::compiler) starts
/// calls this function before it prints anything.
///
/// # Errors
/// Returns an error if standard input or standard output fails.
pub fn compile_child() -> io::Result<()> {
    let mut request = Vec::new();
    io::stdin().lock().take(MAX_REQUEST_BYTES).read_to_end(&mut request)?;
    let answered = match decoded(&request).as_deref() {
        Some([library, text, options @ ..]) => {
            let made = Compiler::first_of(std::slice::from_ref(library));
            made.map_err(|tried| format!("no compiler in {}", tried.join(", ")))
                .and_then(|compiler| compiler.compile(text, options).map_err(log_of))
        }
        _ => Err("incomplete request".into()),
    };
    let (kind, content) = match &answered {
        Ok(code) => (0u8, code.as_slice()),
        Err(log) => (1, log.as_bytes()),
    };
    let length = (content.len() as u64).to_le_bytes();
    let mut output = io::stdout().lock();
    [MARK, &[kind], &length, content].iter().try_for_each(|part| output.write_all(part))?;
    output.flush()
}

/// Returns the compiler's log if the error contains it, and the error's message otherwise.
fn log_of(error: Error) -> String {
    match error {
        Error::Compile { log } => log,
        other => other.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::print_stdout)] // a skip is visible
mod tests {
    use super::*;
    use crate::program::OPTIONS;

    fn request<'a>(options: &'a [String], text: &'a str) -> Request<'a> {
        Request { library: "libhiprtc.so.6", options, text }
    }

    #[test]
    fn requests_round_trip() {
        let options = ["-O3".to_string(), "--offload-arch=gfx1030".to_string()];
        let sent = encoded(&request(&options, "text\0ü"));
        let parts = ["libhiprtc.so.6", "text\0ü", &options[0], &options[1]].map(String::from);
        assert_eq!(decoded(&sent), Some(parts.to_vec()));
        for end in (1..sent.len()).filter(|end| decoded(&sent[..*end]).is_some()) {
            assert!(decoded(&sent[..end]).is_some_and(|shorter| shorter.len() < parts.len()));
        }
        assert_eq!(decoded(&[0xff; 16]), None);
    }

    #[test]
    fn answers_are_found_after_other_output() {
        let whole = |kind: u8| [b"a warning", MARK, &[kind], &3u64.to_le_bytes(), b"abc and more"].concat();
        assert_eq!(answer(&whole(0)), Some(Ok(b"abc".to_vec())));
        assert_eq!(answer(&whole(1)), Some(Err(Error::Compile { log: "abc".into() })));
        assert_eq!(answer(&whole(0)[..30]), None);
        assert_eq!(answer(b"nothing"), None);
    }

    /// Acts as the compiler process if `RAGTAG_TEST_COMPILE` is set.
    #[test]
    fn compiler() {
        if std::env::var_os("RAGTAG_TEST_COMPILE").is_some() {
            compile_child().unwrap();
        }
    }

    /// Checks that AMD's compiler from HIP 5, if it is installed, compiles for RDNA 2. For RDNA 3, the
    /// compiler aborts, which must end only the compiler process.
    #[cfg(unix)]
    #[test]
    fn the_genuine_compiler_aborts_only_its_own_process() {
        let library = "libamdhip64.so.5";
        if let Err(tried) = Compiler::first_of(&[library.into()]) {
            test_support::skip!("AMD's HIP library", "{} is not installed", tried.join(", "));
            return;
        }
        let own = std::env::current_exe().unwrap().into_os_string();
        let prefix = ["env", "RAGTAG_TEST_COMPILE=1"].map(OsString::from).into_iter().chain([own]);
        let asked = ["--exact", "child::tests::compiler", "--nocapture"].map(OsString::from);
        let command: Vec<_> = prefix.chain(asked).collect();
        let text = "extern \"C\" __global__ void one(unsigned int *out) { out[threadIdx.x] = 1u; }";
        let compile = |architecture: &str, text: &str| {
            let options = OPTIONS.map(String::from).into_iter();
            let options: Vec<_> = options.chain([format!("--offload-arch={architecture}")]).collect();
            super::compile(&command, &Request { library, options: &options, text })
        };
        for architecture in ["gfx906", "gfx90a", "gfx1030"] {
            let code = compile(architecture, text).unwrap();
            // The code is a bundle of code objects or a single ELF file.
            assert!(
                code.starts_with(b"__CLANG_OFFLOAD_BUNDLE__") || code.starts_with(b"\x7fELF"),
                "{architecture}"
            );
        }
        let mistake = compile("gfx1030", "extern \"C\" __global__ void one() { no_such_name(); }");
        assert!(
            matches!(&mistake, Err(Error::Compile { log }) if log.contains("no_such_name")),
            "{mistake:?}"
        );
        match compile("gfx1100", text) {
            Ok(_) => println!("this version knows gfx1100"),
            Err(Error::Compile { log }) => assert!(log.contains("SIGABRT"), "{log}"),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[cfg(unix)]
    #[test]
    fn an_early_exit_is_reported_with_the_last_output() {
        let log = |script: &str| {
            let command = ["sh", "-c", script].map(OsString::from);
            match compile(&command, &request(&[], "text")) {
                Err(Error::Compile { log }) => log,
                other => panic!("{other:?}"),
            }
        };
        let aborted = log("echo 'LLVM ERROR: cannot' >&2; kill -ABRT $$");
        assert!(aborted.contains("SIGABRT") && aborted.ends_with("LLVM ERROR: cannot"), "{aborted}");
        assert!(log("kill -SEGV $$").contains("SIGSEGV"));
        assert!(log("exit 7").contains('7'));
        let missing = compile(&["ragtag-is-not-here".into()], &request(&[], "text"));
        assert!(matches!(missing, Err(Error::Compile { log }) if log.contains("ragtag-is-not-here")));
    }
}
