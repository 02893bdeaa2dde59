//! Model files that change while the command runs.

use crate::support::{environment, model_path, text};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use test_support::nightly;

/// Event that happens to the file, or to the command that reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Kill,
    Truncate,
    /// Writes other bytes into the same file.
    Overwrite,
    /// Puts another file in its place.
    Replace,
}

const EVENTS: [Event; 4] = [Event::Kill, Event::Truncate, Event::Overwrite, Event::Replace];

impl Event {
    fn happen(self, path: &Path, child: &mut Child) {
        let bytes = std::fs::metadata(path).unwrap().len();
        let file = || std::fs::File::options().write(true).open(path).unwrap();
        match self {
            // A command that has ended cannot be killed.
            Event::Kill => drop(child.kill()),
            Event::Truncate => file().set_len(bytes / 3).unwrap(),
            Event::Overwrite => file().write_all(&vec![0; bytes as usize]).unwrap(),
            Event::Replace => {
                let other = path.with_extension("part");
                std::fs::write(&other, vec![0; bytes as usize]).unwrap();
                std::fs::rename(other, path).unwrap();
            }
        }
    }
}

fn spawn(path: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ragtag"));
    for (variable, value) in environment() {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    command.args(["run", text(path), "-p", "Once upon a time", "-n", "8", "--temp", "0", "-q"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs the command on a fresh copy of a model, and lets `event` happen after `delay`.
fn run(event: Option<Event>, delay: Duration) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changing.gguf");
    std::fs::copy(model_path("tales-q8_0"), &path).unwrap();
    let mut child = spawn(&path);
    if let Some(event) = event {
        std::thread::sleep(delay);
        event.happen(&path, &mut child);
    }
    child.wait_with_output().unwrap()
}

#[test]
fn a_file_that_changes_at_any_time_ends_in_the_text_or_a_clear_error() {
    let start = Instant::now();
    let whole = run(None, Duration::ZERO);
    let duration = start.elapsed();
    assert!(whole.status.success(), "{whole:?}");
    let times = if nightly() { 50 } else { 4 };
    for (event, time) in EVENTS.into_iter().flat_map(|event| (0..times).map(move |time| (event, time))) {
        let delay = duration * time / times;
        let Output { status, stdout, stderr } = run(Some(event), delay);
        let err = String::from_utf8(stderr).unwrap();
        let case = format!("{event:?} after {delay:?}: {status:?}: {err}");
        assert!(whole.stdout.starts_with(&stdout) && !err.contains("panicked"), "{case}");
        match status.code() {
            Some(0) => assert_eq!(stdout, whole.stdout, "{case}"),
            // The file changed before the command opened it.
            Some(3) => assert!(event != Event::Kill && err.contains("changing.gguf"), "{case}"),
            Some(7) => {
                let words = ["changing.gguf", if event == Event::Truncate { "shrank" } else { "changed" }];
                let has_changed = [Event::Truncate, Event::Overwrite].contains(&event);
                assert!(has_changed && words.iter().all(|word| err.contains(word)), "{case}");
            }
            _ => assert_eq!(event, Event::Kill, "{case}"),
        }
    }
}
