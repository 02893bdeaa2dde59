//! Tests that `docs/cli.md` equals the help of the command.

use super::done;
use std::fmt::Write as _;
use std::path::Path;

const PAGE: &str = "docs/cli.md";
const INTRODUCTION: &str = "# Command line

This page is the output of `--help`. `RAGTAG_WRITE_DOCS=1 cargo test --test integration help_page` writes it.

## Environment variables

| variable | effect |
| --- | --- |
| `RAGTAG_DEVICES` | default of `--device` |
| `RAGTAG_MEMORY` | default of `--memory` |
| `RAGTAG_CACHE_DIR` | folder for profiles and compiled programs; default: the user's cache folder |
| `RAGTAG_PROBE_LIMIT` | default of `--probe-limit` |
| `RAGTAG_NO_CALIBRATION` | `1` turns calibration off |
| `RAGTAG_STRICT` | `1` turns `--strict` on |
| `RUST_LOG` | log filter, for example `ragtag_scheduler=trace`; logs go to standard error |

Boolean variables take 1 or 0, true or false, yes or no, on or off. Any other value is an error. [vulkan.md](vulkan.md) and
[wgpu.md](wgpu.md) list the variables of these APIs.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | success; also a run that Ctrl-C cancelled |
| 1 | internal or device failure; a failed self-test |
| 2 | usage, a prompt that is too long, an unknown token id |
| 3 | model file or chat template, or messages that the template rejects |
| 4 | plan or split |
| 5 | devices |
| 6 | does not fit in memory |
| 7 | a file or standard output cannot be read or written (a closed pipe is not an error) |
| 8 | refused by `--strict` |
";

/// Returns the names of all subcommands in the order of the help.
fn subcommands(help: &str) -> Vec<&str> {
    let list = help.split("Commands:\n").nth(1).expect("lists commands");
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

#[test]
fn help_page_is_up_to_date() {
    let help = |arguments: &[&str]| done(arguments).out;
    let whole = help(&["--help"]);
    let mut page = String::from(INTRODUCTION);
    let mut add = |name: &str, text: &str| {
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        write!(page, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end()).unwrap();
    };
    add("ragtag", &whole);
    for name in subcommands(&whole) {
        add(&format!("ragtag {name}"), &help(&[name, "--help"]));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("RAGTAG_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "{PAGE} is out of date: RAGTAG_WRITE_DOCS=1 cargo test --test integration help_page"
    );
}

#[test]
fn old_spellings_of_options_still_work() {
    let old =
        done(&["plan", "--cpu-devices", "2", "--handicap", "cpu:1=duty:50%", "--boundary", "f32", "--json"]);
    let new =
        done(&["plan", "--cpu-devices", "2", "--throttle", "cpu:1=duty:50%", "--wire", "f32", "--json"]);
    assert_eq!(old.json()["wire_type"], new.json()["wire_type"]);
    assert!(old.err.contains("cpu:1=duty:50%"), "{}", old.err);
}
