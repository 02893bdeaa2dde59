//! The command `ragtag`.

fn main() -> std::process::ExitCode {
    ragtag::cli::main()
}
