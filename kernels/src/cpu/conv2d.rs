//! Convolution, computed as tiled products of weights and image columns.

use super::HostKernel;
use super::elements::Element;
use super::gemm::{TILE, product};
use super::isa::Isa;
use crate::conv2d::{self, Sizes};
use crate::kernel::Kernel;
use ragtag_hal::HostCall;
use std::marker::PhantomData;
use std::ops::Range;

/// Convolution of images.
pub(crate) struct Conv2d<E>(PhantomData<E>);

impl<E: Element> HostKernel for Conv2d<E> {
    const KERNEL: Kernel = Kernel::Conv2d(E::TYPE);

    fn grid(constants: &[u32]) -> [u32; 3] {
        conv2d::grid(constants)
    }
    #[inline(always)]
    unsafe fn run<S: Isa>(s: S, call: &HostCall<'_>, groups: Range<u32>) {
        let sizes = Sizes::new(call.constants);
        // SAFETY: no thread writes these bindings; all bit patterns are valid for this type.
        let (x, weights) = unsafe { (call.read::<E>(0), call.read::<E>(1)) };
        let Sizes { kernel, size: [height, width], .. } = sizes;
        let (out_width, pixels) = (sizes.out[1] as usize, (sizes.out[0] * sizes.out[1]) as usize);
        let lines = (sizes.out_channels / sizes.groups) as usize;
        let inner = (sizes.channels / sizes.groups) as usize;
        let taps = (kernel[0] * kernel[1]) as usize;
        let (across, down) = (pixels.div_ceil(TILE), lines.div_ceil(TILE));
        for number in groups.start as usize..groups.end as usize {
            let (pixel, line) = (number % across * TILE, number / across % down * TILE);
            // Index among all images' channel groups.
            let part = number / across / down;
            let first_weight = (part % sizes.groups as usize * lines + line) * inner * taps;
            let (rows, columns) = (TILE.min(lines - line), TILE.min(pixels - pixel));
            let weight = |i: usize, d: usize| weights[first_weight + i * inner * taps + d].value();
            let value = |d: usize, j: usize| {
                let (channel, tap) = (part * inner + d / taps, (d % taps) as u32);
                let at = |axis: usize, place: usize, tap: u32| {
                    let from_edge = place as u32 * sizes.stride[axis] + tap * sizes.dilation[axis];
                    from_edge.wrapping_sub(sizes.padding[axis]) // Wraps to a large number before an edge.
                };
                let row = at(0, (pixel + j) / out_width, tap / kernel[1]);
                let column = at(1, (pixel + j) % out_width, tap % kernel[1]);
                if row >= height || column >= width {
                    return 0.0;
                }
                x[(channel * height as usize + row as usize) * width as usize + column as usize].value()
            };
            let sums = product(s, [rows, columns, inner * taps], weight, value);
            for (i, sums) in sums.iter().enumerate().take(rows) {
                let start = (part * lines + line + i) * pixels + pixel;
                // SAFETY: each group writes its own tile.
                let out = unsafe { call.write::<f32>(2, start..start + columns) };
                out.copy_from_slice(&sums[..columns]);
            }
        }
    }
}
