//! Measures the bandwidth of GEMV (next to the read bandwidth of the machine), the GFLOP/s of products with
//! many tokens, and the GB/s of weight packing.
//!
//! `cargo bench -p ragtag-kernels --bench matmul -- [gemv|gemm|pack] [types…]`, for example `-- gemv Q8_0 F16`.
#![allow(clippy::print_stdout)] // The bench prints a report.

use ragtag_hal::{Caps, Feature, Features, HostBinding, HostCall, KernelLanguage, QueueLayout};
use ragtag_kernels::matmul::takes;
use ragtag_kernels::{Activations, Code, Kernel, Layout, Resident, TensorType, Variant, select};
use std::hint::black_box;
use std::time::Instant;

/// Rows and columns of the matrices in a model with 1.1 billion weights.
const SHAPES: [(usize, usize); 3] = [(2048, 2048), (5632, 2048), (2048, 5632)];

/// Size of the working set in bytes, far larger than any cache.
const WORKING_SET_BYTES: usize = 1 << 30;

/// One cache line. It determines the alignment of [`Memory`].
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

/// Memory that is aligned to cache lines. The threads of a launch share it, as they do on the CPU device.
struct Memory(Vec<Line>);

impl Memory {
    fn new(bytes: usize) -> Self {
        Self(vec![Line([0; 64]); bytes.div_ceil(64)])
    }

    fn bytes(&mut self) -> &mut [u8] {
        let length = self.0.len() * 64;
        // SAFETY: lines are plain bytes without padding.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), length) }
    }

    fn binding(&mut self) -> HostBinding {
        HostBinding::new(self.0.as_mut_ptr().cast(), self.0.len() * 64)
    }
}

/// Returns the features of this machine that kernels can require.
fn features() -> Features {
    #[cfg(target_arch = "x86_64")]
    let found = [
        (Feature::Avx2, is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")),
        (Feature::Avx512Vnni, is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw")),
    ];
    #[cfg(target_arch = "aarch64")]
    let found = [(Feature::NeonDot, std::arch::is_aarch64_feature_detected!("dotprod"))];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let found: [(Feature, bool); 0] = [];
    found.into_iter().filter(|(_, has)| *has).map(|(feature, _)| feature).collect()
}

/// Returns the capabilities of this CPU. If the environment variable `ISA` is set, keeps only the feature
/// that it names: `avx2` keeps AVX2, and `none` keeps no feature.
fn caps() -> Caps {
    let mut caps = Caps {
        languages: [KernelLanguage::Host].into(),
        features: features(),
        queues: QueueLayout::Separate,
        records_programs: false,
        max_allocation_bytes: u64::MAX,
        max_binding_bytes: u64::MAX,
        binding_alignment_bytes: 64,
        copy_alignment_bytes: 1,
        parallel_units: 1,
        max_work_group_items: 1,
        local_memory_bytes: 0,
        clocks: Default::default(),
        gemm: None,
        sharing: Default::default(),
    };
    if let Ok(only) = std::env::var("ISA") {
        caps.features.retain(|f| format!("{f:?}").eq_ignore_ascii_case(&only));
    }
    caps
}

/// Fills a buffer with pseudo-random bytes. Scales can be random, too, because their values do not affect the
/// speed.
fn noise(bytes: &mut [u8]) {
    let mut state = 1_u64;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        // Keeps exponents near one in every float format. Infinities and subnormals would be slower.
        let word = ((state >> 3) & 0x83ff_83ff_83ff_83ff) | 0x3c00_3c00_3c00_3c00;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

/// Runs `work(thread)` on all threads. Returns the elapsed time in seconds.
fn timed(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 1..threads {
            let work = &work;
            scope.spawn(move || work(thread));
        }
        work(0);
    });
    start.elapsed().as_secs_f64()
}

/// Calls `rate` `count` times. Returns the median and the maximum of its results.
fn repeat(count: usize, mut rate: impl FnMut() -> f64) -> (f64, f64) {
    let mut rates: Vec<f64> = (0..count).map(|_| rate()).collect();
    rates.sort_by(f64::total_cmp);
    (rates[count / 2], rates[count - 1])
}

/// Returns the bandwidth in GB/s of reading memory with eight interleaved streams per thread.
fn read_bandwidth(memory: &[Line], threads: usize) -> f64 {
    let share = memory.len() / threads;
    let seconds = timed(threads, |thread| {
        let part = &memory[thread * share..(thread + 1) * share];
        let stream = part.len() / 8;
        let mut sums = [0_u64; 8];
        for i in 0..stream {
            for (s, sum) in sums.iter_mut().enumerate() {
                for word in part[s * stream + i].0.as_chunks::<8>().0 {
                    *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
                }
            }
        }
        black_box(sums);
    });
    (share * threads * 64) as f64 / seconds / 1e9
}

struct Launch {
    variant: &'static Variant,
    bindings: [HostBinding; 4],
    constants: [u32; 6],
}

impl Launch {
    /// Runs the part of the launch that belongs to thread `thread` of `threads`.
    fn run(&self, thread: usize, threads: usize) {
        let grid = self.variant.grid(&self.constants, &Caps::default());
        let share = |t: usize| (grid[0] as usize * t / threads) as u32;
        let call = HostCall { bindings: &self.bindings, constants: &self.constants, grid };
        let Code::Host(function) = self.variant.code else { return };
        // SAFETY: bindings have the sizes of the ABI, threads take disjoint groups, and the variant was
        // selected for this machine.
        unsafe { function(&call, share(thread)..share(thread + 1)) };
    }
}

/// Launches with matrices of all shapes, repeated until their weights fill the working set.
struct Model {
    launches: Vec<Launch>,
    bytes: usize,
    values: usize,
}

fn model(tensor_type: TensorType, rows: usize, wanted: Activations, memory: [&mut Memory; 4]) -> Model {
    let kernel = Kernel::MatMul(tensor_type, wanted);
    let variant = select(kernel, &caps(), rows as u32).expect("a variant for any machine");
    let [params, weights, x, y] = memory;
    params.bytes()[..4].copy_from_slice(&(rows as u32).to_le_bytes());
    let widest = SHAPES.iter().map(|(n, k)| *n.max(k)).max().unwrap_or(0);
    *x = Memory::new(rows * wanted.row_bytes(widest));
    noise(x.bytes());
    *y = Memory::new(rows * widest * 4);
    let (mut launches, mut at, mut values) = (Vec::new(), 0, 0);
    for (n, k) in SHAPES.into_iter().cycle() {
        let layout = Resident::new(tensor_type, Layout::Rows16, n as u64, k as u64).expect("whole blocks");
        let bytes = layout.bytes() as usize;
        if at + bytes > WORKING_SET_BYTES {
            break;
        }
        let matrix = HostBinding::new(weights.bytes()[at..].as_mut_ptr(), bytes);
        launches.push(Launch {
            variant,
            bindings: [params.binding(), matrix, x.binding(), y.binding()],
            constants: [rows as u32, 0, n as u32, k as u32, 0, n as u32],
        });
        (at, values) = (at + bytes.next_multiple_of(64), values + n * k);
    }
    Model { launches, bytes: at, values }
}

/// Packs a matrix that is much larger than any cache from one half of the memory into the other. Returns the
/// rate in GB/s of source bytes (in file format).
fn pack(tensor_type: TensorType, layout: Layout, threads: usize, memory: &mut [u8]) -> f64 {
    const COLUMNS: u64 = 4096;
    let group = Resident::new(tensor_type, layout, 16, COLUMNS).expect("whole blocks");
    let groups = WORKING_SET_BYTES / 2 / group.group_bytes().max(16 * group.file_row_bytes());
    let groups = groups / threads * threads;
    let layout = Resident::new(tensor_type, layout, 16 * groups as u64, COLUMNS).expect("whole blocks");
    let (file, resident) = memory.split_at_mut(WORKING_SET_BYTES / 2);
    let file = &file[..layout.rows() * layout.file_row_bytes()];
    let resident = &mut resident[..layout.bytes() as usize];
    let parts = file.chunks(file.len() / threads).zip(resident.chunks_mut(resident.len() / threads));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (file, resident) in parts {
            scope.spawn(move || {
                let groups = 0..groups / threads;
                layout.pack(groups, file, resident).expect("lengths are the layout's");
            });
        }
    });
    file.len() as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let asked = |name: &str| arguments.iter().any(|a| a == name);
    let types: Vec<TensorType> = TensorType::ALL.into_iter().filter(|t| asked(t.name())).collect();
    let types = if types.is_empty() { TensorType::ALL.to_vec() } else { types };
    let (mut params, mut weights) = (Memory::new(64), Memory::new(WORKING_SET_BYTES));
    let (mut x, mut y) = (Memory::new(64), Memory::new(64));
    noise(weights.bytes());
    let mut pairs = Vec::new();
    for tensor_type in types.iter().copied() {
        for wanted in [Activations::F32, Activations::Int8] {
            if takes(tensor_type, wanted) {
                pairs.push((tensor_type, wanted));
            }
        }
    }
    let all = !["gemv", "gemm", "pack"].iter().any(|section| asked(section));
    if all || asked("pack") {
        println!("packing, GB/s of file bytes, median (best) of 5");
        let row_major = types.iter().filter(|t| t.block_values() == 1).map(|t| (*t, Layout::RowMajor));
        for (tensor_type, layout) in types.iter().map(|t| (*t, Layout::Rows16)).chain(row_major) {
            let mut line = format!("{:24}", format!("{tensor_type} {layout:?}"));
            for threads in [1, 2] {
                let (median, best) = repeat(5, || pack(tensor_type, layout, threads, weights.bytes()));
                line += &format!("  {threads} threads {median:5.2} ({best:5.2})");
            }
            println!("{line}");
        }
        noise(weights.bytes());
    }
    if all || asked("gemv") {
        println!("GEMV, GB/s, median (best) of 7; read bandwidth measured in between");
        for (tensor_type, wanted) in &pairs {
            let mut line = format!("{:24}", Kernel::MatMul(*tensor_type, *wanted).to_string());
            for threads in [1, 2] {
                let mut reads = Vec::new();
                let model = model(*tensor_type, 1, *wanted, [&mut params, &mut weights, &mut x, &mut y]);
                let (median, best) = repeat(7, || {
                    reads.push(read_bandwidth(&weights.0, threads));
                    let run = |t| model.launches.iter().for_each(|launch| launch.run(t, threads));
                    model.bytes as f64 / timed(threads, run) / 1e9
                });
                reads.sort_by(f64::total_cmp);
                let share = median / reads[3] * 100.0;
                line += &format!(
                    "  {threads} threads {median:5.1} ({best:5.1}) of {:5.1} ({:5.1}): {share:3.0} %",
                    reads[3], reads[6]
                );
            }
            println!("{line}");
        }
    }
    if all || asked("gemm") {
        println!("GEMM, GFLOP/s, median (best) of 5");
        for (tensor_type, wanted) in &pairs {
            let mut line = format!("{:24}", Kernel::MatMul(*tensor_type, *wanted).to_string());
            for rows in [8, 64, 256] {
                for threads in [1, 2] {
                    let model =
                        model(*tensor_type, rows, *wanted, [&mut params, &mut weights, &mut x, &mut y]);
                    let some = &model.launches[..3.min(model.launches.len())];
                    let values = model.values / model.launches.len() * some.len();
                    let (median, best) = repeat(5, || {
                        let run = |t| some.iter().for_each(|launch| launch.run(t, threads));
                        (2 * values * rows) as f64 / timed(threads, run) / 1e9
                    });
                    line += &format!("  m={rows} t={threads} {median:5.0} ({best:5.0})");
                }
            }
            println!("{line}");
        }
    }
}
