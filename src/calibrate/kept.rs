//! Cache of measurements on disk, with one JSON file per profile and per link. Files are written atomically.
//!
//! No function of this module returns an error. Unreadable entries count as missing. Failed writes are
//! skipped, and [`Kept::failure`] returns the first reason. The name of a file is a digest of its key. The
//! content repeats the key, so that a misplaced file is detected. Entries older than [`MOST_AGE_S`] expire.
//!
//! A calibration holds the folder's lock, because concurrent calibrations would distort each other's timings.

use crate::files::{MOST_JSON_BYTES, read_text};
use ragtag_hal::{Adapter, PciAddress};
use ragtag_planner::LinkFacts;
use ragtag_planner::cost::{Profile, ProfileIdentity};
use ragtag_transfer::Route;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Format version of link files.
const LINK_VERSION: u32 = 4;
/// Age in seconds after which a measurement expires: 30 days.
const MOST_AGE_S: u64 = 30 * 24 * 3600;
/// Polling interval while another process holds the lock.
const POLL: Duration = Duration::from_millis(50);

/// A measured link.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptLink {
    ragtag_link: u32,
    /// Identities of the two devices.
    ends: [LinkEnd; 2],
    /// Time of the measurement, in seconds since 1970.
    measured_unix_s: u64,
    facts: LinkFacts,
}

/// The cache folder.
pub(super) struct Kept {
    folder: Option<PathBuf>,
    /// Whether the wait for the calibration of another process has timed out.
    is_taken: bool,
    /// Reason of the first failed write.
    failure: OnceLock<String>,
}

/// Exclusive access to the folder until this value is dropped.
pub(super) struct Lock {
    _file: Option<File>,
    /// Whether another process held the lock first. That process may have measured the missing entries.
    pub(super) waited: bool,
}

impl Kept {
    /// Opens the given folder, or the default folder.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        let folder = folder.or_else(|| ragtag_hal::cache::default_folder("profiles"));
        Self { folder, is_taken: false, failure: OnceLock::new() }
    }

    /// Waits up to `timeout` until no other process calibrates. After a timeout, later writes are skipped.
    /// Does not wait if the folder's lock file cannot be opened or locked.
    pub(super) fn lock(&mut self, timeout: Duration) -> Lock {
        let unlocked = Lock { _file: None, waited: false };
        let Some(folder) = &self.folder else { return unlocked };
        let path = folder.join("lock");
        let file = std::fs::create_dir_all(folder).and_then(|()| File::create(&path));
        // If the folder is not writable, the first write reports the reason.
        let Ok(file) = file else { return unlocked };
        let (start, mut waited) = (Instant::now(), false);
        loop {
            match file.try_lock() {
                Ok(()) => return Lock { _file: Some(file), waited },
                Err(TryLockError::Error(_)) => return unlocked,
                Err(TryLockError::WouldBlock) if start.elapsed() >= timeout => {
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

    /// Returns the reason of the first failed write, or `None` if no write failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Reads the cached profile for this identity.
    pub(super) fn profile(&self, identity: &ProfileIdentity) -> Option<Profile> {
        let path = self.path("profile", identity)?;
        let json = read(&path)?;
        match Profile::from_json(&json) {
            Ok(profile) if profile.identity == *identity => {
                let stale = is_old(profile.measured_unix_s) || self.is_contradicted(&profile);
                (!stale).then_some(profile)
            }
            Ok(_) => ignored(&path, "it has another key"),
            Err(error) => ignored(&path, &error.to_string()),
        }
    }

    /// Writes a profile.
    pub(super) fn keep_profile(&self, profile: &Profile) {
        self.keep(self.path("profile", &profile.identity), profile);
    }

    /// Reads the cached link between these devices.
    pub(super) fn link(&self, from: &Adapter, to: &Adapter) -> Option<LinkFacts> {
        let ends = [from, to].map(end);
        let path = self.path("link", &ends)?;
        let json = read(&path)?;
        match serde_json::from_str::<KeptLink>(&json) {
            Ok(link) if link.ragtag_link != LINK_VERSION => ignored(&path, "it has another format version"),
            Ok(link) if link.ends != ends => ignored(&path, "it has another key"),
            // The figures depend on the ring's chunk size and depth.
            Ok(link) if link.facts.route != Route::HOST_STAGED => ignored(&path, "it is for another route"),
            Ok(link) if !link.facts.is_plausible() => ignored(&path, "invalid figures"),
            Ok(link) => (!is_old(link.measured_unix_s)).then_some(link.facts),
            Err(error) => ignored(&path, &error.to_string()),
        }
    }

    /// Writes a link.
    pub(super) fn keep_link(&self, from: &Adapter, to: &Adapter, facts: &LinkFacts) {
        let ends = [from, to].map(end);
        let path = self.path("link", &ends);
        let measured_unix_s = now_unix_s();
        self.keep(path, &KeptLink { ragtag_link: LINK_VERSION, ends, measured_unix_s, facts: facts.clone() });
    }

    /// Marks a cached profile that a run has contradicted, so that it is measured again. Returns whether the
    /// profile is now marked. If the profile replaced a marked profile, it is not marked until the old mark
    /// expires, because another measurement would not be better.
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

    /// Returns whether a run has contradicted this profile. Marks of earlier profiles do not count.
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

/// Mark of a profile that a run has contradicted.
#[derive(Serialize, Deserialize)]
struct Mark {
    marked_unix_s: u64,
    /// Measurement time of the marked profile, which identifies it.
    measured_unix_s: u64,
}

fn mark(path: &Path) -> Option<Mark> {
    serde_json::from_str(&read(path)?).ok()
}

/// Returns the current time, in seconds since 1970.
pub(super) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns whether a time stamp has expired or lies in the future.
fn is_old(unix_s: u64) -> bool {
    now_unix_s().abs_diff(unix_s) > MOST_AGE_S
}

/// Properties of a device that affect the speed of its links.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEnd {
    device: String,
    name: String,
    driver: String,
    units: u32,
    pci: Option<PciAddress>,
}

fn end(adapter: &Adapter) -> LinkEnd {
    LinkEnd {
        device: adapter.label(),
        name: adapter.name.clone(),
        driver: adapter.driver.to_string(),
        units: adapter.caps.parallel_units,
        pci: adapter.identity.pci,
    }
}

fn read(path: &Path) -> Option<String> {
    match read_text(path, MOST_JSON_BYTES) {
        Ok(json) => Some(json),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
        Err(error) => ignored(path, &error.to_string()),
    }
}

fn ignored<T>(path: &Path, why: &str) -> Option<T> {
    tracing::warn!(path = %path.display(), why, "ignoring an unusable cache entry; measuring again");
    None
}

/// Writes a temporary file and renames it, so that readers never see an incomplete file.
fn write(path: &Path, content: &impl Serialize) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let part = path.with_extension(format!("{}.part", std::process::id()));
    let written = std::fs::write(&part, serde_json::to_vec_pretty(content)?);
    let renamed = written.and_then(|()| std::fs::rename(&part, path));
    if renamed.is_err() {
        // Removing fails if the file does not exist.
        let _ = std::fs::remove_file(&part);
    }
    renamed
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use ragtag_kernels::{Activations, KvType};
    use ragtag_planner::cost::{PROFILE_VERSION, TimedFor, TokenReturn};

    /// Returns a profile with this measurement time.
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
    fn one_process_calibrates_while_others_wait() {
        let folder = tempfile::tempdir().unwrap();
        let kept = || Kept::new(Some(folder.path().join("profiles")));
        let (mut first, mut second, mut third) = (kept(), kept(), kept());
        let lock = first.lock(Duration::ZERO);
        assert!(!lock.waited);
        // The lock times out, so the second process does not cache its measurements.
        second.lock(Duration::ZERO);
        let profile = profile(now_unix_s());
        second.keep_profile(&profile);
        assert_eq!(second.failure(), Some("another process is calibrating"));
        assert!(second.profile(&profile.identity).is_none());
        let waiting = std::thread::spawn(move || third.lock(Duration::from_secs(60)).waited);
        std::thread::sleep(POLL * 3);
        drop(lock);
        // The result depends on the time at which the thread started.
        let _: bool = waiting.join().unwrap();
        first.keep_profile(&profile);
        assert_eq!((first.failure(), first.profile(&profile.identity)), (None, Some(profile)));
    }
}
