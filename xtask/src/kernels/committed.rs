//! Committed programs, which compilers built ahead of time: builds them, or checks that they match the
//! current sources.

use super::jobs;
use super::programs::{Program, in_language};
use super::write;
use flate2::read::GzDecoder;
use ragtag_hal::KernelLanguage;
use ragtag_kernels::artefacts::{Artefact, Form};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Index of files. Maps the architecture and the program name to the digest of the program's source.
type Index = BTreeMap<(String, String), String>;

/// A program and an architecture for which it is built.
pub(super) type Job<'a> = (&'a Program, &'static str);

/// A program, an architecture, and the committed code.
pub(super) type Code<'a> = (&'static str, &'a Program, Vec<u8>);

/// Committed programs of one form.
pub(super) struct Committed {
    form: Form,
    /// Name of the form in messages, and in the index.
    name: &'static str,
    /// Language of the sources.
    language: KernelLanguage,
    /// Folder in `kernels/artefacts`.
    folder: &'static str,
    extension: &'static str,
    /// Macro that defines a row of the index.
    row: &'static str,
    /// Arguments of `cargo xtask kernels` that build the programs.
    arguments: &'static str,
}

pub(super) static PTX: Committed = Committed {
    form: Form::Ptx,
    name: "PTX",
    language: KernelLanguage::CudaC,
    folder: "cuda",
    extension: "ptx",
    row: "ptx",
    arguments: "--nvrtc DIR",
};

pub(super) static SPIR_V: Committed = Committed {
    form: Form::SpirV,
    name: "SPIR-V",
    language: KernelLanguage::OpenClC,
    folder: "opencl",
    extension: "spv",
    row: "spir_v",
    arguments: "--spir-v",
};

impl Committed {
    fn folder(&self, root: &Path) -> PathBuf {
        root.join("kernels/artefacts").join(self.folder)
    }

    fn file(&self, root: &Path, architecture: &str, program: &str) -> PathBuf {
        self.folder(root).join(architecture).join(format!("{program}.{}.gz", self.extension))
    }

    /// Returns all pairs of a program and an architecture that must be committed.
    fn wanted<'a>(&self, programs: &[&'a Program]) -> Vec<Job<'a>> {
        let programs = in_language(programs, self.language);
        programs.into_iter().flat_map(|p| p.architectures().into_iter().map(move |a| (p, a))).collect()
    }

    fn index(&self, jobs: &[Job<'_>]) -> Index {
        let row = |(program, architecture): &Job<'_>| {
            ((String::from(*architecture), program.name.clone()), self.form.digest(&program.text))
        };
        jobs.iter().map(row).collect()
    }

    /// Returns the index of the committed programs, which are compiled into this binary.
    fn committed(&self) -> Index {
        let artefacts = self.form.artefacts().iter();
        artefacts.map(|a| ((a.architecture.into(), a.program.into()), a.digest.into())).collect()
    }

    /// Builds all programs whose names contain `only`. Keeps the other programs if their sources are
    /// unchanged. Deletes files that belong to no program.
    pub fn build(
        &self,
        root: &Path,
        programs: &[Program],
        only: &str,
        compile: impl Fn(&Program, &str) -> Result<Vec<u8>, String> + Sync,
    ) -> Result<(), String> {
        let programs: Vec<&Program> = programs.iter().collect();
        let wanted = self.wanted(&programs);
        let jobs: Vec<_> =
            wanted.iter().copied().filter(|(program, _)| program.name.contains(only)).collect();
        let results = jobs::each(self.name, &jobs, |(program, architecture)| {
            store(&self.file(root, architecture, &program.name), &compile(program, architecture)?)
        });
        jobs::verdict(self.name, jobs.len(), &failures(&jobs, results))?;
        let (built, before) = (self.index(&jobs), self.committed());
        let mut index = self.index(&wanted);
        index.retain(|key, digest| built.contains_key(key) || before.get(key) == Some(digest));
        for stray in self.strays(root, &index)? {
            fs::remove_file(&stray).map_err(|e| format!("{}: {e}", stray.display()))?;
        }
        self.write_index(root, &index)?;
        let bytes = |(a, p): &(String, String)| fs::metadata(self.file(root, a, p)).map_or(0, |m| m.len());
        let bytes = index.keys().map(bytes).sum::<u64>();
        println!("{}: {} built, {} in all, {} KiB", self.name, built.len(), index.len(), bytes >> 10);
        Ok(())
    }

    /// Returns the files in the tree that `index` does not list.
    fn strays(&self, root: &Path, index: &Index) -> Result<Vec<PathBuf>, String> {
        let named: BTreeSet<PathBuf> = index.keys().map(|(a, p)| self.file(root, a, p)).collect();
        let mut strays = Vec::new();
        for folder in list(&self.folder(root))?.into_iter().filter(|path| path.is_dir()) {
            strays.extend(list(&folder)?.into_iter().filter(|path| !named.contains(path)));
        }
        Ok(strays)
    }

    fn write_index(&self, root: &Path, index: &Index) -> Result<(), String> {
        let Self { name, row, .. } = self;
        let mut text = format!(
            "//! {name} built ahead of time, with the digests of its sources. `cargo xtask kernels` writes this file.\n\n\
             use super::{{Artefact, {row}}};\n\n/// By architecture and name.\npub(super) const ALL: &[Artefact] = &[\n",
        );
        for ((architecture, program), digest) in index {
            text.push_str(&format!("    {row}!(\"{architecture}\", \"{program}\", \"{digest}\"),\n"));
        }
        text.push_str("];\n");
        write(&self.folder(root).join("index.rs"), text.as_bytes())
    }

    /// Checks that every program is committed for each of its architectures, and that it was built from the
    /// current source. Also checks that no other file is committed.
    pub fn check(&self, root: &Path, programs: &[Program]) -> Result<(), String> {
        let programs: Vec<&Program> = programs.iter().collect();
        let (wanted, committed) = (self.index(&self.wanted(&programs)), self.committed());
        let (name, mut wrong) = (self.name, Vec::new());
        for ((architecture, program), digest) in &wanted {
            match committed.get(&(architecture.clone(), program.clone())) {
                None => wrong.push(format!("{program}: no {name} for {architecture}")),
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
        let strays = self.strays(root, &committed)?;
        wrong.extend(strays.into_iter().map(|path| format!("{}: not in the index", path.display())));
        if wrong.is_empty() {
            println!("{name}: {} committed, each built from its current source", committed.len());
            return Ok(());
        }
        let (arguments, wrong) = (self.arguments, wrong.join("\n  "));
        Err(format!("{name} is stale: `cargo xtask kernels {arguments}` builds it\n  {wrong}"))
    }

    /// Compiles the programs and calls `compare` with the committed and the compiled code of each.
    pub fn compare(
        &self,
        programs: &[&Program],
        compile: impl Fn(&Program, &str) -> Result<Vec<u8>, String> + Sync,
        compare: impl Fn(&[u8], &[u8]) -> Result<(), String> + Sync,
    ) -> Result<(), String> {
        let jobs = self.wanted(programs);
        let what = format!("{} compared", self.name);
        let results = jobs::each(&what, &jobs, |(program, architecture)| {
            compare(&self.code(program, architecture)?, &compile(program, architecture)?)
        });
        jobs::verdict(&what, jobs.len(), &failures(&jobs, results))
    }

    fn code(&self, program: &Program, architecture: &str) -> Result<Vec<u8>, String> {
        let same = |a: &&Artefact| a.architecture == architecture && a.program == program.name;
        let committed = self.form.artefacts().iter().find(same).and_then(Artefact::bytes);
        committed.ok_or_else(|| format!("the committed {} is missing or damaged", self.name))
    }

    /// Reads the committed files of `programs`. Returns the architecture, the program and the code of each.
    pub fn read<'a>(&self, root: &Path, programs: &[&'a Program]) -> Result<Vec<Code<'a>>, String> {
        let one = |(program, architecture): Job<'a>| {
            let path = self.file(root, architecture, &program.name);
            let code = stored(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            Ok((architecture, program, code))
        };
        self.wanted(programs).into_iter().map(one).collect()
    }
}

/// Reads the code in a compressed file.
fn stored(path: &Path) -> io::Result<Vec<u8>> {
    let mut code = Vec::new();
    io::copy(&mut GzDecoder::new(fs::File::open(path)?), &mut code).map(|_| code)
}

/// Compresses `code` and writes it to a file, unless the file contains this code. Compression takes longer
/// than most compilations. The output has no time stamp and is therefore reproducible.
fn store(path: &Path, code: &[u8]) -> Result<(), String> {
    if stored(path).is_ok_and(|before| before == code) {
        return Ok(());
    }
    let mut compressed = Vec::new();
    zopfli::compress(zopfli::Options::default(), zopfli::Format::Gzip, code, &mut compressed)
        .map_err(|e| e.to_string())?;
    write(path, &compressed)
}

fn failures<T>(jobs: &[Job<'_>], results: Vec<Result<T, String>>) -> Vec<(String, String)> {
    let name = |(program, architecture): &Job<'_>| format!("{} for {architecture}", program.name);
    jobs.iter().zip(results).filter_map(|(job, result)| Some((name(job), result.err()?))).collect()
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.map(|e| Ok(e?.path())).collect());
    entries.map_err(|e| format!("{}: {e}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_program_is_small_and_is_written_only_when_it_changes() {
        let folder = std::env::temp_dir().join(format!("ragtag-committed-{}", std::process::id()));
        let path = folder.join("program.ptx.gz");
        let code = b"mov.b32 %r1, %r2;\n".repeat(200);
        store(&path, &code).unwrap();
        assert_eq!(stored(&path).unwrap(), code);
        assert!(fs::metadata(&path).unwrap().len() < 100);

        // A file by another writer stays as it is.
        let mut plain = flate2::GzBuilder::new().write(Vec::new(), flate2::Compression::none());
        io::copy(&mut &code[..], &mut plain).unwrap();
        let plain = plain.finish().unwrap();
        fs::write(&path, &plain).unwrap();
        store(&path, &code).unwrap();
        assert_eq!(fs::read(&path).unwrap(), plain);
        store(&path, &code[1..]).unwrap();
        assert_eq!(stored(&path).unwrap(), &code[1..]);
        assert_ne!(fs::read(&path).unwrap(), plain);
        fs::remove_dir_all(&folder).unwrap();
    }
}
