//! The `ragtag` command. Each subcommand has its own module. Devices, plans and engines come from the public API
//! of the library.

mod advice;
mod answer;
mod args;
mod bench;
mod calibrate;
mod cards;
mod chat;
mod compare;
mod constraint;
mod devices;
mod doctor;
mod error;
mod files;
mod habits;
mod inspect;
mod kv;
mod lines;
mod links;
#[cfg(feature = "server")]
mod load;
mod logits;
mod output;
mod perplexity;
mod pictures;
mod plan;
mod plan_api;
mod plan_table;
mod progress;
mod records;
mod replay;
mod run;
mod selftest;
#[cfg(feature = "server")]
mod serve;
mod simulate;
mod start;
mod stream;
mod strict;
mod template;
mod tokenize;
#[cfg(feature = "remote")]
mod worker;
mod wrap;

#[cfg(test)]
mod table_tests;

use args::{Cli, Command};
use clap::{CommandFactory, FromArgMatches};
pub use error::exit_code;
use error::{Error, Result};
use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Log filter that applies if `RUST_LOG` is not set.
const DEFAULT_LOG: &str = "warn";
/// The same for `ragtag serve`, which logs its requests.
const DEFAULT_SERVER_LOG: &str = "warn,ragtag_server=info";
/// The same for `ragtag worker`, which logs its runs.
const DEFAULT_WORKER_LOG: &str = "warn,ragtag_engine::remote=info";

/// Runs the command line of this process and returns its exit code.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Child processes log, too.
    start_logging(match arguments.get(1).and_then(|command| command.to_str()) {
        Some("serve") => DEFAULT_SERVER_LOG,
        Some("worker") => DEFAULT_WORKER_LOG,
        _ => DEFAULT_LOG,
    });
    start::devices::isolate();
    if let Some(refusal) = habits::refusal(&arguments) {
        return failed(&Error::Usage(refusal));
    }
    let command = match arguments.iter().any(|argument| argument == "--help-all") {
        true => with_all_options(Cli::command()),
        false => Cli::command(),
    };
    let matches = command.try_get_matches_from(arguments);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(other) => return explain(&other),
    };
    output::set_wide(cli.wide);
    execute(&cli.command).map_or_else(|error| failed(&error), |()| ExitCode::SUCCESS)
}

/// Prints help, the version, or an argument error.
fn explain(text: &clap::Error) -> ExitCode {
    match text.print() {
        Err(cause) if !text.use_stderr() && cause.kind() != ErrorKind::BrokenPipe => {
            failed(&Error::Output(cause))
        }
        _ => ExitCode::from(text.exit_code() as u8),
    }
}

fn failed(error: &Error) -> ExitCode {
    output::note(&format!("ragtag: {error}"));
    ExitCode::from(error.exit_code())
}

fn execute(command: &Command) -> Result<()> {
    match command {
        Command::Devices(args) => devices::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Cards(args) => cards::run(args),
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::run(args),
        #[cfg(feature = "server")]
        Command::Serve(args) => serve::run(args),
        #[cfg(feature = "server")]
        Command::Load(args) => load::run(args),
        #[cfg(feature = "remote")]
        Command::Worker(args) => worker::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Logits(args) => logits::run(args),
        Command::Perplexity(args) => perplexity::run(args),
        Command::Tokenize(args) => tokenize::run(args),
        Command::Template(args) => template::run(args),
        Command::Selftest(args) => selftest::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            let mut command = with_all_options(Cli::command());
            clap_complete::generate(*shell, &mut command, "ragtag", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
    }
}

/// Returns a command whose help shows all options. Without `--help-all`, it omits the rarely used ones.
fn with_all_options(command: clap::Command) -> clap::Command {
    command.mut_args(|argument| argument.hide(false)).mut_subcommands(with_all_options)
}

/// Starts logging to standard error. `RUST_LOG` sets the filter. `NO_COLOR` turns off colors.
fn start_logging(usual: &str) {
    let wanted = std::env::var("RUST_LOG").ok().filter(|wanted| !wanted.is_empty());
    let filter = EnvFilter::try_new(wanted.as_deref().unwrap_or(usual)).unwrap_or_else(|cause| {
        output::note(&format!("warning: invalid RUST_LOG, using \"{usual}\": {cause}"));
        EnvFilter::new(usual)
    });
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours);
    // `init` would also print the log records of dependencies. It fails if another subscriber is set.
    let _ = tracing::subscriber::set_global_default(log.with_writer(std::io::stderr).finish());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of two screens of 80 columns.
    const TWO_SCREENS: usize = 100;

    /// Returns what a user sees on a terminal of 80 columns.
    fn help(command: clap::Command, names: &[&str]) -> String {
        let words = ["ragtag"].iter().chain(names).chain(&["--help"]);
        command.term_width(80).try_get_matches_from(words).unwrap_err().to_string()
    }

    #[test]
    fn help_fits_two_screens_and_the_help_of_all_options_has_all() {
        let all = with_all_options(Cli::command());
        let mut paths: Vec<Vec<&str>> = vec![vec!["bench", "links"]];
        paths.extend(all.get_subcommands().map(|command| vec![command.get_name()]));
        for names in &paths {
            let usual = help(Cli::command(), names);
            assert!(usual.lines().count() <= TWO_SCREENS, "{names:?}: {} lines", usual.lines().count());
            let complete = help(all.clone(), names);
            let command = names.iter().fold(&all, |command, name| command.find_subcommand(name).unwrap());
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(complete.contains(&format!("--{option}")), "{names:?}: --{option}");
            }
        }
    }
}
