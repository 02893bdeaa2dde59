//! Converts objects to handles and back. A table of all live objects makes stale and wrong handles errors.
//! Writes results to the caller's memory.

use crate::calls::lock;
use crate::faults::misuse;
use crate::types::code::{INVALID_ARGUMENT, INVALID_ENUMERATION, INVALID_NULL_HANDLE, INVALID_NULL_POINTER};
use crate::types::{Described, Handle, Head, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ffi::c_char;
use std::sync::{Arc, Mutex};

type Object = Arc<dyn Any + Send + Sync>;

/// Live objects by handle, and the latest handle.
static OBJECTS: Mutex<(BTreeMap<usize, Object>, usize)> = Mutex::new((BTreeMap::new(), 0xf000));

/// Adds an object to the table and returns its handle. Handles are never reused.
pub fn give<T: Any + Send + Sync>(object: T) -> Handle {
    share(Arc::new(object))
}

/// As [`give`], for an object with several owners.
pub fn share<T: Any + Send + Sync>(object: Arc<T>) -> Handle {
    let mut objects = lock(&OBJECTS);
    objects.1 += 16;
    let handle = objects.1;
    objects.0.insert(handle, object);
    handle as Handle
}

/// Looks up an object.
pub fn find<T: Any + Send + Sync>(handle: Handle) -> Result<Arc<T>> {
    let object = lock(&OBJECTS).0.get(&(handle as usize)).cloned();
    of_type(handle, object)
}

/// Removes an object from the table.
pub fn take<T: Any + Send + Sync>(handle: Handle) -> Result<Arc<T>> {
    find::<T>(handle)?;
    let object = lock(&OBJECTS).0.remove(&(handle as usize));
    of_type(handle, object)
}

fn of_type<T: Any + Send + Sync>(handle: Handle, object: Option<Object>) -> Result<Arc<T>> {
    if handle.is_null() {
        return Err(INVALID_NULL_HANDLE);
    }
    let object = object.and_then(|object| object.downcast::<T>().ok());
    object.ok_or_else(|| misuse(INVALID_ARGUMENT, "a stale or wrong handle"))
}

/// Looks up several objects.
///
/// # Safety
/// `handles` must be null or point to `count` handles.
pub unsafe fn find_all<T: Any + Send + Sync>(count: u32, handles: *const Handle) -> Result<Vec<Arc<T>>> {
    if count > 0 && handles.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    // SAFETY: the caller guarantees the list.
    (0..count as usize).map(|at| find(unsafe { *handles.add(at) })).collect()
}

/// Writes a value.
///
/// # Safety
/// The pointer must be null or valid for writing.
pub unsafe fn put<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    // SAFETY: the caller guarantees the pointer.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Returns a described structure of the caller.
///
/// # Safety
/// The pointer must be null or point to the structure.
pub unsafe fn described<T: Described>(from: *const T) -> Result<T> {
    if from.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    // SAFETY: the caller guarantees the structure.
    let (head, value) = unsafe { (from.cast::<Head>().read(), from.read()) };
    if T::KINDS.contains(&head.kind) {
        Ok(value)
    } else {
        Err(misuse(INVALID_ENUMERATION, "a structure has the wrong type"))
    }
}

/// Writes a described structure. Keeps the head, which belongs to the caller.
///
/// # Safety
/// As for [`described`]; the pointer must be valid for writing.
pub unsafe fn describe<T: Described>(to: *mut T, value: T) -> Result<()> {
    // SAFETY: the caller guarantees the structure, which starts with a head.
    unsafe {
        described(to)?;
        let head = to.cast::<Head>().read();
        to.write(value);
        to.cast::<Head>().write(head);
    }
    Ok(())
}

/// Returns the address of the extension structure of type `T` in a chain of structures.
///
/// # Safety
/// `next` must be null or point to a valid chain.
pub unsafe fn extension_at<T: Described>(mut next: *const Head) -> Option<*mut T> {
    // SAFETY: the caller guarantees the chain.
    unsafe {
        while !next.is_null() {
            if T::KINDS.contains(&(*next).kind) {
                return Some(next.cast_mut().cast());
            }
            next = (*next).next;
        }
    }
    None
}

/// Implements functions that first return a count and then fill an array. Calls `write` for each element that
/// the caller has room for.
///
/// # Safety
/// `count` must be null or valid, and `to` null or valid for writing that many elements.
pub unsafe fn list<T, U: Clone>(
    count: *mut u32,
    to: *mut T,
    all: &[U],
    write: impl Fn(*mut T, U) -> Result<()>,
) -> Result<()> {
    if count.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    // SAFETY: the caller guarantees the count and the array.
    unsafe {
        if *count == 0 || to.is_null() {
            *count = all.len() as u32;
            return Ok(());
        }
        *count = (*count).min(all.len() as u32);
        let mut room = all.iter().take(*count as usize).enumerate();
        room.try_for_each(|(at, one)| write(to.add(at), one.clone()))
    }
}

/// Writes bytes as functions do that first return a size. A null `to` only returns the size.
///
/// # Safety
/// `bytes` must be null or valid, and `to` null or valid for writing `*bytes` bytes.
pub unsafe fn put_bytes(bytes: *mut usize, to: *mut u8, all: &[u8]) -> Result<()> {
    if bytes.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(all.as_ptr(), to, all.len().min(*bytes));
        }
        *bytes = all.len();
    }
    Ok(())
}

/// Returns the text at `text`, or an empty text if the pointer is null.
///
/// # Safety
/// The pointer must be null or point to a zero-terminated string.
pub unsafe fn text_at(text: *const c_char) -> Result<String> {
    if text.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the caller guarantees the text.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(str::to_string).map_err(|_| INVALID_ARGUMENT)
}
