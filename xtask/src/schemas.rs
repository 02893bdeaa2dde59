//! Writes `docs/schemas`, the JSON Schemas of fleets, plans and requests for plans, from the Rust types. A test of
//! `ragtag-planner` fails if the schemas are out of date.
//!
//! Knows nothing about the content of a schema.

use std::path::Path;

/// Writes the schemas to `docs/schemas`.
pub fn run(root: &Path) -> Result<(), String> {
    let folder = root.join("docs/schemas");
    let write = |name: &str, text: String| -> std::io::Result<()> {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(name), text)
    };
    ragtag_planner::schemas::all()
        .into_iter()
        .try_for_each(|(name, text)| write(name, text).map_err(|e| format!("docs/schemas/{name}: {e}")))
}
