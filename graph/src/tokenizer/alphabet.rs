//! Characters that represent bytes in byte-level vocabularies. The character of a printable byte is the byte
//! itself. All other bytes map to characters from U+0100 on, as in `bytes_to_unicode` of GPT-2's encoder.

/// Returns the character that represents `byte`.
pub(super) fn letter(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        // The non-printable bytes are the 33 bytes before `!`, 34 bytes from DEL on, and the soft hyphen.
        0..=0x20 => moved(u32::from(byte)),
        0x7F..=0xA0 => moved(u32::from(byte) - 0x7F + 33),
        0xAD => moved(67),
    }
}

fn moved(place: u32) -> char {
    char::from_u32(0x100 + place).expect("characters from U+0100 on")
}

/// Returns the byte that `letter` represents, if any.
fn byte(letter: char) -> Option<u8> {
    match u32::from(letter) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(code).ok(),
        code @ 0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        code @ 0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// Returns the bytes that the text of a token represents, or `None` if some character does not represent a
/// byte.
pub(super) fn bytes(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_byte_has_a_unique_character_that_the_library_knows() {
        let letters: BTreeSet<char> = (0..=255).map(letter).collect();
        assert_eq!(letters.len(), 256);
        let theirs = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert_eq!(letters, theirs.into_iter().collect());
        for b in 0..=255 {
            assert_eq!(byte(letter(b)), Some(b));
        }
        assert_eq!([letter(b' '), letter(b'\n'), letter(0xAD), letter(0xA0)], ['Ġ', 'Ċ', 'Ń', 'ł']);
        assert_eq!(bytes("Ġthe"), Some(b" the".to_vec()));
        assert_eq!(bytes("a b"), None);
    }
}
