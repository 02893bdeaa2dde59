//! Convolution of images with stride, padding, dilation and groups. As in most neural-network libraries, the
//! kernel is not flipped, so this is strictly a cross-correlation.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | x: values of the kernel's type, `[batch, channels, height, width]` |
//! | 1 | weights: values of the same type, `[out channels, channels / groups, kernel height, kernel width]` |
//! | 2 | out: f32 `[batch, out channels, out height, out width]`, written |
//!
//! The constants are:
//! - batch, channels, height, width, out channels, groups;
//! - kernel height and width;
//! - stride, padding and dilation, each as a pair (vertical, horizontal). The padding is the padding above
//!   and to the left of the image;
//! - out height and width.
//!
//! The size of `out` determines the padding below and to the right of the image. [`out_size`] computes the
//! usual size. Kernels read 16-bit types in 32-bit words, so the size of these bindings is a multiple of four
//! bytes.
//!
//! out[b, o, i, j] = Σ weights[o, c, y, x'] · x[b, first channel of o's group + c, i · stride + y · dilation
//! − padding, …] over c, y and x'. Outside the image, x is zero. The number of groups divides both the number
//! of channels and the number of out channels. Sums are accumulated in f32.
//!
//! The kernels compute the convolution as a matrix product of the weights and image columns, but never store
//! the columns (Chetlur et al., 2014). A work group computes [`TILE`] out channels of [`TILE`] pixels. There
//! are at most 2³¹ − 1 work groups, and coordinates are below 2³¹.

use crate::abi::{IMPOSSIBLE, abi_for, array, product, values};
use crate::cases::{Build, Case, MANY, Random, Stored};
use crate::gemm::TILE;
use crate::kernel::{Accuracy, ElementType, Kernel, Spec};
use crate::layout::Layout;
use ragtag_hal::{Access, EntryAbi};

/// Returns the binary interface for values of type `element`.
pub fn abi(element: ElementType) -> &'static EntryAbi {
    abi_for!(ElementType, element, "conv2d", &[Access::Read, Access::Read, Access::Write], 16, extents)
}

/// Returns the size of the output along an axis on which the image has `size` values. `padding` is the total
/// padding at both ends. Returns zero if the kernel does not fit into the padded image, or if the stride is
/// zero.
pub fn out_size(size: u32, padding: u32, kernel: u32, stride: u32, dilation: u32) -> u32 {
    let covered = u64::from(dilation) * u64::from(kernel.saturating_sub(1)) + 1;
    let free = (u64::from(size) + u64::from(padding)).checked_sub(covered).filter(|_| kernel > 0);
    let steps = free.and_then(|free| free.checked_div(stride.into()));
    steps.map_or(0, |steps| u32::try_from(steps + 1).unwrap_or(u32::MAX))
}

/// Constants of a launch, by name.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub batch: u32,
    pub channels: u32,
    pub groups: u32,
    pub out_channels: u32,
    /// This field and all fields below it are pairs (vertical, horizontal).
    pub size: [u32; 2],
    pub kernel: [u32; 2],
    pub stride: [u32; 2],
    pub padding: [u32; 2],
    pub dilation: [u32; 2],
    pub out: [u32; 2],
}

impl Sizes {
    /// Reads the constants.
    #[inline(always)]
    pub fn new(constants: &[u32]) -> Self {
        let [batch, channels, h, w, out_channels, groups, axes @ ..] = array::<16>(constants);
        let axis = |i: usize| [axes[2 * i], axes[2 * i + 1]];
        Self {
            batch,
            channels,
            groups,
            out_channels,
            size: [h, w],
            kernel: axis(0),
            stride: axis(1),
            padding: axis(2),
            dilation: axis(3),
            out: axis(4),
        }
    }

    fn constants(&self) -> Vec<u32> {
        let Self { batch, channels, groups, out_channels, size: [h, w], .. } = *self;
        let axes = [self.kernel, self.stride, self.padding, self.dilation, self.out];
        [&[batch, channels, h, w, out_channels, groups][..], axes.as_flattened()].concat()
    }

    fn is_empty(&self) -> bool {
        [self.batch, self.out_channels, self.out[0], self.out[1]].contains(&0)
    }

    /// Returns three numbers: images times channel groups, tiles of out channels, and tiles of pixels.
    /// Returns `None` if there are too many tiles, if the number of groups does not divide both numbers of
    /// channels, or if a coordinate is too large.
    fn tiles(&self) -> Option<[u32; 3]> {
        let divides = |channels: u32| channels.checked_rem(self.groups) == Some(0);
        let below = |x: &u64| *x <= i32::MAX as u64;
        let reaches = (0..2).all(|axis| {
            let last = product(&[self.out[axis].saturating_sub(1), self.stride[axis]]);
            let reach = last.saturating_add(product(&[self.kernel[axis], self.dilation[axis]]));
            below(&reach) && below(&self.padding[axis].into())
        });
        let pixels = Some(product(&self.out)).filter(below)? as u32;
        let depth = product(&[self.channels, self.kernel[0]]).saturating_mul(self.kernel[1].into());
        if !divides(self.channels) || !divides(self.out_channels) || !reaches || !below(&depth) {
            return None;
        }
        let lines = self.out_channels / self.groups;
        Some([self.batch.checked_mul(self.groups)?, lines.div_ceil(TILE), pixels.div_ceil(TILE)])
    }
}

fn extents(element: ElementType, constants: &[u32], out: &mut [u64]) {
    let sizes = Sizes::new(constants);
    if sizes.is_empty() {
        return out.fill(0);
    }
    if sizes.tiles().is_none_or(|tiles| product(&tiles) > i32::MAX as u64) {
        return out.fill(IMPOSSIBLE);
    }
    let Sizes { batch, channels, groups, out_channels, size: [h, w], kernel, .. } = sizes;
    out.copy_from_slice(&[
        values(element, product(&[batch, channels, h, w])),
        values(element, product(&[out_channels, channels / groups, kernel[0], kernel[1]])),
        values(ElementType::F32, product(&[batch, out_channels, sizes.out[0], sizes.out[1]])),
    ]);
}

/// Returns a grid with one work group per tile. All work groups are in the first dimension, which has the
/// largest limit on every device.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let sizes = Sizes::new(constants);
    let groups = match sizes.tiles() {
        _ if sizes.is_empty() => 0,
        Some(tiles) => u32::try_from(product(&tiles)).unwrap_or(u32::MAX),
        None => u32::MAX,
    };
    [groups, 1, 1]
}

pub(crate) struct Conv2d(pub ElementType);

impl Spec for Conv2d {
    fn accuracy(&self) -> Accuracy {
        Accuracy::exact(2e-6)
    }

    fn abi(&self, _: Layout) -> &'static EntryAbi {
        abi(self.0)
    }

    fn cases(&self, _: Layout, random: &mut Random) -> Vec<Case> {
        let plain = Sizes {
            batch: 1,
            channels: 1,
            groups: 1,
            out_channels: 1,
            size: [1, 1],
            kernel: [1, 1],
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
            out: [1, 1],
        };
        let three = Sizes { kernel: [3, 3], padding: [1, 1], ..plain };
        let shapes = [
            plain,
            Sizes { batch: 2, channels: 3, out_channels: 5, size: [13, 11], out: [13, 11], ..three },
            // One channel each.
            Sizes { channels: 7, groups: 7, out_channels: 7, size: [10, 12], out: [10, 12], ..three },
            Sizes { channels: 67, out_channels: 70, size: [5, 13], out: [5, 13], ..plain },
            Sizes {
                batch: 2,
                channels: 4,
                groups: 2,
                out_channels: 6,
                size: [17, 9],
                kernel: [3, 2],
                stride: [2, 1],
                padding: [1, 0],
                dilation: [1, 2],
                out: [9, 7],
            },
            // More padding below and to the right than above and to the left.
            Sizes { size: [9, 5], kernel: [7, 4], stride: [3, 2], padding: [2, 1], out: [4, 3], ..plain },
            // Most pixels are beyond the edges.
            Sizes { channels: 2, out_channels: 3, padding: [4, 4], out: [9, 9], ..three },
            Sizes { batch: 0, size: [3, 3], out: [3, 3], ..three },
        ];
        shapes.into_iter().map(|sizes| case(self.0, random, sizes)).collect()
    }

    /// Returns a random convolution. A few of these cases have more work groups than some devices allow in
    /// one dimension.
    fn random_case(&self, _: Layout, random: &mut Random) -> Case {
        let mut few = |bound: usize| random.below(bound) as u32;
        let many = few(64) == 0;
        let groups = 1 + few(3);
        let mut sizes = Sizes {
            batch: 1 + few(3),
            channels: groups * (1 + few(7)),
            groups,
            out_channels: groups * (1 + few(40)),
            size: [1 + few(24), 1 + few(24)],
            kernel: [1 + few(5), 1 + few(5)],
            stride: [1 + few(3), 1 + few(3)],
            padding: [few(4), few(4)],
            dilation: [1 + few(3), 1 + few(3)],
            out: [0, 0],
        };
        if many {
            let one = [1, 1];
            sizes = Sizes {
                batch: MANY as u32,
                channels: 2,
                groups: 1,
                out_channels: 1,
                size: one,
                kernel: one,
                ..sizes
            };
        }
        sizes.out = std::array::from_fn(|axis| {
            let padding = sizes.padding[axis] + few(4);
            let size = out_size(
                sizes.size[axis],
                padding,
                sizes.kernel[axis],
                sizes.stride[axis],
                sizes.dilation[axis],
            );
            if many { size.min(1) } else { size }
        });
        case(self.0, random, sizes)
    }
}

fn case(element: ElementType, random: &mut Random, sizes: Sizes) -> Case {
    let Sizes { batch, channels, groups, out_channels, size, kernel, stride, padding, dilation, out } = sizes;
    let image = [channels, size[0], size[1]].map(|s| s as usize);
    let filter = [channels / groups, kernel[0], kernel[1]].map(|s| s as usize);
    let count = |sizes: [usize; 3], of: u32| sizes.iter().product::<usize>() * of as usize;
    let x = Stored::new(element, &random.floats(count(image, batch).max(1), 1.0));
    let weights = Stored::new(element, &random.floats(count(filter, out_channels).max(1), 1.0));

    let mut expected = Vec::new();
    for (b, o) in (0..batch).flat_map(|b| (0..out_channels).map(move |o| (b as usize, o as usize))) {
        let first_channel = o / (out_channels / groups) as usize * filter[0];
        for (i, j) in (0..out[0]).flat_map(|i| (0..out[1]).map(move |j| (i, j))) {
            let mut sum = 0.0;
            for tap in 0..count(filter, 1) {
                let (channel, y, z) =
                    (tap / filter[2] / filter[1], tap / filter[2] % filter[1], tap % filter[2]);
                let at = |axis: usize, place: u32, tap: usize| {
                    let from_edge = place * stride[axis] + tap as u32 * dilation[axis];
                    from_edge.checked_sub(padding[axis]).filter(|at| *at < size[axis]).map(|at| at as usize)
                };
                if let (Some(row), Some(column)) = (at(0, i, y), at(1, j, z)) {
                    let from =
                        ((b * image[0] + first_channel + channel) * image[1] + row) * image[2] + column;
                    sum += weights.values[o * count(filter, 1) + tap] * x.values[from];
                }
            }
            expected.push(Some(sum));
        }
    }
    expected.resize(expected.len().max(1), None); // No device binds an empty buffer.
    let label = format!(
        "{batch} × {channels} × {size:?} by {out_channels} × {kernel:?} in {groups}, stride {stride:?}, padding {padding:?}, \
         dilation {dilation:?}, to {out:?}"
    );
    let constants: Vec<usize> = sizes.constants().iter().map(|c| *c as usize).collect();
    let build = Build::new(Kernel::Conv2d(element), label, &constants).bytes(x.bytes).bytes(weights.bytes);
    build.poison(expected.len() * 4).expect_f32(2, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_sizes_match_the_literature() {
        assert_eq!(out_size(224, 6, 7, 2, 1), 112);
        assert_eq!(out_size(5, 0, 3, 1, 2), 1);
        assert_eq!(out_size(4, 0, 3, 1, 2), 0);
        assert_eq!([out_size(4, 0, 0, 1, 1), out_size(4, 0, 1, 0, 1)], [0, 0]);
        assert_eq!(out_size(u32::MAX, u32::MAX, 1, 1, 1), u32::MAX);
    }

    #[test]
    fn rejects_impossible_sizes() {
        let sizes = Sizes {
            batch: 2,
            channels: 6,
            groups: 3,
            out_channels: 9,
            size: [5, 5],
            kernel: [3, 3],
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
            out: [3, 3],
        };
        let extents_of = |sizes: Sizes| {
            let mut out = [7; 3];
            extents(ElementType::F16, &sizes.constants(), &mut out);
            out
        };
        assert_eq!(extents_of(sizes), [600, 324, 648]);
        assert_eq!(extents_of(Sizes { batch: 0, ..sizes }), [0; 3]);
        assert_eq!(grid(&Sizes { out: [0, 3], ..sizes }.constants()), [0, 1, 1]);
        assert_eq!(grid(&Sizes { out: [9, 9], ..sizes }.constants()), [2 * 3 * 2, 1, 1]);
        for wrong in [
            Sizes { groups: 0, ..sizes },
            Sizes { groups: 2, ..sizes },
            Sizes { padding: [0, 1 << 31], ..sizes },
            Sizes { stride: [1 << 30, 1], ..sizes },
            Sizes { dilation: [1, 1 << 30], ..sizes },
            Sizes { out: [1 << 16, 1 << 16], ..sizes },
            Sizes { kernel: [1 << 16, 1 << 15], dilation: [0, 0], ..sizes },
            Sizes { batch: 1 << 31, ..sizes },
        ] {
            assert_eq!(extents_of(wrong), [IMPOSSIBLE; 3], "{:?}", wrong.constants());
        }
    }
}
