//! Encodes and decodes code objects. A code object contains its length, the kernel signatures and the code
//! that the engine compiled.

use crate::Result;
use crate::symbols::code::INVALID_IMAGE;

/// Magic bytes at the start of a code object.
const MARK: &[u8; 8] = b"HIP-SHIM";
/// Maximum length of a code object, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// Name and parameters of a kernel function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name of the function.
    pub name: String,
    /// Whether each parameter is an address, in order. Other parameters are 32-bit values.
    pub addresses: Vec<bool>,
}

/// Encodes a code object: the magic bytes, the length of the rest, and then each part with its own length in
/// front.
pub(crate) fn encoded(signatures: &[Signature], code: &[u8]) -> Vec<u8> {
    let kinds =
        |one: &Signature| -> Vec<u8> { one.addresses.iter().map(|&address| u8::from(address)).collect() };
    let parts = signatures.iter().flat_map(|one| [one.name.clone().into_bytes(), kinds(one)]);
    let count = (signatures.len() as u64).to_le_bytes().to_vec();
    let part = |part: Vec<u8>| [&(part.len() as u64).to_le_bytes()[..], &part].concat();
    let body: Vec<u8> = [count].into_iter().chain(parts).chain([code.to_vec()]).flat_map(part).collect();
    [&MARK[..], &(body.len() as u64).to_le_bytes(), &body].concat()
}

/// Returns the code object at address `image`, without its header.
///
/// # Safety
/// Sixteen bytes must be readable at `image`. If they are a header, the number of bytes that it states must
/// be readable as well.
///
/// # Errors
/// Returns an error if the bytes are not a code object.
pub(crate) unsafe fn whole<'a>(image: *const u8) -> Result<&'a [u8]> {
    if image.is_null() {
        return Err(INVALID_IMAGE);
    }
    // SAFETY: the caller guarantees that the header is readable.
    let head = unsafe { std::slice::from_raw_parts(image, MARK.len() + 8) };
    let (mark, length) = head.split_at(MARK.len());
    let length = length.try_into().map_or(u64::MAX, u64::from_le_bytes);
    if mark != MARK || length > MAX_BYTES {
        return Err(INVALID_IMAGE);
    }
    // SAFETY: the caller guarantees that the stated length is readable.
    Ok(unsafe { std::slice::from_raw_parts(image.add(head.len()), length as usize) })
}

/// Decodes a code object without its header.
///
/// # Errors
/// Returns an error if the code object is truncated.
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
