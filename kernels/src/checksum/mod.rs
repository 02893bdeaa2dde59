//! Checksum: two 32-bit sums over the words of each part of a buffer, for the comparison of buffers on
//! different devices.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | x: u32 `[words]` |
//! | 1 | out: u32 `[parts, 2]`, written |
//!
//! The constants are the number of words, which is at most 2^30, and the number of words per part. The last
//! part holds the remainder. A launch has one group per part. The caller adds the sums of all parts:
//! [`total`].
//!
//! Each sum adds a hash of every word and its position, modulo 2^32. The order of the additions does not
//! matter, so the result is the same on every device and for every size of the parts. The hash of a word at a
//! given position is a bijection. Therefore both sums change if a single word changes. Words that are swapped,
//! zero or left from earlier contents change the sums with a probability of almost 1 − 2^−64.

use crate::abi::{IMPOSSIBLE, array, words};
use crate::cases::{Build, Case, Content, Random};
use crate::kernel::{Kernel, Spec};
use crate::layout::Layout;
use ragtag_hal::{Access, EntryAbi};

/// Number of words per part that suits all devices. A row of activations is one part.
pub const PART_WORDS: u32 = 1 << 14;

/// Maximum number of words in a buffer.
const MAX_WORDS: u32 = 1 << 30;

/// Binary interface.
pub static ABI: EntryAbi = EntryAbi {
    name: "checksum",
    bindings: &[Access::Read, Access::Write],
    constants: 2,
    extents: |constants, extents| {
        let [count, part] = array(constants);
        let exists = part > 0 && count <= MAX_WORDS;
        let sizes = [words(&[count]), words(&[count.div_ceil(part.max(1)), 2])];
        extents.copy_from_slice(&if exists { sizes } else { [IMPOSSIBLE; 2] });
    },
};

/// Returns the number of parts of [`PART_WORDS`] words in a buffer.
pub fn parts(words: u32) -> u32 {
    words.div_ceil(PART_WORDS)
}

/// Size of the memory for the sums of a buffer is a multiple of this number of bytes. It suits the alignment
/// of all known devices.
const PLACE_ALIGNMENT: u64 = 512;

/// Returns the bytes of device memory to reserve for the sums of a buffer of `bytes` bytes.
pub fn place_bytes(bytes: u64) -> u64 {
    let parts = (bytes / 4).div_ceil(PART_WORDS.into());
    parts.saturating_mul(8).checked_next_multiple_of(PLACE_ALIGNMENT).unwrap_or(u64::MAX)
}

/// Returns the checksum that the kernel computes for `bytes`. Bytes after the last whole word do not count.
pub fn of_bytes(bytes: &[u8]) -> u64 {
    let words = |part: &[[u8; 4]]| part.iter().map(|word| u32::from_ne_bytes(*word)).collect::<Vec<_>>();
    let parts = bytes.as_chunks::<4>().0.chunks(PART_WORDS as usize);
    let total = (0..).step_by(PART_WORDS as usize).zip(parts).fold([0u32; 2], |total, (first, part)| {
        let sums = sums(first, &words(part));
        [total[0].wrapping_add(sums[0]), total[1].wrapping_add(sums[1])]
    });
    u64::from(total[1]) << 32 | u64::from(total[0])
}

/// Adds the sums of all parts. The first sum is in the low half of the result. `sums` holds the kernel's
/// output in the byte order of this machine. Incomplete pairs at its end do not count.
pub fn total(sums: &[u8]) -> u64 {
    let mut total = [0u32; 2];
    for pair in sums.as_chunks::<8>().0 {
        for (total, sum) in total.iter_mut().zip(pair.as_chunks::<4>().0) {
            *total = total.wrapping_add(u32::from_ne_bytes(*sum));
        }
    }
    u64::from(total[1]) << 32 | u64::from(total[0])
}

/// Returns a grid with one group per part.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let [words, part] = array(constants);
    [words.div_ceil(part.max(1)), 1, 1]
}

fn mixed(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
    let x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
    x ^ x >> 16
}

/// Returns the sums of consecutive words. The first word is at position `first` of the buffer.
#[inline(always)]
pub(crate) fn sums(first: u32, words: &[u32]) -> [u32; 2] {
    let mut sums = [0u32; 2];
    for (place, word) in (first + 1..).zip(words) {
        sums[0] = sums[0].wrapping_add(mixed(word ^ place.wrapping_mul(0x9e37_79b1)));
        sums[1] = sums[1].wrapping_add(mixed(!word ^ place.wrapping_mul(0x7feb_352d)));
    }
    sums
}

pub(crate) struct Checksum;

impl Spec for Checksum {
    fn abi(&self, _: Layout) -> &'static EntryAbi {
        &ABI
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let shapes = [(1, 1), (255, 256), (1024, 16384), (1025, 1024), (70_000, 16384), (4099, 7), (9, 100)];
        shapes.map(|(words, part)| case(random, words, part)).into()
    }

    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let words = 1 + random.below(50_000);
        let part = 16 + random.below(words);
        case(random, words, part)
    }
}

fn case(random: &mut Random, count: usize, part: usize) -> Case {
    let x: Vec<u32> = (0..count).map(|_| random.below(1 << 32) as u32).collect();
    let sums = x.chunks(part).enumerate().flat_map(|(i, words)| sums((i * part) as u32, words));
    let expected: Vec<_> = sums.map(Some).collect();
    let build = Build::new(Kernel::Checksum, format!("{count} words in parts of {part}"), &[count, part]);
    build.words(&x).poison(expected.len() * 4).expect(1, Content::Words(expected)).done()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(words: &[u32], part: usize) -> u64 {
        let parts = words.chunks(part).enumerate();
        let sums = parts.flat_map(|(i, words)| sums((i * part) as u32, words));
        total(&sums.flat_map(u32::to_ne_bytes).collect::<Vec<_>>())
    }

    #[test]
    fn the_total_does_not_depend_on_the_parts() {
        let words: Vec<u32> = (0..1000).map(|i: u32| i.wrapping_mul(0x1234_5677)).collect();
        let whole = checksum(&words, 1000);
        assert_eq!([1, 7, 999].map(|part| checksum(&words, part)), [whole; 3]);
        let bytes: Vec<u8> = words.iter().cycle().take(70_000).flat_map(|word| word.to_ne_bytes()).collect();
        let cycle: Vec<u32> = words.iter().copied().cycle().take(70_000).collect();
        assert_eq!(of_bytes(&bytes), checksum(&cycle, 70_000));
        assert_eq!((of_bytes(&bytes[..43]), of_bytes(&[])), (checksum(&words[..10], 10), 0));
        // The value is part of the interface between devices.
        assert_eq!(checksum(&[], 1), 0);
        assert_eq!(checksum(&[0x3f80_0000, 7], 2), 0x6526_fc3e_ef03_5ca0);
    }

    #[test]
    fn places_hold_the_sums_of_all_parts() {
        let part = u64::from(PART_WORDS) * 4;
        assert_eq!([0, 4, part, 64 * part, 64 * part + 4].map(place_bytes), [0, 512, 512, 512, 1024]);
        assert_eq!(place_bytes(u64::MAX) % PLACE_ALIGNMENT, 0);
    }

    #[test]
    fn flips_swaps_zeros_and_stale_words_change_both_sums() {
        let words: Vec<u32> = (0..512).map(|i: u32| i.wrapping_mul(0x9e37_0001) | 1).collect();
        let right = checksum(&words, 512);
        let differs = |changed: &[u32]| {
            let sum = checksum(changed, 512);
            sum as u32 != right as u32 && sum >> 32 != right >> 32
        };
        for at in [0, 1, 17, 511] {
            for bit in 0..32 {
                let mut flipped = words.clone();
                flipped[at] ^= 1 << bit;
                assert!(differs(&flipped), "bit {bit} of word {at}");
            }
            let (mut swapped, mut zero, mut stale) = (words.clone(), words.clone(), words.clone());
            swapped.swap(at, (at + 9) % 512);
            zero[at] = 0;
            stale.rotate_left(1 + at % 500);
            assert!(differs(&swapped) && differs(&zero) && differs(&stale), "word {at}");
        }
        assert!(differs(&[0; 512]) && differs(&words[..511]));
        assert_ne!(checksum(&[0; 8], 8), checksum(&[0; 9], 9), "zeros count");
    }

    #[test]
    fn a_row_is_one_part_and_a_large_buffer_has_many() {
        assert_eq!([0, 1024, PART_WORDS, PART_WORDS + 1, 4 << 20].map(parts), [0, 1, 1, 2, 256]);
        assert_eq!(grid(&[4 << 20, PART_WORDS]), [256, 1, 1]);
    }
}
