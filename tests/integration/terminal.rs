//! Tests of `ragtag chat` in a pseudo-terminal: turns, limits, a full context, Ctrl-C, failures, and wrapped lines.

use crate::chat::{Folder, TEMPLATE};
use crate::support::{environment, model_bytes, model_path, ragtag, text};
use rexpect::process::WaitStatus;
use rexpect::session::{PtySession, spawn_command};
use serde_json::Value;
use std::process::Command;

/// Time after which a test fails if the expected output does not appear.
const LIMIT_MS: u64 = 120_000;

/// A chat in a terminal.
struct Terminal(PtySession);

impl Terminal {
    /// Starts a chat in a terminal with `columns` columns, and waits for its prompt.
    fn chat(folder: &Folder, columns: u32, arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        for (variable, value) in environment() {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        let script = format!("stty cols {columns} rows 24; exec \"$0\" \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_ragtag"), "chat"]).args(arguments);
        command.args(["--device", "cpu", "--no-calibration", "--temp", "0"]);
        command.env("TERM", "xterm").current_dir(folder.path());
        let mut terminal = Self(spawn_command(command, Some(LIMIT_MS)).unwrap());
        terminal.until("Ctrl-D leaves");
        terminal.until("> ");
        terminal
    }

    /// Types a line.
    fn line(&mut self, line: &str) {
        self.0.send_line(line).unwrap();
    }

    fn press_ctrl(&mut self, key: char) {
        self.0.send_control(key).unwrap();
    }

    /// Waits for `output`. Returns the output before it.
    fn until(&mut self, output: &str) -> String {
        self.0.exp_string(output).unwrap()
    }

    /// Types a line, and waits for `last` and for the next prompt. Returns the output before `last`.
    fn ask(&mut self, line: &str, last: &str) -> String {
        self.line(line);
        let shown = self.until(last);
        self.until("> ");
        shown
    }

    /// Waits for the end of the chat. Returns its exit code and the rest of its output.
    fn end(mut self) -> (i32, String) {
        let rest = self.0.exp_eof().unwrap();
        match self.0.process().wait().unwrap() {
            WaitStatus::Exited(_, code) => (code, rest),
            other => panic!("{other:?}: {rest}"),
        }
    }
}

/// Without a model, the bundled one continues the user's tale. Statistics appear only on request.
#[test]
fn a_chat_needs_no_model() {
    let folder = Folder::new(TEMPLATE);
    let mut terminal = Terminal::chat(&folder, 80, &[]);
    for line in ["Once upon a time", "The next day, the king"] {
        let shown = terminal.ask(line, "[answer cut at 80 tokens; -n sets the limit]");
        assert!(!shown.contains("tokens/s"), "{shown}");
    }
    terminal.line("/exit");
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn a_chat_has_turns_and_ctrl_c_stops_only_an_answer() {
    let folder = Folder::new(TEMPLATE);
    // The whole answers, over a pipe. The first one is part of the second prompt.
    let (code, _, errors) = folder.chat(&["-n", "30", "--quiet"], "1 2\n3 4\n/save whole.json\n");
    assert_eq!(code, 0, "{errors}");
    let answer = folder.messages("whole.json").swap_remove(3).1;
    // The throttle makes sure that the answer is not complete before Ctrl-C.
    let arguments = ["--template", "t.jinja", "-n", "30", "--stats", "--throttle", "cpu:0=duty:2%"];
    let mut terminal = Terminal::chat(&folder, 80, &arguments);
    let shown = terminal.ask("1 2", ", seed ");
    for part in ["prompt tokens at ", "30 new tokens at ", "(token limit)"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    terminal.line("3 4");
    // Not before the answer begins: on a busy machine, the terminal may still belong to the editor.
    terminal.until(answer.split_whitespace().nth(1).unwrap());
    terminal.press_ctrl('c');
    terminal.until("(cancelled)");
    terminal.until("> ");
    // A message of two lines.
    terminal.line("5 \\");
    terminal.ask("6", "(token limit)");
    // At the prompt, Ctrl-C clears the line.
    terminal.0.send("7").unwrap();
    terminal.0.flush().unwrap();
    terminal.until("7");
    terminal.press_ctrl('c');
    terminal.until("> ");
    terminal.ask("/save talk.json", "saved to talk.json");
    // On an empty line, it leaves if it is pressed twice.
    terminal.press_ctrl('c');
    terminal.until("Ctrl-C again, Ctrl-D or /exit leaves");
    terminal.until("> ");
    terminal.ask("/system", "no system message");
    terminal.press_ctrl('c');
    terminal.until("Ctrl-C again, Ctrl-D or /exit leaves");
    terminal.until("> ");
    terminal.press_ctrl('c');
    assert_eq!(terminal.end().0, 0);

    let messages = folder.messages("talk.json");
    let roles: Vec<&str> = messages.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant"].repeat(3));
    assert_eq!([0, 2, 4].map(|at| messages[at].1.as_str()), ["1 2", "3 4", "5 \n6"]);
    let stopped = &messages[3].1;
    assert!(answer.starts_with(stopped) && stopped.len() < answer.len(), "{answer:?} {stopped:?}");
}

#[test]
fn ctrl_d_leaves_and_errors_of_lines_do_not() {
    let folder = Folder::new(TEMPLATE);
    let mut terminal = Terminal::chat(&folder, 80, &["-n", "2"]);
    terminal.ask("/nothing", "error: unknown command \"/nothing\"");
    terminal.ask("/load none.json", "error: cannot read none.json");
    terminal.ask("Once", "[answer cut at 2 tokens");
    terminal.press_ctrl('d');
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn a_full_context_drops_the_oldest_turns() {
    let folder = Folder::new(TEMPLATE);
    let arguments = ["--template", "t.jinja", "--system", "A tale", "--ctx", "48"];
    let mut terminal = Terminal::chat(&folder, 80, &[&arguments[..], &["-n", "8"]].concat());
    let mut turns = 0;
    let dropped = loop {
        turns += 1;
        let shown = terminal.ask(&format!("{turns} of them"), "[answer cut at 8 tokens; -n sets the limit]");
        if shown.contains(
            "[dropped the oldest turn, because the context holds 48 tokens; --ctx sets a larger one]",
        ) {
            break 1;
        }
        assert!(turns < 10, "{shown}");
    };
    let long = "word ".repeat(60);
    let shown = terminal.ask(&long, "the context holds 48");
    let (_, tokens) = shown.rsplit_once("error: the prompt has ").expect("an error with both numbers");
    assert!(tokens.trim_end_matches(" tokens, ").parse::<u32>().unwrap() > 48, "{shown}");
    terminal.ask("/save a.json", "saved to");
    // The system message, and the turns that are left.
    let messages = folder.messages("a.json");
    assert_eq!(messages.len(), 1 + 2 * (turns - dropped));
    assert_eq!(messages[0].1, "A tale");
    assert_eq!(messages[1].1, format!("{} of them", dropped + 1));
    terminal.line("/exit");
    assert_eq!(terminal.end().0, 0);

    // The context fills while an answer is generated.
    let mut terminal = Terminal::chat(&folder, 80, &[&arguments[..], &["-n", "100"]].concat());
    for line in ["Once", "And then"] {
        terminal.ask(line, "tokens, because the context of 48 tokens is full]");
    }
    terminal.press_ctrl('d');
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn a_full_context_stops_a_chat_on_request() {
    let folder = Folder::new(TEMPLATE);
    let arguments = ["--template", "t.jinja", "--ctx", "48", "--context-full", "stop"];
    let mut terminal = Terminal::chat(&folder, 80, &[&arguments[..], &["-n", "30"]].concat());
    terminal.ask("Once", "[answer cut at 30 tokens");
    // This message alone does not fit.
    terminal.ask(&"word ".repeat(60), "error: the prompt has ");
    terminal.line("She was one of the three daughters of the king");
    let (code, rest) = terminal.end();
    assert!(
        code == 2 && rest.contains("ragtag: the conversation fills the context of 48 tokens"),
        "{code}: {rest}"
    );

    let mut terminal = Terminal::chat(&folder, 80, &[&arguments[..], &["-n", "100"]].concat());
    terminal.line("Once");
    let (code, rest) = terminal.end();
    assert!(
        code == 2 && rest.contains("ragtag: the conversation fills the context of 48 tokens"),
        "{code}: {rest}"
    );
}

/// A model whose weights stream from its file fails if the file is truncated.
#[test]
fn a_failing_model_ends_a_chat_with_its_exit_code() {
    let folder = Folder::new(TEMPLATE);
    let path = folder.path().join("model.gguf");
    std::fs::copy(model_path("tales-q8_0"), &path).unwrap();
    let planned = ["plan", text(&path), "--device", "cpu", "--no-calibration", "--ctx", "128", "--json"];
    let output = ragtag().args(planned).output().unwrap();
    let mut plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    for field in ["streamed", "from_file"] {
        plan["stages"][0][field] = serde_json::json!([2, 4, 6, 8]);
    }
    folder.file("plan.json", &plan.to_string());
    let arguments = ["model.gguf", "--template", "t.jinja", "--plan", "plan.json", "-n", "4"];
    let mut terminal = Terminal::chat(&folder, 80, &arguments);
    terminal.ask("Once", "[answer cut at 4 tokens");
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(std::fs::metadata(&path).unwrap().len() / 2).unwrap();
    terminal.line("And then");
    let (code, rest) = terminal.end();
    assert_eq!(code, 7, "{rest}");
    for part in ["ragtag: stage 0 on cpu:0", "model.gguf", "shrank while in use"] {
        assert!(rest.contains(part), "{part}: {rest}");
    }
}

/// Words of `tales-q8_0`, and as many bytes that replace them.
const WIDE_WORDS: [(&str, &str); 10] = [
    ("▁the", "▁火"),
    ("▁and", "▁水"),
    ("▁she", "▁月"),
    ("▁her", "▁山"),
    ("▁was", "▁森"),
    ("▁had", "▁王"),
    ("▁that", "▁🦊"),
    ("▁they", "▁🌳"),
    ("▁king", "▁👑"),
    ("▁said", "▁🔥"),
];

/// Returns the rows of a terminal with `columns` columns that shows `output`. A wide character is followed by a zero.
fn rows(columns: usize, output: &str) -> Vec<String> {
    let (mut rows, mut row, mut column, mut saved) = (vec![vec![]], 0, 0, (0, 0));
    let mut rest = output.chars();
    while let Some(c) = rest.next() {
        let cells: &mut Vec<char> = &mut rows[row];
        match c {
            '\r' => column = 0,
            '\n' => {
                row += 1;
                rows.resize_with(rows.len().max(row + 1), Vec::new);
            }
            '\x1b' => match rest.next().unwrap() {
                '7' => saved = (row, column),
                '8' => (row, column) = saved,
                '[' => {
                    let mut number = String::new();
                    let action = loop {
                        match rest.next().unwrap() {
                            c @ '@'..='~' => break c,
                            c => number.push(c),
                        }
                    };
                    match action {
                        'K' | 'J' => cells.truncate(column),
                        'C' => column += number.parse().unwrap_or(1),
                        _ => {}
                    }
                }
                other => panic!("{other:?} in {output:?}"),
            },
            _ => {
                let shown = if is_wide(c) { vec![c, '\0'] } else { vec![c] };
                assert!(column + shown.len() <= columns, "{output:?} exceeds the row");
                cells.resize(cells.len().max(column + shown.len()), ' ');
                cells[column..column + shown.len()].copy_from_slice(&shown);
                column += shown.len();
            }
        }
    }
    rows.into_iter().map(|cells| cells.into_iter().collect()).collect()
}

#[test]
fn answers_wrap_between_words() {
    let folder = Folder::new(TEMPLATE);
    let mut bytes = model_bytes("tales-q8_0");
    for (word, wide) in WIDE_WORDS {
        let token = [&(word.len() as u64).to_le_bytes(), word.as_bytes()].concat();
        let at = bytes.windows(token.len()).position(|window| window == token).expect(word) + 8;
        bytes[at..at + wide.len()].copy_from_slice(wide.as_bytes());
    }
    std::fs::write(folder.path().join("wide.gguf"), bytes).unwrap();
    let arguments = ["wide.gguf", "--template", "t.jinja", "-n", "120"];
    let mut terminal = Terminal::chat(&folder, 40, &arguments);
    let shown = terminal.ask("Once", "[answer cut at 120 tokens");
    terminal.ask("/save a.json", "saved to");
    terminal.line("/exit");
    assert_eq!(terminal.end().0, 0);

    // The session takes each byte for a character.
    let shown = String::from_utf8(shown.chars().map(|c| c as u8).collect()).unwrap();
    let rows = rows(40, &shown);
    // After the rows of the typed line comes the answer, and then an empty row.
    let typed = rows.iter().rposition(|row| row.contains("Once")).unwrap();
    let answer: Vec<&str> = rows[typed + 1..rows.len() - 1].iter().map(String::as_str).collect();
    let text = folder.messages("a.json").swap_remove(1).1;
    assert!(text.chars().filter(|c| is_wide(*c)).count() >= 5 && answer.len() >= 5, "{text:?}");
    let mut rest = text.as_str();
    for (row, next) in answer.iter().zip(answer.iter().skip(1).copied().chain([""])) {
        let shown = row.replace('\0', "");
        assert!(rest.starts_with(&shown), "{shown:?} in {rest:?}");
        rest = &rest[shown.len()..];
        let (space, next_text) = rest.split_at(rest.len() - rest.trim_start().len());
        // A row ends at white space of the text, or beside a wide character.
        let is_beside = shown.ends_with(is_wide) || next_text.starts_with(is_wide);
        assert!(!space.is_empty() || is_beside || rest.is_empty(), "{shown:?} breaks a word of {text:?}");
        // It ends there only if the next word does not fit.
        let is_full = row.chars().count() + space.len() + next.chars().take_while(|c| *c != ' ').count() > 39;
        assert!(
            is_full || next.starts_with(is_wide) || space.contains('\n') || rest.is_empty(),
            "{row:?} {next:?}"
        );
        rest = next_text;
    }
    assert_eq!(rest, "");
}

/// Returns whether a character of these tests takes two columns.
fn is_wide(c: char) -> bool {
    c >= '\u{2e80}'
}
