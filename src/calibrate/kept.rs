//! What was measured, on disk: one JSON file for each profile and each link, written whole or not at all.
//!
//! Nothing here is an error to anybody: what cannot be read is measured again, what cannot be written is not kept. A
//! file's name is the digest of what it holds for, and the file says it again in words: a foreign file is found out.

use ragtag_hal::Adapter;
use ragtag_scheduler::LinkFacts;
use ragtag_scheduler::cost::{Profile, ProfileIdentity};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of the files of links.
const LINK_VERSION: u32 = 2;

/// A measured link.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptLink {
    ragtag_link: u32,
    /// What the devices at its ends are.
    ends: [String; 2],
    facts: LinkFacts,
}

/// The folder.
pub(super) struct Kept {
    folder: Option<PathBuf>,
}

impl Kept {
    /// The given folder, else the usual one.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder: folder.or_else(|| ragtag_hal::cache::default_folder("profiles")) }
    }

    /// The profile that was kept for this.
    pub(super) fn profile(&self, identity: &ProfileIdentity) -> Option<Profile> {
        let path = self.path("profile", identity)?;
        let json = read(&path)?;
        match Profile::from_json(&json) {
            Ok(profile) if profile.identity == *identity => Some(profile),
            Ok(_) => ignored(&path, "it holds for something else"),
            Err(error) => ignored(&path, &error.to_string()),
        }
    }

    /// Keeps a profile.
    pub(super) fn keep_profile(&self, profile: &Profile) {
        if let Some(path) = self.path("profile", &profile.identity) {
            write(&path, profile);
        }
    }

    /// The link that was kept for these devices.
    pub(super) fn link(&self, from: &Adapter, to: &Adapter) -> Option<LinkFacts> {
        let ends = [from, to].map(end);
        let path = self.path("link", &ends)?;
        let json = read(&path)?;
        match serde_json::from_str::<KeptLink>(&json) {
            Ok(link) if link.ragtag_link != LINK_VERSION => ignored(&path, "it is of another version"),
            Ok(link) if link.ends != ends => ignored(&path, "it holds for something else"),
            Ok(link) if link.facts.nonsense().is_some() => ignored(&path, "its figures make no sense"),
            Ok(link) => Some(link.facts),
            Err(error) => ignored(&path, &error.to_string()),
        }
    }

    /// Keeps a link.
    pub(super) fn keep_link(&self, from: &Adapter, to: &Adapter, facts: &LinkFacts) {
        let ends = [from, to].map(end);
        if let Some(path) = self.path("link", &ends) {
            write(&path, &KeptLink { ragtag_link: LINK_VERSION, ends, facts: facts.clone() });
        }
    }

    fn path(&self, what: &str, holds_for: &impl Serialize) -> Option<PathBuf> {
        let digest = blake3::hash(&serde_json::to_vec(holds_for).ok()?).to_hex();
        Some(self.folder.as_ref()?.join(format!("{what}-{}.json", &digest[..32])))
    }
}

/// What the speed of a link depends on at one end.
fn end(adapter: &Adapter) -> String {
    let units = adapter.caps.parallel_units;
    format!("{} {} {} {units} {:?}", adapter.label(), adapter.name, adapter.driver, adapter.identity.pci)
}

fn read(path: &Path) -> Option<String> {
    match std::fs::read_to_string(path) {
        Ok(json) => Some(json),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => ignored(path, &error.to_string()),
    }
}

fn ignored<T>(path: &Path, why: &str) -> Option<T> {
    tracing::warn!(path = %path.display(), why, "a kept measurement is ignored; it is made again");
    None
}

/// Beside its place first, then renamed: whoever reads finds all of it or none.
fn write(path: &Path, content: &impl Serialize) {
    let write = || -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let written = std::fs::write(&part, serde_json::to_vec_pretty(content)?);
        let renamed = written.and_then(|()| std::fs::rename(&part, path));
        if renamed.is_err() {
            // There may be nothing to remove.
            let _ = std::fs::remove_file(&part);
        }
        renamed
    };
    if let Err(error) = write() {
        tracing::debug!(%error, path = %path.display(), "a measurement was not kept");
    }
}
