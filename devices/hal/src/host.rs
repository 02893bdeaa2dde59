//! Launch interface of CPU kernels (`Host`): functions over raw bindings that the CPU backend runs group by
//! group.
//!
//! A CPU kernel is the counterpart of a GPU kernel. It receives its bindings as raw memory, its constants as
//! words, and a range of work groups. Several threads run disjoint ranges of the same launch concurrently, so
//! bindings are passed as pointers. The typed views below turn them into slices.

use std::ops::Range;

/// A kernel as the CPU backend runs it: the arguments of the launch and the range of linear group indices (`x
/// + grid.x · (y + grid.y · z)`) to compute.
///
/// # Safety
/// Callers guarantee what [`Checked`](crate::Checked) and the submission rules establish: the bindings are as
/// many as the entry's ABI says; each is valid for its bytes and its access during the call, at least as long
/// as the ABI's extents for these constants, and 64-byte aligned at the buffer's start; no other work touches
/// what this launch writes. Implementations write only what belongs to the groups they were given.
pub type HostFn = unsafe fn(call: &HostCall<'_>, groups: Range<u32>);

/// A binding as a CPU kernel sees it.
#[derive(Clone, Copy, Debug)]
pub struct HostBinding {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: a binding is an address and a length. Dereferencing it is unsafe and bound by the rules of `HostFn`, under
// which threads of one launch touch disjoint bytes or only read.
unsafe impl Send for HostBinding {}
// SAFETY: as above.
unsafe impl Sync for HostBinding {}

impl HostBinding {
    /// Returns a binding of `bytes` bytes at `pointer`. Building one is safe; using it is not.
    pub fn new(pointer: *mut u8, bytes: usize) -> Self {
        Self { pointer, bytes }
    }

    /// Returns a pointer to the first byte.
    pub fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Arguments of one launch.
#[derive(Clone, Copy, Debug)]
pub struct HostCall<'a> {
    /// Arguments in the ABI's order.
    pub bindings: &'a [HostBinding],
    /// Constants in the ABI's order.
    pub constants: &'a [u32],
    /// Grid of the launch.
    pub grid: [u32; 3],
}

impl HostCall<'_> {
    /// Returns binding `index` as values of `T` for reading.
    ///
    /// # Safety
    /// As for [`HostFn`]; `T` is plain data for which any bits are a value, and no thread writes this binding
    /// during the launch.
    pub unsafe fn read<T>(&self, index: usize) -> &[T] {
        let binding = self.bindings[index];
        debug_assert_eq!(binding.pointer as usize % align_of::<T>(), 0);
        // SAFETY: valid, aligned and unwritten for the launch by the caller's promise; the length is rounded down.
        unsafe { std::slice::from_raw_parts(binding.pointer.cast(), binding.bytes / size_of::<T>()) }
    }

    /// Returns elements `range` of binding `index` as values of `T` for writing.
    ///
    /// # Panics
    /// If the range lies outside the binding.
    ///
    /// # Safety
    /// As for [`HostFn`]; `T` is plain data for which any bits are a value, and no other thread touches these
    /// elements during the launch.
    #[allow(clippy::mut_from_ref)] // disjointness between groups is the caller's promise
    pub unsafe fn write<T>(&self, index: usize, range: Range<usize>) -> &mut [T] {
        let binding = self.bindings[index];
        debug_assert_eq!(binding.pointer as usize % align_of::<T>(), 0);
        assert!(
            range.start <= range.end && range.end <= binding.bytes / size_of::<T>(),
            "group writes outside its binding"
        );
        // SAFETY: inside the binding by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(binding.pointer.cast::<T>().add(range.start), range.len()) }
    }

    /// Returns constant `index` as a float.
    pub fn float(&self, index: usize) -> f32 {
        f32::from_bits(self.constants[index])
    }
}
