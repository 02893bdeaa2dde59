//! Pseudo-random contents of transfers, and their comparison.

use std::fmt;

/// Wrong bytes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Size of the transfer in bytes.
    pub bytes: u64,
    /// Number of wrong bytes. If it is 0, only a kernel on the receiving device reads wrong bytes.
    pub wrong: u64,
    /// Position of the first wrong byte in the transfer.
    pub first: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, wrong, first } = self;
        if *wrong == 0 {
            return write!(
                f,
                "a kernel on the receiving device reads wrong bytes in or around the {bytes} transferred"
            );
        }
        write!(f, "{wrong} of {bytes} bytes are wrong after a transfer, the first at offset {first}")
    }
}

/// Pseudo-random contents, generated with SplitMix64.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contents {
    seed: u64,
}

impl Contents {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Returns the contents in pieces of eight bytes.
    fn pieces(self) -> impl Iterator<Item = [u8; 8]> {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        // Different seeds start far apart.
        let mut state = self.seed.wrapping_mul(0xd134_2543_de82_ef95);
        std::iter::repeat_with(move || {
            state = state.wrapping_add(STEP);
            let x = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (x ^ x >> 31).to_le_bytes()
        })
    }

    /// Writes the contents.
    pub(super) fn write(self, out: &mut [u8]) {
        let mut pieces = self.pieces();
        let (whole, rest) = out.as_chunks_mut();
        whole.iter_mut().zip(&mut pieces).for_each(|(out, piece)| *out = piece);
        rest.iter_mut().zip(pieces.flatten()).for_each(|(out, byte)| *out = byte);
    }

    /// Writes the complement of the contents, in which every byte is wrong.
    pub(super) fn write_complement(self, out: &mut [u8]) {
        self.write(out);
        out.iter_mut().for_each(|byte| *byte = !*byte);
    }

    /// Returns the wrong bytes of `received`, or `None` if all bytes are right.
    pub(super) fn compare(self, received: &[u8]) -> Option<Mismatch> {
        let (mut wrong, mut first) = (0, None);
        for (index, (part, piece)) in received.chunks(8).zip(self.pieces()).enumerate() {
            if part == &piece[..part.len()] {
                continue;
            }
            let wrong_at = (0..part.len()).filter(|&at| part[at] != piece[at]);
            for at in wrong_at {
                wrong += 1;
                first.get_or_insert((index * 8 + at) as u64);
            }
        }
        first.map(|first| Mismatch { bytes: received.len() as u64, wrong, first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_found() {
        let contents = Contents::new(7);
        let mut bytes = vec![0; 77];
        contents.write(&mut bytes);
        assert_eq!(contents.compare(&bytes), None);
        assert_ne!(Contents::new(8).compare(&bytes), None, "contents depend on the seed");
        (bytes[9], bytes[76]) = (bytes[9] ^ 1, bytes[76] ^ 0x80);
        let mismatch = contents.compare(&bytes).unwrap();
        assert_eq!(mismatch, Mismatch { bytes: 77, wrong: 2, first: 9 });
        let text = "2 of 77 bytes are wrong after a transfer, the first at offset 9";
        assert_eq!(mismatch.to_string(), text);
        contents.write_complement(&mut bytes);
        assert_eq!(contents.compare(&bytes).unwrap().wrong, 77);
    }
}
