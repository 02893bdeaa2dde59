//! Committed programs, which compilers built ahead of time: builds them, or checks that they match the
//! current sources.

use super::archive::{self, Programs};
use super::jobs;
use super::programs::{Program, in_language};
use super::write;
use ragtag_hal::KernelLanguage;
use ragtag_kernels::artefacts::{Artefact, Form};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Maps the name and the architecture of a program to the digest of its source.
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
    /// Path of the archive in the repository.
    archive: &'static str,
    /// Arguments of `cargo xtask kernels` that build the programs.
    arguments: &'static str,
}

pub(super) static PTX: Committed = Committed {
    form: Form::Ptx,
    name: "PTX",
    language: KernelLanguage::CudaC,
    archive: "kernels/artefacts/cuda.zst",
    arguments: "--nvrtc DIR",
};

pub(super) static SPIR_V: Committed = Committed {
    form: Form::SpirV,
    name: "SPIR-V",
    language: KernelLanguage::OpenClC,
    archive: "kernels/artefacts/opencl.zst",
    arguments: "--spir-v",
};

impl Committed {
    /// Returns all pairs of a program and an architecture that must be committed.
    fn wanted<'a>(&self, programs: &[&'a Program]) -> Vec<Job<'a>> {
        let programs = in_language(programs, self.language);
        programs.into_iter().flat_map(|p| p.architectures().into_iter().map(move |a| (p, a))).collect()
    }

    fn index(&self, jobs: &[Job<'_>]) -> Index {
        let row = |(program, architecture): &Job<'_>| {
            ((program.name.clone(), String::from(*architecture)), self.form.digest(&program.text))
        };
        jobs.iter().map(row).collect()
    }

    /// Returns the programs in the archive. The archive that is compiled into this binary may be older.
    fn artefacts(&self, root: &Path) -> Result<Vec<Artefact>, String> {
        let path = root.join(self.archive);
        let archive = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        self.form.parse(archive.leak()).ok_or_else(|| format!("{} is damaged", path.display()))
    }

    /// Builds the programs whose sources have changed, or, if `only` is not empty, all programs whose names
    /// contain `only`. Keeps the other programs. Writes the archive, and uses files in `folder`.
    pub fn build(
        &self,
        root: &Path,
        programs: &[Program],
        only: &str,
        folder: &Path,
        compile: impl Fn(&Program, &str) -> Result<Vec<u8>, String> + Sync,
    ) -> Result<(), String> {
        let programs: Vec<&Program> = programs.iter().collect();
        let mut jobs = self.wanted(&programs);
        let (mut codes, mut failed) = (self.kept(root, &self.index(&jobs))?, Vec::new());
        jobs.retain(|(program, architecture)| match only {
            "" => !codes.contains_key(&(program.name.clone(), String::from(*architecture))),
            only => program.name.contains(only),
        });
        let results = jobs::each(self.name, &jobs, |(program, architecture)| compile(program, architecture));
        for ((key, digest), result) in self.index(&jobs).into_iter().zip(results) {
            match result {
                Ok(code) => _ = codes.insert(key, (digest, code)),
                Err(error) => failed.push((format!("{} for {}", key.0, key.1), error)),
            }
        }
        jobs::verdict(self.name, jobs.len(), &failed)?;
        let archive = archive::pack(self.form, &codes, folder)?;
        let (name, built, all, kib) = (self.name, jobs.len(), codes.len(), archive.len() >> 10);
        println!("{name}: {built} built, {all} in all, {kib} KiB");
        write(&root.join(self.archive), &archive)
    }

    /// Writes the archive without the programs that do not exist or that have another source now.
    pub fn prune(&self, root: &Path, programs: &[Program], folder: &Path) -> Result<(), String> {
        let programs: Vec<&Program> = programs.iter().collect();
        let codes = self.kept(root, &self.index(&self.wanted(&programs)))?;
        write(&root.join(self.archive), &archive::pack(self.form, &codes, folder)?)
    }

    /// Returns the committed programs that `wanted` lists with the same digests.
    fn kept(&self, root: &Path, wanted: &Index) -> Result<Programs, String> {
        let mut kept = Programs::new();
        for artefact in self.artefacts(root)? {
            let key = (artefact.program.into(), artefact.architecture.into());
            if wanted.get(&key).is_some_and(|digest| digest == artefact.digest) {
                let code = artefact.bytes().ok_or_else(|| format!("{}: damaged", self.archive))?;
                kept.insert(key, (artefact.digest.into(), code));
            }
        }
        Ok(kept)
    }

    /// Checks that every program is committed for each of its architectures, and that it was built from the
    /// current source. Also checks that no other program is committed.
    pub fn check(&self, root: &Path, programs: &[Program]) -> Result<(), String> {
        let programs: Vec<&Program> = programs.iter().collect();
        let wanted = self.index(&self.wanted(&programs));
        let row = |a: Artefact| ((a.program.into(), a.architecture.into()), a.digest.into());
        let committed: Index = self.artefacts(root)?.into_iter().map(row).collect();
        let (name, mut wrong) = (self.name, Vec::new());
        for (key @ (program, architecture), digest) in &wanted {
            match committed.get(key) {
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
                .map(|(p, a)| format!("{p} for {a}: the program does not exist")),
        );
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
        root: &Path,
        programs: &[&Program],
        compile: impl Fn(&Program, &str) -> Result<Vec<u8>, String> + Sync,
        compare: impl Fn(&[u8], &[u8]) -> Result<(), String> + Sync,
    ) -> Result<(), String> {
        let jobs = self.wanted(programs);
        let (what, artefacts) = (format!("{} compared", self.name), self.artefacts(root)?);
        let results = jobs::each(&what, &jobs, |(program, architecture)| {
            compare(&self.code(&artefacts, program, architecture)?, &compile(program, architecture)?)
        });
        jobs::verdict(&what, jobs.len(), &failures(&jobs, results))
    }

    fn code(&self, all: &[Artefact], program: &Program, architecture: &str) -> Result<Vec<u8>, String> {
        let same = |a: &&Artefact| a.architecture == architecture && a.program == program.name;
        let missing =
            || format!("{} of {} for {architecture} is missing or damaged", self.name, program.name);
        all.iter().find(same).and_then(Artefact::bytes).ok_or_else(missing)
    }

    /// Reads the codes of `programs` from the archive. Returns the architecture, the program and the code of each.
    pub fn read<'a>(&self, root: &Path, programs: &[&'a Program]) -> Result<Vec<Code<'a>>, String> {
        let artefacts = self.artefacts(root)?;
        let one = |(program, architecture): Job<'a>| {
            Ok((architecture, program, self.code(&artefacts, program, architecture)?))
        };
        self.wanted(programs).into_iter().map(one).collect()
    }
}

fn failures<T>(jobs: &[Job<'_>], results: Vec<Result<T, String>>) -> Vec<(String, String)> {
    let name = |(program, architecture): &Job<'_>| format!("{} for {architecture}", program.name);
    jobs.iter().zip(results).filter_map(|(job, result)| Some((name(job), result.err()?))).collect()
}
