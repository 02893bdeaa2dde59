//! Convolution of images in batches.

use super::error::{Error, Result};
use super::pending::Pending;
use super::products::{same_type, shapes};
use super::tensor::{Input, Tensor};
use super::{Compute, word};
use ragtag_kernels::{Kernel, conv2d};

/// Parameters of a two-dimensional convolution. The first value of each array applies to the height, the
/// second to the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// Distance between neighbouring positions of the kernel, in image values.
    pub stride: [usize; 2],
    /// Number of zeros added at each end of the height and of the width.
    pub padding: [usize; 2],
    /// Distance in the image between neighbouring values of the kernel. A dilation of 1 leaves no gaps.
    pub dilation: [usize; 2],
    /// Number of groups into which the input and output channels are divided. Each group of output channels
    /// depends only on its own group of input channels.
    pub groups: usize,
}

impl Default for Conv2d {
    /// Returns parameters with stride 1, no padding, dilation 1 and one group.
    fn default() -> Self {
        Self { stride: [1; 2], padding: [0; 2], dilation: [1; 2], groups: 1 }
    }
}

impl Compute {
    /// Convolves images `[batch, channels, height, width]` with weights
    /// `[out channels, channels / groups, kernel height, kernel width]`. The result is f32.
    ///
    /// # Errors
    /// Returns a device error, or:
    /// - [`Error::Rank`] or [`Error::Shapes`] if the operator does not accept the shapes.
    /// - [`Error::Argument`] if a stride, a dilation or the number of groups is zero, or if `x` and `weights`
    ///   have different types.
    pub fn conv2d<'a, 'b>(
        &self,
        conv: &Conv2d,
        x: impl Into<Input<'a>>,
        weights: impl Into<Input<'b>>,
    ) -> Result<Pending<Tensor>> {
        const NAME: &str = "conv2d";
        let ((x, of_x), (weights, of_weights)) = (self.elements(NAME, x)?, self.elements(NAME, weights)?);
        let element = same_type(NAME, &[of_x, of_weights])?;
        let (&[batch, channels, height, width], &[out_channels, of_group, down, across]) =
            (x.shape.sizes(), weights.shape.sizes())
        else {
            let shape = if x.shape.rank() == 4 { weights.shape } else { x.shape };
            return Err(Error::Rank { operation: NAME, shape, rule: "four dimensions" });
        };
        let groups = conv.groups;
        if groups == 0 {
            return Err(Error::Argument { operation: NAME, what: "groups of 0".into() });
        }
        if of_group.checked_mul(groups) != Some(channels) || !out_channels.is_multiple_of(groups) {
            return Err(shapes(NAME, &x, &weights, "groups divide channels and out channels evenly"));
        }
        if conv.stride.contains(&0) || conv.dilation.contains(&0) {
            let what = format!("a stride of {:?} and a dilation of {:?}", conv.stride, conv.dilation);
            return Err(Error::Argument { operation: NAME, what });
        }
        let places = |axis: usize, size: usize, kernel: usize| {
            let padding = word(conv.padding[axis].saturating_mul(2));
            conv2d::out_size(
                word(size),
                padding,
                word(kernel),
                word(conv.stride[axis]),
                word(conv.dilation[axis]),
            )
        };
        let (rows, columns) = (places(0, height, down), places(1, width, across));
        let out = self.make([batch, out_channels, rows as usize, columns as usize])?;
        if out.memory.is_some() {
            let axes = [[down, across], conv.stride, conv.padding, conv.dilation];
            let sizes = [batch, channels, height, width, out_channels, groups];
            let constants = sizes.iter().chain(axes.as_flattened()).map(|size| word(*size));
            let constants: Vec<u32> = constants.chain([rows, columns]).collect();
            self.shared.launch(Kernel::Conv2d(element), 1, &[&x, &weights, &out], &constants)?;
        }
        Ok(self.pending(out))
    }
}
