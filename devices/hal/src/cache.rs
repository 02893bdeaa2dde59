//! Compiled programs, in this process and on disk: a folder of files that are written whole or not at all, each with its
//! checksum, bounded together.
//!
//! Nothing here is an error to anybody: what cannot be read is compiled, what cannot be written is not kept. This module
//! must not know drivers.

use blake3::{Hash, Hasher};
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Most bytes that the folder holds; beyond that the files go that were not used for longest.
const MAX_BYTES: u64 = 256 << 20;
/// Bytes of the checksum before each program.
const CHECKSUM_BYTES: usize = 32;

/// Names a program: the digest of all that its code depends on.
pub type Key = Hash;

/// The key of a program that depends on these parts: the source, the compiler's options, the device and its driver.
pub fn key<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Key {
    let mut hasher = Hasher::new();
    for part in parts {
        // Lengths keep parts apart.
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize()
}

/// Where a backend keeps programs unless its configuration says otherwise: a folder of its name in the one that
/// `RAGTAG_CACHE_DIR` names, else in `ragtag` in the user's folder for caches.
pub fn default_folder(backend: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = variable("RAGTAG_CACHE_DIR") {
        return Some(folder.join(backend));
    }
    let user = variable(if cfg!(windows) { "LOCALAPPDATA" } else { "XDG_CACHE_HOME" });
    let user = user.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    user.filter(|folder| folder.is_absolute()).map(|folder| folder.join("ragtag").join(backend))
}

/// The folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    max_bytes: u64,
}

impl Folder {
    /// The folder at this path, made when something is stored.
    pub fn new(path: PathBuf) -> Self {
        Self { path, max_bytes: MAX_BYTES }
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.path.join(format!("{}.bin", key.to_hex()))
    }

    /// What was kept under this key, if it is whole.
    pub fn load(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.file(key);
        let mut content = Vec::new();
        // No longer file is kept, and a link may lead to one without end.
        fs::File::open(&path).ok()?.take(self.max_bytes).read_to_end(&mut content).ok()?;
        let (checksum, program) = content.split_at_checked(CHECKSUM_BYTES)?;
        if blake3::hash(program).as_bytes() != checksum {
            tracing::debug!(path = %path.display(), "a program in the cache is damaged");
            return None;
        }
        // Used now: it goes last. Where the time cannot be set, it goes as if it had not been used.
        let _ = fs::File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(program.to_vec())
    }

    /// Keeps a program under a key, in place of any other.
    pub fn store(&self, key: &Key, program: &[u8]) {
        if let Err(error) = self.write(key, program).and_then(|()| self.prune()) {
            tracing::debug!(%error, path = %self.path.display(), "a program was not kept");
        }
    }

    fn write(&self, key: &Key, program: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.path)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.path)?;
        file.write_all(blake3::hash(program).as_bytes())?;
        file.write_all(program)?;
        file.persist(self.file(key)).map(drop).map_err(|error| error.error)
    }

    /// Removes the files that were not used for longest until the rest fits. What a dead process left half-written is a
    /// file like any other.
    fn prune(&self) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // Another process may have removed it since.
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

/// Programs as drivers give them away, for all devices of a backend: kept in this process as long as the backend lives and, with
/// a folder, for later ones.
#[derive(Debug, Default)]
pub struct Shelf {
    folder: Option<Folder>,
    places: Mutex<HashMap<Key, Arc<Place>>>,
}

/// Where a program lies.
#[derive(Debug, Default)]
pub struct Place(Mutex<Option<Arc<[u8]>>>);

/// Where a program was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// It was put there, or looked at, since the backend was made.
    Process,
    /// In the folder.
    Disk,
}

impl Shelf {
    /// With a folder, or for this process alone.
    pub fn new(folder: Option<Folder>) -> Self {
        Self { folder, places: Mutex::default() }
    }

    /// The place of a program.
    pub fn place(&self, key: &Key) -> Arc<Place> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(places.entry(*key).or_default())
    }

    /// What the folder has of a program.
    fn load(&self, key: &Key) -> Option<Vec<u8>> {
        self.folder.as_ref()?.load(key)
    }
}

impl Place {
    /// Nobody else makes the program meanwhile, or looks whether it is there.
    pub fn lock(&self) -> Held<'_> {
        Held(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A place while its program is looked for or made.
#[derive(Debug)]
pub struct Held<'a>(MutexGuard<'a, Option<Arc<[u8]>>>);

impl Held<'_> {
    /// The program, and where it was.
    pub fn get(&self, shelf: &Shelf, key: &Key) -> Option<(Arc<[u8]>, Source)> {
        match self.0.as_ref() {
            Some(program) => Some((Arc::clone(program), Source::Process)),
            None => Some((shelf.load(key)?.into(), Source::Disk)),
        }
    }

    /// Keeps a program that was just compiled.
    pub fn put(&mut self, shelf: &Shelf, key: &Key, program: Vec<u8>) {
        if let Some(folder) = &shelf.folder {
            folder.store(key, &program);
        }
        self.take(program.into());
    }

    /// Keeps in this process what was loaded, and turned out to be of use.
    pub fn take(&mut self, program: Arc<[u8]>) {
        *self.0 = Some(program);
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!(%error, path = %path.display(), "a file of the cache was not removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn folder(max_bytes: u64) -> (tempfile::TempDir, Folder) {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder { path: temporary.path().join("deep").join("cache"), max_bytes };
        (temporary, folder)
    }

    #[test]
    fn keys_keep_parts_apart() {
        let of = |parts: &[&'static str]| key(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab"]), of(&["ab", ""]));
    }

    #[test]
    fn what_is_stored_is_loaded() {
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
    fn a_shelf_has_what_was_put_there_and_what_its_folder_has() {
        let (_temporary, folder) = folder(1 << 20);
        let key = blake3::hash(b"a");
        let got = |shelf: &Shelf| {
            let found = shelf.place(&key).lock().get(shelf, &key);
            found.map(|(program, source)| (program.to_vec(), source))
        };
        let (first, alone) = (Shelf::new(Some(folder.clone())), Shelf::default());
        for shelf in [&first, &alone] {
            assert_eq!(got(shelf), None);
            shelf.place(&key).lock().put(shelf, &key, b"one".to_vec());
            assert_eq!(got(shelf), Some((b"one".to_vec(), Source::Process)));
        }
        assert_eq!(got(&Shelf::default()), None, "nothing is kept elsewhere");
        let second = Shelf::new(Some(folder));
        assert_eq!(got(&second), Some((b"one".to_vec(), Source::Disk)));
        assert_eq!(got(&second), Some((b"one".to_vec(), Source::Disk)), "it may be of no use");
        second.place(&key).lock().take(b"one"[..].into());
        assert_eq!(got(&second), Some((b"one".to_vec(), Source::Process)));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_without_end_is_no_program() {
        let (_temporary, folder) = folder(1 << 10);
        let key = blake3::hash(b"a");
        fs::create_dir_all(&folder.path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.file(&key)).unwrap();
        assert_eq!(folder.load(&key), None);
    }

    #[test]
    fn damaged_files_are_no_programs() {
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
    fn the_least_recently_used_goes_when_it_is_full() {
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
    fn a_folder_that_cannot_be_written_does_no_harm() {
        let (temporary, _) = folder(1);
        let file = temporary.path().join("a file");
        fs::write(&file, "not a folder").unwrap();
        let folder = Folder::new(file);
        folder.store(&blake3::hash(b"a"), b"a program");
        assert_eq!(folder.load(&blake3::hash(b"a")), None);
    }
}
