//! Checks the packages of the published crates. Packages each crate, checks its size, and compiles the examples
//! outside the workspace with these packages alone. The complete check also builds and runs them. A second program
//! uses the library without the command.
//!
//! Lists no packages; cargo's metadata does.

use crate::checks::Done;
use crate::metadata::{self, Package};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Maximum size of a package, in bytes. The registry rejects larger packages.
const PACKAGE_BYTES: u64 = 10 << 20;

/// Example to run, its arguments for a small problem size, and text that its output must contain.
const RUNS: (&str, [&str; 3], &str) = ("06-attention-everywhere", ["2", "32", "16"], "cpu:0 ");

/// Package of the library, whose example is the second program.
const LIBRARY: &str = "ragtag-engine";

/// Arguments with which a program that isolates drivers is the child process for a backend.
const CHILD: [&str; 3] = ["ragtag-child", "probe", "opencl"];

/// Crates to build without optimisation, because optimising them takes longer than running the example.
const UNOPTIMISED: [&str; 3] = ["ragtag-kernels", "ragtag-planner", "ragtag-scheduler"];

/// Work on the examples.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Only type-check them, which finds files that a package lacks.
    Check,
    /// Build all and run one.
    Run,
}

/// Packages the published crates, and compiles the examples with them.
///
/// # Errors
/// Returns an error if a package is incomplete or too large, or if the output of the example is wrong.
pub(crate) fn run(root: &Path, depth: Depth, done: &mut Done) -> Result<(), String> {
    let metadata = metadata::read(root)?;
    let packages: Vec<_> = metadata.packages.iter().filter(|package| package.is_published()).collect();
    let names = packages.iter().flat_map(|package| ["-p", &package.name]);
    // Cargo's own verification would compile all dependencies again for each package. The program below
    // verifies all packages at once.
    let package = ["package", "--locked", "--offline", "--no-verify", "--allow-dirty"];
    done.cargo(root, &package.into_iter().chain(names).collect::<Vec<_>>(), &[])?;
    let files = metadata.target_directory.join("package");
    // The path is the same in every run, so that new build files replace old ones.
    let place = root.to_string_lossy().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let folder = std::env::temp_dir().join(format!("downstream{place}"));
    let outcome = done.timed("the examples with the packages alone", || {
        unpack(&packages, &files, &folder)?;
        program(root, &packages, &folder)?;
        build(&folder, depth, &metadata.target_directory)
    });
    let _ = fs::remove_dir_all(&folder);
    outcome
}

/// Unpacks each package into its own subfolder of `folder`.
fn unpack(packages: &[&Package], files: &Path, folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for package in packages {
        let file = files.join(format!("{}.crate", directory(package)));
        let bytes = fs::metadata(&file).map_err(|e| format!("{}: {e}", file.display()))?.len();
        if bytes > PACKAGE_BYTES {
            return Err(format!("{}: {bytes} bytes; {PACKAGE_BYTES} are allowed", file.display()));
        }
        // Packages date all files to 2006, which would hide changes from cargo. The tar option `m` sets the
        // current time.
        printed(Command::new("tar").arg("xzmf").arg(&file).current_dir(folder))?;
    }
    Ok(())
}

/// Writes a program outside the workspace. It consists of the examples and a manifest. The manifest depends
/// on the packages, and repeats the workspace's profiles so that cargo can reuse compiled dependencies.
fn program(root: &Path, packages: &[&Package], folder: &Path) -> Result<(), String> {
    let read = |file: &str| fs::read_to_string(root.join(file)).map_err(|e| format!("{file}: {e}"));
    let write =
        |file: &str, text: &str| fs::write(folder.join(file), text).map_err(|e| format!("{file}: {e}"));
    write("Cargo.toml", &manifest(packages, &read("Cargo.toml")?))?;
    write("Cargo.lock", &read("Cargo.lock")?)?;
    fs::create_dir_all(folder.join("embedding/src")).map_err(|e| e.to_string())?;
    write("embedding/Cargo.toml", &embedding(packages))?;
    write("embedding/src/main.rs", &read("engine/examples/isolated.rs")?)?;
    fs::create_dir_all(folder.join("examples")).map_err(|e| e.to_string())?;
    for entry in fs::read_dir(root.join("examples")).map_err(|e| format!("examples: {e}"))? {
        let name = entry.map_err(|e| e.to_string())?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".rs") {
            // The workspace's own examples are in the same target folder.
            write(&format!("examples/packaged-{name}"), &read(&format!("examples/{name}"))?)?;
        }
    }
    Ok(())
}

fn manifest(packages: &[&Package], workspace: &str) -> String {
    let mut text =
        "[workspace]\nmembers = [\"embedding\"]\n[package]\nname = \"downstream\"\nedition = \"2024\"\n"
            .to_owned();
    text.push_str("[dependencies]\ntokio = \"1\"\n");
    for package in packages {
        let _ = writeln!(text, "{} = \"={}\"", package.name, package.version);
    }
    text.push_str("[patch.crates-io]\n");
    for package in packages {
        let _ = writeln!(text, "{} = {{ path = \"{}\" }}", package.name, directory(package));
    }
    let mut in_profile = false;
    for line in workspace.lines() {
        in_profile = if line.starts_with('[') { line.starts_with("[profile.") } else { in_profile };
        if in_profile {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Returns the manifest of the second program, which depends on the library alone.
fn embedding(packages: &[&Package]) -> String {
    let version = packages.iter().find(|package| package.name == LIBRARY).map(|package| &package.version);
    let version = version.map_or("*", String::as_str);
    format!(
        "[package]\nname = \"embedding\"\nedition = \"2024\"\n[dependencies.{LIBRARY}]\nversion = \"={version}\"\n\
         default-features = false\nfeatures = [\"cpu\", \"opencl\", \"bundled-model\"]\n"
    )
}

/// Returns the name of the top folder in a package. It consists of the package's name and version.
fn directory(package: &Package) -> String {
    format!("{}-{}", package.name, package.version)
}

/// Builds all examples of the program and runs one of them.
fn build(folder: &Path, depth: Depth, target: &Path) -> Result<(), String> {
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new(crate::checks::cargo());
        command.args(arguments).arg("--offline").current_dir(folder).env("CARGO_TARGET_DIR", target);
        command
    };
    // Cargo starts from the workspace's lock file. It keeps the versions and drops crates that the program
    // does not need.
    printed(&mut cargo(&["update", "--workspace"]))?;
    let levels = UNOPTIMISED.map(|name| format!("--config=profile.dev.package.{name}.opt-level=0"));
    let task = if depth == Depth::Check { "check" } else { "build" };
    let all = ["--examples", "--bins", "-p", "downstream", "-p", "embedding", "--locked"];
    let status = cargo(&[task]).args(all).args(levels).status().map_err(|e| e.to_string())?;
    if !status.success() {
        return Err(format!("the examples do not compile with the packages ({status})"));
    }
    crate::dependencies::without_command(folder, &["-p", "embedding"])?;
    if depth == Depth::Check {
        return Ok(());
    }
    let (example, arguments, part) = RUNS;
    let mut command = Command::new(target.join(format!("debug/examples/packaged-{example}")));
    // The programs need only the CPU, so these paths hide all drivers.
    let drivers = [("OCL_ICD_VENDORS", folder), ("VK_DRIVER_FILES", &folder.join("none.json"))];
    let run = |command: &mut Command, part: &str| {
        let out = printed(command.envs(drivers).env_remove("OCL_ICD_FILENAMES"))?;
        if out.contains(part) {
            Ok(())
        } else {
            Err(format!("{part:?} is not in what {command:?} prints:\n{out}"))
        }
    };
    run(command.args(arguments), part)?;
    let embedding = target.join("debug/embedding");
    run(Command::new(&embedding).args(CHILD), "unavailable")?;
    run(&mut Command::new(&embedding), "selected=[cpu:0, cpu:1]")
}

/// Runs a program and returns its standard output.
fn printed(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?} failed ({}):\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_the_published_packages_and_the_workspaces_profiles() {
        let metadata = metadata::read(&crate::root()).unwrap();
        let published: Vec<_> = metadata.packages.iter().filter(|package| package.is_published()).collect();
        assert!(published.iter().all(|package| package.name.starts_with("ragtag")), "{published:?}");
        let workspace = "[workspace]\nmembers = []\n# Fast.\n[profile.release]\nlto = true\n[profile.dev.package]\n\
                         ash.opt-level = 0\n[package]\nname = \"x\"\n";
        let text = manifest(&published, workspace);
        let profiles = "[profile.release]\nlto = true\n[profile.dev.package]\nash.opt-level = 0\n";
        assert!(text.ends_with(&format!("\" }}\n{profiles}")), "{text}");
        assert!(text.contains("\nragtag-hal = { path = \"ragtag-hal-0.1.0\" }\n"), "{text}");
        assert!(text.contains("\nragtag = \"=0.1.0\"\n") && !text.contains("xtask"), "{text}");
    }
}
