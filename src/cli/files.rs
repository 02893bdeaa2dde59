//! The files that a command reads and writes. Outputs are tried before the run, and written whole or not at all.

use crate::error::{Error, Result};
use crate::files::{read_text, text_of};
use crate::model::{file_name, shard_paths};
use ragtag_graph::checkpoint;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf, is_separator};

/// Names that are tried for a temporary file; another process may have left some.
const NAMES: u32 = 100;

/// Fails early if a file cannot be written, so that no long run ends in nothing, and if a file is named for two outputs or is
/// one that the command reads.
pub(crate) fn check<P: AsRef<Path>>(
    outputs: impl IntoIterator<Item = P>,
    inputs: impl IntoIterator<Item = P>,
) -> Result<()> {
    let read = inputs.into_iter().flat_map(|path| model_files(path.as_ref()));
    let read: Vec<PathBuf> = read.filter_map(|path| path.canonicalize().ok()).collect();
    let mut written = Vec::new();
    for path in outputs {
        let path = path.as_ref();
        let Some(target) = writable(path).map_err(cannot_write(path))? else { continue };
        let refuse = |why| Err(Error::Usage(format!("{} {why}", path.display())));
        if read.contains(&target) {
            return refuse("is read, and cannot be written as well");
        }
        if written.contains(&target) {
            return refuse("is named for two outputs");
        }
        written.push(target);
    }
    Ok(())
}

/// The files that a model may be read from, given any of them or their directory.
fn model_files(path: &Path) -> Vec<PathBuf> {
    let Ok(folder) = std::fs::read_dir(path) else { return shard_paths(path) };
    let of_model = |path: &PathBuf| {
        checkpoint::FILES.contains(&file_name(path).as_str())
            || path.extension().is_some_and(|extension| extension == "safetensors")
    };
    folder.filter_map(|entry| Some(entry.ok()?.path())).filter(of_model).collect()
}

/// Whether a path is `-`, which stands for standard input or output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// An input's path as errors name it.
pub(crate) fn input_name(path: &Path) -> &Path {
    if is_standard(path) { Path::new("standard input") } else { path }
}

/// Reads a text of at most so many bytes, from standard input if the path is `-`.
pub(crate) fn read_input(path: &Path, most_bytes: u64) -> Result<String> {
    let text = match is_standard(path) {
        true => text_of(io::stdin(), most_bytes),
        false => read_text(path, most_bytes),
    };
    text.map_err(|cause| Error::File { action: "read", path: input_name(path).into(), cause })
}

/// Writes a whole file or none: to a temporary file beside it, then renamed.
pub(crate) fn write_file(path: &Path, content: &[u8]) -> Result<()> {
    let written = match is_special(path) {
        true => OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(content)),
        false => followed(path).and_then(|target| replace(&target, content)),
    };
    written.map_err(cannot_write(path))
}

fn cannot_write(path: &Path) -> impl Fn(io::Error) -> Error {
    |cause| Error::File { action: "write", path: path.into(), cause }
}

/// The file that a path leads to, if one can be written there. `None` for what is no file and is written to as it is.
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

/// Whether a path leads to a device or a pipe, as `/dev/stdout` does. Such things are written to, never replaced.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir())
}

/// The file that a path leads to by whatever links, whether it is there or not.
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

/// Whether a path can only be that of a folder: it ends in a separator, in `.` or in `..`.
fn names_a_folder(path: &Path) -> bool {
    let last = path.as_os_str().as_encoded_bytes().rsplit(|&byte| is_separator(char::from(byte))).next();
    matches!(last, None | Some(b"" | b"." | b".."))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A rename asks neither.
fn refuse_protected(target: &Path) -> io::Result<()> {
    match target.metadata() {
        Ok(old) if old.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(old) if old.permissions().readonly() => Err(ErrorKind::PermissionDenied.into()),
        _ => Ok(()),
    }
}

/// A new file in a folder, with its path. Its name is short, however long that of the file is whose place it takes.
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

/// Writes a file, which may be read and written by those who may read and write the one whose place it is to take.
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

    fn try_out(path: &Path) -> Result<()> {
        check([path], [])
    }

    fn names(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn files_are_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        try_out(&path).unwrap();
        write_file(&path, b"all of it").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"all of it");
        assert_eq!(names(folder.path()), 1, "no temporary file is left");
        for bad in ["missing/out.json", "out.json/more", "new/", "new/.", "..", ".", "", "a\0b"] {
            let bad = folder.path().join(bad);
            for outcome in [try_out(&bad), write_file(&bad, b"")] {
                assert!(matches!(outcome, Err(Error::File { action: "write", .. })), "{bad:?}: {outcome:?}");
            }
        }
        assert_eq!(names(folder.path()), 1);
    }

    #[test]
    fn what_can_be_tried_can_be_written_however_long_its_name() {
        let folder = tempfile::tempdir().unwrap();
        for length in [250, 255, 256] {
            let path = folder.path().join("n".repeat(length));
            let (tried, written) = (try_out(&path).is_ok(), write_file(&path, b"text").is_ok());
            assert_eq!(tried, written, "{length} bytes");
        }
        assert!(folder.path().join("n".repeat(250)).exists());
    }

    #[cfg(unix)]
    #[test]
    fn what_was_there_keeps_its_mode_and_may_refuse() {
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
        assert_eq!(try_out(&path).unwrap_err().exit_code(), 7);
        assert_eq!(write_file(&path, b"newer").unwrap_err().exit_code(), 7);
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[cfg(unix)]
    #[test]
    fn links_lead_to_their_file_whether_it_is_there_or_not() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let (link, far, real) =
            (folder.path().join("link"), folder.path().join("far"), folder.path().join("real"));
        symlink("far", &link).unwrap();
        symlink(&real, &far).unwrap();
        for content in [b"first", b"later"] {
            try_out(&link).unwrap();
            write_file(&link, content).unwrap();
            assert!(link.is_symlink() && far.is_symlink() && !real.is_symlink());
            assert_eq!(std::fs::read(&real).unwrap(), content);
        }
        let circle = folder.path().join("circle");
        symlink("circle", &circle).unwrap();
        assert_eq!(try_out(&circle).unwrap_err().exit_code(), 7);
    }

    #[test]
    fn a_file_is_one_output_and_no_input() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("in"), "text").unwrap();
        let refused = |outputs: &[&str], words: &str| {
            let error = check(outputs.iter().map(|name| at(name)), [at("in")]).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains(words), "{error}");
        };
        refused(&["in"], "is read, and cannot be written as well");
        refused(&["a", "b", "./a"], "is named for two outputs");
        check(["a", "b"].map(at), [at("in"), at("not there")]).unwrap();
    }
}
