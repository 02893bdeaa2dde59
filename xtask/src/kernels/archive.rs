//! Packs programs into an archive, which `ragtag_kernels::artefacts` describes and reads. Compresses with the
//! program `zstd`.

use super::{jobs, write};
use ragtag_kernels::artefacts::{Form, restore, shorten};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

const COMPRESSOR: &str = "zstd";

/// Uncompressed size that a block exceeds only if one program does. A larger block compresses better, and takes longer to
/// load: 20 milliseconds for the last program of a block in this size.
const BLOCK_BYTES: usize = 8 << 20;

/// Maps a program's name and architecture to the digest of its source and its code.
pub(super) type Programs = BTreeMap<(String, String), (String, Vec<u8>)>;

/// Returns the archive of `programs`. Uses files in `folder`. The same programs give the same bytes, as far as
/// the same release of `zstd` compresses them.
pub(super) fn pack(form: Form, programs: &Programs, folder: &Path) -> Result<Vec<u8>, String> {
    let blocks = blocks(form, programs)?;
    let numbered: Vec<(usize, &Block)> = blocks.iter().enumerate().collect();
    let compressed: Result<Vec<_>, _> = jobs::each("blocks", &numbered, |(number, block)| {
        compress(&block.content, &folder.join(format!("{form:?}-{number}")))
    })
    .into_iter()
    .collect();
    let (mut index, mut frames) = (String::new(), Vec::new());
    for (block, frame) in blocks.iter().zip(compressed?) {
        let _ = write!(index, "= {}\n{}", frame.len(), block.rows);
        frames.extend(frame);
    }
    let index = compress(index.as_bytes(), &folder.join(format!("{form:?}-index")))?;
    Ok([index, frames].concat())
}

/// Programs that are compressed together, with their rows of the index.
#[derive(Default)]
struct Block {
    rows: String,
    content: Vec<u8>,
}

/// Returns the place of a program among others: next to those that differ only in the tensor type, the second part of
/// a name. Their codes repeat each other most.
fn place(program: &str) -> (String, &str) {
    let mut parts: Vec<&str> = program.split('-').collect();
    if parts.len() > 2 {
        parts.remove(1);
    }
    (parts.join("-"), program)
}

/// Divides the programs into blocks, in the order of their [`place`]. All architectures of a program share a block.
fn blocks(form: Form, programs: &Programs) -> Result<Vec<Block>, String> {
    let mut parts: BTreeMap<(String, &str), Block> = BTreeMap::new();
    for ((program, architecture), (digest, code)) in programs {
        let content = stored(form, code).ok_or_else(|| format!("{program}: its PTX cannot be restored"))?;
        let part = parts.entry(place(program)).or_default();
        let _ = writeln!(part.rows, "{architecture} {program} {digest} {}", content.len());
        part.content.extend(content);
    }
    let mut blocks: Vec<Block> = Vec::new();
    for part in parts.into_values() {
        match blocks.last_mut() {
            Some(last) if last.content.len() + part.content.len() <= BLOCK_BYTES => {
                last.rows.push_str(&part.rows);
                last.content.extend(part.content);
            }
            _ => blocks.push(part),
        }
    }
    Ok(blocks)
}

/// Returns the form in which a block contains `code`. Returns `None` if readers would not restore the code.
fn stored(form: Form, code: &[u8]) -> Option<Vec<u8>> {
    if form == Form::SpirV {
        return Some(code.to_vec());
    }
    let short = shorten(str::from_utf8(code).ok()?);
    (restore(&short).as_bytes() == code).then(|| short.into_bytes())
}

fn compress(content: &[u8], path: &Path) -> Result<Vec<u8>, String> {
    let frame = path.with_extension("zst");
    write(path, content)?;
    jobs::run(Command::new(COMPRESSOR).args(["-19", "--no-check", "-qf"]).arg(path).arg("-o").arg(&frame))?;
    fs::read(&frame).map_err(|e| format!("{}: {e}", frame.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_whole_programs_up_to_the_limit() {
        let key = |program: &str, architecture: &str| (program.to_owned(), architecture.to_owned());
        let code = |bytes: usize| ("d".to_owned(), vec![b'x'; bytes]);
        let half = BLOCK_BYTES / 2;
        let programs = Programs::from([
            (key("a", "61"), code(half - 1)),
            (key("a", "90"), code(half + 2)),
            (key("b", "61"), code(half)),
            (key("c", "61"), code(half)),
            (key("d", "61"), code(1)),
        ]);
        let rows: Vec<_> = blocks(Form::SpirV, &programs).unwrap().into_iter().map(|b| b.rows).collect();
        let (odd, even) = (half - 1, half + 2);
        assert_eq!(
            rows,
            [
                format!("61 a d {odd}\n90 a d {even}\n"),
                format!("61 b d {half}\n61 c d {half}\n"),
                "61 d d 1\n".to_owned(),
            ]
        );
    }

    #[test]
    fn ptx_that_readers_would_change_is_refused() {
        assert_eq!(stored(Form::Ptx, b"mov %r1, %r2;").unwrap(), b"mov %r+1, %r+1;");
        assert_eq!(stored(Form::Ptx, b"mov %r1, %r+2;"), None);
        assert_eq!(stored(Form::SpirV, b"mov %r1, %r+2;").unwrap(), b"mov %r1, %r+2;");
    }
}
