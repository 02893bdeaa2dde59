//! Probing in a process of its own: a driver that crashes or hangs there takes nobody along.
//!
//! The child is a program that the caller names, as a rule the same one started again. It is told a backend's name, asks
//! that backend ([`crate::Backends::answer`]) and prints one line. As soon as the line is there the child is killed, since
//! a driver may as well crash when it ends. This module must not know any backend.

use ragtag_hal::{Adapter, Unavailable, exit_in_words};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// What the line of an answer begins with: drivers print as well.
const MARK: &str = "ragtag-probe ";
/// How often is looked whether a child still lives that says nothing.
const STEP: Duration = Duration::from_millis(5);
/// How long what a dead child has written may take to arrive.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Most that is read of what a child writes.
const MOST_BYTES: u64 = 1 << 20;
/// Most that is quoted of what it says before it crashes.
const MOST_QUOTED: usize = 200;

/// How to start a process that probes one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeChild {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; the backend's name is added as the last.
    pub arguments: Vec<OsString>,
    /// How long it may take.
    pub limit: Duration,
}

impl ProbeChild {
    /// How long a probe may take unless something else is said: drivers of many GPUs take seconds to wake them.
    pub const LIMIT: Duration = Duration::from_secs(30);

    /// Starts the child. `None` if it does not start: then nothing stands in the way of probing here.
    pub(crate) fn ask(&self, backend: &str) -> Option<Asked> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .arg(backend)
            // What it says is logged here once more.
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .inspect_err(|error| tracing::debug!(backend, %error, "no process to probe in"))
            .ok()?;
        let answer = answer_of(child.stdout.take()?);
        let said = said_by(child.stderr.take()?);
        let (backend, deadline) = (backend.to_string(), Instant::now() + self.limit);
        Some(Asked { backend, child, answer, said, limit: self.limit, deadline })
    }
}

/// The line that an answer travels in.
pub(crate) fn line(probe: &Result<Vec<Adapter>, Unavailable>) -> String {
    let answer = match probe {
        Ok(adapters) => Answer::Found(adapters.clone()),
        Err(unavailable) => Answer::Unavailable(unavailable.clone()),
    };
    // Adapters and causes are plain data; what could not be written would be no answer.
    serde_json::to_string(&answer).map(|json| format!("{MARK}{json}\n")).unwrap_or_default()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Found(Vec<Adapter>),
    Unavailable(Unavailable),
}

/// A child that has been asked.
pub(crate) struct Asked {
    backend: String,
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
    /// What the backend said; or that the child crashed, with the signal, or took too long.
    pub(crate) fn wait(mut self) -> Result<Vec<Adapter>, Unavailable> {
        loop {
            match self.answer.recv_timeout(STEP) {
                Ok(line) => return self.answered(&line),
                Err(RecvTimeoutError::Timeout) => {}
                // It says no more; it should end now.
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
                self.end();
                return Err(unavailable(format!(
                    "the driver did not say within {limit_s} s which devices it has"
                )));
            }
        }
    }

    fn answered(self, line: &str) -> Result<Vec<Adapter>, Unavailable> {
        let answer = serde_json::from_str(line);
        let backend = self.backend.clone();
        let said = self.end();
        // Drivers talk of what does not matter here; what does is in the answer.
        if let Ok(said) = said.recv_timeout(LAST_WORDS) {
            said.lines().for_each(|line| tracing::debug!(backend, "{line}"));
        }
        match answer {
            Ok(Answer::Found(adapters)) => Ok(adapters),
            Ok(Answer::Unavailable(why)) => Err(why),
            Err(error) => Err(unavailable(format!("its probe gave no answer that can be read: {error}"))),
        }
    }

    fn crashed(self, status: ExitStatus) -> Unavailable {
        let said = self.said.recv_timeout(LAST_WORDS).unwrap_or_default();
        let said: String = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().into();
        let said: String = said.trim().chars().filter(|c| !c.is_control()).take(MOST_QUOTED).collect();
        let said = if said.is_empty() { said } else { format!(", after it said: {said}") };
        let how = exit_in_words(status);
        unavailable(format!("the driver crashed when it was asked for its devices: {how}{said}"))
    }

    /// Ends the child. Its end may take as long as the system likes, so nobody waits for it here.
    fn end(mut self) -> Receiver<String> {
        std::thread::spawn(move || {
            // It may have ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        });
        self.said
    }
}

fn unavailable(cause: String) -> Unavailable {
    Unavailable { tried: vec!["a process of its own".into()], cause }
}

/// Reads until the line of an answer comes.
fn answer_of(out: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(out.take(MOST_BYTES)).split(b'\n');
        let marked = lines.find_map(|line| {
            let line = String::from_utf8_lossy(&line.ok()?).into_owned();
            Some(line.split_once(MARK)?.1.to_string())
        });
        // Nobody is there any more if it took too long.
        let _ = marked.map(|line| sender.send(line));
    });
    receiver
}

/// Reads everything, as text.
fn said_by(err: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut said = Vec::new();
        // What was read before a failure is as good as anything.
        let _ = err.take(MOST_BYTES).read_to_end(&mut said);
        let _ = sender.send(String::from_utf8_lossy(&said).into_owned());
    });
    receiver
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::selection::fakes::{absent, adapter, found};
    use crate::table::{Backends, Probed, Row, Status};
    use ragtag_hal::AdapterKind;

    /// What comes of a child that is a shell script; `$0` is the backend's name.
    fn ask(script: &str, limit: Duration) -> Result<Vec<Adapter>, Unavailable> {
        let arguments = ["-c", script].map(OsString::from).into();
        ProbeChild { program: "/bin/sh".into(), arguments, limit }.ask("fake").unwrap().wait()
    }

    const LONG: Duration = Duration::from_secs(60);

    fn cause(script: &str) -> String {
        ask(script, LONG).unwrap_err().cause
    }

    #[test]
    fn an_answer_comes_through_whatever_the_driver_prints() {
        let adapters = vec![adapter("fake", 0, AdapterKind::Discrete, 8)];
        let printed = line(&Ok(adapters.clone()));
        let script = format!(
            "echo hello; echo no newline at the end >&2; printf warning; cat <<'END'\n{printed}END\nsleep 60"
        );
        let begun = Instant::now();
        assert_eq!(ask(&script, LONG), Ok(adapters));
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody waits for its end");
        let why = Unavailable { tried: vec!["libfake.so".into()], cause: "no \"library\"".into() };
        let script = format!("[ $0 = fake ] && cat <<'END'\n{}END\nkill -SEGV $$", line(&Err(why.clone())));
        assert_eq!(ask(&script, LONG), Err(why), "it crashed when it had said everything");
    }

    #[test]
    fn a_crash_is_told_with_its_signal_and_its_last_words() {
        assert_eq!(
            cause("kill -SEGV $$"),
            "the driver crashed when it was asked for its devices: SIGSEGV (segmentation fault)"
        );
        let said = cause("echo first >&2; echo LLVM ERROR: no target >&2; echo >&2; kill -ABRT $$");
        assert!(said.ends_with("SIGABRT (abort), after it said: LLVM ERROR: no target"), "{said}");
        let said = cause("exit 3");
        assert!(said.ends_with("exit code 3"), "{said}");
        let said = cause(&format!("echo '{MARK}nonsense'"));
        assert!(said.contains("no answer that can be read"), "{said}");
    }

    #[test]
    fn a_hang_ends_with_the_limit() {
        let begun = Instant::now();
        for script in ["sleep 60", "exec >&-; sleep 60"] {
            let why = ask(script, Duration::from_millis(200)).unwrap_err();
            assert_eq!(why.cause, "the driver did not say within 0.2 s which devices it has");
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    }

    /// One of two backends that are probed apart crashes; all others are as they were.
    #[test]
    fn a_crash_takes_nobody_along() {
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
    fn a_program_that_is_not_there_is_not_asked() {
        let child = ProbeChild { program: "/nonexistent".into(), arguments: Vec::new(), limit: LONG };
        assert!(child.ask("fake").is_none());
    }
}
