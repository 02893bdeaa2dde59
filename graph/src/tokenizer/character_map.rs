//! SentencePiece's character map ("precompiled charsmap"), which replaces characters before a text is split.
//!
//! Format: the length in bytes of a double array, the array (32-bit units), then the replacements. Each
//! replacement ends with a zero byte. The array maps a text to the position of its replacement.

use unicode_segmentation::UnicodeSegmentation;

/// Maximum length in bytes of a text that the map replaces, and of a replacement. Compatibility forms have up
/// to 33 bytes. Longer keys never match.
const MAX_BYTES: usize = 64;

/// A character map.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CharacterMap {
    units: Vec<u32>,
    replacements: String,
}

impl CharacterMap {
    /// Parses the map. The units may be arbitrary, because the search checks every position.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let cut = || {
            let (length, rest) = bytes.split_first_chunk::<4>()?;
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
        };
        let (units, replacements) = cut().ok_or("is truncated")?;
        let replacements = String::from_utf8(replacements.to_vec()).map_err(|_| "is not UTF-8")?;
        if replacements.split('\0').any(|text| text.len() > MAX_BYTES) {
            return Err(format!("contains a replacement of more than {MAX_BYTES} bytes"));
        }
        let units = units.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        Ok(CharacterMap { units, replacements })
    }

    /// Returns the beginnings of `text` that the map replaces, shortest first, as their lengths and their
    /// replacements.
    fn prefixes(&self, text: &str) -> Vec<(usize, &str)> {
        let unit = |at: u32| usize::try_from(at).ok().and_then(|at| self.units.get(at)).copied();
        let offset = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let mut found = Vec::new();
        let Some(mut at) = unit(0).map(offset) else { return found };
        for (length, byte) in (1..=MAX_BYTES).zip(text.bytes().take_while(|byte| *byte != 0)) {
            at ^= u32::from(byte);
            let Some(node) = unit(at).filter(|node| node & (1 << 31 | 0xFF) == u32::from(byte)) else {
                break;
            };
            at ^= offset(node);
            let has_replacement = node & 1 << 8 != 0;
            if let Some(value) = unit(at).filter(|_| has_replacement && text.is_char_boundary(length)) {
                let from = usize::try_from(value & !(1 << 31)).unwrap_or(usize::MAX);
                let replacement = self.replacements.get(from..).and_then(|rest| rest.split('\0').next());
                found.extend(replacement.map(|replacement| (length, replacement)));
            }
        }
        found
    }

    /// Replaces the longest beginning that the map contains, again and again, as SentencePiece does.
    pub(super) fn apply(&self, text: &str) -> String {
        let (mut out, mut rest) = (String::with_capacity(text.len()), text);
        while let Some(first) = rest.chars().next() {
            let unchanged = (first.len_utf8(), &rest[..first.len_utf8()]);
            let (length, replacement) = self.prefixes(rest).pop().unwrap_or(unchanged);
            out.push_str(replacement);
            rest = &rest[length..];
        }
        out
    }

    /// Replaces short grapheme clusters and other characters as the `tokenizers` library does. In both cases,
    /// the shortest beginning that the map contains decides.
    pub(super) fn apply_by_cluster(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let first = |text: &str| self.prefixes(text).first().map(|(_, replacement)| *replacement);
        for cluster in text.graphemes(true) {
            match first(cluster).filter(|_| cluster.len() < 6) {
                Some(replacement) => out.push_str(replacement),
                None => {
                    for character in cluster.split_inclusive(|_: char| true) {
                        out.push_str(first(character).unwrap_or(character));
                    }
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(units: &[u32], replacements: &str) -> Vec<u8> {
        let units: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        [&(units.len() as u32).to_le_bytes()[..], &units, replacements.as_bytes()].concat()
    }

    /// A map of the single byte `byte` to "xy".
    fn one(byte: u8) -> Vec<u8> {
        let mut units = vec![0; 512];
        // The root's offset is 0. The node's offset leads to unit 256.
        units[usize::from(byte)] = u32::from(byte) | 1 << 8 | (u32::from(byte) ^ 256) << 10;
        units[256] = 3;
        map(&units, "ab\0xy\0")
    }

    #[test]
    fn replaces_characters() {
        let map = CharacterMap::parse(&one(b'c')).unwrap();
        assert_eq!(map.apply("acdcé"), "axydxyé");
        assert_eq!(map.apply_by_cluster("acdcé"), "axydxyé");
        // A cluster of two characters, whose first character decides.
        assert_eq!(
            (map.apply("c\u{301}"), map.apply_by_cluster("c\u{301}")),
            ("xy\u{301}".into(), "xy".into())
        );
    }

    #[test]
    fn rejects_invalid_maps() {
        let fails = |bytes: &[u8]| CharacterMap::parse(bytes).unwrap_err();
        assert_eq!(fails(b"abc"), "is truncated");
        assert_eq!(fails(&[9, 0, 0, 0, 1]), "is truncated");
        assert_eq!(fails(&[0, 0, 0, 0, 0xFF]), "is not UTF-8");
        assert!(fails(&map(&[], &"x".repeat(65))).contains("more than 64 bytes"));
        let empty = CharacterMap::parse(&[0; 4]).unwrap();
        assert_eq!((empty.apply("ab"), empty.apply_by_cluster("ab")), ("ab".into(), "ab".into()));
    }

    fn unit() -> impl Strategy<Value = u32> {
        let small = (0u32..256, 0u32..2, 0u32..8).prop_map(|(byte, leaf, at)| byte | leaf << 8 | at << 10);
        prop_oneof![any::<u32>(), small]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// Checks that arbitrary units are harmless. Small numbers make loops and hits likely.
        #[test]
        fn any_map_is_harmless(
            units in prop::collection::vec(unit(), 0..600),
            text in any::<String>(),
        ) {
            let map = CharacterMap::parse(&map(&units, "aé\0b")).unwrap();
            for text in [map.apply(&text), map.apply_by_cluster(&text), map.apply(&"aaa".repeat(100))] {
                prop_assert!(text.len() < 100_000);
            }
        }
    }
}
