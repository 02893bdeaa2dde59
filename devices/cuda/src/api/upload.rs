//! Copies short blocks of pinned host memory to the device with a kernel.
//!
//! A program starts with such a copy, of its parameters. The copy engine runs copies in the order in which they
//! arrive, and streamed weights for later programs may be ahead. They can take longer than the program.

use super::{Context, Function, Module, Stream, enter};
use cudarc::driver::sys::CUlaunchConfig;
use ragtag_hal::Result;
use ragtag_stream::Arguments;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// The kernel, as PTX that ends with a zero byte.
const CODE: &str = concat!(include_str!("upload.ptx"), "\0");

/// Size of the longest copy of a whole range, in bytes.
const LONGEST_BYTES: usize = 256 << 10;

/// Number of work items in a group. Each copies one word at a time.
const GROUP: u32 = 128;

/// Maximum number of groups of a copy of used words. Its items read their first word before they know the number
/// of used words, 64 KiB in all.
const MAX_GROUPS: u32 = 128;

/// The kernel on a device. It is loaded at its first use.
#[derive(Default)]
pub(crate) struct Uploads(OnceLock<Option<Function>>);

impl Uploads {
    /// Enqueues a copy. If `used` is set, the word at this index holds the number of words to copy. Returns false
    /// if the copy engine has to copy, because the host memory is not pinned, the block is too long or not
    /// aligned, or the kernel cannot be loaded.
    ///
    /// # Safety
    /// Both ranges are valid until the copy has ended. No concurrent access conflicts with the copy.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub(crate) unsafe fn enqueue(
        &self,
        context: &Arc<Context>,
        stream: &Stream,
        (from, to, bytes): (*const u8, u64, usize),
        used: Option<u32>,
    ) -> Result<bool> {
        let is_aligned = [from as usize, to as usize, bytes].into_iter().all(|value| value.is_multiple_of(4));
        let longest = if used.is_some() { u32::MAX as usize } else { LONGEST_BYTES };
        if !is_aligned || !(4..=longest).contains(&bytes) {
            return Ok(false);
        }
        let load =
            || load(context).inspect_err(|error| tracing::debug!(%error, "no kernel for uploads")).ok();
        let Some(function) = self.0.get_or_init(load) else { return Ok(false) };
        let (mut pinned, host) = (0, from.cast_mut().cast());
        // SAFETY: the call writes one address. It fails for memory that is not pinned.
        if unsafe { enter!(context, cuMemHostGetDevicePointer_v2(&mut pinned, host, 0)) }.is_err() {
            return Ok(false);
        }
        let words = bytes as u32 / 4;
        let most = if used.is_some() { MAX_GROUPS } else { u32::MAX };
        let config = CUlaunchConfig {
            gridDimX: words.div_ceil(GROUP).min(most),
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: GROUP,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.raw(),
            attrs: null_mut(),
            numAttrs: 0,
        };
        let arguments = Arguments::new([to, pinned], &[words, used.unwrap_or(u32::MAX)]);
        let mut pointers = arguments.pointers();
        // SAFETY: the kernel has these parameters and accesses only the two ranges.
        unsafe {
            enter!(context, cuLaunchKernelEx(&config, function.raw(), pointers.as_mut_ptr(), null_mut()))
        }?;
        Ok(true)
    }
}

fn load(context: &Arc<Context>) -> Result<Function> {
    Arc::new(Module::new(context, CODE.as_bytes())?).function(c"upload")
}
