//! Kernels whose groups each compute one row, and the row's access to the bindings of the launch.

use super::HostKernel;
use super::isa::Isa;
use super::launch::count;
use crate::abi::array;
use crate::add;
use crate::kernel::Kernel;
use ragtag_hal::HostCall;
use std::ops::Range;

/// A kernel whose groups each compute one row.
///
/// # Safety
/// In a call of `row`, at most one value at a time is a mutable slice of the row's part of a binding. It reads
/// other bindings only if the ABI declares them as read-only. All bit patterns are valid for the types with
/// which it accesses them.
pub(crate) unsafe trait RowWise: 'static {
    /// The kernel that this type implements.
    const KERNEL: Kernel;
    /// Minimum number of rows: see [`HostKernel::MIN_ROWS`].
    const MIN_ROWS: u32 = 0;

    /// Returns the grid of a launch with `constants`.
    fn grid(constants: &[u32]) -> [u32; 3] {
        add::grid(constants)
    }
    /// Returns the number of rows in use. Usually, the first two constants are the row capacity and the index
    /// of the parameter word that holds the row count.
    #[inline(always)]
    fn rows(constants: &[u32], params: &[u32]) -> usize {
        count(params, constants[1], constants[0])
    }
    /// Computes one row.
    fn row<S: Isa>(s: S, row: Row<'_>);
}

impl<K: RowWise> HostKernel for K {
    const KERNEL: Kernel = K::KERNEL;
    const MIN_ROWS: u32 = K::MIN_ROWS;

    fn grid(constants: &[u32]) -> [u32; 3] {
        K::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        // SAFETY: no thread writes the parameters; all bit patterns are valid words.
        let rows = K::rows(call.constants, unsafe { call.read::<u32>(0) });
        for index in groups.start as usize..rows.min(groups.end as usize) {
            K::row(s, Row { call, index });
        }
    }
}

/// A row of a launch. Its group alone accesses the row's part of a binding that the kernel writes.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    call: &'a HostCall<'a>,
    pub index: usize,
}

impl<'a> Row<'a> {
    /// Returns the constants of the launch.
    #[inline(always)]
    pub fn constants<const N: usize>(self) -> [u32; N] {
        array(self.call.constants)
    }

    /// Returns the f32 whose bit pattern is constant `index`.
    #[inline(always)]
    pub fn float(self, index: usize) -> f32 {
        self.call.float(index)
    }

    /// Returns the number of rows in use: see [`RowWise::rows`].
    #[inline(always)]
    pub fn used_rows(self) -> usize {
        let [capacity, word] = array(&self.call.constants[..2]);
        count(self.all(0), word, capacity)
    }

    /// Returns all of a binding, for reading.
    #[inline(always)]
    pub fn all<T>(self, binding: usize) -> &'a [T] {
        // SAFETY: guaranteed by the kernel's implementation of `RowWise`.
        unsafe { self.call.read(binding) }
    }

    /// Returns this row of a binding whose rows have `width` values, for reading.
    #[inline(always)]
    pub fn read(self, binding: usize, width: usize) -> &'a [f32] {
        &self.all(binding)[self.index * width..][..width]
    }

    /// Returns this row of a binding whose rows have `width` values, for writing.
    #[inline(always)]
    pub fn write(self, binding: usize, width: usize) -> &'a mut [f32] {
        self.write_as(binding, width)
    }

    /// Like [`Row::write`], for values of type `T`.
    #[inline(always)]
    pub fn write_as<T>(self, binding: usize, width: usize) -> &'a mut [T] {
        // SAFETY: each group writes its own row. The rest is guaranteed by the kernel's implementation of
        // `RowWise`.
        unsafe { self.call.write(binding, self.index * width..(self.index + 1) * width) }
    }
}
