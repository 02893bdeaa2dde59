//! Translates WGSL to SPIR-V as the Vulkan backend does, and validates it with spirv-val.

use super::jobs;
use super::programs::{Program, in_language};
use ragtag_hal::{Feature, Features, KernelLanguage};
use ragtag_vulkan::{SpirVTarget, translate};
use std::path::Path;
use std::process::Command;

/// Program name of the validator.
const VALIDATOR: &str = "spirv-val";
/// Vulkan versions that Ragtag supports, each with its `--target-env` name in spirv-val.
const VERSIONS: [((u32, u32), &str); 2] = [((1, 2), "vulkan1.2"), ((1, 3), "vulkan1.3")];
/// All optional kernel features that a Vulkan device may have.
const FEATURES: [Feature; 4] =
    [Feature::Fp16, Feature::SubGroups, Feature::IntegerDot, Feature::CooperativeMatrix];
/// First SPIRV-Tools release whose spirv-val supports cooperative matrices, as year and number.
const MATRICES_SINCE: (u32, u32) = (2023, 4);

/// Translates each WGSL program once per feature set that a variant requires, and once for all features
/// together. Writes the SPIR-V modules to `folder` and validates them.
pub(super) fn validate(programs: &[&Program], folder: &Path) -> Result<(), String> {
    let programs = in_language(programs, KernelLanguage::Wgsl);
    if let Some(why) = jobs::missing(VALIDATOR) {
        println!("SKIPPED SPIR-V: {VALIDATOR} does not start: {why}");
        return Ok(());
    }
    let matrices = release(&jobs::run(Command::new(VALIDATOR).arg("--version"))?) >= Some(MATRICES_SINCE);
    let mut wanted = Vec::new();
    for program in programs {
        for features in feature_sets(program) {
            if features.contains(&Feature::CooperativeMatrix) && uses_matrices(program) && !matrices {
                println!("SKIPPED {}: this {VALIDATOR} does not support cooperative matrices", program.name);
                continue;
            }
            wanted.extend(VERSIONS.map(|version| (program, features.clone(), version)));
        }
    }
    let results = jobs::each(VALIDATOR, &wanted, |(program, features, (vulkan, environment))| {
        let target = SpirVTarget { vulkan: *vulkan, features: features.clone() };
        let module =
            translate(&program.text, program.function, &target).map_err(|error| error.to_string())?;
        let bytes: Vec<u8> = module.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let file = folder.join(environment).join(format!("{}-{}.spv", program.name, features.len()));
        super::write(&file, &bytes)?;
        jobs::run(Command::new(VALIDATOR).args(["--target-env", environment]).arg(&file))
    });
    let failed = |((program, features, (_, environment)), result): (&Wanted<'_>, Result<String, String>)| {
        Some((format!("{} for {environment} with {features:?}", program.name), result.err()?))
    };
    let failures: Vec<_> = wanted.iter().zip(results).filter_map(failed).collect();
    jobs::verdict(VALIDATOR, wanted.len(), &failures)
}

/// Module to validate: the program, the device features, and the Vulkan version with its name in spirv-val.
type Wanted<'a> = (&'a Program, Features, ((u32, u32), &'static str));

/// Returns the feature sets with which to validate a program: the set that each variant requires, and the set
/// of all features.
fn feature_sets(program: &Program) -> Vec<Features> {
    let all: Features = FEATURES.into();
    let mut sets: Vec<Features> =
        program.requires().map(|requires| requires.iter().copied().collect()).collect();
    sets.push(all);
    sets.dedup();
    sets
}

fn uses_matrices(program: &Program) -> bool {
    program.requires().any(|requires| requires.contains(&Feature::CooperativeMatrix))
}

/// Parses the year and the number of a release from text such as `SPIRV-Tools v2023.1`.
fn release(version: &str) -> Option<(u32, u32)> {
    let (_, from) = version.split_once(" v")?;
    let (year, rest) = from.split_once('.')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((year.parse().ok()?, rest[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read() {
        assert_eq!(release("SPIRV-Tools v2023.1 unknown hash, 2023-01-24T21:37:00\n"), Some((2023, 1)));
        assert_eq!(release("SPIRV-Tools v2024.3-rc1"), Some((2024, 3)));
        assert_eq!(release("something else"), None);
        assert!(Some((2023, 4)) > release("SPIRV-Tools v2023.1 unknown"));
    }
}
