//! Code objects as the stand-ins write them: how long they are, which kernels are in them with what parameters, the
//! engine's code.

use crate::Result;
use crate::symbols::code::INVALID_IMAGE;

/// What a code object begins with.
const MARK: &[u8; 8] = b"HIP-SHIM";
/// More than any code object has.
const MAX_BYTES: u64 = 1 << 30;

/// A kernel function's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The function's name.
    pub name: String,
    /// For each parameter whether it is an address; if not, it is a word of 32 bits.
    pub addresses: Vec<bool>,
}

/// A code object: the mark, the length of what follows, lengths and parts.
pub(crate) fn encoded(signatures: &[Signature], code: &[u8]) -> Vec<u8> {
    let kinds =
        |one: &Signature| -> Vec<u8> { one.addresses.iter().map(|&address| u8::from(address)).collect() };
    let parts = signatures.iter().flat_map(|one| [one.name.clone().into_bytes(), kinds(one)]);
    let count = (signatures.len() as u64).to_le_bytes().to_vec();
    let part = |part: Vec<u8>| [&(part.len() as u64).to_le_bytes()[..], &part].concat();
    let body: Vec<u8> = [count].into_iter().chain(parts).chain([code.to_vec()]).flat_map(part).collect();
    [&MARK[..], &(body.len() as u64).to_le_bytes(), &body].concat()
}

/// The whole code object that begins at an address.
///
/// # Safety
/// At least sixteen bytes are readable there, and if they say so, as many as they say.
///
/// # Errors
/// If it is none.
pub(crate) unsafe fn whole<'a>(image: *const u8) -> Result<&'a [u8]> {
    if image.is_null() {
        return Err(INVALID_IMAGE);
    }
    // SAFETY: by the caller's promise.
    let head = unsafe { std::slice::from_raw_parts(image, MARK.len() + 8) };
    let (mark, length) = head.split_at(MARK.len());
    let length = length.try_into().map_or(u64::MAX, u64::from_le_bytes);
    if mark != MARK || length > MAX_BYTES {
        return Err(INVALID_IMAGE);
    }
    // SAFETY: by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(image.add(head.len()), length as usize) })
}

/// What is in a code object.
///
/// # Errors
/// If it is not whole.
pub(crate) fn decoded(mut body: &[u8]) -> Result<(Vec<Signature>, &[u8])> {
    let mut part = || -> Option<&[u8]> {
        let (length, rest) = body.split_first_chunk::<8>()?;
        let (part, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        body = rest;
        Some(part)
    };
    let mut parts = || {
        let count = u64::from_le_bytes(part()?.try_into().ok()?);
        let mut signatures = Vec::new();
        for _ in 0..count {
            let name = String::from_utf8(part()?.to_vec()).ok()?;
            signatures.push(Signature { name, addresses: part()?.iter().map(|kind| *kind != 0).collect() });
        }
        Some((signatures, part()?))
    };
    parts().ok_or(INVALID_IMAGE)
}
