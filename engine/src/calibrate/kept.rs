//! Cache of measurements on disk. Each profile, each probed link and the tried kernels of each device have their
//! own JSON file, which is written atomically.
//!
//! No function of this module returns an error. The cache treats an unreadable file as missing. After a
//! failed write, [`Kept::failure`] returns the reason. The name of a file is a digest of its key. The content
//! repeats the key, so that Ragtag can detect a misplaced file. Files older than [`MAX_AGE_S`] expire. A probe of
//! another format version is measured again without a warning, because only an update of Ragtag leaves it.
//!
//! A calibration holds a lock on the folder, because concurrent calibrations would distort each other's
//! timings.

use super::links::ProbedLink;
use crate::files::{MAX_JSON_BYTES, read_text};
use ragtag_hal::{Adapter, PciAddress};
use ragtag_planner::cost::{Profile, ProfileIdentity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Format version of the JSON files of probes. It also changes when devices offer more routes than before, or
/// when a probe measures more.
const PROBE_VERSION: u32 = 6;
/// Format version of the JSON files of tried kernels.
const KERNELS_VERSION: u32 = 1;
/// Age in seconds after which a measurement expires: 30 days.
const MAX_AGE_S: u64 = 30 * 24 * 3600;
/// Interval between attempts to take a lock that another process holds.
const POLL: Duration = Duration::from_millis(50);

/// A probed link, as its JSON file stores it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptProbe {
    ragtag_probe: u32,
    /// Properties of the link's sending and receiving devices, in this order.
    ends: [LinkEnd; 2],
    link: ProbedLink,
}

/// The tried kernels of a device, as their JSON file stores them.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptKernels {
    ragtag_kernels: u32,
    device: LinkEnd,
    /// Outcomes by the names of the kernel and its variant.
    kernels: BTreeMap<String, TriedKernel>,
}

/// Outcome of the trial of a kernel on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriedKernel {
    /// Digest of the kernel's code.
    pub digest: String,
    /// Time of the trial, in seconds since 1970.
    pub tested_unix_s: u64,
    /// Description of the failure, or `None` if the kernel has passed.
    pub why: Option<String>,
}

impl TriedKernel {
    /// Reads the outcomes of the kernels that engines tried on a device with its present driver, by the names of the
    /// kernel and its variant.
    pub fn all_on(adapter: &Adapter) -> BTreeMap<String, Self> {
        Kept::new(None).kernels(adapter)
    }
}

/// The cache folder.
pub(crate) struct Kept {
    folder: Option<PathBuf>,
    /// Whether another process still held the lock at the end of the timeout.
    is_taken: bool,
    /// Reason for the first failed write.
    failure: OnceLock<String>,
}

/// Exclusive access to the cache folder. Dropping the lock releases it.
pub(super) struct Lock {
    _file: Option<File>,
    /// Whether this process had to wait for another process, which may have measured the missing entries.
    pub(super) waited: bool,
}

impl Kept {
    /// Creates a cache in `folder`, or in the default folder if `folder` is `None`.
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        let folder = folder.or_else(|| ragtag_hal::cache::default_folder("profiles"));
        Self { folder, is_taken: false, failure: OnceLock::new() }
    }

    /// Takes the lock. Waits up to `timeout` for another process that holds it. After a timeout, the cache
    /// skips all writes. Returns without a lock if the lock file cannot be opened or locked.
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

    /// Returns the reason for the first failed or skipped write, or `None` if there was none.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Reads the cached profile with the given identity. Returns `None` if there is none or if it has expired.
    pub(super) fn profile(&self, identity: &ProfileIdentity) -> Option<Profile> {
        self.last_good(identity).filter(|profile| !is_old(profile.measured_unix_s))
    }

    /// Reads the cached profile with the given identity, even if it has expired. Doubtful profiles are never cached.
    pub(super) fn last_good(&self, identity: &ProfileIdentity) -> Option<Profile> {
        let path = self.path("profile", identity)?;
        let json = read(&path)?;
        match Profile::from_json(&json) {
            Ok(profile) if profile.identity == *identity => Some(profile),
            Ok(_) => ignored(&path, "it has another key"),
            Err(error) => ignored(&path, &error.to_string()),
        }
    }

    /// Writes a profile to the cache.
    pub(super) fn keep_profile(&self, profile: &Profile) {
        self.keep(self.path("profile", &profile.identity), profile);
    }

    /// Reads the cached probe of the link from one device to another. Returns `None` if there is none or if
    /// it has expired.
    pub(super) fn probe(&self, from: &Adapter, to: &Adapter) -> Option<ProbedLink> {
        let ends = [from, to].map(end);
        let path = self.path("probe", &ends)?;
        let json = read(&path).filter(|json| !has_other_version(json, "ragtag_probe", PROBE_VERSION))?;
        match serde_json::from_str::<KeptProbe>(&json) {
            Ok(kept) if kept.ends != ends => ignored(&path, "it has another key"),
            Ok(kept) if !kept.link.is_plausible() => ignored(&path, "invalid figures"),
            Ok(kept) => (!is_old(kept.link.measured_unix_s)).then_some(kept.link),
            Err(error) => ignored(&path, &error.to_string()),
        }
    }

    /// Writes a probed link to the cache.
    pub(super) fn keep_probe(&self, from: &Adapter, to: &Adapter, link: &ProbedLink) {
        let ends = [from, to].map(end);
        let path = self.path("probe", &ends);
        self.keep(path, &KeptProbe { ragtag_probe: PROBE_VERSION, ends, link: link.clone() });
    }

    /// Reads the outcomes of the kernels that were tried on a device with its present driver. Leaves out those
    /// that have expired.
    pub(crate) fn kernels(&self, adapter: &Adapter) -> BTreeMap<String, TriedKernel> {
        let device = end(adapter);
        let path = self.path("kernels", &device);
        let Some((path, json)) = path.and_then(|path| Some((path.clone(), read(&path)?))) else {
            return BTreeMap::new();
        };
        let kernels = match serde_json::from_str::<KeptKernels>(&json) {
            Ok(kept) if kept.ragtag_kernels != KERNELS_VERSION => {
                ignored(&path, "it has another format version")
            }
            Ok(kept) if kept.device != device => ignored(&path, "it has another key"),
            Ok(kept) => Some(kept.kernels),
            Err(error) => ignored(&path, &error.to_string()),
        };
        let mut kernels: BTreeMap<_, TriedKernel> = kernels.unwrap_or_default();
        kernels.retain(|_, kernel| !is_old(kernel.tested_unix_s));
        kernels
    }

    /// Adds the outcomes of kernels to those of a device.
    pub(crate) fn keep_kernels(&self, adapter: &Adapter, tried: BTreeMap<String, TriedKernel>) {
        let mut kernels = self.kernels(adapter);
        kernels.extend(tried);
        let device = end(adapter);
        let path = self.path("kernels", &device);
        self.keep(path, &KeptKernels { ragtag_kernels: KERNELS_VERSION, device, kernels });
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

/// Returns the current time, in seconds since 1970.
pub(crate) fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Returns in words when a profile was measured, such as `3 h ago`.
pub fn profile_age(profile: &Profile) -> String {
    let hours = now_unix_s().saturating_sub(profile.measured_unix_s) / 3600;
    match hours {
        0 => "less than an hour ago".into(),
        1..48 => format!("{hours} h ago"),
        _ => format!("{} days ago", hours / 24),
    }
}

/// Returns whether a time stamp is more than [`MAX_AGE_S`] in the past or in the future.
fn is_old(unix_s: u64) -> bool {
    now_unix_s().abs_diff(unix_s) > MAX_AGE_S
}

/// Properties of a device that affect the speed of its links. They are part of the key of each link.
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
    match read_text(path, MAX_JSON_BYTES) {
        Ok(json) => Some(json),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
        Err(error) => ignored(path, &error.to_string()),
    }
}

/// Returns whether the version in `field` of an entry is another one than `version`.
fn has_other_version(json: &str, field: &str, version: u32) -> bool {
    let entry = serde_json::from_str::<serde_json::Value>(json).unwrap_or_default();
    entry[field].as_u64().is_some_and(|found| found != u64::from(version))
}

fn ignored<T>(path: &Path, why: &str) -> Option<T> {
    tracing::warn!(path = %path.display(), why, "ignoring an unusable cache entry; measuring again");
    None
}

/// Writes `content` as JSON to a temporary file and renames it to `path`, so that readers never see an
/// incomplete file.
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

    #[test]
    fn the_page_states_the_versions_of_probes_and_kernels() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/formats.md")).unwrap();
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        for (field, version) in [("ragtag_probe", PROBE_VERSION), ("ragtag_kernels", KERNELS_VERSION)] {
            let stated = format!("`{field}` (version of the format: {version})");
            assert!(page.contains(&stated), "docs/formats.md lacks: {stated}");
        }
    }

    /// Returns a profile that was measured at `measured_unix_s`.
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
