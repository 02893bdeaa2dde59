//! Writes the committed PTX, or checks that it matches the current sources.

use super::jobs::{self, Share};
use super::nvrtc::Nvrtc;
use super::programs::{Program, in_language};
use super::write;
use flate2::{Compression, GzBuilder};
use ragtag_hal::KernelLanguage;
use ragtag_kernels::artefacts::{self, artefacts};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Index of PTX files. Maps the architecture and the program name to the digest of the program's source.
type Index = BTreeMap<(String, String), String>;

fn folder(root: &Path) -> PathBuf {
    root.join("kernels/artefacts/cuda")
}

fn file(root: &Path, architecture: &str, program: &str) -> PathBuf {
    folder(root).join(architecture).join(format!("{program}.ptx.gz"))
}

/// Returns all pairs of a CUDA program and an architecture that need committed PTX.
fn wanted<'a>(programs: &[&'a Program]) -> Vec<(&'a Program, &'static str)> {
    let programs = in_language(programs, KernelLanguage::CudaC);
    programs.into_iter().flat_map(|p| p.architectures().into_iter().map(move |a| (p, a))).collect()
}

fn index(programs: &[(&Program, &str)]) -> Index {
    let row = |(program, architecture): &(&Program, &str)| {
        ((String::from(*architecture), program.name.clone()), artefacts::digest(&program.text))
    };
    programs.iter().map(row).collect()
}

/// Returns the index of the committed PTX, which is compiled into this binary.
fn committed() -> Index {
    artefacts().iter().map(|a| ((a.architecture.into(), a.program.into()), a.digest.into())).collect()
}

/// Builds the PTX of all programs whose names contain `only`. Keeps the PTX of the other programs if their
/// sources are unchanged. Deletes files that belong to no program.
pub(super) fn build(root: &Path, programs: &[Program], only: &str, nvrtc: &Nvrtc) -> Result<(), String> {
    let programs: Vec<&Program> = programs.iter().collect();
    let wanted = wanted(&programs);
    let jobs: Vec<_> = wanted.iter().copied().filter(|(program, _)| program.name.contains(only)).collect();
    let results = jobs::each("PTX", &jobs, |(program, architecture)| {
        let ptx = compile(nvrtc, program, architecture)?;
        write(&file(root, architecture, &program.name), &compressed(&ptx)?)
    });
    jobs::verdict("PTX", jobs.len(), &failures(&jobs, results))?;
    let built = index(&jobs);
    let before = committed();
    let mut index = index(&wanted);
    index.retain(|key, digest| built.contains_key(key) || before.get(key) == Some(digest));
    for stray in strays(root, &index)? {
        fs::remove_file(&stray).map_err(|e| format!("{}: {e}", stray.display()))?;
    }
    write_index(root, &index)?;
    let bytes = index.keys().map(|(a, p)| fs::metadata(file(root, a, p)).map_or(0, |m| m.len())).sum::<u64>();
    println!("PTX: {} built, {} in all, {} KiB", built.len(), index.len(), bytes >> 10);
    Ok(())
}

fn compile(nvrtc: &Nvrtc, program: &Program, architecture: &str) -> Result<String, String> {
    let architecture = format!("--gpu-architecture=compute_{architecture}");
    let options = [&[architecture.as_str()][..], &artefacts::OPTIONS].concat();
    nvrtc.compile(&program.file_name(), &program.text, &options)
}

/// Compresses `text` at the highest level. The output has no time stamp and is therefore reproducible.
fn compressed(text: &str) -> Result<Vec<u8>, String> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).map_err(|e| e.to_string())
}

fn failures<T>(jobs: &[(&Program, &str)], results: Vec<Result<T, String>>) -> Vec<(String, String)> {
    let name = |(program, architecture): &(&Program, &str)| format!("{} for {architecture}", program.name);
    jobs.iter().zip(results).filter_map(|(job, result)| Some((name(job), result.err()?))).collect()
}

/// Returns the PTX files in the tree that `index` does not list.
fn strays(root: &Path, index: &Index) -> Result<Vec<PathBuf>, String> {
    let named: BTreeSet<PathBuf> = index.keys().map(|(a, p)| file(root, a, p)).collect();
    let mut strays = Vec::new();
    for folder in list(&folder(root))?.into_iter().filter(|path| path.is_dir()) {
        strays.extend(list(&folder)?.into_iter().filter(|path| !named.contains(path)));
    }
    Ok(strays)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.map(|e| Ok(e?.path())).collect());
    entries.map_err(|e| format!("{}: {e}", folder.display()))
}

fn write_index(root: &Path, index: &Index) -> Result<(), String> {
    let mut text = String::from(
        "//! PTX built ahead of time, with the digests of its sources. `cargo xtask kernels` writes this file.\n\n\
         use super::{Artefact, ptx};\n\n/// By architecture and name.\npub(super) const ALL: &[Artefact] = &[\n",
    );
    for ((architecture, program), digest) in index {
        text.push_str(&format!("    ptx!(\"{architecture}\", \"{program}\", \"{digest}\"),\n"));
    }
    text.push_str("];\n");
    write(&folder(root).join("index.rs"), text.as_bytes())
}

/// Checks that the PTX of every program is committed for each of its architectures, and that it was built
/// from the current source. Also checks that no other file is committed.
pub(super) fn check(root: &Path, programs: &[Program]) -> Result<(), String> {
    let programs: Vec<&Program> = programs.iter().collect();
    let (wanted, committed) = (index(&wanted(&programs)), committed());
    let mut wrong = Vec::new();
    for ((architecture, program), digest) in &wanted {
        match committed.get(&(architecture.clone(), program.clone())) {
            None => wrong.push(format!("{program}: no PTX for {architecture}")),
            Some(found) if found != digest => {
                wrong.push(format!("{program} for {architecture}: built from another source"));
            }
            Some(_) => {}
        }
    }
    wrong.extend(
        committed
            .keys()
            .filter(|key| !wanted.contains_key(*key))
            .map(|(a, p)| format!("{p} for {a}: the program does not exist")),
    );
    wrong.extend(
        strays(root, &committed)?.into_iter().map(|path| format!("{}: not in the index", path.display())),
    );
    if wrong.is_empty() {
        println!("PTX: {} committed, each built from its current source", committed.len());
        return Ok(());
    }
    Err(format!("PTX is stale: `cargo xtask kernels --nvrtc DIR` builds it\n  {}", wrong.join("\n  ")))
}

/// Compiles a share of the programs with NVRTC. Checks that the deterministic lines of the output equal those
/// of the committed PTX.
pub(super) fn compare(programs: &[&Program], nvrtc: &Nvrtc, share: Share) -> Result<(), String> {
    let jobs = share.of(wanted(programs));
    let results = jobs::each("PTX compared", &jobs, |(program, architecture)| {
        let ptx = compile(nvrtc, program, architecture)?;
        let same = |a: &&artefacts::Artefact| a.architecture == *architecture && a.program == program.name;
        let committed = artefacts().iter().find(same).and_then(artefacts::Artefact::ptx);
        let committed = committed.ok_or("the committed PTX is missing or damaged")?;
        if interface(&committed) == interface(&ptx) {
            Ok(())
        } else {
            Err(String::from("the committed PTX has another launch interface than NVRTC's output"))
        }
    });
    jobs::verdict("PTX compared", jobs.len(), &failures(&jobs, results))
}

/// Returns the lines of PTX that do not depend on how NVRTC numbers or orders instructions. These lines state
/// the compiler, the target, the shared memory, and the entries with their parameters and launch bounds.
fn interface(ptx: &str) -> Vec<&str> {
    let starts =
        ["// Cuda", ".version", ".target", ".visible", ".param", ".maxntid", ".shared", ".minnctapersm"];
    ptx.lines().map(str::trim).filter(|line| starts.iter().any(|start| line.starts_with(start))).collect()
}

/// Reads the committed PTX of `programs`. Returns the architecture, the program and the PTX of each file.
pub(super) fn read<'a>(
    root: &Path,
    programs: &[&'a Program],
) -> Result<Vec<(&'static str, &'a Program, String)>, String> {
    let one = |(program, architecture): (&'a Program, &'static str)| {
        let path = file(root, architecture, &program.name);
        let mut text = String::new();
        let read =
            fs::File::open(&path).and_then(|f| flate2::read::GzDecoder::new(f).read_to_string(&mut text));
        read.map(|_| (architecture, program, text)).map_err(|e| format!("{}: {e}", path.display()))
    };
    wanted(programs).into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::interface;

    #[test]
    fn an_interface_has_what_a_launch_relies_on() {
        let ptx = |register: &str, parameter: &str, items: u32| {
            format!(
                ".version 8.2\n.target sm_61\n.visible .entry add(\n\t.param {parameter} add_param_0\n)\n\
                 .maxntid {items}, 1, 1\n{{\n\tmov.u32 {register}, %tid.x;\n}}\n"
            )
        };
        let one = ptx("%r1", ".u64", 256);
        assert_eq!(interface(&one).len(), 5);
        assert_eq!(interface(&one), interface(&ptx("%r2", ".u64", 256)));
        assert_ne!(interface(&one), interface(&ptx("%r1", ".u32", 256)));
        assert_ne!(interface(&one), interface(&ptx("%r1", ".u64", 128)));
    }
}
