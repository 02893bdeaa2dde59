//! Structure of SPIR-V binaries.
//!
//! This module does not know any instruction.

/// Returns true if a binary is SPIR-V and its last instruction is complete. Some drivers abort the process on
/// an incomplete binary. SPIR-V 1.0, section 2.3, defines the layout: a header of five words, followed by
/// instructions. The first word of an instruction contains its length.
pub fn is_whole_spir_v(binary: &[u8]) -> bool {
    let (words, rest) = binary.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    if !rest.is_empty() || words.len() < 5 || words[0] != 0x0723_0203 {
        return false;
    }
    let mut left = &words[5..];
    while let Some(&first) = left.first() {
        match left.get((first >> 16) as usize..) {
            Some(behind) if behind.len() < left.len() => left = behind,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_binaries_end_where_an_instruction_does() {
        let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        let header = [0x0723_0203, 0x0001_0000, 0, 1, 0];
        let module = bytes(&[&header[..], &[2 << 16 | 17, 4], &[1 << 16]].concat());
        assert!(is_whole_spir_v(&bytes(&header)) && is_whole_spir_v(&module));
        for end in (0..20).chain(21..28).chain(29..32) {
            assert!(!is_whole_spir_v(&module[..end]), "{end} bytes");
        }
        let endless = bytes(&[&header[..], &[0]].concat());
        assert!(!is_whole_spir_v(&endless), "an instruction without a length");
        assert!(!is_whole_spir_v(&bytes(&[0x0302_2307, 0, 0, 0, 0])), "another magic number");
    }
}
