//! Flips one bit of a kernel: its first addition becomes a subtraction. The numbers are those of the SPIR-V
//! specification.

use std::ffi::CStr;

/// Environment variable with the name of the kernel function to change.
const WRONG: &str = "RAGTAG_VULKAN_FAULTS_WRONG";

/// Number of words before the first instruction.
const HEADER_WORDS: usize = 5;
const OP_ENTRY_POINT: u32 = 15;
const OP_F_ADD: u32 = 129;
/// Bit in which the codes of `OpFAdd` and `OpFSub` differ.
const FLIPPED: u32 = 129 ^ 131;

/// Returns the changed code of the kernel that the environment variable names, or `None` for other code.
pub fn changed(code: &[u32]) -> Option<Vec<u32>> {
    let wrong = std::env::var(WRONG).ok()?;
    let is_wrong =
        |&at: &usize| code[at] & 0xffff == OP_ENTRY_POINT && name(code, at) == Some(wrong.as_bytes());
    instructions(code).find(is_wrong)?;
    let at = instructions(code).find(|&at| code[at] & 0xffff == OP_F_ADD)?;
    let mut changed = code.to_vec();
    changed[at] ^= FLIPPED;
    Some(changed)
}

/// Returns the positions of all instructions.
fn instructions(code: &[u32]) -> impl Iterator<Item = usize> {
    let mut at = HEADER_WORDS;
    std::iter::from_fn(move || {
        let this = at;
        // A code without words would be an endless loop.
        at += (*code.get(this)? >> 16).max(1) as usize;
        Some(this)
    })
}

/// Returns the name of the entry point that the instruction at `at` declares.
fn name(code: &[u32], at: usize) -> Option<&[u8]> {
    let words = code.get(at + 3..)?;
    // SAFETY: the bytes are those of the words, and every pattern of bits is a byte.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 4) };
    Some(CStr::from_bytes_until_nul(bytes).ok()?.to_bytes())
}
