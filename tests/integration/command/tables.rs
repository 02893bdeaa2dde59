//! Tests that tables are at most 80 characters wide, unless `--wide` requests every column.

use super::{TWO, done};

fn rows(arguments: &[&str]) -> Vec<String> {
    let text = done(arguments).out;
    let rows: Vec<_> = text.lines().filter(|line| line.starts_with('|')).map(str::to_owned).collect();
    assert!(rows.len() > 2, "{text}");
    rows
}

#[test]
fn tables_fit_80_columns_and_wide_shows_every_column() {
    let plan = [&["plan", "--no-calibration"][..], &TWO].concat();
    let calibrate = ["calibrate", "--device", "cpu", "--seconds", "0.1"];
    for arguments in [&["devices"][..], &["devices", "--doctor"], &plan, &calibrate] {
        for row in rows(arguments) {
            assert!(row.chars().count() <= 80, "{arguments:?}: {row}");
        }
    }
    let header = |more: &[&str]| rows(&[&plan[..], more].concat()).swap_remove(0);
    let (narrow, wide) = (header(&[]), header(&["--wide"]));
    assert!(!narrow.contains("KV cache") && narrow.contains("memory"), "{narrow}");
    assert!(wide.contains("KV cache") && wide.contains("scratch, slots"), "{wide}");
    assert!(!rows(&["devices"])[0].contains("driver") && rows(&["devices", "--wide"])[0].contains("driver"));
}
