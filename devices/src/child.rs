//! Probes backends in a child process, so that a driver that crashes or hangs cannot take the application
//! down. The doctor opens drivers' libraries in the same way.
//!
//! The caller names the program that the child runs, usually the application's own program. The child
//! receives a backend's name, probes the backend ([`crate::Backends::answer`]) and prints one line. The
//! parent kills the child as soon as the line has arrived, because a driver may also crash on exit. This
//! module knows no backend.

use ragtag_hal::{Adapter, Unavailable, exit_in_words};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// Prefix of the answer. It is needed because drivers also print to standard output.
const MARK: &str = "ragtag-probe ";
/// Prefix of an argument of the child that names a library instead of a backend.
const LIBRARY: &str = "library:";
/// Work of a child that probes a backend.
const LISTING: &str = "listing its devices";
/// Interval at which the parent checks whether a child that has not answered has exited.
const STEP: Duration = Duration::from_millis(5);
/// Time for which the parent waits for the remaining output of a child that has exited.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Maximum number of bytes that the parent reads from a child's output.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of characters that an error quotes from the output of a crashed child.
const MAX_QUOTED: usize = 200;

/// Command that starts a child process, which probes one backend or opens a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeChild {
    /// Program.
    pub program: PathBuf,
    /// Arguments. The name of a backend is appended, or `library:` and the name of a library.
    pub arguments: Vec<OsString>,
    /// Time limit of a probe.
    pub limit: Duration,
}

impl ProbeChild {
    /// Default time limit of a probe. On machines with many GPUs, drivers take seconds to initialise.
    pub const LIMIT: Duration = Duration::from_secs(30);

    /// Opens each library in a child process of its own, as a driver's loader does. All processes run at the
    /// same time. Returns the dynamic loader's error for each library that cannot be opened, and `None` if no
    /// child can be started.
    pub fn open_libraries(&self, libraries: &[String]) -> Option<Vec<Result<(), String>>> {
        let ask = |library: &String| self.ask_for(LIBRARY, library, "loading");
        let asked = libraries.iter().map(ask).collect::<Option<Vec<_>>>()?;
        Some(asked.into_iter().map(|one| one.wait().map(drop).map_err(|why| why.cause)).collect())
    }

    /// Starts the child. Returns `None` if the child cannot be started. In that case, the caller probes in
    /// this process.
    pub(crate) fn ask(&self, backend: &str) -> Option<Asked> {
        self.ask_for("", backend, LISTING)
    }

    fn ask_for(&self, prefix: &str, name: &str, work: &'static str) -> Option<Asked> {
        let backend = name;
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .arg(format!("{prefix}{name}"))
            // This process logs the child's output, which must not contain colour codes.
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .inspect_err(|error| tracing::debug!(backend, %error, "cannot start a probe process"))
            .ok()?;
        let (out, err) = (child.stdout.take()?, child.stderr.take()?);
        let readers = answer_of(out).and_then(|answer| Ok((answer, said_by(err)?)));
        let readers = readers.inspect_err(|error| {
            tracing::debug!(backend, %error, "cannot start a thread for a probe process");
            let _ = child.kill();
        });
        let (answer, said) = readers.ok()?;
        let (backend, deadline) = (backend.to_string(), Instant::now() + self.limit);
        Some(Asked { backend, work, child, answer, said, limit: self.limit, deadline })
    }
}

/// Opens the library that an argument names, and returns the line that the child must print. Returns `None` if
/// the argument names a backend.
pub(crate) fn opened(argument: &str) -> Option<String> {
    let name = argument.strip_prefix(LIBRARY)?;
    let opened = crate::library::open(name);
    Some(line(&opened.map(|()| Vec::new()).map_err(|cause| Unavailable { tried: vec![name.into()], cause })))
}

/// Formats a probe result as the line that the child prints.
pub(crate) fn line(probe: &Result<Vec<Adapter>, Unavailable>) -> String {
    let answer = match probe {
        Ok(adapters) => Answer::Found(adapters.clone()),
        Err(unavailable) => Answer::Unavailable(unavailable.clone()),
    };
    // Adapters and causes are plain data, so serialization cannot fail. The parent treats an empty line as no
    // answer.
    serde_json::to_string(&answer).map(|json| format!("{MARK}{json}\n")).unwrap_or_default()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Found(Vec<Adapter>),
    Unavailable(Unavailable),
}

/// A child whose answer is pending.
pub(crate) struct Asked {
    backend: String,
    /// Work of the child, for errors.
    work: &'static str,
    child: Child,
    answer: Receiver<String>,
    said: Receiver<String>,
    limit: Duration,
    deadline: Instant,
}

impl Asked {
    /// Waits for the answer.
    ///
    /// # Errors
    /// Returns the backend's own error. If the child crashes, returns an error that describes the crash,
    /// including the signal. If the child exceeds its time limit, returns an error that says so.
    pub(crate) fn wait(mut self) -> Result<Vec<Adapter>, Unavailable> {
        loop {
            match self.answer.recv_timeout(STEP) {
                Ok(line) => return self.answered(&line),
                Err(RecvTimeoutError::Timeout) => {}
                // The child has closed its output and should exit soon.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(STEP),
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return match self.answer.recv_timeout(LAST_WORDS) {
                    Ok(line) => self.answered(&line),
                    Err(_) => Err(self.crashed(status)),
                };
            }
            if Instant::now() > self.deadline {
                let limit_s = self.limit.as_secs_f32();
                let did_not = if self.work == LISTING { "list its devices" } else { "load" };
                self.end();
                return Err(unavailable(format!("the driver did not {did_not} within {limit_s} s")));
            }
        }
    }

    fn answered(self, line: &str) -> Result<Vec<Adapter>, Unavailable> {
        let answer = serde_json::from_str(line);
        let backend = self.backend.clone();
        let said = self.end();
        // The answer contains all results. The drivers' other output is only logged.
        if let Ok(said) = said.recv_timeout(LAST_WORDS) {
            said.lines().for_each(|line| tracing::debug!(backend, "{line}"));
        }
        match answer {
            Ok(Answer::Found(adapters)) => Ok(adapters),
            Ok(Answer::Unavailable(why)) => Err(why),
            Err(error) => Err(unavailable(format!("cannot read the answer of the probe process: {error}"))),
        }
    }

    fn crashed(self, status: ExitStatus) -> Unavailable {
        let said = self.said.recv_timeout(LAST_WORDS).unwrap_or_default();
        let said: String = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().into();
        let said: String = said.trim().chars().filter(|c| !c.is_control()).take(MAX_QUOTED).collect();
        let said = if said.is_empty() { said } else { format!("; its last output: {said}") };
        let how = exit_in_words(status);
        unavailable(format!("the driver crashed while {}: {how}{said}", self.work))
    }

    /// Kills the child. Another thread waits for the child to exit, because this may take long.
    fn end(mut self) -> Receiver<String> {
        // The child may have exited already.
        let _ = self.child.kill();
        // Without memory for a thread, the killed child stays in the process table until this process exits.
        let _ = Builder::new().spawn(move || self.child.wait());
        self.said
    }
}

fn unavailable(cause: String) -> Unavailable {
    Unavailable { tried: vec!["a separate process".into()], cause }
}

/// Starts a thread that reads `out` until a line that contains an answer arrives, and then sends the answer.
fn answer_of(out: impl Read + Send + 'static) -> io::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    Builder::new().spawn(move || {
        let mut lines = BufReader::new(out.take(MAX_BYTES)).split(b'\n');
        let marked = lines.find_map(|line| {
            let line = String::from_utf8_lossy(&line.ok()?).into_owned();
            Some(line.split_once(MARK)?.1.to_string())
        });
        // The send fails after the time limit.
        let _ = marked.map(|line| sender.send(line));
    })?;
    Ok(receiver)
}

/// Starts a thread that reads `err` to its end and then sends the text.
fn said_by(err: impl Read + Send + 'static) -> io::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    Builder::new().spawn(move || {
        let mut said = Vec::new();
        // On a read error, the thread sends the output that it has read so far.
        let _ = err.take(MAX_BYTES).read_to_end(&mut said);
        let _ = sender.send(String::from_utf8_lossy(&said).into_owned());
    })?;
    Ok(receiver)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::selection::fakes::{absent, adapter, found};
    use crate::table::{Backends, Probed, Row, Status};
    use ragtag_hal::AdapterKind;

    /// Returns the probe result of a child that runs the shell script `script`, in which `$0` is the
    /// backend's name.
    fn ask(script: &str, limit: Duration) -> Result<Vec<Adapter>, Unavailable> {
        let arguments = ["-c", script].map(OsString::from).into();
        ProbeChild { program: "/bin/sh".into(), arguments, limit }.ask("fake").unwrap().wait()
    }

    const LONG: Duration = Duration::from_secs(60);

    fn cause(script: &str) -> String {
        ask(script, LONG).unwrap_err().cause
    }

    #[test]
    fn an_answer_is_found_among_other_output() {
        let adapters = vec![adapter("fake", 0, AdapterKind::Discrete, 8)];
        let printed = line(&Ok(adapters.clone()));
        let script = format!(
            "echo hello; echo no newline at the end >&2; printf warning; cat <<'END'\n{printed}END\nsleep 60"
        );
        let begun = Instant::now();
        assert_eq!(ask(&script, LONG), Ok(adapters));
        assert!(begun.elapsed() < Duration::from_secs(30), "waits for the exit of the child");
        let why = Unavailable { tried: vec!["libfake.so".into()], cause: "no \"library\"".into() };
        let script = format!("[ $0 = fake ] && cat <<'END'\n{}END\nkill -SEGV $$", line(&Err(why.clone())));
        assert_eq!(ask(&script, LONG), Err(why), "a crash after the answer");
    }

    #[test]
    fn a_crash_is_reported_with_its_signal_and_last_output() {
        assert_eq!(
            cause("kill -SEGV $$"),
            "the driver crashed while listing its devices: SIGSEGV (segmentation fault)"
        );
        let said = cause("echo first >&2; echo LLVM ERROR: no target >&2; echo >&2; kill -ABRT $$");
        assert!(said.ends_with("SIGABRT (abort); its last output: LLVM ERROR: no target"), "{said}");
        let said = cause("exit 3");
        assert!(said.ends_with("exit code 3"), "{said}");
        let said = cause(&format!("echo '{MARK}nonsense'"));
        assert!(said.contains("cannot read the answer"), "{said}");
    }

    #[test]
    fn a_hang_ends_with_the_limit() {
        let begun = Instant::now();
        for script in ["sleep 60", "exec >&-; sleep 60"] {
            let why = ask(script, Duration::from_millis(200)).unwrap_err();
            assert_eq!(why.cause, "the driver did not list its devices within 0.2 s");
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }

    /// Checks that a crash in one child process does not affect other backends.
    #[test]
    fn a_crash_affects_only_its_backend() {
        let answer = line(&Ok(vec![adapter("opencl", 0, AdapterKind::Discrete, 8)]));
        let script = format!("[ $0 = hip ] && kill -ABRT $$; cat <<'END'\n{answer}END\n");
        let arguments = ["-c", &script].map(OsString::from).into();
        let apart = |row| Row { probed: Probed::Apart, ..row };
        let rows = vec![
            apart(found("hip", vec![adapter("hip", 0, AdapterKind::Discrete, 24)])),
            apart(found("opencl", vec![])),
            apart(absent("vulkan")),
            found("cpu", vec![adapter("cpu", 0, AdapterKind::Cpu, 4)]),
        ];
        let child = ProbeChild { program: "/bin/sh".into(), arguments, limit: LONG };
        let report = Backends::of(rows).with_child(child).probe();
        let labels: Vec<_> = report.adapters().map(Adapter::label).collect();
        assert_eq!(labels, ["opencl:0", "cpu:0"]);
        let Status::Unavailable(why) = &report.backends[0].status else { panic!("{report:?}") };
        assert!(why.to_string().contains("SIGABRT (abort)"), "{why}");
        assert_eq!(report.backends[2].status, Status::NotCompiled);
    }

    #[test]
    fn a_missing_program_starts_no_probe() {
        let child = ProbeChild { program: "/nonexistent".into(), arguments: Vec::new(), limit: LONG };
        assert!(child.ask("fake").is_none());
    }
}
