//! Error bounds of variants. A bound is the maximum relative error of a kernel against its reference for the
//! same inputs. It is a part of the kernel's [`Accuracy`](crate::kernel::Accuracy). It limits the error of one
//! kernel's arithmetic. A numerics class limits the error of a model's results instead, and is usually far
//! looser.
//!
//! A bound is 4 to 10 times the largest error on any device so far (`docs/reports`), because other devices
//! sum in other orders. Bounds for outputs that are rounded to 8 or 16 bits have a smaller margin, because
//! their error depends on the values and hardly on the device.

use crate::blocks::TensorType;
use crate::kernel::{Activations, Kernel};
use crate::variant::Variant;
use ragtag_hal::Feature;

/// Features of devices whose matrix units convert both factors to bf16.
const UNITS_OF_BF16: [Feature; 5] =
    [Feature::Sm80, Feature::Sm90a, Feature::Mfma, Feature::Wmma, Feature::Xmx];

impl Variant {
    /// Returns the maximum relative error ‖out − ref‖ / ‖ref‖ of this variant. It equals the bound of the
    /// kernel, except on matrix units that round f16 activations to bf16 for bf16 weights, and for products
    /// that add up in f16.
    pub fn bound(&self) -> f64 {
        let rounds = self.requires.iter().any(|feature| UNITS_OF_BF16.contains(feature));
        match self.kernel {
            Kernel::MatMul(..) if self.adds_in_f16() => 5e-3,
            Kernel::MatMul(TensorType::BF16, Activations::F16) if rounds => 1e-2,
            kernel => kernel.bound(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::variants;

    #[test]
    fn no_bound_is_looser_than_its_class() {
        for variant in variants() {
            let (bound, class) = (variant.bound(), variant.class.tolerance());
            assert!(bound > 0.0 && bound <= class, "{} {}: {bound}", variant.kernel, variant.name);
        }
    }

    #[test]
    fn products_of_quantised_or_f16_inputs_match_f32_sums() {
        let rounds = |variant: &&Variant| variant.bound() > 1e-5 && !variant.adds_in_f16();
        // Optional products round weights.
        let is_product = |kernel: Kernel| matches!(kernel, Kernel::MatMul(..)) && !kernel.is_optional();
        let products = || variants().iter().filter(|v| is_product(v.kernel));
        assert!(
            products().filter(rounds).all(|v| v.kernel == Kernel::MatMul(TensorType::BF16, Activations::F16))
        );
        let names: Vec<_> = products().filter(rounds).map(|v| v.name).collect();
        assert!(
            names.iter().all(|name| ["mma", "mfma", "xmx"].iter().any(|units| name.contains(units))),
            "{names:?}"
        );
    }

    #[test]
    fn variant_cases_have_its_bound() {
        for variant in variants() {
            assert_eq!(
                variant.random_case(1).tolerance,
                variant.bound(),
                "{} {}",
                variant.kernel,
                variant.name
            );
        }
        let rounds =
            variants().iter().find(|v| v.bound() > v.kernel.bound()).expect("products with bf16 units");
        assert!(rounds.cases(1).iter().all(|case| case.tolerance == rounds.bound()));
    }
}
