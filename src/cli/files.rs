//! Input and output files of a command. A command checks its output paths before a long run, and writes its
//! outputs atomically.

use super::error::{Error, Result};
use crate::Model;
use crate::files::{read_text, text_of};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf, is_separator};

/// Number of names to try for a temporary file. Files of earlier processes may already have some of these
/// names.
const NAMES: u32 = 100;

/// Returns an error if an output cannot be written, is also an input, or occurs twice. Commands call this
/// function before a long run, so that no results are lost.
pub(crate) fn check<P: AsRef<Path>>(
    outputs: impl IntoIterator<Item = P>,
    inputs: impl IntoIterator<Item = P>,
) -> Result<()> {
    let read = inputs.into_iter().flat_map(|path| Model::files_at(path));
    let read: Vec<PathBuf> = read.filter_map(|path| path.canonicalize().ok()).collect();
    let mut written = Vec::new();
    for path in outputs {
        let path = path.as_ref();
        let Some(target) = writable(path).map_err(cannot_write(path))? else { continue };
        let refuse = |why| Err(Error::Usage(format!("{} {why}", path.display())));
        if read.contains(&target) {
            return refuse("is an input and cannot also be an output");
        }
        if written.contains(&target) {
            return refuse("is used for two outputs");
        }
        written.push(target);
    }
    Ok(())
}

/// Returns whether a path is `-`, which stands for standard input or output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns the name by which error messages refer to an input.
pub(crate) fn input_name(path: &Path) -> &Path {
    if is_standard(path) { Path::new("standard input") } else { path }
}

/// Returns the last component of a path.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Reads UTF-8 text of at most `most_bytes` bytes from a file, or from standard input if `path` is `-`.
pub(crate) fn read_input(path: &Path, most_bytes: u64) -> Result<String> {
    let text = match is_standard(path) {
        true => text_of(io::stdin(), most_bytes),
        false => read_text(path, most_bytes),
    };
    text.map_err(cannot_read(input_name(path)))
}

/// Writes a file atomically: writes a temporary file in the same folder and renames it.
pub(crate) fn write_file(path: &Path, content: &[u8]) -> Result<()> {
    let written = match is_special(path) {
        true => OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(content)),
        false => followed(path).and_then(|target| replace(&target, content)),
    };
    written.map_err(cannot_write(path))
}

/// Returns a function that makes the error of a failed read.
pub(crate) fn cannot_read(path: &Path) -> impl Fn(io::Error) -> Error {
    |cause| crate::Error::File { action: "read", path: path.into(), cause }.into()
}

fn cannot_write(path: &Path) -> impl Fn(io::Error) -> Error {
    |cause| crate::Error::File { action: "write", path: path.into(), cause }.into()
}

/// Checks that a file can be written at `path`. Follows links and returns the path of the file to write.
/// Returns `None` for devices and pipes, which are written in place.
fn writable(path: &Path) -> io::Result<Option<PathBuf>> {
    if is_special(path) {
        return Ok(None);
    }
    let target = followed(path)?;
    refuse_protected(&target)?;
    let (probe, _) = temporary(folder(&target))?;
    std::fs::remove_file(probe)?;
    Ok(Some(target))
}

/// Returns whether `path` refers to a device or a pipe, such as `/dev/stdout`. Ragtag writes to such a file
/// in place and never replaces it.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// Follows all links in `path`. The target file need not exist.
fn followed(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(cause) if cause.kind() == ErrorKind::NotFound => {}
        found => return found,
    }
    match (path.read_link(), path.file_name()) {
        (Ok(next), _) => followed(&folder(path).join(next)),
        (Err(_), Some(name)) if !names_a_folder(path) => Ok(folder(path).canonicalize()?.join(name)),
        _ => Err(ErrorKind::IsADirectory.into()),
    }
}

/// Returns whether `path` ends in a separator, `.` or `..`. Such a path can only refer to a folder.
fn names_a_folder(path: &Path) -> bool {
    let last = path.as_os_str().as_encoded_bytes().rsplit(|&byte| is_separator(char::from(byte))).next();
    matches!(last, None | Some(b"" | b"." | b".."))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns an error if `target` is a folder or a read-only file. Without this check, the rename would replace
/// a read-only file.
fn refuse_protected(target: &Path) -> io::Result<()> {
    match target.metadata() {
        Ok(old) if old.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(old) if old.permissions().readonly() => Err(ErrorKind::PermissionDenied.into()),
        _ => Ok(()),
    }
}

/// Creates a temporary file in `folder`. Its name is short, so that it is valid even if the name of the final
/// file has almost the maximum length.
fn temporary(folder: &Path) -> io::Result<(PathBuf, File)> {
    let create = |number| {
        let path = folder.join(format!(".ragtag-{}-{number}.part", std::process::id()));
        OpenOptions::new().write(true).create_new(true).open(&path).map(|file| (path, file))
    };
    let taken = |made: &io::Result<_>| made.as_ref().is_err_and(|e| e.kind() == ErrorKind::AlreadyExists);
    (1..NAMES).map(create).find(|made| !taken(made)).unwrap_or_else(|| create(NAMES))
}

fn replace(target: &Path, content: &[u8]) -> io::Result<()> {
    refuse_protected(target)?;
    let (part, file) = temporary(folder(target))?;
    let replaced = fill(file, target, content).and_then(|()| std::fs::rename(&part, target));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    replaced
}

/// Writes `content` to `file` and syncs it. Gives `file` the permissions of `target`, which it will replace.
fn fill(mut file: File, target: &Path, content: &[u8]) -> io::Result<()> {
    if let Ok(old) = target.metadata() {
        let (old, new) = (old.permissions(), file.metadata()?.permissions());
        if old != new {
            file.set_permissions(old)?;
        }
    }
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(path: &Path) -> Result<()> {
        check([path], [])
    }

    fn names(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn files_are_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        checked(&path).unwrap();
        write_file(&path, b"all of it").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"all of it");
        assert_eq!(names(folder.path()), 1, "no temporary file is left");
        for bad in ["missing/out.json", "out.json/more", "new/", "new/.", "..", ".", "", "a\0b"] {
            let bad = folder.path().join(bad);
            for outcome in [checked(&bad), write_file(&bad, b"")] {
                assert!(
                    matches!(outcome, Err(Error::Library(crate::Error::File { action: "write", .. }))),
                    "{bad:?}: {outcome:?}"
                );
            }
        }
        assert_eq!(names(folder.path()), 1);
    }

    #[test]
    fn check_and_write_agree_on_long_names() {
        let folder = tempfile::tempdir().unwrap();
        for length in [250, 255, 256] {
            let path = folder.path().join("n".repeat(length));
            let (tried, written) = (checked(&path).is_ok(), write_file(&path, b"text").is_ok());
            assert_eq!(tried, written, "{length} bytes");
        }
        assert!(folder.path().join("n".repeat(250)).exists());
    }

    #[cfg(unix)]
    #[test]
    fn existing_files_keep_their_mode_and_read_only_files_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("private");
        let mode = || path.metadata().unwrap().permissions().mode() & 0o777;
        let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        std::fs::write(&path, "old").unwrap();
        set(0o600);
        write_file(&path, b"new").unwrap();
        assert_eq!((mode(), std::fs::read(&path).unwrap()), (0o600, b"new".to_vec()));
        set(0o444);
        assert_eq!(checked(&path).unwrap_err().exit_code(), 7);
        assert_eq!(write_file(&path, b"newer").unwrap_err().exit_code(), 7);
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_to_existing_and_missing_files() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let (link, far, real) =
            (folder.path().join("link"), folder.path().join("far"), folder.path().join("real"));
        symlink("far", &link).unwrap();
        symlink(&real, &far).unwrap();
        for content in [b"first", b"later"] {
            checked(&link).unwrap();
            write_file(&link, content).unwrap();
            assert!(link.is_symlink() && far.is_symlink() && !real.is_symlink());
            assert_eq!(std::fs::read(&real).unwrap(), content);
        }
        let circle = folder.path().join("circle");
        symlink("circle", &circle).unwrap();
        assert_eq!(checked(&circle).unwrap_err().exit_code(), 7);
    }

    #[test]
    fn an_output_is_neither_an_input_nor_another_output() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("in"), "text").unwrap();
        let refused = |outputs: &[&str], words: &str| {
            let error = check(outputs.iter().map(|name| at(name)), [at("in")]).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(words), "{error}");
        };
        refused(&["in"], "is an input and cannot also be an output");
        refused(&["a", "b", "./a"], "is used for two outputs");
        check(["a", "b"].map(at), [at("in"), at("not there")]).unwrap();
    }
}
