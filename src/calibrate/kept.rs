//! What was measured, on disk: one JSON file for each profile and each link, written whole or not at all.
//!
//! Nothing here is an error to anybody: what cannot be read is measured again, what cannot be written is not kept, and the
//! first reason for that can be asked for. A file's name is the digest of what it holds for, and the file says it again in
//! words: a foreign file is found out. What is older than [`MOST_AGE_S`] is measured again.
//!
//! Calibrations that run at the same time would time each other: whoever measures holds the folder's lock.

use crate::files::{MOST_JSON_BYTES, read_text};
use ragtag_hal::Adapter;
use ragtag_scheduler::LinkFacts;
use ragtag_scheduler::cost::{Profile, ProfileIdentity};
use ragtag_transfer::Route;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Version of the files of links.
const LINK_VERSION: u32 = 3;
/// Age at which a measurement expires, in seconds: 30 days.
const MOST_AGE_S: u64 = 30 * 24 * 3600;
/// How often a process looks whether another one has finished its calibration.
const POLL: Duration = Duration::from_millis(50);

/// A measured link.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptLink {
    ragtag_link: u32,
    /// What the devices at its ends are.
    ends: [String; 2],
    /// Time of the measurement, in seconds since 1970.
    measured_unix_s: u64,
    facts: LinkFacts,
}

/// The folder.
pub(super) struct Kept {
    folder: Option<PathBuf>,
    /// Whether another process went on calibrating for longer than this one waits.
    is_taken: bool,
    /// Why something was not kept.
    failure: OnceLock<String>,
}

/// Exclusive use of the folder, until it is dropped.
pub(super) struct Lock {
    _file: Option<File>,
    /// Whether another process had it before: it may have measured what was missing.
    pub(super) waited: bool,
}

impl Kept {
    /// The given folder, else the usual one.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        let folder = folder.or_else(|| ragtag_hal::cache::default_folder("profiles"));
        Self { folder, is_taken: false, failure: OnceLock::new() }
    }

    /// Waits until no other process calibrates, for so long at most: without the lock nothing is kept. Where files cannot be
    /// locked, nothing is waited for.
    pub(super) fn lock(&mut self, patience: Duration) -> Lock {
        let unlocked = Lock { _file: None, waited: false };
        let Some(folder) = &self.folder else { return unlocked };
        let path = folder.join("lock");
        let file = std::fs::create_dir_all(folder).and_then(|()| File::create(&path));
        // Why nothing can be written there is said when something is to be kept.
        let Ok(file) = file else { return unlocked };
        let (start, mut waited) = (Instant::now(), false);
        loop {
            match file.try_lock() {
                Ok(()) => return Lock { _file: Some(file), waited },
                Err(TryLockError::Error(_)) => return unlocked,
                Err(TryLockError::WouldBlock) if start.elapsed() >= patience => {
                    self.is_taken = true;
                    return Lock { _file: None, waited };
                }
                Err(TryLockError::WouldBlock) => {
                    if !waited {
                        tracing::warn!(lock = %path.display(), "another process is calibrating; waiting for it");
                    }
                    waited = true;
                    std::thread::sleep(POLL);
                }
            }
        }
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
            Ok(profile) if profile.identity == *identity => {
                let stale = is_old(profile.measured_unix_s) || self.is_contradicted(&profile);
                (!stale).then_some(profile)
            }
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
            Ok(link) if !link.facts.is_plausible() => ignored(&path, "its figures make no sense"),
            Ok(link) => (!is_old(link.measured_unix_s)).then_some(link.facts),
            Err(error) => ignored(&path, &error.to_string()),
        }
    }

    /// Keeps a link.
    pub(super) fn keep_link(&self, from: &Adapter, to: &Adapter, facts: &LinkFacts) {
        let ends = [from, to].map(end);
        let path = self.path("link", &ends);
        let measured_unix_s = now_unix_s();
        self.keep(path, &KeptLink { ragtag_link: LINK_VERSION, ends, measured_unix_s, facts: facts.clone() });
    }

    /// Marks the kept profile as contradicted by a run, so that it is measured again; returns whether it is now. A profile that
    /// was measured again for that reason is not marked once more before the mark has expired: what it predicts is as
    /// wrong each time.
    pub(super) fn contradict(&self, profile: &Profile) -> bool {
        let Some(path) = self.path("stale", &profile.identity) else { return false };
        let before = mark(&path).filter(|before| !is_old(before.marked_unix_s));
        let kept = self.profile(&profile.identity);
        let is_kept = kept.is_some_and(|kept| kept.measured_unix_s == profile.measured_unix_s);
        if before.is_some() || !is_kept {
            return false;
        }
        let mark = Mark { marked_unix_s: now_unix_s(), measured_unix_s: profile.measured_unix_s };
        write(&path, &mark).is_ok()
    }

    /// Whether a run has contradicted this profile, not one before it.
    fn is_contradicted(&self, profile: &Profile) -> bool {
        let mark = self.path("stale", &profile.identity).and_then(|path| mark(&path));
        mark.is_some_and(|mark| mark.measured_unix_s == profile.measured_unix_s)
    }

    fn keep(&self, path: Option<PathBuf>, content: &impl Serialize) {
        let failure = match path {
            _ if self.is_taken => "another process is calibrating".into(),
            None => "no cache folder (set RAGTAG_CACHE_DIR)".into(),
            Some(path) => match write(&path, content) {
                Ok(()) => return,
                Err(error) => {
                    format!("{}: {error} (set RAGTAG_CACHE_DIR to use another folder)", path.display())
                }
            },
        };
        self.failure.get_or_init(|| failure);
    }

    fn path(&self, what: &str, holds_for: &impl Serialize) -> Option<PathBuf> {
        let digest = blake3::hash(&serde_json::to_vec(holds_for).ok()?).to_hex();
        Some(self.folder.as_ref()?.join(format!("{what}-{}.json", &digest[..32])))
    }
}

/// The mark of a profile that a run has contradicted.
#[derive(Serialize, Deserialize)]
struct Mark {
    marked_unix_s: u64,
    /// Which profile: when it was measured.
    measured_unix_s: u64,
}

fn mark(path: &Path) -> Option<Mark> {
    serde_json::from_str(&read(path)?).ok()
}

/// The time, in seconds since 1970.
pub(super) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Whether something has expired, or is of a time to come.
fn is_old(unix_s: u64) -> bool {
    now_unix_s().abs_diff(unix_s) > MOST_AGE_S
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use ragtag_kernels::{Activations, KvType};
    use ragtag_scheduler::cost::{PROFILE_VERSION, TimedFor, TokenReturn};

    /// A profile of that time.
    pub(crate) fn profile(measured_unix_s: u64) -> Profile {
        Profile {
            ragtag_profile: PROFILE_VERSION,
            identity: ProfileIdentity {
                device: "cpu".into(),
                name: "a processor".into(),
                driver: "none".into(),
                units: 1,
                together: 1,
                kernels: "k".into(),
                shape: "s".into(),
                activations: Activations::Int8,
                kv: KvType::F16,
            },
            measured_unix_s,
            timed_for: TimedFor { chunk: 128, sequences: 1 },
            stage_us: 1.0,
            hand_over_us: 1.0,
            host_latency_us: 1.0,
            host_bandwidth_bytes_per_s: 1e9,
            token_return: TokenReturn { latency_us: 1.0, row_us: 1.0 },
            roofline: None,
            kinds: Vec::new(),
        }
    }

    #[test]
    fn one_process_calibrates_at_a_time_and_another_one_waits() {
        let folder = tempfile::tempdir().unwrap();
        let kept = || Kept::new(Some(folder.path().join("profiles")));
        let (mut first, mut second, mut third) = (kept(), kept(), kept());
        let lock = first.lock(Duration::ZERO);
        assert!(!lock.waited);
        // It does not wait for ever, and what it measures meanwhile is worth nothing.
        second.lock(Duration::ZERO);
        let profile = profile(now_unix_s());
        second.keep_profile(&profile);
        assert_eq!(second.failure(), Some("another process is calibrating"));
        assert!(second.profile(&profile.identity).is_none());
        let waiting = std::thread::spawn(move || third.lock(Duration::from_secs(60)).waited);
        std::thread::sleep(POLL * 3);
        drop(lock);
        // Where the thread began late there was nothing to wait for.
        let _: bool = waiting.join().unwrap();
        first.keep_profile(&profile);
        assert_eq!((first.failure(), first.profile(&profile.identity)), (None, Some(profile)));
    }
}
