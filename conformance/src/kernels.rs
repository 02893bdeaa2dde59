//! Compares kernel variants with their references.
//!
//! Each binding has its own buffer, with guard bytes before and after the binding to detect writes outside
//! it. Each case runs twice: once as a command, and once as a recorded program. The two results must be equal
//! bit for bit.

use crate::bench::{Attempt, Bench, expect_bytes, part};
use crate::report::Verdict;
use crate::suite::{Outcomes, Shapes};
use ragtag_hal::{
    Binding, BufferRange, Caps, Command, Dispatch, Feature, KernelLanguage, Module, ModuleId, ModuleSource,
    QueueKind, Work,
};
use ragtag_kernels::{Case, Variant, module_source};

/// Seed of the data in the listed cases. A fixed seed gives the same numbers on every machine.
pub(crate) const SEED: u64 = 1;
/// Value of the guard bytes. Guard bytes differ from zeros, from NaN and from poisoned outputs.
const GUARD: u8 = 0xa5;
/// Minimum size of a guard in bytes.
const GUARD_BYTES: u64 = 64;

/// Returns the name of the test for a variant.
pub(crate) fn name(variant: &Variant) -> String {
    format!("kernel/{}/{}", variant.kernel, variant.name)
}

/// Capabilities that kernels see in place of the device's own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guise {
    /// The only language that the device seems to accept.
    pub(crate) language: Option<KernelLanguage>,
    /// Feature that the device seems to have, and OpenCL C functions in place of its instructions.
    pub(crate) emulated: Option<(Feature, &'static str)>,
}

impl Guise {
    fn caps(self, caps: &Caps) -> Caps {
        let mut caps = caps.clone();
        caps.languages = self.language.map_or(caps.languages, |only| [only].into());
        caps.features.extend(self.emulated.map(|(feature, _)| feature));
        caps
    }

    fn source(self, mut source: ModuleSource) -> ModuleSource {
        if let (ModuleSource::Text { entries, .. }, Some((_, functions))) = (&mut source, self.emulated) {
            entries.iter_mut().for_each(|entry| entry.text = [functions, &entry.text].concat().into());
        }
        source
    }
}

/// Runs every `step`-th listed case of a variant from the one at `first`, and cases with the random `shapes`.
pub(crate) fn run(
    bench: &mut Bench,
    (variant, guise): (&Variant, Guise),
    (first, step): (usize, usize),
    shapes: Shapes,
) -> Outcomes {
    let caps = guise.caps(bench.caps());
    if !variant.is_taken_by(&caps) {
        return Ok(Verdict::skipped(match variant.language() {
            Some(language) => format!("the device does not take {language:?} kernels"),
            None => "no library of matrix products was found".into(),
        }));
    }
    if let Some(missing) = variant.requires.iter().find(|&feature| !caps.features.contains(feature)) {
        return Ok(Verdict::skipped(format!("the device lacks {missing:?}")));
    }
    if !variant.runs_on(&caps) {
        return Ok(Verdict::skipped("the device takes smaller work groups only"));
    }
    let source = module_source([variant], &caps).ok_or("a variant in several languages")?;
    let source = guise.source(source);
    let module = bench.module(&Module { name: name(variant), entries: vec![variant.abi], source })?;
    let mut worst: f64 = 0.0;
    let groups =
        |case: &Case| variant.grid(&case.constants, &caps).iter().map(|n| u64::from(*n)).product::<u64>();
    let random = shapes.seeds().map(|seed| variant.random_case(seed));
    let random: Vec<_> = random.filter(|case| groups(case) <= shapes.most_groups).collect();
    for case in variant.cases(SEED).into_iter().skip(first).step_by(step).chain(random) {
        worst = worst.max(run_case(bench, variant, (module, 0), &case)?);
        bench.clear()?;
    }
    Ok(Verdict::Passed { relative_error: Some(worst) })
}

/// Runs a case with an entry of a module. Returns the largest relative error.
pub(crate) fn run_case(
    bench: &mut Bench,
    variant: &Variant,
    (module, entry): (ModuleId, u32),
    case: &Case,
) -> Attempt<f64> {
    let mut guarded = Vec::new();
    for bytes in &case.bindings {
        guarded.push(Guarded::new(bench, bytes.len() as u64)?);
    }
    let ranges = guarded.iter().map(|guarded| guarded.inner);
    let bindings =
        ranges.zip(variant.abi.bindings).map(|(range, &access)| Binding { range, access }).collect();
    let grid = variant.grid(&case.constants, bench.caps());
    let dispatch = Dispatch { module, entry, bindings, constants: case.constants.clone(), grid };
    let program = bench.record(vec![Command::Dispatch(dispatch.clone())])?;
    let mut results = Vec::new();
    for work in [Work::Commands(vec![Command::Dispatch(dispatch)]), Work::Program(program)] {
        for (guarded, bytes) in guarded.iter().zip(&case.bindings) {
            guarded.put(bench, bytes)?;
        }
        let point = bench.submit(QueueKind::Compute, work, &[])?;
        bench.wait(point).map_err(|why| format!("{}: {why}", case.label))?;
        let after =
            guarded.iter().map(|guarded| guarded.get(bench, &case.label)).collect::<Attempt<Vec<_>>>()?;
        results.push(after);
    }
    if results[0] != results[1] {
        return Err(format!("{}: the recorded program and the same command give different bits", case.label));
    }
    case.check(&results[0]).map_err(|why| format!("{why}, at most {:.0e} is allowed", case.tolerance))
}

/// A binding with guard bytes before and after it.
struct Guarded {
    whole: BufferRange,
    inner: BufferRange,
}

impl Guarded {
    fn new(bench: &mut Bench, bytes: u64) -> Attempt<Self> {
        // The guard before the binding must keep the binding aligned.
        let before = bench.caps().binding_alignment_bytes.max(GUARD_BYTES);
        let whole = bench.buffer(before + bytes + GUARD_BYTES)?;
        Ok(Self { whole, inner: part(whole, before, bytes) })
    }

    fn edges(&self) -> (usize, usize) {
        (self.inner.offset as usize, (self.inner.offset + self.inner.bytes) as usize)
    }

    fn put(&self, bench: &mut Bench, bytes: &[u8]) -> Attempt<()> {
        let mut all = vec![GUARD; self.whole.bytes as usize];
        let (start, end) = self.edges();
        all[start..end].copy_from_slice(bytes);
        bench.put(self.whole, &all)
    }

    fn get(&self, bench: &mut Bench, label: &str) -> Attempt<Vec<u8>> {
        let all = bench.get(self.whole)?;
        let (start, end) = self.edges();
        let what = format!("{label}: the guard of a binding");
        expect_bytes(&all[..start], &vec![GUARD; start], &what)?;
        expect_bytes(&all[end..], &vec![GUARD; all.len() - end], &what)?;
        Ok(all[start..end].to_vec())
    }
}
