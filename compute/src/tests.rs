//! Compares single operators with their definitions in float64, or with exact values, on every available
//! adapter.

use crate::{
    Attention, BinaryOperation, Compute, Conv2d, ElementType, Error, Gemm, Input, NumericsClass, Pairing,
    Pending, Reduction, Rope, Strided, Tensor, TensorType, Type, UnaryFunction,
};
use half::f16;
use ragtag_devices::{Backends, Config};
use ragtag_hal::{AdapterKind, DeviceId, Limits};
use ragtag_kernels::blocks;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use test_drivers::with_level_zero_on_opencl;
use test_support::{Child, nightly};

/// Full name of the test that runs the operators on the test driver of Level Zero.
const TEST_DRIVER: &str = "tests::operators_run_on_the_test_driver_of_level_zero";

/// Software devices that run each test for each commit: the start of the driver's name, by API.
const SOFTWARE: [(&str, &str); 3] =
    [("opencl", "Portable Computing Language"), ("vulkan", "llvmpipe"), ("level-zero", "")];

/// Runs `test` on every GPU, on the CPU, and on the devices in [`SOFTWARE`]. The nightly run uses every software
/// device that is not identical to another. In the process of [`TEST_DRIVER`], uses only adapters of Level Zero.
fn everywhere(test: impl Fn(&Compute)) {
    let backends = Backends::new(&Config::default());
    let report = backends.probe();
    let in_use = |backend: &str| !Child::inside(TEST_DRIVER) || backend == "level-zero";
    let mut adapters: Vec<_> = report.adapters().filter(|adapter| in_use(&adapter.backend)).collect();
    adapters.dedup_by(|b, a| {
        a.kind == AdapterKind::Software
            && (&a.backend, &a.name, &a.driver) == (&b.backend, &b.name, &b.driver)
    });
    adapters.retain(|one| {
        let is_chosen =
            |(api, driver): &(&str, &str)| one.backend == *api && one.driver.name.starts_with(driver);
        nightly() || one.kind != AdapterKind::Software || SOFTWARE.iter().any(is_chosen)
    });
    for adapter in adapters {
        #[allow(clippy::print_stdout)] // a failure names its device
        {
            println!("{}", adapter.label());
        }
        let opened = backends.open(&[(adapter.clone(), DeviceId(0))], &Limits::default());
        test(&Compute::on(opened.unwrap().swap_remove(0)).unwrap());
    }
}

/// A waker that unparks a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs `future` to completion on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut random = SmallRng::seed_from_u64(seed);
    (0..count).map(|_| random.random_range(-1.0..1.0)).collect()
}

#[track_caller]
fn near(device: &Compute, out: &[f32], wanted: &[f64], class: NumericsClass) {
    assert_eq!(out.len(), wanted.len());
    let square = |x: f64| x * x;
    let difference: f64 = out.iter().zip(wanted).map(|(out, w)| square(f64::from(*out) - w)).sum();
    let error = (difference / wanted.iter().map(|w| square(*w)).sum::<f64>()).sqrt();
    let label = device.adapter().label();
    assert!(error <= class.tolerance(), "{label}: relative error {error:e}"); // fails for NaN
}

const EXACT: NumericsClass = NumericsClass::Exact;

#[test]
fn values_are_read_back_unchanged() {
    everywhere(|device| {
        let x = random(1, 3 * 5);
        let tensor = device.upload([3, 5], &x).unwrap();
        assert_eq!(device.read(&tensor).unwrap().wait().unwrap(), x);
        let half = device.cast(&tensor, ElementType::F16).unwrap();
        let halves: Vec<f32> = x.iter().map(|x| f16::from_f32(*x).to_f32()).collect();
        assert_eq!(block_on(device.read(&half).unwrap()).unwrap(), halves);
        let bytes = device.read_bytes(&half).unwrap().wait().unwrap();
        assert_eq!(bytes, x.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect::<Vec<u8>>());
        let copy = device.copy(&half).unwrap().wait().unwrap();
        assert_eq!(
            (copy.shape().sizes(), device.read(&copy).unwrap().wait().unwrap()),
            (&[3, 5][..], halves)
        );
        assert_eq!(device.read(&device.zeros([7]).unwrap()).unwrap().wait().unwrap(), [0.0; 7]);
    });
}

#[test]
fn transposes_slices_and_gathers() {
    everywhere(|device| {
        let x: Vec<f32> = (0..2 * 3 * 4).map(|i| i as f32).collect();
        let turned = device.transpose(([2, 3, 4], &x), &[2, 0, 1]).unwrap();
        assert_eq!(turned.queued().shape().sizes(), [4, 2, 3]);
        let wanted = |i: usize| x[(i / 3 % 2) * 12 + (i % 3) * 4 + i / 6];
        assert_eq!(device.read(&turned).unwrap().wait().unwrap(), (0..24).map(wanted).collect::<Vec<_>>());
        let part = device.slice(([2, 3, 4], &x), 1, 1..3).unwrap();
        assert_eq!(device.read(&part).unwrap().wait().unwrap()[6..10], [10.0, 11.0, 16.0, 17.0]);
        let row = device.gather(([6, 4], &x), &[5_u32, 0, 5]).unwrap();
        assert_eq!(device.read(&row).unwrap().wait().unwrap()[3..9], [23.0, 0.0, 1.0, 2.0, 3.0, 20.0]);
        let beyond = device.upload_indices([2], &[6, 1]).unwrap();
        let row = device.gather(([6, 4], &x), &beyond).unwrap();
        assert_eq!(device.read(&row).unwrap().wait().unwrap(), [0.0, 0.0, 0.0, 0.0, 4.0, 5.0, 6.0, 7.0]);
    });
}

#[test]
fn elementwise_and_row_operators_match_their_definitions() {
    everywhere(|device| {
        let (x, y) = (random(2, 6 * 35), random(3, 35));
        let f64s: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for function in [UnaryFunction::Gelu, UnaryFunction::Tanh, UnaryFunction::Silu] {
            let out = device.unary(function, ([6, 35], &x)).unwrap();
            let wanted: Vec<f64> = f64s.iter().map(|x| function.of(*x)).collect();
            near(device, &device.read(&out).unwrap().wait().unwrap(), &wanted, EXACT);
        }
        let out = device.binary(BinaryOperation::Mul, ([6, 5, 7], &x), ([5, 1], &y[..5])).unwrap();
        let wanted: Vec<f64> = f64s.iter().enumerate().map(|(i, x)| x * f64::from(y[i / 7 % 5])).collect();
        near(device, &device.read(&out).unwrap().wait().unwrap(), &wanted, EXACT);

        let out = device.reduce(Reduction::Mean, ([6, 5, 7], &x), 1).unwrap();
        assert_eq!(out.queued().shape().sizes(), [6, 7]);
        let mean = |i: usize| (0..5).map(|j| f64s[i / 7 * 35 + j * 7 + i % 7]).sum::<f64>() / 5.0;
        near(
            device,
            &device.read(&out).unwrap().wait().unwrap(),
            &(0..42).map(mean).collect::<Vec<_>>(),
            EXACT,
        );

        let rows = |f: &dyn Fn(&[f64]) -> Vec<f64>| f64s.chunks(35).flat_map(f).collect::<Vec<f64>>();
        let out = device.softmax(([6, 35], &x), 1).unwrap();
        let softmax = |row: &[f64]| {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(|x| x.exp() / sum).collect()
        };
        near(device, &device.read(&out).unwrap().wait().unwrap(), &rows(&softmax), EXACT);

        let weight = |i: usize| f64::from(y[i]);
        let out = device.rms_norm(([6, 35], &x), ([35], &y), 1e-5).unwrap();
        let norm = |row: &[f64]| {
            let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / 35.0 + 1e-5).sqrt();
            row.iter().enumerate().map(|(i, x)| x * scale * weight(i)).collect()
        };
        near(device, &device.read(&out).unwrap().wait().unwrap(), &rows(&norm), EXACT);

        let out = device.layer_norm(([6, 35], &x), ([35], &y), ([35], &y), 1e-5).unwrap();
        let norm = |row: &[f64]| {
            let mean = row.iter().sum::<f64>() / 35.0;
            let scale = 1.0 / (row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 35.0 + 1e-5).sqrt();
            row.iter().enumerate().map(|(i, x)| (x - mean) * scale * weight(i) + weight(i)).collect()
        };
        near(device, &device.read(&out).unwrap().wait().unwrap(), &rows(&norm), EXACT);
    });
}

#[test]
fn arg_max_and_top_k_find_the_largest_values() {
    everywhere(|device| {
        let x = [1.0, 5.0, 5.0, -3.0, f32::NAN, -2.0];
        let places = device.arg_max(([2, 3], &x)).unwrap();
        assert_eq!(device.read_indices(&places).unwrap().wait().unwrap(), [1, 2]);
        let (values, places) = device.top_k(([2, 3], &x), 2).unwrap().wait().unwrap();
        assert_eq!(device.read(&values).unwrap().wait().unwrap(), [5.0, 5.0, -2.0, -3.0]);
        assert_eq!(device.read_indices(&places).unwrap().wait().unwrap(), [1, 2, 2, 0]);
    });
}

#[test]
fn rope_rotates_heads_by_their_positions() {
    everywhere(|device| {
        let (rows, heads, dims) = (3, 2, 8);
        let x = random(4, rows * heads * dims);
        let positions = [0_u32, 7, 100_000];
        for pairing in [Pairing::Neighbours, Pairing::Halves] {
            let rope = Rope { pairing, dimensions: Some(6), ..Rope::default() };
            let out = device.rope(&rope, ([rows, heads, dims], &x), &positions).unwrap();
            let mut wanted: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for (i, head) in wanted.chunks_mut(dims).enumerate() {
                for pair in 0..3 {
                    let (a, b) =
                        if pairing == Pairing::Halves { (pair, pair + 3) } else { (2 * pair, 2 * pair + 1) };
                    let frequency = 10_000_f64.powf(-2.0 * pair as f64 / 6.0);
                    let (sin, cos) = (f64::from(positions[i / heads]) * frequency).sin_cos();
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
                }
            }
            near(device, &device.read(&out).unwrap().wait().unwrap(), &wanted, EXACT);
        }
    });
}

#[test]
fn quantises_and_dequantises_on_the_device() {
    everywhere(|device| {
        let x = random(5, 3 * 512);
        for tensor_type in TensorType::in_gguf().filter(|t| t.block_values() > 1) {
            let made = device.quantise(([3, 512], &x), tensor_type).unwrap();
            let values = device.read(&made).unwrap().wait().unwrap();
            let distance = |other: &[f32]| {
                x.iter().zip(other).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
            };
            let mut reference = vec![0; tensor_type.bytes(3 * 512).unwrap() as usize];
            blocks::quantise(tensor_type, &x, &mut reference).unwrap();
            let mut decoded = vec![0.0; 3 * 512];
            blocks::dequantise(tensor_type, &reference, &mut decoded).unwrap();
            assert!(distance(&values) <= distance(&decoded) * 1.001, "{tensor_type}");
            let uploaded = device.upload_blocks(tensor_type, [3, 512], &reference).unwrap();
            let wanted: Vec<f64> = decoded.iter().map(|x| f64::from(*x)).collect();
            near(device, &device.read(&uploaded).unwrap().wait().unwrap(), &wanted, EXACT);
        }
    });
}

#[test]
fn types_that_no_file_stores_have_no_blocks_on_the_device() {
    everywhere(|device| {
        let error = device.quantise(([1, 32], &[1.0; 32]), TensorType::F8_E4M3).err().unwrap();
        assert!(matches!(error, Error::Type { got: Type::Blocks(TensorType::F8_E4M3), .. }), "{error}");
    });
}

/// Computes A · Bᵀ for row-major matrices in f64. Both have rows of `k` values.
fn products(a: &[f32], b: &[f32], k: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    a.chunks(k).flat_map(|a| b.chunks(k).map(move |b| dot(a, b))).collect()
}

#[test]
fn multiplies_matrices() {
    everywhere(|device| {
        let (a, b, c) = (random(6, 5 * 33), random(7, 7 * 33), random(8, 5 * 7));
        let by_rows = Gemm { transpose_b: true, alpha: -1.5, ..Gemm::default() };
        let out = device.gemm_plus(&by_rows, ([5, 33], &a), ([7, 33], &b), 0.5, ([5, 7], &c)).unwrap();
        let product = products(&a, &b, 33);
        let wanted: Vec<f64> = product.iter().zip(&c).map(|(p, c)| -1.5 * p + 0.5 * f64::from(*c)).collect();
        near(device, &device.read(&out).unwrap().wait().unwrap(), &wanted, EXACT);

        // The batch has three products and a single B, which is the output of a transposition.
        let a = random(9, 3 * 5 * 33);
        let turned = device.transpose(([7, 33], &b), &[1, 0]).unwrap();
        let out = device.gemm(&Gemm::default(), ([3, 5, 33], &a), &turned).unwrap();
        assert_eq!(out.queued().shape().sizes(), [3, 5, 7]);
        near(device, &device.read(&out).unwrap().wait().unwrap(), &products(&a, &b, 33), EXACT);

        let half = |x: &Vec<f32>, shape: [usize; 2]| {
            device.cast((shape, x), ElementType::F16).unwrap().wait().unwrap()
        };
        let (a, b) = (half(&a, [15, 33]), half(&b, [7, 33]));
        let out = device.gemm(&Gemm { transpose_b: true, ..Gemm::default() }, &a, &b).unwrap();
        let [a, b] = [&a, &b].map(|x| device.read(x).unwrap().wait().unwrap());
        near(device, &device.read(&out).unwrap().wait().unwrap(), &products(&a, &b, 33), EXACT);
    });
}

#[test]
fn multiplies_parts_of_tensors() {
    everywhere(|device| {
        // The batch consists of two products of submatrices. A is transposed with leading dimension 9. B has
        // leading dimension 8. C has leading dimension 10 and a batch stride of 40.
        let strided = Strided { sizes: [4, 7, 5], batch: 2, leading: [9, 8, 10], strides: [45, 0, 40] };
        let (a, b, c) = (random(20, 2 * 45), random(21, 5 * 8), random(22, 2 * 40));
        let by = Gemm { transpose_a: true, alpha: 0.5, ..Gemm::default() };
        let out = device.gemm_strided(&by, &strided, ([2, 5, 9], &a), ([5, 8], &b), 2.0, ([2, 4, 10], &c));
        let out = device.read(&out.unwrap()).unwrap().wait().unwrap();
        let (mut part, mut wanted) = (Vec::new(), Vec::new());
        for (i, c) in c.iter().enumerate() {
            let (matrix, row, column) = (i / 40, i / 10 % 4, i % 10);
            if column >= 7 {
                assert_eq!(out[i], *c);
                continue;
            }
            let terms =
                (0..5).map(|d| f64::from(a[matrix * 45 + d * 9 + row]) * f64::from(b[d * 8 + column]));
            wanted.push(0.5 * terms.sum::<f64>() + 2.0 * f64::from(*c));
            part.push(out[i]);
        }
        near(device, &part, &wanted, EXACT);
        let refused = |strided: Strided| {
            device.gemm_strided(&by, &strided, ([2, 5, 9], &a), ([5, 8], &b), 2.0, ([2, 4, 10], &c))
        };
        let beyond = refused(Strided { leading: [9, 9, 10], ..strided }).unwrap_err().to_string();
        assert!(beyond.contains("[2, 5, 9], [5, 8] and [2, 4, 10]"), "{beyond}");
        let overlapping = Strided { leading: [9, 8, 6], ..strided };
        assert!(matches!(refused(overlapping), Err(Error::Argument { .. })));
    });
}

#[test]
fn operators_accept_16_bit_values_and_keep_the_type_unless_they_sum() {
    everywhere(|device| {
        for element in [ElementType::F16, ElementType::BF16] {
            let cast = |shape: &[usize], seed| {
                let count = shape.iter().product();
                device.cast((shape, &random(seed, count)), element).unwrap().wait().unwrap()
            };
            let values = |x: &Tensor| device.read(x).unwrap().wait().unwrap();
            let f64s = |x: &Tensor| values(x).into_iter().map(f64::from).collect::<Vec<_>>();
            let (x, y) = (cast(&[3, 5, 7], 23), cast(&[5, 1], 24));

            let kept = |out: Pending<Tensor>| {
                let out = out.wait().unwrap();
                assert_eq!(out.kind(), x.kind());
                values(&out)
            };
            let wanted: Vec<f64> = f64s(&x).into_iter().map(|x| UnaryFunction::Silu.of(x)).collect();
            near(device, &kept(device.unary(UnaryFunction::Silu, &x).unwrap()), &wanted, NumericsClass::Fast);
            let of_pair = f64s(&y);
            let wanted: Vec<f64> = f64s(&x).iter().enumerate().map(|(i, x)| x * of_pair[i / 7 % 5]).collect();
            let product = device.binary(BinaryOperation::Mul, &x, &y).unwrap();
            near(device, &kept(product), &wanted, NumericsClass::Fast);
            let heads = x.reshape([3, 1, 35]).unwrap();
            let rope = Rope { dimensions: Some(0), ..Rope::default() };
            assert_eq!(kept(device.rope(&rope, &heads, &[1, 2, 3]).unwrap()), values(&x));

            // The result must be bitwise equal to the result for the same values in f32.
            let wide = values(&x);
            let wide = || Input::from(([3, 5, 7], &wide));
            let row: Vec<f32> = random(25, 7);
            let row = || Input::from(([7], &row));
            for (narrow, wide) in [
                (device.reduce(Reduction::Sum, &x, 1), device.reduce(Reduction::Sum, wide(), 1)),
                (device.softmax(&x, 2), device.softmax(wide(), 2)),
                (device.layer_norm(&x, row(), row(), 1e-5), device.layer_norm(wide(), row(), row(), 1e-5)),
                (device.rms_norm(&x, row(), 1e-5), device.rms_norm(wide(), row(), 1e-5)),
            ] {
                let [narrow, wide] = [narrow, wide].map(|out| out.unwrap().wait().unwrap());
                assert_eq!(narrow.kind(), Type::Elements(ElementType::F32));
                assert_eq!(values(&narrow), values(&wide));
            }
            let [narrow, wide] = [device.arg_max(&x), device.arg_max(wide())]
                .map(|out| device.read_indices(&out.unwrap()).unwrap().wait().unwrap());
            assert_eq!(narrow, wide);
        }
        let two = device.binary(
            BinaryOperation::Add,
            &device.cast(([1], &[1.0]), ElementType::F16).unwrap(),
            ([1], &[1.0]),
        );
        assert!(matches!(two, Err(Error::Argument { .. })));
    });
}

#[test]
fn reduces_long_rows_in_two_steps() {
    everywhere(|device| {
        let count = 300_007;
        let mut x = random(26, count);
        x[200_000] = 7.0;
        let tensor = device.upload([1, count], &x).unwrap();
        let reduced =
            |reduction| device.read(&device.reduce(reduction, &tensor, 1).unwrap()).unwrap().wait().unwrap();
        let smallest = x.iter().copied().fold(f32::INFINITY, f32::min);
        assert_eq!([reduced(Reduction::Max), reduced(Reduction::Min)], [[7.0], [smallest]]);
        // Shift the values, so that the sum is not close to zero.
        let whole = device.binary(BinaryOperation::Add, &tensor, ([1], &[1.0])).unwrap();
        let sum: f64 = x.iter().map(|x| f64::from(x + 1.0)).sum();
        for (reduction, wanted) in [(Reduction::Sum, sum), (Reduction::Mean, sum / count as f64)] {
            let out = device.reduce(reduction, &whole, 1).unwrap();
            near(device, &device.read(&out).unwrap().wait().unwrap(), &[wanted], EXACT);
        }
    });
}

#[test]
fn multiplies_quantised_weights_in_both_classes() {
    everywhere(|device| {
        let (n, k) = (40, 512);
        let weights = random(10, n * k);
        // Tests each type with one class for a single row, and with the other class for several rows. Each
        // combination is a separate program, and some drivers take seconds to compile a program.
        let classes = [EXACT, NumericsClass::Fast];
        let types = [TensorType::F32, TensorType::F16, TensorType::Q4_0, TensorType::Q6_K];
        for (i, tensor_type) in types.into_iter().enumerate() {
            let mut file = vec![0; tensor_type.bytes((n * k) as u64).unwrap() as usize];
            blocks::quantise(tensor_type, &weights, &mut file).unwrap();
            let mut decoded = vec![0.0; n * k];
            blocks::dequantise(tensor_type, &file, &mut decoded).unwrap();
            let packed = device.weights(tensor_type, [n, k], &file).unwrap();
            for (j, rows) in [1, 9].into_iter().enumerate() {
                let (x, class) = (random(11, rows * k), classes[(i + j) % 2]);
                let out = device.matmul_quantised(&packed, ([rows, k], &x), class).unwrap();
                let out = device.read(&out).unwrap().wait().unwrap();
                near(device, &out, &products(&x, &decoded, k), class);
            }
        }
    });
}

#[test]
fn attention_and_convolution_match_their_definitions() {
    everywhere(|device| {
        let (heads, m, n, d) = (4, 3, 9, 16);
        let (q, k, v) = (random(12, heads * m * d), random(13, 2 * n * d), random(14, 2 * n * d));
        let causal = Attention { causal: true, ..Attention::default() };
        let shape = [1, 2, n, d];
        let out = device.attention(&causal, ([1, heads, m, d], &q), (shape, &k), (shape, &v)).unwrap();
        let mut wanted = vec![0.0; heads * m * d];
        for (i, out) in wanted.chunks_mut(d).enumerate() {
            let (kv, last) = (i / m / 2 * n * d, i % m + n - m);
            let row = |of: &[f32], j: usize| {
                of[kv + j * d..][..d].iter().map(|x| f64::from(*x)).collect::<Vec<_>>()
            };
            let score = |j: usize| {
                let dot: f64 = row(&k, j).iter().zip(&q[i * d..]).map(|(k, q)| k * f64::from(*q)).sum();
                (dot / (d as f64).sqrt()).exp()
            };
            let sum: f64 = (0..=last).map(score).sum();
            for j in 0..=last {
                out.iter_mut().zip(row(&v, j)).for_each(|(out, v)| *out += score(j) / sum * v);
            }
        }
        near(device, &device.read(&out).unwrap().wait().unwrap(), &wanted, EXACT);

        let (x, w) = (random(15, 2 * 5 * 6), random(16, 3 * 2 * 3 * 3));
        let conv = Conv2d { stride: [2, 1], padding: [1, 0], ..Conv2d::default() };
        let out = device.conv2d(&conv, ([1, 2, 5, 6], &x), ([3, 2, 3, 3], &w)).unwrap();
        assert_eq!(out.queued().shape().sizes(), [1, 3, 3, 4]);
        let at = |c: usize, i: isize, j: usize| match usize::try_from(i) {
            Ok(i) if i < 5 => f64::from(x[(c * 5 + i) * 6 + j]),
            _ => 0.0,
        };
        let mut wanted = Vec::new();
        for place in 0..3 * 3 * 4 {
            let (o, i, j) = (place / 12, place / 4 % 3, place % 4);
            let terms = (0..18).map(|t| {
                let (c, y, z) = (t / 9, t / 3 % 3, t % 3);
                f64::from(w[o * 18 + t]) * at(c, (2 * i + y) as isize - 1, j + z)
            });
            wanted.push(terms.sum());
        }
        near(device, &device.read(&out).unwrap().wait().unwrap(), &wanted, EXACT);
    });
}

#[test]
fn refuses_mismatched_arguments_by_name() {
    let device = Compute::open("cpu").unwrap();
    let said = |error: Error| error.to_string();
    let x = [0.0; 6];
    let at = |shape: [usize; 2]| Input::from((shape, &x));
    let error = said(device.gemm(&Gemm::default(), at([2, 3]), at([2, 3])).unwrap_err());
    assert!(error.contains("[2, 3] and [2, 3]"), "{error}");
    let error = said(device.binary(BinaryOperation::Add, at([2, 3]), at([3, 2])).unwrap_err());
    assert!(error.contains("[2, 3] and [3, 2]"), "{error}");
    let (left, right) = (at([2, 3]), ([2], &x[..2]));
    assert!(matches!(device.rms_norm(left, right, 1e-5), Err(Error::Shapes { .. })));
    assert!(matches!(device.softmax(at([2, 3]), 2), Err(Error::Axis { axis: 2, .. })));
    assert!(matches!(device.reduce(Reduction::Sum, at([2, 3]), 7), Err(Error::Axis { axis: 7, .. })));
    assert!(matches!(
        device.gather(at([2, 3]), &[0, 2]),
        Err(Error::Index { index: 2, place: 1, rows: 2, .. })
    ));
    assert!(matches!(device.upload([2, 2], &x), Err(Error::Length { values: 6, .. })));
    assert!(matches!(device.zeros([3, 0]), Err(Error::ZeroBytes { .. })));
    assert!(matches!(device.top_k(at([2, 3]), 4), Err(Error::Argument { .. })));
    assert!(matches!(device.quantise(at([2, 3]), TensorType::Q8_0), Err(Error::Blocks { .. })));
    assert!(matches!(device.upload(vec![usize::MAX, 2], &x), Err(Error::TooLarge { .. })));
    assert!(matches!(Compute::open("abacus:7"), Err(Error::Open(_))));
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let attention = Attention { scale: Some(scale), ..Attention::default() };
        let x = || Input::from(([1, 1, 2, 3], &x));
        assert!(matches!(device.attention(&attention, x(), x(), x()), Err(Error::Factor { .. })), "{scale}");
    }
    let (none, no_groups) = (Input::from(([1, 0, 2, 3], &[])), Conv2d { groups: 0, ..Conv2d::default() });
    let refused = device.conv2d(&no_groups, none, ([2, 0, 1, 1], &[]));
    assert!(matches!(refused, Err(Error::Argument { .. })));
    let other = Compute::open("cpu").unwrap().upload([6], &x).unwrap();
    assert!(matches!(device.unary(UnaryFunction::Exp, &other), Err(Error::OtherDevice { .. })));
}

#[test]
fn empty_dimensions_are_no_ops() {
    everywhere(|device| {
        let empty = device.upload([0, 4], &[]).unwrap();
        let out = device.unary(UnaryFunction::Exp, &empty).unwrap().wait().unwrap();
        assert_eq!((out.shape().sizes(), device.read(&out).unwrap().wait().unwrap()), (&[0, 4][..], vec![]));
        let sums = device.reduce(Reduction::Sum, &empty, 0).unwrap();
        assert_eq!(device.read(&sums).unwrap().wait().unwrap(), [0.0; 4]);
        assert!(matches!(device.reduce(Reduction::Max, &empty, 0), Err(Error::EmptyAxis { .. })));
        let product = device.gemm(&Gemm::default(), ([3, 0], &[]), &empty).unwrap();
        assert_eq!(device.read(&product).unwrap().wait().unwrap(), [0.0; 12]);
        let row = device.gather(([2, 3], &[0.0; 6]), &[0_u32; 0]).unwrap();
        assert_eq!(row.queued().shape().sizes(), [0, 3]);
    });
}

#[test]
fn memory_is_freed_with_the_last_tensor_and_work_outlives_its_inputs() {
    let limits = Limits { memory_bytes: Some(1 << 20), ..Limits::default() };
    let backends = Backends::new(&Config::default());
    let report = backends.probe();
    let processor = report.adapters().find(|adapter| adapter.backend == "cpu").unwrap();
    let opened = backends.open(&[(processor.clone(), DeviceId(0))], &limits);
    let device = Compute::on(opened.unwrap().swap_remove(0)).unwrap();
    let (n, ones) = (1 << 14, vec![1.0; 1 << 14]);
    let mut sum = device.upload([n], &ones).unwrap();
    // The device has memory for sixteen tensors.
    for _ in 0..300 {
        sum = device.binary(BinaryOperation::Add, &sum, ([1], &[1.0])).unwrap().queued().clone();
    }
    let other = device.clone();
    drop(device);
    let task = std::thread::spawn(move || block_on(other.read(&sum).unwrap()).unwrap());
    assert!(task.join().unwrap().iter().all(|x| *x == 301.0));
}

/// Tests that run on every adapter.
const OPERATORS: [fn(); 13] = [
    values_are_read_back_unchanged,
    transposes_slices_and_gathers,
    elementwise_and_row_operators_match_their_definitions,
    arg_max_and_top_k_find_the_largest_values,
    rope_rotates_heads_by_their_positions,
    quantises_and_dequantises_on_the_device,
    multiplies_matrices,
    multiplies_parts_of_tensors,
    operators_accept_16_bit_values_and_keep_the_type_unless_they_sum,
    reduces_long_rows_in_two_steps,
    multiplies_quantised_weights_in_both_classes,
    attention_and_convolution_match_their_definitions,
    empty_dimensions_are_no_ops,
];

#[test]
fn operators_run_on_the_test_driver_of_level_zero() {
    // Intel's compiler takes seconds per operator. The first ones, with matrices, use every feature of the backend.
    let count = if nightly() { OPERATORS.len() } else { 7 };
    let run = || OPERATORS[..count].iter().for_each(|test| test());
    with_level_zero_on_opencl(TEST_DRIVER, &[], run);
}
