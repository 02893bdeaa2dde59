//! Reads `model.safetensors.index.json`, which maps tensor names to shards.

use super::files::{CONFIG, INDEX, MODEL};
use crate::error::{FormatError, Quoted};
use crate::json;
use crate::safetensors::Stored;
use crate::source::{Directory, Source};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Size limit of an index in bytes. It suffices for a million tensors.
const MAX_BYTES: u64 = 128 << 20;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Returns the sorted names of the files that contain the weights. `directory` must contain all existing
/// files of [`FILES`](super::FILES). If it contains `model.safetensors`, the index is ignored.
///
/// # Errors
/// Fails if the directory does not contain a model, or if the index lists a name that cannot be a safetensors
/// file in this directory.
pub fn shard_names(directory: &Directory) -> Result<Vec<String>, FormatError> {
    directory.required(CONFIG)?;
    let index = match (directory.file(MODEL), directory.file(INDEX)) {
        (Some(_), _) => return Ok(vec![MODEL.to_owned()]),
        (None, Some(index)) => index,
        (None, None) => return Err(directory.missing(format!("{MODEL} and no {INDEX}"))),
    };
    let wrong = |cause: String| FormatError::Index { file: index.name().to_owned(), cause };
    let names: BTreeSet<String> = read(index.as_ref())?.weight_map.into_values().collect();
    if let Some(bad) = names.iter().find(|name| !is_plain(name)) {
        let cause = format!("\"{}\" is not the name of a .safetensors file beside it", Quoted(bad));
        return Err(wrong(cause));
    }
    if names.is_empty() {
        return Err(wrong("names no file".to_owned()));
    }
    Ok(names.into_iter().collect())
}

fn read(index: &dyn Source) -> Result<Index, FormatError> {
    json::parse(index, MAX_BYTES)
}

/// Returns whether every operating system resolves `name` to a safetensors file directly in the directory.
/// Rejects path separators, drive letters and hidden files.
fn is_plain(name: &str) -> bool {
    let harmless = |c: char| c.is_ascii_alphanumeric() || "-_.+@ ".contains(c);
    name.ends_with(".safetensors") && !name.starts_with('.') && name.chars().all(harmless)
}

/// Checks that the index, if there is one, lists exactly the tensors that the shards contain.
pub(super) fn check(directory: &Directory, names: &[String], tensors: &[Stored]) -> Result<(), FormatError> {
    // Beside `model.safetensors`, the index is ignored.
    let index = directory.file(INDEX).filter(|_| directory.file(MODEL).is_none());
    let Some(index) = index else { return Ok(()) };
    let wrong = |cause: String| Err(FormatError::Index { file: index.name().to_owned(), cause });
    let mut promised = read(index.as_ref())?.weight_map;
    for tensor in tensors {
        let shard = &names[tensor.shard];
        match promised.remove(&tensor.name) {
            Some(file) if file == *shard => {}
            Some(file) => {
                let name = Quoted(&tensor.name);
                return wrong(format!("{name} should be in {}, but is in {shard}", Quoted(&file)));
            }
            // The index does not list this tensor, or an earlier shard also contains it.
            None => return wrong(format!("{shard} holds {}, contrary to the index", Quoted(&tensor.name))),
        }
    }
    match promised.into_iter().next() {
        Some((tensor, file)) => wrong(format!("{} should hold {}", Quoted(&file), Quoted(&tensor))),
        None => Ok(()),
    }
}
