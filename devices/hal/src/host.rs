//! Launch interface of CPU kernels (`Host`): functions on raw bindings, which the CPU backend runs group by
//! group.
//!
//! A CPU kernel is the counterpart of a GPU kernel. It receives its bindings as raw memory, its constants as
//! words, and a range of work groups. Several threads run disjoint ranges of the same launch concurrently, so
//! bindings are passed as pointers. The typed views of [`HostCall`] turn the pointers into slices.

use std::ops::Range;

/// A CPU kernel. It receives the arguments of the launch and the range of linear group indices to compute.
/// The linear index of group (x, y, z) is `x + grid.x · (y + grid.y · z)`.
///
/// # Safety
/// Callers guarantee the following conditions, which [`Checked`](crate::Checked) and the submission rules
/// establish:
/// - the number of bindings matches the entry's ABI;
/// - during the call, each binding is valid for its length and for its declared access;
/// - each binding is at least as long as its extent in the ABI for these constants;
/// - the start of each buffer is 64-byte aligned;
/// - no other work accesses the bytes that this launch writes.
///
/// A kernel writes only the bytes that belong to the groups that it receives.
pub type HostFn = unsafe fn(call: &HostCall<'_>, groups: Range<u32>);

/// Memory of one binding of a CPU kernel.
#[derive(Clone, Copy, Debug)]
pub struct HostBinding {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: a binding is an address and a length. Dereferencing the address is unsafe and follows the rules of
// `HostFn`: the threads of one launch access disjoint bytes or only read.
unsafe impl Send for HostBinding {}
// SAFETY: the reasoning for `Send` applies here too.
unsafe impl Sync for HostBinding {}

impl HostBinding {
    /// Returns a binding of `bytes` bytes at `pointer`. Creating a binding is safe, but dereferencing its
    /// pointer is not.
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
    /// Returns binding `index` as a read-only slice of `T`.
    ///
    /// # Safety
    /// The conditions of [`HostFn`] hold. `T` is plain data, and every bit pattern is a valid `T`. No thread
    /// writes this binding during the launch.
    pub unsafe fn read<T>(&self, index: usize) -> &[T] {
        let binding = self.aligned::<T>(index);
        // SAFETY: the caller guarantees that the binding is valid and not written during the launch.
        // The length is rounded down.
        unsafe { std::slice::from_raw_parts(binding.pointer.cast(), binding.bytes / size_of::<T>()) }
    }

    /// Returns elements `range` of binding `index` as a mutable slice of `T`.
    ///
    /// # Panics
    /// Panics if the range lies outside the binding.
    ///
    /// # Safety
    /// The conditions of [`HostFn`] hold. `T` is plain data, and every bit pattern is a valid `T`. No other
    /// thread accesses these elements during the launch.
    #[allow(clippy::mut_from_ref)] // the caller guarantees that groups use disjoint ranges
    pub unsafe fn write<T>(&self, index: usize, range: Range<usize>) -> &mut [T] {
        let binding = self.aligned::<T>(index);
        assert!(
            range.start <= range.end && range.end <= binding.bytes / size_of::<T>(),
            "a group writes {range:?} of binding {index}, which has {} values",
            binding.bytes / size_of::<T>()
        );
        // SAFETY: the assertion keeps the range inside the binding. The caller guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(binding.pointer.cast::<T>().add(range.start), range.len()) }
    }

    /// Returns a binding after checking that its values are aligned.
    fn aligned<T>(&self, index: usize) -> HostBinding {
        let binding = self.bindings[index];
        let address = binding.pointer as usize;
        assert!(address.is_multiple_of(align_of::<T>()), "binding {index} is not aligned: {address:#x}");
        binding
    }

    /// Returns the f32 whose bit pattern is constant `index`.
    pub fn float(&self, index: usize) -> f32 {
        f32::from_bits(self.constants[index])
    }
}
