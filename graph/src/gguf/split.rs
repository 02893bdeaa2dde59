//! Models that are split over several GGUF files. Lists the file names, and checks that the files are
//! complete and in order.

use super::header::Header;
use crate::error::FormatError;
use std::collections::BTreeSet;

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Returns the names of all files of a split model, given the name of any of them (`…-00001-of-00003.gguf`).
/// Keeps the path before the file name. Returns `None` if `name` does not have this form.
pub fn shard_names(name: &str) -> Option<Vec<String>> {
    let (stem, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, number) = stem.rsplit_once('-')?;
    let (number, count) = (five_digits(number)?, five_digits(count)?);
    (1..=count)
        .contains(&number)
        .then(|| (1..=count).map(|n| format!("{prefix}-{n:05}-of-{count:05}.gguf")).collect())
}

fn five_digits(text: &str) -> Option<u32> {
    (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// Checks that the files with these headers, in this order, form one complete model.
pub(super) fn check(headers: &[Header]) -> Result<(), FormatError> {
    let Some(first) = headers.first() else {
        return Err(FormatError::Shards { file: "model".into(), cause: "no file given".into() });
    };
    let wrong = |header: &Header, cause: String| {
        Err(FormatError::Shards { file: header.metadata.file().to_owned(), cause })
    };
    let count = first.metadata.find::<u32>(COUNT)?.unwrap_or(1);
    if count == 0 {
        return wrong(first, format!("{COUNT} is 0"));
    }
    if count == 1 && headers.len() > 1 {
        return wrong(first, format!("is a whole model, but {} files are given", headers.len()));
    }
    let mut numbers = Vec::new();
    let mut given = BTreeSet::new();
    for header in headers {
        let theirs = header.metadata.find::<u32>(COUNT)?.unwrap_or(1);
        if theirs != count {
            return wrong(
                header,
                format!("belongs to a model of {theirs} files, the first file to one of {count}"),
            );
        }
        let number = if count == 1 { 0 } else { header.metadata.get::<u32>(NUMBER)? };
        if number >= count {
            return wrong(header, format!("{NUMBER} is {number}, but there are {count} files"));
        }
        if !given.insert(number) {
            return wrong(header, format!("shard {} of {count} is given twice", number + 1));
        }
        numbers.push(number);
    }
    if let Some(missing) = (0..count).find(|number| !given.contains(number)) {
        let names = shard_names(first.metadata.file());
        let name = names.and_then(|names| names.into_iter().nth(missing as usize));
        return Err(FormatError::MissingShard {
            file: name.unwrap_or_else(|| format!("a file of the model of {}", first.metadata.file())),
            number: u64::from(missing) + 1,
            count: count.into(),
        });
    }
    for (place, (header, number)) in headers.iter().zip(&numbers).enumerate() {
        if usize::try_from(*number) != Ok(place) {
            return wrong(
                header,
                format!("is shard {} of {count}, but given as file {}", number + 1, place + 1),
            );
        }
    }
    let tensors: u64 = headers.iter().map(|h| h.tensors.len() as u64).sum();
    match first.metadata.find::<u64>(TENSORS)? {
        Some(claimed) if claimed != tensors => {
            wrong(first, format!("{TENSORS} is {claimed}, but the files hold {tensors} tensors"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::shard_names;

    #[test]
    fn derives_the_names_of_all_shards() {
        let all = shard_names("dir/m-00001-of-00003.gguf").unwrap();
        assert_eq!(
            all,
            ["dir/m-00001-of-00003.gguf", "dir/m-00002-of-00003.gguf", "dir/m-00003-of-00003.gguf"]
        );
        assert_eq!(shard_names("dir/m-00002-of-00003.gguf"), Some(all));
        for other in [
            "m.gguf",
            "m-00001-of-00003.bin",
            "m-1-of-3.gguf",
            "m-00000-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-+0001-of-00003.gguf",
            "-of-00003.gguf",
        ] {
            assert_eq!(shard_names(other), None, "{other}");
        }
    }
}
