//! Tests of CPU kernels. Runs every case twice on every variant that this machine supports: in one call, and
//! split into several calls.

use ragtag_hal::{Caps, Feature, HostBinding, HostCall, KernelLanguage, QueueLayout};
use ragtag_kernels::cases::Content;
use ragtag_kernels::{Case, Code, ElementType, Kernel, Variant, cases, select, variants};

/// Memory aligned to 64 bytes.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

struct Aligned(Vec<Line>, usize);

impl Aligned {
    fn new(bytes: &[u8]) -> Self {
        let mut lines = vec![Line([0; 64]); bytes.len().div_ceil(64)];
        for (line, bytes) in lines.iter_mut().zip(bytes.chunks(64)) {
            line.0[..bytes.len()].copy_from_slice(bytes);
        }
        Self(lines, bytes.len())
    }

    fn binding(&mut self) -> HostBinding {
        HostBinding::new(self.0.as_mut_ptr().cast(), self.1)
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|line| line.0).take(self.1).collect()
    }
}

fn has(feature: &Feature) -> bool {
    match feature {
        #[cfg(target_arch = "x86_64")]
        Feature::Avx2 => {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        }
        #[cfg(target_arch = "x86_64")]
        Feature::Avx512Vnni => {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vnni")
        }
        #[cfg(target_arch = "aarch64")]
        Feature::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
        _ => false,
    }
}

/// Returns the variants to test: those that this machine can run.
fn runnable() -> impl Iterator<Item = &'static Variant> {
    variants().iter().filter(|v| matches!(v.code, Code::Host(_)) && v.requires.iter().all(has))
}

/// Runs a case with its groups split into `pieces` calls. The calls run in reverse order, so the last groups
/// run first.
fn launch(variant: &Variant, case: &Case, pieces: u32) -> Vec<Vec<u8>> {
    let mut memory: Vec<Aligned> = case.bindings.iter().map(|b| Aligned::new(b)).collect();
    let bindings: Vec<HostBinding> = memory.iter_mut().map(Aligned::binding).collect();
    assert_eq!(case.constants.len(), variant.abi.constants);
    let mut extents = vec![0; variant.abi.bindings.len()];
    (variant.abi.extents)(&case.constants, &mut extents);
    for (i, (extent, binding)) in extents.iter().zip(&bindings).enumerate() {
        assert!(*extent <= binding.bytes() as u64, "{}: binding {i} needs {extent} bytes", case.label);
    }
    let grid = variant.grid(&case.constants, &Caps::default());
    let groups: u32 = grid.iter().product();
    let Code::Host(function) = variant.code else { panic!("{} is not a CPU variant", variant.name) };
    let call = HostCall { bindings: &bindings, constants: &case.constants, grid };
    for piece in (0..pieces).rev() {
        let (start, end) = (groups * piece / pieces, groups * (piece + 1) / pieces);
        // SAFETY: bindings hold the ABI's extents and are aligned; the features are there; nothing else runs.
        unsafe { function(&call, start..end) };
    }
    memory.iter().map(Aligned::bytes).collect()
}

#[test]
fn variants_match_the_references_for_any_split_of_groups() {
    let mut launches = 0;
    for variant in runnable() {
        for case in cases(variant.kernel, variant.layout, 11) {
            let whole = launch(variant, &case, 1);
            case.check(&whole).unwrap_or_else(|e| panic!("{} {e}", variant.name));
            assert!(
                whole == launch(variant, &case, 3),
                "{} {}: split groups differ",
                variant.name,
                case.label
            );
            launches += 2;
        }
    }
    assert!(launches > 200, "{launches}");
}

/// Increases the magnitude of the computed f32 outputs by the relative amount `part`. Returns whether any of
/// these outputs is not zero.
fn enlarge(case: &Case, memory: &mut [Vec<u8>], part: f64) -> bool {
    let mut any = false;
    for expected in &case.expected {
        let computed: Vec<bool> = match &expected.content {
            Content::F32(values) | Content::SomeF32(values) => values.iter().map(Option::is_some).collect(),
            Content::Elements { element: ElementType::F32, values } => vec![true; values.len()],
            _ => continue,
        };
        let words = memory[expected.binding].as_chunks_mut::<4>().0;
        for (word, _) in words.iter_mut().zip(computed).filter(|(_, computed)| *computed) {
            let value = f32::from_le_bytes(*word);
            *word = ((f64::from(value) * (1.0 + part)) as f32).to_le_bytes();
            any |= value != 0.0;
        }
    }
    any
}

#[test]
fn rejects_errors_of_ten_times_the_bound() {
    let mut enlarged = 0;
    for variant in runnable() {
        for case in variant.cases(11) {
            let mut after = launch(variant, &case, 1);
            if enlarge(&case, &mut after, 10.0 * variant.bound()) {
                assert!(case.check(&after).is_err(), "{} {}", variant.name, case.label);
                enlarged += 1;
            }
        }
    }
    assert!(enlarged > 200, "{enlarged}");
}

#[test]
fn selects_the_best_variant_for_a_processor() {
    for kernel in Kernel::all().into_iter().filter(|kernel| !kernel.is_optional()) {
        let name = |features: &[Feature]| select(kernel, &processor(features), 1).map(|v| v.name);
        assert_eq!(name(&[]), Some("portable"), "{kernel}");
        #[cfg(target_arch = "x86_64")]
        {
            assert_eq!(name(&[Feature::Avx2]), Some("avx2"), "{kernel}");
            assert_eq!(name(&[Feature::Avx2, Feature::Avx512Vnni]), Some("avx512-vnni"), "{kernel}");
        }
    }
}

/// Returns the capabilities of a processor with `features`.
fn processor(features: &[Feature]) -> Caps {
    Caps {
        languages: [KernelLanguage::Host].into(),
        features: features.iter().copied().collect(),
        queues: QueueLayout::Separate,
        records_programs: false,
        max_allocation_bytes: 1 << 40,
        max_binding_bytes: 1 << 40,
        binding_alignment_bytes: 64,
        copy_alignment_bytes: 1,
        parallel_units: 1,
        max_work_group_items: 1,
        local_memory_bytes: 0,
        clocks: Default::default(),
        gemm: None,
        sharing: Default::default(),
    }
}

#[test]
fn every_kernel_has_cases_that_can_fail() {
    for kernel in Kernel::all() {
        let cases = cases(kernel, None, 3);
        assert!(cases.len() >= 3, "{kernel}");
        let untouched = cases.iter().filter(|case| case.check(&case.bindings).is_ok()).count();
        assert!(untouched <= 1, "{kernel}: {untouched} cases pass without a launch"); // The case without rows.
    }
}

/// Rows of a binding. The width of a row and the stride between rows are in words.
#[derive(Clone, Copy)]
struct Rows {
    binding: usize,
    width: usize,
    stride: usize,
}

fn rows(binding: usize, width: usize, stride: usize) -> Rows {
    Rows { binding, width, stride }
}

/// Returns the rows of a binding that are in use.
fn rows_of(case: &Case, memory: &[Vec<u8>], Rows { binding, width, stride }: Rows) -> Vec<Vec<u8>> {
    let rows = u32::from_le_bytes(case.bindings[0].as_chunks().0[0]).min(case.constants[0]) as usize;
    memory[binding].chunks(stride * 4).take(rows).map(|row| row[..width * 4].to_vec()).collect()
}

#[test]
fn rows_do_not_depend_on_other_rows() {
    for variant in runnable() {
        for mut case in cases(variant.kernel, variant.layout, 5) {
            let constant = |i: usize| case.constants[i] as usize;
            let (input, output) = match variant.kernel {
                Kernel::MatMul(_, _) if constant(1) != 0 => continue, // It counts logit rows.
                Kernel::MatMul(_, activations) => {
                    let words = activations.row_bytes(constant(3)) / 4;
                    (rows(2, words, words), rows(3, constant(2), constant(5)))
                }
                Kernel::Attention(_) => {
                    let width = constant(4) * constant(6);
                    (rows(1, width, constant(9)), rows(4, width, width))
                }
                _ => break,
            };
            // Attention computes all rows.
            case.bindings[0][8..12].fill(0);
            let together = rows_of(&case, &launch(variant, &case, 1), output);
            for (row, expected) in together.iter().enumerate() {
                let mut alone = case.clone();
                move_row_to_front(&mut alone, row, [input, output]);
                let alone = rows_of(&alone, &launch(variant, &alone, 1), output);
                assert!(alone == [expected.clone()], "{} {} row {row}", variant.name, case.label);
            }
        }
    }
}

#[test]
fn more_blocks_than_a_group_takes_are_all_converted() {
    let kernels = [Kernel::DecodeBlocks, Kernel::EncodeBlocks];
    for variant in runnable().filter(|variant| kernels.contains(&variant.kernel)) {
        // An even number of blocks fills whole words.
        let cases = variant.cases(3);
        let few = cases.iter().find(|case| case.constants[1] % 2 == 0).expect("an even number of blocks");
        let repeated = |memory: &[Vec<u8>]| memory.iter().map(|bytes| bytes.repeat(200)).collect::<Vec<_>>();
        let mut many = Case { bindings: repeated(&few.bindings), ..few.clone() };
        many.constants[1] *= 200;
        assert!(
            variant.grid(&many.constants, &Caps::default())[0] > 1,
            "{} {} is one group",
            variant.name,
            variant.kernel
        );
        let expected = repeated(&launch(variant, few, 1));
        assert!(launch(variant, &many, 3) == expected, "{} {}", variant.name, variant.kernel);
    }
}

/// Checks that a row whose sequence has no table attends to nothing, even if the binding has words after the
/// tables.
#[test]
fn a_row_whose_sequence_has_no_table_attends_to_nothing() {
    for variant in runnable().filter(|variant| matches!(variant.kernel, Kernel::Attention(_))) {
        for mut case in variant.cases(5) {
            let [capacity, sequences, table_blocks] = [0, 1, 2].map(|i| case.constants[i] as usize);
            // Attention computes all rows.
            case.bindings[0][8..12].fill(0);
            let list = 16 + 2 * capacity * 4;
            for sequence in case.bindings[0][list..][..capacity * 4].as_chunks_mut().0 {
                *sequence = (sequences as u32).to_le_bytes();
            }
            // If read as tables, these words would lead to the first block of the cache.
            let longer = case.bindings[0].len() + table_blocks * 4;
            case.bindings[0].resize(longer, 0);
            let width = (case.constants[4] * case.constants[6]) as usize;
            let after = launch(variant, &case, 1);
            for row in rows_of(&case, &after, rows(4, width, width)) {
                assert!(row.iter().all(|byte| *byte == 0), "{} {}", variant.name, case.label);
            }
        }
    }
}

/// Moves row `row` to the front, along with its values, position, sequence and start of its table, and
/// makes it the only row of the case.
fn move_row_to_front(case: &mut Case, row: usize, bindings: [Rows; 2]) {
    for Rows { binding, width, stride } in bindings {
        let at = row * stride * 4;
        case.bindings[binding].copy_within(at..at + width * 4, 0);
    }
    let capacity = case.constants[0] as usize;
    case.bindings[0][..4].copy_from_slice(&1_u32.to_le_bytes());
    let table_starts = 3 * capacity + case.constants[3] as usize;
    for list in [0, capacity, 2 * capacity, table_starts] {
        let at = 16 + list * 4;
        if case.bindings[0].len() >= at + capacity * 4 {
            case.bindings[0].copy_within(at + row * 4..at + row * 4 + 4, at);
        }
    }
}
