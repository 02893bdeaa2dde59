//! What was measured, on disk: one JSON file for each profile and each link, written whole or not at all.
//!
//! Nothing here is an error to anybody: what cannot be read is measured again, what cannot be written is not kept, and the
//! first reason for that can be asked for. A file's name is the digest of what it holds for, and the file says it again in
//! words: a foreign file is found out.

use crate::files::{MOST_JSON_BYTES, read_text};
use ragtag_hal::Adapter;
use ragtag_scheduler::LinkFacts;
use ragtag_scheduler::cost::{Profile, ProfileIdentity};
use ragtag_transfer::Route;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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
    /// Why something was not kept.
    failure: OnceLock<String>,
}

impl Kept {
    /// The given folder, else the usual one.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        let folder = folder.or_else(|| ragtag_hal::cache::default_folder("profiles"));
        Self { folder, failure: OnceLock::new() }
    }

    /// Why what was measured is not all kept, the first reason; `None` if it is.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
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
        self.keep(self.path("profile", &profile.identity), profile);
    }

    /// The link that was kept for these devices.
    pub(super) fn link(&self, from: &Adapter, to: &Adapter) -> Option<LinkFacts> {
        let ends = [from, to].map(end);
        let path = self.path("link", &ends)?;
        let json = read(&path)?;
        match serde_json::from_str::<KeptLink>(&json) {
            Ok(link) if link.ragtag_link != LINK_VERSION => ignored(&path, "it is of another version"),
            Ok(link) if link.ends != ends => ignored(&path, "it holds for something else"),
            // A ring of another shape has other figures.
            Ok(link) if link.facts.route != Route::HOST_STAGED => ignored(&path, "it is of another route"),
            Ok(link) if link.facts.nonsense().is_some() => ignored(&path, "its figures make no sense"),
            Ok(link) => Some(link.facts),
            Err(error) => ignored(&path, &error.to_string()),
        }
    }

    /// Keeps a link.
    pub(super) fn keep_link(&self, from: &Adapter, to: &Adapter, facts: &LinkFacts) {
        let ends = [from, to].map(end);
        let path = self.path("link", &ends);
        self.keep(path, &KeptLink { ragtag_link: LINK_VERSION, ends, facts: facts.clone() });
    }

    fn keep(&self, path: Option<PathBuf>, content: &impl Serialize) {
        let failure = match path {
            None => "there is no folder for caches; RAGTAG_CACHE_DIR names one".into(),
            Some(path) => match write(&path, content) {
                Ok(()) => return,
                Err(error) => format!("cannot write {}: {error}", path.display()),
            },
        };
        self.failure.get_or_init(|| failure);
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
    match read_text(path, MOST_JSON_BYTES) {
        Ok(json) => Some(json),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
        Err(error) => ignored(path, &error.to_string()),
    }
}

fn ignored<T>(path: &Path, why: &str) -> Option<T> {
    tracing::warn!(path = %path.display(), why, "a kept measurement is ignored; it is made again");
    None
}

/// Beside its place first, then renamed: whoever reads finds all of it or none.
fn write(path: &Path, content: &impl Serialize) -> std::io::Result<()> {
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
}
