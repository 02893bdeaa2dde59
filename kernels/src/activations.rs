//! The choice of a product's activation type by a device's capabilities.

use crate::blocks::TensorType;
use crate::kernel::{Activations, Kernel};
use crate::layout::{Layout, layout_for};
use crate::table::{preferred, select};
use crate::variant::Variant;
use ragtag_hal::Caps;

/// Returns the activation type for products of weights of type `tensor_type` and up to `rows` rows on a
/// device with `caps`.
///
/// For a `wanted` type of f32, the result is f32. For int8, the result is the fastest type that the device
/// supports: f16 if its matrix units are faster for `rows` rows, or its f16 arithmetic for weights without
/// blocks, otherwise int8 for weights with integer quants, and f32 for other weights. For f16, the result is
/// f16 if any variant supports it, even a slow one. Before a product with f16 activations, the program
/// dequantizes weights with integer quants to f16, unless the product decodes them itself.
pub fn activations_for(tensor_type: TensorType, wanted: Activations, caps: &Caps, rows: u32) -> Activations {
    let quantised = tensor_type.block_values() > 1;
    let offers = |kernel| match wanted {
        Activations::F32 => false,
        Activations::Int8 => preferred(kernel, caps, rows).is_some(),
        Activations::F16 => select(kernel, caps, rows).is_some(),
    };
    let product = Kernel::MatMul(TensorType::F16, Activations::F16);
    let f16 = if quantised {
        // Without matrix units, dot products of int8 are faster.
        let is_slower =
            wanted == Activations::Int8 && select(product, caps, rows).is_some_and(Variant::adds_in_f16);
        let widened = offers(Kernel::Widen(tensor_type)) && offers(product) && !is_slower;
        widened || wanted != Activations::F32 && decodes(tensor_type, caps, rows)
    } else {
        layout_for(tensor_type, caps) == Layout::RowMajor
            && offers(Kernel::MatMul(tensor_type, Activations::F16))
    };
    match wanted {
        Activations::F32 => Activations::F32,
        _ if f16 => Activations::F16,
        _ if tensor_type.has_integer_quants() => Activations::Int8,
        _ => Activations::F32,
    }
}

/// Returns whether products of quantised weights of type `tensor_type` with up to `rows` rows of f16 activations decode
/// the weights themselves on a device with `caps`.
fn decodes(tensor_type: TensorType, caps: &Caps, rows: u32) -> bool {
    tensor_type.block_values() > 1
        && preferred(Kernel::MatMul(tensor_type, Activations::F16), caps, rows).is_some()
}

/// Returns whether fast products use f16 activations on a device with `caps`, for at least one tensor type
/// and number of rows.
pub fn has_f16_products(caps: &Caps) -> bool {
    TensorType::ALL.into_iter().any(|tensor_type| uses_f16(tensor_type, caps))
}

/// Returns whether fast products use matrix units on a device with `caps`. Only these make products of
/// quantised weights with f16 activations fast.
pub fn has_matrix_products(caps: &Caps) -> bool {
    TensorType::ALL.into_iter().any(|t| t.block_values() > 1 && uses_f16(t, caps))
}

/// Returns whether fast products of `tensor_type` use f16 activations for at least one number of rows.
fn uses_f16(tensor_type: TensorType, caps: &Caps) -> bool {
    let form = |rows| activations_for(tensor_type, Activations::Int8, caps, rows);
    (0..16).any(|bit| form(1 << bit) == Activations::F16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::{MATRICES_IN_WGSL, caps, gpu};
    use ragtag_hal::{Feature, KernelLanguage};

    #[test]
    fn products_take_the_requested_activations_if_supported() {
        let opencl = gpu(KernelLanguage::OpenClC, 1024, 48 << 10);
        let cuda = gpu(KernelLanguage::CudaC, 1024, 48 << 10);
        for tensor_type in TensorType::ALL {
            let quantised = tensor_type.block_values() > 1;
            let form = |wanted, caps: &Caps, rows| activations_for(tensor_type, wanted, caps, rows);
            for rows in [1, 8, 31, 512] {
                for caps in [&caps(&[]), &opencl, &cuda] {
                    assert_eq!(form(Activations::F32, caps, rows), Activations::F32);
                    // None of these devices has matrix units.
                    let fast =
                        if tensor_type.has_integer_quants() { Activations::Int8 } else { Activations::F32 };
                    assert_eq!(form(Activations::Int8, caps, rows), fast);
                    assert!(!has_f16_products(caps));
                }
                let halves = |caps: &Caps| form(Activations::F16, caps, rows) == Activations::F16;
                assert_eq!(halves(&caps(&[])), quantised, "{tensor_type}");
                assert_eq!(halves(&opencl), quantised, "{tensor_type}");
                assert_eq!(halves(&cuda), tensor_type != TensorType::F32, "{tensor_type}");
            }
        }
    }

    #[test]
    fn wide_products_take_f16_on_matrix_units() {
        use KernelLanguage::{CudaC, HipC, OpenClC, Wgsl};
        for (language, features) in [
            (CudaC, &[Feature::Sm70][..]),
            (CudaC, &[Feature::Sm80]),
            (CudaC, &[Feature::Sm90a]),
            (HipC, &[Feature::Wmma]),
            (HipC, &[Feature::Mfma, Feature::Wave64]),
            (OpenClC, &[Feature::Xmx]),
            (Wgsl, &MATRICES_IN_WGSL),
        ] {
            let features = features.iter().copied().collect();
            let caps = Caps { features, ..gpu(language, 1024, 227 << 10) };
            assert!(has_f16_products(&caps));
            for tensor_type in TensorType::ALL {
                let form = |wanted, rows| activations_for(tensor_type, wanted, &caps, rows);
                let (few, wide) = match tensor_type {
                    TensorType::F32 => (Activations::F32, Activations::F32),
                    TensorType::F16 | TensorType::BF16 | TensorType::F8_E4M3 => {
                        (Activations::F32, Activations::F16)
                    }
                    _ => (Activations::Int8, Activations::F16),
                };
                for rows in [1, 2, 4] {
                    assert_eq!(form(Activations::Int8, rows), few, "{tensor_type} × {rows}");
                }
                for rows in [32, 64, 2048] {
                    assert_eq!(form(Activations::Int8, rows), wide, "{tensor_type} × {rows}");
                    assert_eq!(form(Activations::F32, rows), Activations::F32);
                }
            }
        }
    }
}
