//! Test cases: their structure, their construction, and the check of a launch's results.

use super::RowShape;
use crate::blocks::{TensorType, dequantise, quantise};
use crate::kernel::{Activations, ElementType, Kernel};
use crate::kv::CacheLayout;
use crate::{half_rows, quantize};
use half::{bf16, f16};

/// Expected contents of a binding after a launch. Where a value is `None`, the launch must leave that part of
/// the binding unchanged.
#[derive(Clone, Debug)]
pub enum Content {
    /// f32 values. NaN matches NaN.
    F32(Vec<Option<f64>>),
    /// f32 values. Where the value is `None`, the check accepts any value.
    SomeF32(Vec<Option<f64>>),
    /// f16 values. NaN matches NaN.
    F16(Vec<Option<f64>>),
    /// Keys or values in a quantized cache, in the order of an f32 cache. The 32 values of a quantized block
    /// are all `None` or none of them is. NaN matches NaN.
    Cache {
        /// Layout of the buffer.
        layout: CacheLayout,
        /// Expected values, after quantization.
        values: Vec<Option<f64>>,
    },
    /// f32 values that the kernel copies rather than computes. They must be equal, regardless of the
    /// tolerance. NaN matches NaN.
    Same(Vec<Option<f32>>),
    /// Copied f32 values. Where the value is `None`, the check accepts any value.
    SomeSame(Vec<Option<f64>>),
    /// Values of an operator's type, padded to 32-bit words. The launch writes all of them. For 16-bit types,
    /// the error is the amount by which a result is further from the expected value than the nearest
    /// representable value. Infinities and NaN must match.
    Elements {
        /// Type of the values.
        element: ElementType,
        /// Expected values before rounding.
        values: Vec<f64>,
    },
    /// 32-bit words, compared bit for bit.
    Words(Vec<Option<u32>>),
    /// Words that are compared bit for bit, and f32 values. `None` in both lists accepts any word.
    Both {
        /// Words.
        words: Vec<Option<u32>>,
        /// Values.
        values: Vec<Option<f64>>,
    },
    /// Rows of a route: the ids of `used` experts, compared bit for bit, then their weights. NaN matches NaN.
    Routes {
        /// Number of experts per row.
        used: usize,
        /// Ids of all rows.
        ids: Vec<Option<u32>>,
        /// Weights of all rows.
        weights: Vec<Option<f64>>,
    },
    /// File blocks, padded to 32-bit words. The error is the amount by which their distance from `values`
    /// exceeds that of the reference's blocks. Small excesses from ties do not count.
    Blocks {
        /// Type of the blocks.
        tensor_type: TensorType,
        /// Values that the kernel quantized.
        values: Vec<f32>,
    },
    /// Rows of activations with `columns` columns each. The launch must not write a row that is `None`.
    Rows {
        /// Type of the activations.
        activations: Activations,
        /// Columns per row.
        columns: usize,
        /// Values of each row.
        rows: Vec<Option<Vec<f64>>>,
    },
}

/// Expected contents of one binding.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Index of the binding.
    pub binding: usize,
    /// Expected contents.
    pub content: Content,
}

/// One launch of a kernel: its inputs and expected outputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name for messages.
    pub label: String,
    /// Kernel that is launched.
    pub kernel: Kernel,
    /// Constants, in the ABI's order.
    pub constants: Vec<u32>,
    /// Contents of the bindings before the launch, in the ABI's order. Values that the launch must write are
    /// NaN or 0xFF bytes. Where the launch must write NaN, they are numbers instead.
    pub bindings: Vec<Vec<u8>>,
    /// Expected contents after the launch. All bindings that are not in this list must be unchanged.
    pub expected: Vec<Expected>,
    /// Maximum relative error ‖out − expected‖ / ‖expected‖. In the cases of a variant, this is the variant's
    /// bound. Otherwise it is the kernel's bound.
    pub tolerance: f64,
}

impl Case {
    /// Checks the contents of the bindings after the launch. Returns the largest relative error of the
    /// outputs.
    ///
    /// # Errors
    /// Describes the failure: an error that is NaN or exceeds the tolerance, or changed bytes outside the
    /// output.
    pub fn check(&self, after: &[Vec<u8>]) -> Result<f64, String> {
        let lengths = |bindings: &[Vec<u8>]| bindings.iter().map(Vec::len).collect::<Vec<_>>();
        if lengths(after) != lengths(&self.bindings) {
            return Err(format!("{}: bindings of {:?} bytes", self.label, lengths(after)));
        }
        let mut worst: f64 = 0.0;
        for (i, (before, after)) in self.bindings.iter().zip(after).enumerate() {
            let error = match self.expected.iter().find(|e| e.binding == i) {
                None if before == after => 0.0,
                None => return Err(format!("{}: binding {i} has changed", self.label)),
                Some(expected) => expected
                    .content
                    .error(before, after)
                    .map_err(|e| format!("{}: binding {i}: {e}", self.label))?,
            };
            if error.is_nan() || error > self.tolerance {
                return Err(format!("{}: binding {i}: relative error {error:e}", self.label));
            }
            worst = worst.max(error);
        }
        Ok(worst)
    }
}

impl Content {
    fn error(&self, before: &[u8], after: &[u8]) -> Result<f64, String> {
        match self {
            Content::F32(values) => {
                error_of_values(values, before, after, |b: [u8; 4]| f64::from(f32::from_le_bytes(b)))
            }
            Content::SomeF32(values) => error_of_some(values, after),
            Content::Both { words, values } => {
                let pairs = words.iter().zip(after.as_chunks::<4>().0).enumerate();
                for (i, (word, bytes)) in pairs {
                    let after = u32::from_le_bytes(*bytes);
                    if word.is_some_and(|word| word != after) {
                        return Err(format!("word {i} is {after:08x} and not {word:08x?}"));
                    }
                }
                if words.len() == values.len() { error_of_some(values, after) } else { Err("lengths".into()) }
            }
            Content::F16(values) => {
                error_of_values(values, before, after, |b: [u8; 2]| f16::from_le_bytes(b).to_f64())
            }
            Content::Cache { layout, values } => error_of_cache(*layout, values, before, after),
            Content::SomeSame(values) => {
                let after = after.as_chunks::<4>().0;
                let same = |e: f64, v: f64| e == v || (e.is_nan() && v.is_nan());
                let pairs = values.iter().zip(after).enumerate();
                for (i, (expected, bytes)) in pairs {
                    let value = f64::from(f32::from_le_bytes(*bytes));
                    match expected {
                        Some(expected) if !same(*expected, value) => {
                            return Err(format!("value {i} is {value} and not {expected}"));
                        }
                        _ => {}
                    }
                }
                if after.len() == values.len() { Ok(0.0) } else { Err(format!("{} values", after.len())) }
            }
            Content::Same(values) => {
                let same = |e: &f32, v: f32| *e == v || (e.is_nan() && v.is_nan());
                all_words(values, before, after, |e, word| same(e, f32::from_bits(word)))
            }
            Content::Elements { element: ElementType::F32, values } => {
                let values: Vec<_> = values.iter().copied().map(Some).collect();
                error_of_values(&values, before, after, |b: [u8; 4]| f64::from(f32::from_le_bytes(b)))
            }
            Content::Elements { element, values } => rounding(*element, values, after),
            Content::Words(words) => all_words(words, before, after, |e, word| *e == word),
            Content::Routes { used, ids, weights } => {
                let [before, after] = [before, after].map(|route| parts_of_route(route, *used));
                all_words(ids, &before[0], &after[0], |id, word| *id == word)?;
                let read = |bytes: [u8; 4]| f64::from(f32::from_le_bytes(bytes));
                error_of_values(weights, &before[1], &after[1], read)
            }
            Content::Blocks { tensor_type, values } => excess(*tensor_type, values, after),
            Content::Rows { activations, columns, rows } => {
                let mut sums = Distance::default();
                let bytes = activations.row_bytes(*columns);
                for (i, expected) in rows.iter().enumerate() {
                    let range = i * bytes..(i + 1) * bytes;
                    match expected {
                        None if before[range.clone()] == after[range.clone()] => {}
                        None => return Err(format!("row {i} has changed")),
                        Some(expected) => {
                            let values = values_of_row(*activations, &after[range], *columns)
                                .map_err(|e| format!("row {i}: {e}"))?;
                            expected.iter().zip(values).for_each(|(e, v)| sums.add(*e, v));
                        }
                    }
                }
                let end = rows.len() * bytes;
                if before[end..] != after[end..] {
                    Err("bytes outside the expected results have changed".into())
                } else {
                    Ok(sums.relative())
                }
            }
        }
    }
}

/// Returns the bytes of all ids in a route, and those of all weights.
fn parts_of_route(route: &[u8], used: usize) -> [Vec<u8>; 2] {
    let part = |number: usize| route.chunks(used * 4).skip(number).step_by(2).flatten().copied().collect();
    [part(0), part(1)]
}

fn rounding(element: ElementType, values: &[f64], after: &[u8]) -> Result<f64, String> {
    let (after, padding) = (after.as_chunks::<2>().0, values.len() % 2);
    if after.len() != values.len() + padding || after[values.len()..].iter().any(|rest| *rest != [0; 2]) {
        return Err(format!(
            "{} values where {} are expected, or padding that is not zero",
            after.len(),
            values.len()
        ));
    }
    let read = |bits: [u8; 2]| match element {
        ElementType::BF16 => bf16::from_le_bytes(bits).to_f64(),
        _ => f16::from_le_bytes(bits).to_f64(),
    };
    let round = |value: f64| match element {
        ElementType::BF16 => bf16::from_f64(value).to_f64(),
        _ => f16::from_f64(value).to_f64(),
    };
    let mut distance = Distance::default();
    for (i, (wanted, bytes)) in values.iter().zip(after).enumerate() {
        let (value, nearest) = (read(*bytes), round(*wanted));
        let is_nearest = value == nearest || (value.is_nan() && nearest.is_nan());
        match nearest.is_finite() {
            true if is_nearest => distance.add(*wanted, *wanted),
            true => distance.add(*wanted, wanted + (value - wanted).abs() - (nearest - wanted).abs()),
            false if is_nearest => {}
            false => return Err(format!("value {i} is {value} and not {nearest}")),
        }
    }
    Ok(distance.relative())
}

/// Tolerance for ties, as a fraction of the reference's distance. A scale or quant may lie halfway between
/// two integers. The last bit of a quotient then decides the rounding, and most GPUs do not round quotients
/// correctly. One 6-bit scale affects 32 values.
const TIES: f64 = 0.01;

/// Compares the relative error of `blocks` for `values` with that of the reference's blocks. Returns the
/// amount by which it is larger, beyond the tolerance for ties.
fn excess(tensor_type: TensorType, values: &[f32], blocks: &[u8]) -> Result<f64, String> {
    let bytes = values.len() / tensor_type.block_values() * tensor_type.block_bytes();
    let Some((blocks, padding)) = blocks.split_at_checked(bytes) else {
        return Err(format!("{} bytes where {bytes} are expected", blocks.len()));
    };
    if padding.iter().any(|byte| *byte != 0) {
        return Err(format!("the padding must be zero, but is {padding:?}"));
    }
    let mut reference = vec![0; bytes];
    quantise(tensor_type, values, &mut reference).map_err(|e| e.to_string())?;
    let distance = |blocks: &[u8]| {
        let mut decoded = vec![0.0; values.len()];
        dequantise(tensor_type, blocks, &mut decoded).map_err(|e| e.to_string())?;
        let mut distance = Distance::default();
        let pairs = values.iter().zip(decoded);
        pairs.for_each(|(value, decoded)| distance.add(f64::from(*value), f64::from(decoded)));
        Ok::<f64, String>(distance.relative())
    };
    let excess = distance(blocks)? - (1.0 + TIES) * distance(&reference)?;
    Ok(if excess < 0.0 { 0.0 } else { excess })
}

/// Decodes one row of activations to its values.
fn values_of_row(activations: Activations, row: &[u8], columns: usize) -> Result<Vec<f64>, String> {
    match activations {
        Activations::F32 => Ok(row.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()),
        Activations::Int8 => quantize::values(row, columns),
        Activations::F16 => half_rows::values(row, columns),
    }
}

fn error_of_cache(
    layout: CacheLayout,
    values: &[Option<f64>],
    before: &[u8],
    after: &[u8],
) -> Result<f64, String> {
    let mut distance = Distance::default();
    for at in layout.blocks(values.len()) {
        let expected: [Option<f64>; 32] = std::array::from_fn(|i| values[layout.index_in(at, i)]);
        if expected[0].is_none() && layout.get(at, before) != layout.get(at, after) {
            return Err(format!("block {at:?} has changed"));
        }
        for (expected, value) in expected.into_iter().zip(layout.values_at(at, after)) {
            match expected {
                Some(expected) if expected.is_nan() != value.is_nan() => {
                    return Err(format!("a value of block {at:?} is {value} and not {expected}"));
                }
                Some(expected) if !expected.is_nan() => distance.add(expected, f64::from(value)),
                _ => {}
            }
        }
    }
    Ok(distance.relative())
}

fn error_of_values<const N: usize>(
    values: &[Option<f64>],
    before: &[u8],
    after: &[u8],
    read: impl Fn([u8; N]) -> f64,
) -> Result<f64, String> {
    if after.len() != values.len() * N {
        return Err(format!("{} bytes where {} values are expected", after.len(), values.len()));
    }
    let mut distance = Distance::default();
    for (i, expected) in values.iter().enumerate() {
        let range = i * N..(i + 1) * N;
        match expected {
            None if before[range.clone()] == after[range.clone()] => {}
            None => return Err(format!("value {i} has changed")),
            Some(expected) => {
                let value = read(after.as_chunks::<N>().0[i]);
                match (expected.is_nan(), value.is_nan()) {
                    (true, true) => {}
                    (true, false) => return Err(format!("value {i} is {value} and not NaN")),
                    (false, _) => distance.add(*expected, value),
                }
            }
        }
    }
    Ok(distance.relative())
}

/// Returns the error of the values that are expected.
fn error_of_some(values: &[Option<f64>], after: &[u8]) -> Result<f64, String> {
    let after = after.as_chunks::<4>().0;
    if after.len() != values.len() {
        return Err(format!("{} values where {} are expected", after.len(), values.len()));
    }
    let mut distance = Distance::default();
    for (expected, bytes) in values.iter().zip(after) {
        expected.iter().for_each(|e| distance.add(*e, f64::from(f32::from_le_bytes(*bytes))));
    }
    Ok(distance.relative())
}

/// Checks that all words have their expected values. Where the expected value is `None`, the word must be
/// unchanged.
fn all_words<T: std::fmt::Debug>(
    expected: &[Option<T>],
    before: &[u8],
    after: &[u8],
    is_right: impl Fn(&T, u32) -> bool,
) -> Result<f64, String> {
    let (before, after) = (before.as_chunks::<4>().0, after.as_chunks::<4>().0);
    if after.len() != expected.len() {
        return Err(format!("{} words where {} are expected", after.len(), expected.len()));
    }
    for (i, ((before, after), expected)) in before.iter().zip(after).zip(expected).enumerate() {
        match expected {
            None if before == after => {}
            None => return Err(format!("value {i} has changed")),
            Some(expected) if is_right(expected, u32::from_le_bytes(*after)) => {}
            Some(expected) => return Err(format!("value {i} is {after:02x?} and not {expected:?}")),
        }
    }
    Ok(0.0)
}

/// Accumulates ‖out − expected‖ and ‖expected‖, value by value.
#[derive(Default)]
struct Distance {
    difference: f64,
    expected: f64,
}

impl Distance {
    fn add(&mut self, expected: f64, value: f64) {
        self.difference += (value - expected).powi(2);
        self.expected += expected.powi(2);
    }

    fn relative(&self) -> f64 {
        match (self.difference == 0.0, self.expected == 0.0) {
            (true, _) => 0.0,
            (false, true) => f64::INFINITY,
            (false, false) => (self.difference / self.expected).sqrt(),
        }
    }
}

/// Returns the first `written` values. Replaces all later values by `None`, because the launch must not
/// change them.
pub(crate) fn untouched_after(values: Vec<f64>, written: usize) -> Vec<Option<f64>> {
    values.into_iter().enumerate().map(|(i, v)| (i < written).then_some(v)).collect()
}

/// Builder that adds the bindings of a case one by one.
pub(crate) struct Build(Case);

impl Build {
    pub fn new(kernel: Kernel, label: String, constants: &[usize]) -> Self {
        Self(Case {
            label: format!("{kernel}: {label}"),
            kernel,
            constants: constants.iter().map(|c| *c as u32).collect(),
            bindings: Vec::new(),
            expected: Vec::new(),
            tolerance: kernel.bound(),
        })
    }

    pub fn bytes(mut self, bytes: Vec<u8>) -> Self {
        self.0.bindings.push(bytes);
        self
    }

    pub fn words(self, words: &[u32]) -> Self {
        self.bytes(words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }

    pub fn floats(self, values: &[f32]) -> Self {
        self.bytes(values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Adds a binding of 0xFF bytes, which are NaN in every float format.
    pub fn poison(self, bytes: usize) -> Self {
        self.bytes(vec![0xff; bytes])
    }

    pub fn expect(mut self, binding: usize, content: Content) -> Self {
        self.0.expected.push(Expected { binding, content });
        self
    }

    pub fn expect_f32(self, binding: usize, values: Vec<Option<f64>>) -> Case {
        self.expect(binding, Content::F32(values)).done()
    }

    /// Adds an output binding of poisoned values of type `element`. The launch writes all of them.
    pub fn expect_elements(self, binding: usize, element: ElementType, values: Vec<f64>) -> Case {
        let bytes = (values.len() as u64 * element.bytes()).next_multiple_of(4);
        self.poison(bytes as usize).expect(binding, Content::Elements { element, values }).done()
    }

    /// Adds an output binding of poisoned rows of activations. The launch writes only the rows in use.
    pub fn expect_rows(
        self,
        binding: usize,
        activations: Activations,
        values: &[f64],
        shape: RowShape,
        columns: usize,
    ) -> Case {
        let written = |(i, row): (usize, &[f64])| (i < shape.rows).then(|| row.to_vec());
        let rows = values.chunks_exact(columns).enumerate().map(written).collect();
        self.poison(shape.capacity * activations.row_bytes(columns))
            .expect(binding, Content::Rows { activations, columns, rows })
            .done()
    }

    pub fn done(self) -> Case {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::NumericsClass;

    fn case() -> Case {
        let build = Build::new(Kernel::Add, "test".into(), &[]).floats(&[1.0]).floats(&[f32::NAN, 5.0]);
        build.expect_f32(1, vec![Some(2.0), None])
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn accepts_right_and_rejects_wrong_results() {
        let check = |first: &[f32], second: &[f32]| case().check(&[floats(first), floats(second)]);
        assert_eq!(check(&[1.0], &[2.0, 5.0]), Ok(0.0));
        assert!(check(&[1.0], &[2.000_001, 5.0]).is_ok_and(|e| e > 1e-7));
        for (first, second) in
            [(1.0, [2.0001, 5.0]), (1.0, [f32::NAN, 5.0]), (1.0, [2.0, 6.0]), (7.0, [2.0, 5.0])]
        {
            assert!(check(&[first], &second).is_err(), "{first} {second:?}");
        }
    }

    #[test]
    fn expects_nan_only_where_stated() {
        let check = |value: f32| {
            let values = vec![Some(f64::NAN), Some(2.0)];
            let case = Build::new(Kernel::Add, "test".into(), &[]).floats(&[0.0; 2]).expect_f32(0, values);
            case.check(&[floats(&[value, 2.0])])
        };
        assert_eq!(check(f32::NAN), Ok(0.0));
        assert!(check(0.0).is_err());
    }

    /// Returns whether the check of `content` accepts a binding whose three words are 7 before the
    /// launch and equal `after` after it.
    fn passes(content: Content, after: [u32; 3]) -> bool {
        let case = Build::new(Kernel::TopK, "test".into(), &[]).words(&[7; 3]).expect(0, content).done();
        case.check(&[after.iter().flat_map(|w| w.to_le_bytes()).collect()]).is_ok()
    }

    #[test]
    fn ignores_values_that_may_be_anything() {
        let content = || Content::SomeF32(vec![Some(2.0), None, Some(0.0)]);
        let (two, nan) = (2_f32.to_bits(), f32::NAN.to_bits());
        assert!(passes(content(), [two, 7, 0]) && passes(content(), [two, nan, 0]));
        assert!(!passes(content(), [two, 7, two]) && !passes(content(), [nan, 7, 0]));
        assert!(!passes(Content::SomeF32(vec![None; 2]), [0; 3]));
    }

    #[test]
    fn words_and_values_of_one_binding_are_both_checked() {
        let content = || Content::Both {
            words: vec![Some(5), None, Some(u32::MAX)],
            values: vec![None, Some(2.0), None],
        };
        let two = 2_f32.to_bits();
        assert!(passes(content(), [5, two, u32::MAX]) && passes(content(), [5, two + 1, u32::MAX]));
        assert!(
            !passes(content(), [4, two, u32::MAX]) && !passes(content(), [5, f32::NAN.to_bits(), u32::MAX])
        );
        assert!(!passes(content(), [5, two + 999, u32::MAX]) && !passes(content(), [5, two, 7]));
    }

    #[test]
    fn rounded_values_may_be_either_neighbour() {
        let error = |values: &[f32], wanted: &[f64]| {
            let bits = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect::<Vec<_>>();
            rounding(ElementType::F16, wanted, &bits)
        };
        let (even, odd) = (1.0, 1.0 + 2_f32.powi(-10)); // The midpoint is 1 + 2^-11.
        let tie = 1.0 + 2_f64.powi(-11);
        assert!(error(&[even, 0.0], &[tie - 1e-8]) == Ok(0.0));
        assert!(error(&[odd, 0.0], &[tie - 1e-8]).is_ok_and(|e| e > 0.0 && e < 1e-7));
        assert!(error(&[odd, 0.0], &[1.0]).is_ok_and(|e| e > 9e-4));
        assert!(error(&[f32::INFINITY, f32::NAN], &[1e6, f64::NAN]) == Ok(0.0));
        assert!(error(&[f32::NAN, 0.0], &[1.0]).is_ok_and(f64::is_nan));
        for (values, wanted) in [([1.0, 1.0], &[1.0][..]), ([6e4, 0.0], &[1e6]), ([0.0, 0.0], &[f64::NAN])] {
            assert!(error(&values, wanted).is_err(), "{wanted:?}");
        }
        let words = passes(
            Content::Elements { element: ElementType::F32, values: vec![1.0; 3] },
            [1_f32.to_bits(); 3],
        );
        assert!(words);
    }

    #[test]
    fn exact_content_has_no_tolerance() {
        let words = |after| passes(Content::Words(vec![Some(5), Some(u32::MAX), None]), after);
        assert!(words([5, u32::MAX, 7]));
        assert!(!words([4, u32::MAX, 7]) && !words([5, u32::MAX, 8]) && !words([5, 0, 7]));

        let (one, nan) = (1_f32.to_bits(), f32::NAN.to_bits());
        let same = |after| passes(Content::Same(vec![Some(1.0), Some(f32::NAN), None]), after);
        assert!(same([one, nan, 7]) && same([one, nan | 1 << 31 | 5, 7]));
        assert!(!same([one + 1, nan, 7]) && !same([nan, nan, 7]));
        assert!(!same([one, one, 7]) && !same([one, nan, nan]));
        assert!(!passes(Content::Words(vec![None; 2]), [7; 3]));
    }

    #[test]
    fn routes_need_the_ids_and_close_weights() {
        let route = |id: u32, weight: f32, nan: f32| {
            let words = [3, id, 1f32.to_bits(), weight.to_bits(), 9, 9, nan.to_bits(), 2f32.to_bits()];
            words.iter().flat_map(|word: &u32| word.to_le_bytes()).collect::<Vec<u8>>()
        };
        let ids = vec![Some(3), Some(5), None, None];
        let weights = vec![Some(1.0), Some(0.5), Some(f64::NAN), None];
        let content = Content::Routes { used: 2, ids, weights };
        let error = |after: &[u8]| content.error(&route(0, 0.0, 0.0), after);
        assert!(error(&route(5, 0.5, f32::NAN)) == Ok(0.0));
        assert!(error(&route(5, 0.6, f32::NAN)).is_ok_and(|error| error > 0.05));
        assert!(error(&route(5, f32::NAN, f32::NAN)).is_ok_and(f64::is_nan));
        assert!(error(&route(4, 0.5, f32::NAN)).is_err() && error(&route(5, 0.5, 0.0)).is_err());
    }

    #[test]
    fn blocks_must_be_as_good_as_the_references() {
        let kind = TensorType::Q5_K;
        let values: Vec<f32> = (0..23 * 256).map(|i| (i as f32 * 0.7).sin() + (i / 32 % 7) as f32).collect();
        let mut blocks = vec![0; 23 * kind.block_bytes()];
        quantise(kind, &values, &mut blocks).unwrap();
        assert_eq!(excess(kind, &values, &blocks), Ok(0.0));
        // Blocks of nearly equal values have almost the same distance. A wrong sub-block increases it.
        let all = blocks.clone();
        let last = blocks.len() - 32;
        blocks[last..].iter_mut().for_each(|byte| *byte ^= 0xf0);
        assert!(excess(kind, &values, &blocks).is_ok_and(|e| e > NumericsClass::Exact.tolerance()));
        let other: Vec<f32> = values.iter().map(|x| x * (1.0 + 1e-4)).collect();
        quantise(kind, &other, &mut blocks).unwrap();
        assert!(blocks != all);
        assert_eq!(excess(kind, &values, &blocks), Ok(0.0));
    }
}
