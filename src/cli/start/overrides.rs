//! `--override-tensor`, as llama.cpp has it: regular expressions over the names of tensors, each with a device.
//!
//! Ragtag places halves of blocks, not single tensors. An expression must thus match all large tensors of a half: all
//! experts of a block, or all matrices of a half without experts.

use crate::Model;
use crate::cli::error::{Error, Result};
use fancy_regex::Regex;
use ragtag_devices::canonical;
use ragtag_graph::Granularity;
use std::collections::BTreeMap;

/// A regular expression, and the device of the tensors whose names contain a match.
pub(super) struct Override {
    regex: Regex,
    pub(super) device: String,
}

/// Reads `REGEX=DEVICE`, or several of them with commas in between.
///
/// # Errors
/// Returns an error that names the part that cannot be read.
pub(super) fn read(text: &str) -> Result<Vec<Override>> {
    text.split(',').map(|part| read_one(part.trim())).collect()
}

fn read_one(part: &str) -> Result<Override> {
    let wrong = |why: String| Error::Override { why: format!("{part:?}: {why}") };
    let (pattern, device) = part.rsplit_once('=').ok_or_else(|| wrong("write REGEX=DEVICE".into()))?;
    let device = device_of(device).ok_or_else(|| wrong(format!("{device:?} is no device")))?;
    let regex = Regex::new(pattern).map_err(|cause| wrong(cause.to_string()))?;
    Ok(Override { regex, device })
}

/// Returns the device that `text` names, as Ragtag (`cuda:0`) or llama.cpp (`CUDA0`, `CPU`) does.
fn device_of(text: &str) -> Option<String> {
    let text = text.trim();
    let api = text.trim_end_matches(|c: char| c.is_ascii_digit());
    let index = &text[api.len()..];
    let api = match api.strip_suffix(':').unwrap_or(api) {
        "ROCm" => "hip",
        "SYCL" => "level-zero",
        api => api,
    };
    let is_name = !api.is_empty() && api.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    is_name.then(|| canonical(&format!("{api}:{}", if index.is_empty() { "0" } else { index })))
}

/// Checks the overrides against `model`.
///
/// # Errors
/// Fails like [`segments`], or if the user asked for whole blocks.
pub(super) fn check(overrides: &[Override], model: &Model, granularity: Granularity) -> Result<()> {
    if !overrides.is_empty() && granularity != Granularity::HalfBlock {
        return Err(Error::Override { why: "needs --granularity half, or none".into() });
    }
    segments(overrides, model).map(drop)
}

/// Returns the halves of blocks that the expressions place, each with its device. The first expression that matches a
/// tensor counts.
///
/// # Errors
/// Fails if an expression matches no tensor, or if the large tensors of a half would be apart.
pub(super) fn segments(overrides: &[Override], model: &Model) -> Result<Vec<(u32, String)>> {
    let fail = |why: String| Err(Error::Override { why });
    let layers = model.hyperparameters().layers;
    let mut halves: BTreeMap<u32, Vec<(String, Option<&str>)>> = BTreeMap::new();
    let mut is_used = vec![false; overrides.len()];
    for tensor in model.graph().weights().tensors() {
        let name = stacked(&tensor.name);
        let mut found = None;
        for (at, each) in overrides.iter().enumerate() {
            let matches = each.regex.is_match(&name);
            if matches
                .map_err(|cause| Error::Override { why: format!("{}: {cause}", each.regex.as_str()) })?
            {
                is_used[at] = true;
                found = found.or(Some(each.device.as_str()));
            }
        }
        let is_matrix = tensor.shape.iter().filter(|size| **size > 1).count() > 1;
        if let Some(half) = half_of(&name, layers).filter(|_| is_matrix) {
            halves.entry(half).or_default().push((name, found));
        }
    }
    if let Some(unused) = is_used.iter().position(|used| !used) {
        return fail(format!("{:?} matches no tensor", overrides[unused].regex.as_str()));
    }
    let mut placed = Vec::new();
    for (half, mut tensors) in halves {
        if tensors.iter().any(|(name, _)| is_expert(name)) {
            tensors.retain(|(name, _)| is_expert(name));
        }
        let (name, device) = &tensors[0];
        if let Some((other, apart)) = tensors.iter().find(|(_, other)| other != device) {
            let at = |device: Option<&str>| device.unwrap_or("the planner's choice").to_owned();
            return fail(format!(
                "{name} would be on {} and {other} on {}, but they cannot be apart",
                at(*device),
                at(*apart)
            ));
        }
        placed.extend(device.map(|device| (half, device.to_owned())));
    }
    Ok(placed)
}

fn is_expert(name: &str) -> bool {
    name.contains("_exps.")
}

/// Returns the name that a file with all experts in one tensor has for a tensor of one expert.
fn stacked(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["blk", layer, part, expert, end] if expert.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("blk.{layer}.{part}_exps.{end}")
        }
        _ => name.to_owned(),
    }
}

/// Returns the segment of a tensor, if segments are halves of blocks.
fn half_of(name: &str, layers: u32) -> Option<u32> {
    let (first, rest) = name.split_once('.')?;
    match first {
        "token_embd" => Some(0),
        "output" => Some(2 * layers + 1),
        "blk" => {
            let (layer, part) = rest.split_once('.')?;
            let layer = layer.parse::<u32>().ok().filter(|layer| *layer < layers)?;
            Some(2 * layer + if part.starts_with("ffn_") { 2 } else { 1 })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_of_both_programs() {
        for (text, device) in [
            ("CPU", "cpu:0"),
            ("CUDA1", "cuda:1"),
            ("ROCm0", "hip:0"),
            ("SYCL2", "level-zero:2"),
            ("Vulkan0", "vulkan:0"),
            (" cuda:3 ", "cuda:3"),
        ] {
            assert_eq!(device_of(text).as_deref(), Some(device), "{text}");
        }
        assert_eq!(device_of(""), None);
        assert_eq!(device_of("a b"), None);
    }

    #[test]
    fn tensors_belong_to_halves() {
        assert_eq!(stacked("blk.3.ffn_up.17.weight"), "blk.3.ffn_up_exps.weight");
        assert_eq!(stacked("blk.3.ffn_up.weight"), "blk.3.ffn_up.weight");
        assert_eq!(half_of("token_embd.weight", 2), Some(0));
        assert_eq!(half_of("blk.1.attn_q.weight", 2), Some(3));
        assert_eq!(half_of("blk.1.ffn_down_exps.weight", 2), Some(4));
        assert_eq!(half_of("output.weight", 2), Some(5));
        assert_eq!(half_of("blk.2.attn_q.weight", 2), None);
        assert_eq!(half_of("rope_freqs.weight", 2), None);
    }

    #[test]
    fn expressions_are_read_or_refused_by_name() {
        let all = read(r"blk\.[0-3]\.ffn_.*_exps\.=CPU, exps=cuda:0").unwrap();
        assert_eq!(all.iter().map(|each| each.device.as_str()).collect::<Vec<_>>(), ["cpu:0", "cuda:0"]);
        for (text, why) in [("exps", "REGEX=DEVICE"), ("(=CPU", "("), ("exps=", "no device")] {
            let error = read(text).err().expect(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
