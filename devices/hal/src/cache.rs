//! Cache of compiled programs, in memory and in a folder of bounded size. Files are written atomically and
//! carry a checksum.
//!
//! The cache never reports its failures as errors. A program whose file is unreadable is compiled again. If
//! writing a file fails, the program is not cached. This module knows nothing about drivers.

use crate::error::Result;
use blake3::{Hash, Hasher};
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Maximum size of the folder in bytes. Beyond it, the cache removes the least recently used files.
const MAX_BYTES: u64 = 256 << 20;
/// Size in bytes of the checksum, which precedes the program in a file.
const CHECKSUM_BYTES: usize = 32;

/// Digest of all inputs that determine the code of a program.
pub type Key = Hash;

/// Returns the key of a program from its parts: source, compiler options, device and driver.
pub fn key<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Key {
    let mut hasher = Hasher::new();
    for part in parts {
        // The length keeps `["ab", "c"]` and `["a", "bc"]` distinct.
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize()
}

/// Returns a backend's default cache folder: `$RAGTAG_CACHE_DIR/BACKEND`, or `ragtag/BACKEND` in the user's
/// cache folder if the variable is not set.
pub fn default_folder(backend: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = variable("RAGTAG_CACHE_DIR") {
        return Some(folder.join(backend));
    }
    let user = variable(if cfg!(windows) { "LOCALAPPDATA" } else { "XDG_CACHE_HOME" });
    let user = user.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    user.filter(|folder| folder.is_absolute()).map(|folder| folder.join("ragtag").join(backend))
}

/// Cache folder of a backend.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    max_bytes: u64,
}

impl Folder {
    /// Returns the cache folder at this path. The first write creates the folder.
    pub fn new(path: PathBuf) -> Self {
        Self { path, max_bytes: MAX_BYTES }
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.path.join(format!("{}.bin", key.to_hex()))
    }

    /// Returns the program stored under this key, if its file is intact.
    pub fn load(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.file(key);
        let mut content = Vec::new();
        // The limit protects against endless files behind symbolic links. The cache itself never stores a
        // larger file.
        fs::File::open(&path).ok()?.take(self.max_bytes).read_to_end(&mut content).ok()?;
        let (checksum, program) = content.split_at_checked(CHECKSUM_BYTES)?;
        if blake3::hash(program).as_bytes() != checksum {
            tracing::debug!(path = %path.display(), "ignoring a damaged program in the cache");
            return None;
        }
        // Marks the file as recently used. An error is ignored, because it only affects the order of removal.
        let _ = fs::File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(program.to_vec())
    }

    /// Stores a program under a key. Replaces the previous program under this key, if any.
    pub fn store(&self, key: &Key, program: &[u8]) {
        if let Err(error) = self.write(key, program).and_then(|()| self.prune()) {
            tracing::debug!(%error, path = %self.path.display(), "cannot store a program in the cache");
        }
    }

    fn write(&self, key: &Key, program: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.path)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.path)?;
        file.write_all(blake3::hash(program).as_bytes())?;
        file.write_all(program)?;
        file.persist(self.file(key)).map(drop).map_err(|error| error.error)
    }

    /// Removes the least recently used files until the folder is within its limit. Temporary files left
    /// behind by a crashed process are treated like the other files.
    fn prune(&self) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // Another process may have removed the file.
            let Ok(facts) = entry.metadata() else { continue };
            if facts.is_file() {
                files.push((facts.modified().unwrap_or(SystemTime::UNIX_EPOCH), facts.len(), entry.path()));
            }
        }
        files.sort_unstable();
        let mut total: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, path) in files {
            if total <= self.max_bytes {
                break;
            }
            remove(&path);
            total -= bytes;
        }
        Ok(())
    }
}

/// Numbers of programs that a backend's devices requested, by origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Compiled from source.
    pub compiled: u64,
    /// Loaded from disk.
    pub loaded: u64,
    /// Reused within this process.
    pub reused: u64,
}

/// Compiled binaries of programs, shared by all devices of a backend. The binaries stay in memory as long as
/// the backend exists. If there is a cache folder, they are also stored there for later processes.
#[derive(Debug, Default)]
pub struct Shelf {
    folder: Option<Folder>,
    places: Mutex<HashMap<Key, SharedBinary>>,
    counters: Mutex<CacheCounters>,
}

/// Binary of a program. The mutex is locked while a thread loads or compiles the program.
type SharedBinary = Arc<Mutex<Option<Arc<[u8]>>>>;

impl Shelf {
    /// Returns a shelf that also stores binaries in `folder`. Without a folder, it keeps binaries only in
    /// memory.
    pub fn new(folder: Option<Folder>) -> Self {
        Self { folder, ..Self::default() }
    }

    /// Returns the numbers of programs that were compiled, loaded and reused so far.
    pub fn counters(&self) -> CacheCounters {
        *lock(&self.counters)
    }

    /// Returns the cached binary of a program, and the counter to increment for the binary's origin.
    fn find(&self, key: &Key, place: &Option<Arc<[u8]>>) -> Option<(Arc<[u8]>, Counter)> {
        match place {
            Some(bytes) => Some((Arc::clone(bytes), |counters| &mut counters.reused)),
            None => Some((self.folder.as_ref()?.load(key)?.into(), |counters| &mut counters.loaded)),
        }
    }

    fn count(&self, counter: Counter) {
        *counter(&mut lock(&self.counters)) += 1;
    }
}

type Counter = fn(&mut CacheCounters) -> &mut u64;

/// A newly compiled program, and its binary if the driver provides one.
pub type Compiled<P> = (P, Option<Vec<u8>>);

/// Loaded programs by key and device. Each program is created once.
#[derive(Debug)]
pub struct Programs<P> {
    shelf: Arc<Shelf>,
    /// Slots by key and device. Identical devices share a key, but each device needs its own loaded program.
    slots: Mutex<HashMap<(Key, usize), Slot<P>>>,
}

/// A loaded program. The mutex is locked while a thread creates the program.
type Slot<P> = Arc<Mutex<Option<P>>>;

impl<P: Clone> Programs<P> {
    /// Returns an empty table that looks up binaries in `shelf`.
    pub fn new(shelf: Arc<Shelf>) -> Self {
        Self { shelf, slots: Mutex::default() }
    }

    /// Returns the program with this key for a device. If the table does not contain the program, `load`
    /// creates it from a cached binary. If there is no binary or `load` fails, `compile` creates it.
    ///
    /// # Errors
    /// Returns the error of `compile`.
    pub fn get(
        &self,
        key: Key,
        device: usize,
        load: impl FnOnce(&[u8]) -> Result<P>,
        compile: impl FnOnce() -> Result<Compiled<P>>,
    ) -> Result<P> {
        let slot = Arc::clone(lock(&self.slots).entry((key, device)).or_default());
        let mut slot = lock(&slot);
        if let Some(program) = slot.as_ref() {
            self.shelf.count(|counters| &mut counters.reused);
            return Ok(program.clone());
        }
        let place = Arc::clone(lock(&self.shelf.places).entry(key).or_default());
        let mut place = lock(&place);
        if let Some((bytes, counter)) = self.shelf.find(&key, &place) {
            match load(&bytes) {
                Ok(program) => {
                    self.shelf.count(counter);
                    tracing::debug!(%key, bytes = bytes.len(), "loaded a cached program");
                    *place = Some(bytes);
                    return Ok(slot.insert(program).clone());
                }
                Err(error) => {
                    tracing::debug!(%key, %error, "the driver refused a cached program; compiling it again")
                }
            }
        }
        let start = std::time::Instant::now();
        let (program, bytes) = compile()?;
        self.shelf.count(|counters| &mut counters.compiled);
        tracing::debug!(%key, elapsed = ?start.elapsed(), kept = bytes.is_some(), "compiled a program");
        if let Some(bytes) = bytes {
            if let Some(folder) = &self.shelf.folder {
                folder.store(&key, &bytes);
            }
            *place = Some(bytes.into());
        }
        Ok(slot.insert(program).clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!(%error, path = %path.display(), "cannot remove a file of the cache");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::time::Duration;

    fn folder(max_bytes: u64) -> (tempfile::TempDir, Folder) {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder { path: temporary.path().join("deep").join("cache"), max_bytes };
        (temporary, folder)
    }

    #[test]
    fn keys_distinguish_parts() {
        let of = |parts: &[&'static str]| key(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
    }

    #[test]
    fn stored_programs_are_loaded() {
        let (_temporary, folder) = folder(1 << 20);
        let (a, b) = (blake3::hash(b"a"), blake3::hash(b"b"));
        assert_eq!(folder.load(&a), None);
        folder.store(&a, b"one");
        folder.store(&b, b"");
        folder.store(&a, b"two");
        assert_eq!((folder.load(&a), folder.load(&b)), (Some(b"two".to_vec()), Some(Vec::new())));
        let files = fs::read_dir(&folder.path).unwrap().count();
        assert_eq!(files, 2, "nothing temporary is left");
    }

    #[test]
    fn a_program_is_compiled_once_and_loaded_by_later_tables() {
        let (_temporary, folder) = folder(1 << 20);
        let key = blake3::hash(b"a");
        let get = |programs: &Programs<String>, device| {
            let load = |bytes: &[u8]| Ok(format!("loaded {}", String::from_utf8_lossy(bytes)));
            let compile = || Ok(("compiled".to_string(), Some(b"one".to_vec())));
            programs.get(key, device, load, compile).unwrap()
        };
        let counters = |compiled, loaded, reused| CacheCounters { compiled, loaded, reused };
        for folder in [Some(folder.clone()), None] {
            let shelf = Arc::new(Shelf::new(folder));
            let programs = Programs::new(Arc::clone(&shelf));
            assert_eq!(
                [0, 0, 1].map(|device| get(&programs, device)),
                ["compiled", "compiled", "loaded one"]
            );
            assert_eq!(get(&Programs::new(Arc::clone(&shelf)), 0), "loaded one", "a table of the same shelf");
            assert_eq!(shelf.counters(), counters(1, 0, 3));
        }
        let shelf = Arc::new(Shelf::new(Some(folder)));
        let programs = Programs::new(Arc::clone(&shelf));
        assert_eq!([0, 1].map(|device| get(&programs, device)), ["loaded one", "loaded one"]);
        assert_eq!(shelf.counters(), counters(0, 1, 1), "from disk once");
    }

    #[test]
    fn a_refused_program_is_compiled_and_a_failure_stores_nothing() {
        let (_temporary, folder) = folder(1 << 20);
        let key = blake3::hash(b"a");
        folder.store(&key, b"refused");
        let shelf = Arc::new(Shelf::new(Some(folder.clone())));
        let programs = Programs::new(Arc::clone(&shelf));
        let refuse = |_: &[u8]| Err(Error::invalid("another driver's"));
        let failed = programs.get(key, 0, refuse, || Err(Error::invalid("no compiler")));
        assert_eq!(failed, Err(Error::invalid("no compiler")));
        assert_eq!(programs.get(key, 0, refuse, || Ok((7, Some(b"new".to_vec())))), Ok(7));
        assert_eq!((folder.load(&key), shelf.counters().compiled), (Some(b"new".to_vec()), 1));
        let silent = blake3::hash(b"b");
        assert_eq!(programs.get(silent, 0, refuse, || Ok((8, None))), Ok(8), "a driver that gives no bytes");
        assert_eq!(folder.load(&silent), None);
    }

    #[cfg(unix)]
    #[test]
    fn an_endless_file_is_ignored() {
        let (_temporary, folder) = folder(1 << 10);
        let key = blake3::hash(b"a");
        fs::create_dir_all(&folder.path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.file(&key)).unwrap();
        assert_eq!(folder.load(&key), None);
    }

    #[test]
    fn damaged_files_are_ignored() {
        let (_temporary, folder) = folder(1 << 20);
        let key = blake3::hash(b"a");
        folder.store(&key, b"a program");
        let whole = fs::read(folder.file(&key)).unwrap();
        for bytes in [0, 31, 32, whole.len() - 1] {
            fs::write(folder.file(&key), &whole[..bytes]).unwrap();
            assert_eq!(folder.load(&key), None, "{bytes} bytes of {}", whole.len());
        }
        for at in [0, 32, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(folder.file(&key), damaged).unwrap();
            assert_eq!(folder.load(&key), None, "byte {at}");
        }
        folder.store(&key, b"another");
        assert_eq!(folder.load(&key), Some(b"another".to_vec()));
    }

    #[test]
    fn the_least_recently_used_program_is_removed_when_the_folder_is_full() {
        let (_temporary, folder) = folder(3 * (100 + CHECKSUM_BYTES as u64));
        let keys: Vec<_> = (0..4u8).map(|key| blake3::hash(&[key])).collect();
        let age = |key: &Key, seconds: u64| {
            let then = SystemTime::now() - Duration::from_secs(seconds);
            fs::File::open(folder.file(key)).unwrap().set_modified(then).unwrap();
        };
        for (key, seconds) in keys.iter().zip([300, 200, 100]) {
            folder.store(key, &[1; 100]);
            age(key, seconds);
        }
        assert!(folder.load(&keys[0]).is_some(), "using it makes it the youngest");
        folder.store(&keys[3], &[1; 100]);
        let kept: Vec<_> = keys.iter().map(|key| folder.load(key).is_some()).collect();
        assert_eq!(kept, [true, false, true, true]);
    }

    #[test]
    fn an_unwritable_folder_is_harmless() {
        let (temporary, _) = folder(1);
        let file = temporary.path().join("a file");
        fs::write(&file, "not a folder").unwrap();
        let folder = Folder::new(file);
        folder.store(&blake3::hash(b"a"), b"a program");
        assert_eq!(folder.load(&blake3::hash(b"a")), None);
    }
}
