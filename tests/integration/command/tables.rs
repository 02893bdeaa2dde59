//! Tests of the width of tables and of help texts.

use super::{TWO, done};

fn rows(text: &str) -> Vec<String> {
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with('|')).map(str::to_owned).collect();
    assert!(rows.len() > 2, "{text}");
    rows
}

#[test]
fn tables_in_a_pipe_have_all_columns_and_one_line_per_row() {
    let plan = [&["plan", "--no-calibration"][..], &TWO].concat();
    for (arguments, column) in
        [(&["devices"][..], "driver"), (&plan, "scratch, slots"), (&["cards"], "through")]
    {
        let piped = rows(&done(arguments).out);
        assert!(piped[0].contains(column), "{piped:?}");
        // A wrapped row would leave its first cell empty.
        let is_whole = |row: &String| !row.split('|').nth(1).unwrap().trim().is_empty();
        assert!(piped.iter().all(is_whole), "{piped:?}");
        assert_eq!(rows(&done(&[arguments, &["--wide"]].concat()).out)[0], piped[0]);
    }
}

/// Checks that a table uses the width of the terminal, and that details are hidden if they do not fit.
#[cfg(unix)]
#[test]
fn tables_use_the_width_of_the_terminal() {
    let shown = |columns: u16| {
        let script = format!("stty cols {columns}; exec '{}' cards", env!("CARGO_BIN_EXE_ragtag"));
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]);
        let mut terminal = rexpect::session::spawn_command(command, Some(60_000)).unwrap();
        rows(&terminal.exp_eof().unwrap().replace('\r', ""))
    };
    let (narrow, wide) = (shown(80), shown(200));
    assert!(narrow.iter().all(|row| row.chars().count() <= 80), "{narrow:?}");
    assert!(!narrow[0].contains("through") && wide[0].contains("through"), "{wide:?}");
    assert_eq!(wide, rows(&done(&["cards"]).out));
}

#[test]
fn rare_options_are_in_the_help_of_all_options() {
    let (usual, all) = (done(&["run", "--help"]).out, done(&["run", "--help-all"]).out);
    for option in ["--rope-scaling", "--throttle", "--stall-timeout", "-m, --model"] {
        assert!(!usual.contains(option) && all.contains(option), "{option}");
    }
    assert!(usual.contains("--help-all") && usual.contains("-c, --ctx"), "{usual}");
    // The option needs no other arguments.
    assert!(done(&["logits", "--help-all"]).out.contains("--ids"));
}
