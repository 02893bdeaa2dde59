//! Commands with their names resolved to memory and kernels, and how each is given to a stream.
//!
//! A script is made once, when a program is recorded or commands are submitted. It is only read afterwards, and keeps what
//! it names alive. This module must not know waits or points.

use crate::driver::{Arguments, Driver, Launch, Operands};
use crate::memory::Buffer;
use crate::module::Kernel;
use crate::pins::Pin;
use crate::recording::Recording;
use ragtag_hal::lanes::{self, Claim, Claims};
use ragtag_hal::{Gemm, HostRegion, Reservation, Result};
use std::sync::Arc;

/// Bytes of a buffer.
pub(crate) struct Span<D: Driver> {
    buffer: Arc<Buffer<D>>,
    offset: usize,
    bytes: usize,
}

impl<D: Driver> Span<D> {
    /// `bytes` bytes from `offset` on, or `None` if the buffer does not have them.
    pub(crate) fn new(buffer: &Arc<Buffer<D>>, offset: u64, bytes: u64) -> Option<Self> {
        let (offset, bytes) = (usize::try_from(offset).ok()?, usize::try_from(bytes).ok()?);
        let fits = offset.checked_add(bytes)? <= buffer.bytes();
        fits.then(|| Self { buffer: Arc::clone(buffer), offset, bytes })
    }

    /// Where it begins on the device.
    fn address(&self) -> u64 {
        self.buffer.address() + self.offset as u64
    }

    fn is_of(&self, buffer: &Arc<Buffer<D>>) -> bool {
        Arc::ptr_eq(&self.buffer, buffer)
    }
}

/// A region that the device knows.
pub(crate) struct Registered<D: Driver> {
    pub(crate) region: Arc<HostRegion>,
    /// `None` if the driver would not.
    pub(crate) _pin: Option<Arc<Pin<D>>>,
}

/// Bytes of a registered region, from `offset` on; how many, the span on the other side says.
pub(crate) struct HostSpan<D: Driver> {
    registered: Arc<Registered<D>>,
    offset: usize,
    bytes: usize,
}

impl<D: Driver> HostSpan<D> {
    /// `None` if the region does not have these bytes.
    pub(crate) fn new(registered: &Arc<Registered<D>>, offset: u64, span: &Span<D>) -> Option<Self> {
        let offset = usize::try_from(offset).ok()?;
        let fits = offset.checked_add(span.bytes)? <= registered.region.bytes();
        fits.then(|| Self { registered: Arc::clone(registered), offset, bytes: span.bytes })
    }

    fn pointer(&self) -> *mut u8 {
        self.registered.region.as_ptr().wrapping_add(self.offset)
    }

    fn claim(&self, writes: bool) -> Claim {
        let region = Arc::clone(&self.registered.region);
        Claim { region, range: self.offset..self.offset + self.bytes, writes }
    }
}

/// A launch of a kernel.
pub(crate) struct Bound<D: Driver> {
    kernel: Arc<Kernel<D>>,
    grid: [u32; 3],
    arguments: Arguments,
    spans: Vec<Span<D>>,
}

impl<D: Driver> Bound<D> {
    /// Binds spans and constants to a kernel.
    pub(crate) fn new(
        kernel: &Arc<Kernel<D>>,
        grid: [u32; 3],
        spans: Vec<Span<D>>,
        constants: &[u32],
    ) -> Self {
        let arguments = Arguments::new(spans.iter().map(Span::address), constants);
        Self { kernel: Arc::clone(kernel), grid, arguments, spans }
    }

    fn launch(&self) -> Launch<'_, D> {
        Launch {
            function: &self.kernel.function,
            grid: self.grid,
            work_group: self.kernel.work_group,
            dynamic_local_bytes: self.kernel.dynamic_local_bytes,
            arguments: &self.arguments,
        }
    }
}

/// A product by the library.
pub(crate) struct Product<D: Driver> {
    pub(crate) product: Gemm,
    pub(crate) x: Span<D>,
    pub(crate) weights: Span<D>,
    pub(crate) y: Span<D>,
}

impl<D: Driver> Product<D> {
    fn operands(&self) -> Operands {
        Operands { x: self.x.address(), weights: self.weights.address(), y: self.y.address() }
    }

    fn spans(&self) -> [&Span<D>; 3] {
        [&self.x, &self.weights, &self.y]
    }
}

/// A command, ready to be enqueued.
pub(crate) enum Step<D: Driver> {
    /// Launch a kernel.
    Launch(Bound<D>),
    /// Have the library compute a product.
    Gemm(Product<D>),
    /// Copy between buffers.
    Copy {
        /// Read from here.
        from: Span<D>,
        /// Written to here.
        to: Span<D>,
    },
    /// Fill with a word.
    Fill {
        /// Written to here.
        to: Span<D>,
        /// The word.
        word: u32,
    },
    /// Copy out of a host region.
    Upload {
        /// Read from here.
        from: HostSpan<D>,
        /// Written to here.
        to: Span<D>,
    },
    /// Copy into a host region.
    Download {
        /// Read from here.
        from: Span<D>,
        /// Written to here.
        to: HostSpan<D>,
    },
    /// Several of the others, captured.
    Recorded(Recording<D>),
}

impl<D: Driver> Step<D> {
    /// Enqueues it, or lets it be captured.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn enqueue(&self, driver: &D, stream: &D::Stream) -> Result<()> {
        // SAFETY: spans lie in buffers and host spans in regions that the script keeps, and whoever submits keeps the script
        // until it has ended; that nobody else touches these bytes meanwhile is what points and reservations are for.
        // `Checked` held launches to the entry's ABI, which says what a kernel takes and touches, and products to what they
        // touch, and lets no program be submitted before its last run has ended. Dispatches are on the compute stream alone,
        // and the library was made ready with the product's module.
        unsafe {
            match self {
                Step::Launch(bound) => driver.launch(stream, &bound.launch()),
                Step::Gemm(product) => driver.gemm(stream, &product.product, product.operands()),
                Step::Copy { from, to } => driver.copy(stream, from.address(), to.address(), to.bytes),
                Step::Fill { to, word } => driver.fill(stream, to.address(), *word, to.bytes / 4),
                Step::Upload { from, to } => driver.upload(stream, from.pointer(), to.address(), to.bytes),
                Step::Download { from, to } => {
                    driver.download(stream, from.address(), to.pointer(), from.bytes)
                }
                Step::Recorded(recording) => driver.play(stream, recording.graph()),
            }
        }
    }

    /// The uses that it makes of host regions.
    fn claims(&self) -> Vec<Claim> {
        match self {
            Step::Upload { from, .. } => vec![from.claim(false)],
            Step::Download { to, .. } => vec![to.claim(true)],
            Step::Recorded(recording) => recording.steps().iter().flat_map(Step::claims).collect(),
            Step::Launch(_) | Step::Gemm(_) | Step::Copy { .. } | Step::Fill { .. } => Vec::new(),
        }
    }

    fn uses_buffer(&self, buffer: &Arc<Buffer<D>>) -> bool {
        match self {
            Step::Launch(bound) => bound.spans.iter().any(|span| span.is_of(buffer)),
            Step::Gemm(product) => product.spans().into_iter().any(|span| span.is_of(buffer)),
            Step::Copy { from, to } => from.is_of(buffer) || to.is_of(buffer),
            Step::Fill { to, .. } | Step::Upload { to, .. } => to.is_of(buffer),
            Step::Download { from, .. } => from.is_of(buffer),
            Step::Recorded(recording) => recording.steps().iter().any(|step| step.uses_buffer(buffer)),
        }
    }
}

/// Steps that take effect in order.
pub(crate) struct Script<D: Driver> {
    steps: Vec<Step<D>>,
    claims: Claims,
}

impl<D: Driver> Script<D> {
    pub(crate) fn new(steps: Vec<Step<D>>) -> Self {
        let claims = Claims::new(steps.iter().flat_map(Step::claims).collect());
        Self { steps, claims }
    }

    /// Enqueues all steps.
    ///
    /// # Errors
    /// If the driver refuses; some of the steps may be under way then.
    pub(crate) fn enqueue(&self, driver: &D, stream: &D::Stream) -> Result<()> {
        self.steps.iter().try_for_each(|step| step.enqueue(driver, stream))
    }

    pub(crate) fn uses_buffer(&self, buffer: &Arc<Buffer<D>>) -> bool {
        self.steps.iter().any(|step| step.uses_buffer(buffer))
    }

    pub(crate) fn uses_region(&self, region: &Arc<HostRegion>) -> bool {
        self.claims.uses(region)
    }
}

impl<D: Driver> lanes::Script for Script<D> {
    fn reserve(&self) -> Result<Vec<Reservation>> {
        self.claims.reserve()
    }

    /// The host does not reach the device's memory; it can do nothing, and no more.
    fn host_bytes(&self) -> Option<usize> {
        self.steps.is_empty().then_some(0)
    }

    fn run_on_host(&self) -> Result<()> {
        Ok(())
    }
}
