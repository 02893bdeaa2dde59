//! Assembles PTX with ptxas, NVIDIA's assembler. The driver does the same when it loads PTX. Reports the
//! registers, spills and shared memory of each kernel.

use super::committed::PTX;
use super::jobs;
use super::programs::Program;
use super::write;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Resources that a kernel entry uses: registers per work item, spilled bytes, and bytes of declared shared
/// memory.
#[derive(Debug, Default, PartialEq)]
struct Usage {
    entry: String,
    registers: u32,
    spilled: u32,
    shared: u32,
}

/// Assembles the committed PTX, each file for its own architecture. Writes the assembled files and
/// a table with the resources of each entry to `out`.
pub(super) fn assemble(root: &Path, programs: &[&Program], folder: &Path, out: &Path) -> Result<(), String> {
    let ptxas = folder.join(if cfg!(windows) { "ptxas.exe" } else { "ptxas" });
    jobs::run(Command::new(&ptxas).arg("--version"))?;
    let jobs = PTX.read(root, programs)?;
    let results = jobs::each("ptxas", &jobs, |(architecture, program, text)| {
        let path = out.join("ptx").join(architecture).join(format!("{}.ptx", program.name));
        write(&path, text)?;
        let mut command = Command::new(&ptxas);
        command.arg("--verbose").arg(format!("--gpu-name=sm_{architecture}"));
        let log = jobs::run(command.arg(&path).arg("--output-file").arg(path.with_extension("cubin")))?;
        Ok(usages(&log))
    });
    let mut table = String::from(
        "| program | architecture | entry | registers | spilled | shared |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let (mut failures, mut entries, mut spilling) = (Vec::new(), 0, Vec::new());
    for ((architecture, program, _), result) in jobs.iter().zip(results) {
        let name = &program.name;
        match result {
            Err(log) => failures.push((format!("{name} for {architecture}"), log)),
            Ok(usages) => {
                for Usage { entry, registers, spilled, shared } in usages {
                    let row =
                        format!("| {name} | {architecture} | {entry} | {registers} | {spilled} | {shared} |");
                    let _ = writeln!(table, "{row}");
                    entries += 1;
                    spilling.extend((spilled > 0).then_some(row));
                }
            }
        }
    }
    let path = out.join("ptxas.md");
    write(&path, table.as_bytes())?;
    println!("ptxas: {entries} entries, {} spill registers; table in {}", spilling.len(), path.display());
    spilling.iter().for_each(|row| println!("{row}"));
    jobs::verdict("ptxas", jobs.len(), &failures)
}

/// Parses the resources of each entry from the log that `ptxas --verbose` prints.
fn usages(log: &str) -> Vec<Usage> {
    let mut usages: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let entry = rest.split('\'').next().unwrap_or_default().into();
            usages.push(Usage { entry, ..Usage::default() });
        }
        let Some(last) = usages.last_mut() else { continue };
        // `… 8 bytes spill stores, 8 bytes spill loads`, `… Used 32 registers, 1024 bytes smem, …`
        let line = line.split(" : Used ").last().unwrap_or(line);
        for part in line.split(',').map(str::trim) {
            let Some((figure, what)) = part.split_once(' ') else { continue };
            let figure = figure.parse().unwrap_or(0);
            match what {
                "registers" => last.registers = figure,
                "bytes spill stores" | "bytes spill loads" => last.spilled += figure,
                "bytes smem" => last.shared = figure,
                _ => {}
            }
        }
    }
    usages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_read() {
        let log = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'softmax' for 'sm_61'
ptxas info    : Function properties for softmax
    0 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 30 registers, 1088 bytes smem, 356 bytes cmem[0]
ptxas info    : Compiling entry function 'add' for 'sm_61'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, 356 bytes cmem[0]
";
        let usage = |entry: &str, registers, spilled, shared| Usage {
            entry: entry.into(),
            registers,
            spilled,
            shared,
        };
        assert_eq!(usages(log), [usage("softmax", 30, 20, 1088), usage("add", 16, 0, 0)]);
    }
}
