//! Tests of kernels, programs, memory and leases for every device.

use super::{Subject, each};
use crate::*;
use ragtag_hal::{HostPages, KernelLanguage, SharedMemory, Timing};

/// Returns a language that the device accepts and in which the test kernel is available.
fn language(bench: &Bench) -> KernelLanguage {
    let languages = &bench.device.adapter().caps.languages;
    *languages.iter().find(|language| scale_code(**language).is_some()).unwrap()
}

/// Checks that a kernel computes the correct result.
pub fn a_kernel_computes(on: &dyn Subject) {
    each(on, |mut bench| {
        bench.fill_region(|at| at ^ 0x5555);
        let up = bench.commands(QueueKind::Upload, vec![upload(0)], &[]);
        let (from, to) = (all(0), all(1));
        let fill = Command::Fill { to, word: 0 };
        let computed = bench.commands(QueueKind::Compute, vec![fill, scale(from, to, 3)], &[up]);
        let down = bench.commands(QueueKind::Download, vec![download(1)], &[computed]);
        bench.wait(down);
        same(&bench.region_words(), &expected(|at| 3 * (at ^ 0x5555) + 1), bench.label());
    });
}

/// Checks that a binding may start at any multiple of the device's alignment within its buffer.
pub fn bindings_may_start_inside_buffers(on: &dyn Subject) {
    each(on, |mut bench| {
        let alignment = bench.device.adapter().caps.binding_alignment_bytes as usize / 4;
        bench.fill_region(|at| at);
        let (from, to) = (buffer_range(0, 2 * alignment, 100), buffer_range(1, alignment, 100));
        let clear = Command::Fill { to: all(1), word: 7 };
        let computed = bench.commands(QueueKind::Compute, vec![upload(0), clear, scale(from, to, 2)], &[]);
        bench.wait(computed);
        let inside = alignment..alignment + 100;
        let wanted: Vec<_> = (0..WORDS)
            .map(|at| if inside.contains(&at) { 2 * (at + alignment) as u32 + 1 } else { 7 })
            .collect();
        same(&bench.words(1), &wanted, bench.label());
    });
}

/// Checks that each launch in a long program sees the results of all earlier launches.
pub fn programs_of_many_launches_run_in_order(on: &dyn Subject) {
    each(on, |mut bench| {
        let commands = (0..200).map(|turn| scale(all(turn % 2), all((turn + 1) % 2), 3));
        bench.device.record(ProgramId(0), commands.collect()).unwrap();
        let fill = bench.commands(QueueKind::Compute, vec![Command::Fill { to: all(0), word: 5 }], &[]);
        let first = bench.program(0, &[fill]);
        bench.wait(first);
        let second = bench.program(0, &[]);
        bench.wait(second);
        let word = (0..400).fold(5u32, |word, _| word.wrapping_mul(3).wrapping_add(1));
        same(&bench.words(0), &vec![word; WORDS], bench.label());
    });
}

/// Checks that a launch with an empty grid does nothing, both as a command and in a program.
pub fn an_empty_grid_does_nothing(on: &dyn Subject) {
    each(on, |mut bench| {
        let Command::Dispatch(mut dispatch) = scale(buffer_range(0, 0, 64), buffer_range(1, 0, 64), 1) else {
            unreachable!()
        };
        dispatch.grid = [4, 0, 1];
        let clear = Command::Fill { to: all(1), word: 9 };
        bench.device.record(ProgramId(0), vec![Command::Dispatch(dispatch.clone())]).unwrap();
        let ran = bench.commands(QueueKind::Compute, vec![clear, Command::Dispatch(dispatch)], &[]);
        let again = bench.program(0, &[ran]);
        bench.wait(again);
        same(&bench.words(1), &vec![9; WORDS], bench.label());
    });
}

/// Checks that the programs of a large module can be compiled in parallel. The test detects compilers that
/// are not thread-safe.
pub fn programs_of_a_module_are_compiled_in_parallel(on: &dyn Subject) {
    each(on, |mut bench| {
        let offsets = 10..26u32;
        let language = language(&bench);
        let entry = |offset| (scale_code_adding(language, offset).unwrap(), function("scale"));
        let module = module_of_codes(language, offsets.clone().map(entry).collect());
        bench.device.create_module(ModuleId(1), &module).unwrap();
        bench.fill_region(|at| at);
        let mut commands = vec![upload(0)];
        for at in 0..offsets.len() {
            let to = buffer_range(1, at * WORDS / offsets.len(), WORDS / offsets.len());
            let Command::Dispatch(mut launch) = scale(all(0), to, 0) else { unreachable!() };
            (launch.module, launch.entry) = (ModuleId(1), at as u32);
            commands.push(Command::Dispatch(launch));
        }
        let ran = bench.commands(QueueKind::Compute, commands, &[]);
        bench.wait(ran);
        let wanted = expected(|at| 10 + at / (WORDS / offsets.len()) as u32);
        same(&bench.words(1), &wanted, bench.label());
    });
}

/// Checks that the error of a failed allocation contains the sizes, and that a smaller allocation succeeds
/// afterwards.
pub fn smaller_allocations_work_after_running_out_of_memory(on: &dyn Subject) {
    for adapter in on.adapters() {
        let limit = 64 << 20;
        let limits = Limits { memory_bytes: Some(limit), ..Limits::default() };
        let mut device = open(on.backend(), &adapter, 0, &limits);
        device.create_buffer(BufferId(0), limit / 2).unwrap();
        match device.create_buffer(BufferId(1), limit / 2 + 1) {
            Err(Error::OutOfMemory { wanted, free }) => {
                assert_eq!((wanted, free), (limit / 2 + 1, Some(limit / 2)), "{}", adapter.label());
            }
            other => panic!("{}: {other:?}", adapter.label()),
        }
        let heap = device.memory().unwrap()[0];
        assert_eq!(heap.total_bytes, limit);
        assert!(heap.free_bytes.is_none_or(|free| free <= limit / 2), "{heap:?}");
        device.create_buffer(BufferId(1), limit / 2).unwrap();
        device.destroy_buffer(BufferId(0)).unwrap();
        device.create_buffer(BufferId(2), limit / 2).unwrap();
    }
    on.check();
}

/// Checks that a copy fails if the host has leased the bytes in the region.
pub fn copies_of_leased_bytes_fail(on: &dyn Subject) {
    each(on, |mut bench| {
        let region = Arc::clone(&bench.region);
        let held = region.write(0..4).unwrap();
        let refused = bench.try_submit(QueueKind::Upload, Work::Commands(vec![upload(0)]), &[]);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        drop(held);
        // If the copy waits for other work, the device may detect the conflict only when the copy starts.
        let held = region.read(0..4).unwrap();
        let fills = (0..50).map(|word| Command::Fill { to: all(1), word });
        let busy = bench.commands(QueueKind::Compute, fills.collect(), &[]);
        let late = bench.try_submit(QueueKind::Download, Work::Commands(vec![download(0)]), &[busy]);
        let error = late.map_or_else(Some, |point| bench.outcome(point));
        assert!(matches!(error.as_ref().map(Error::root), Some(Error::Invalid { .. })), "{error:?}");
        drop(held);
    });
}

/// Checks that a region can be registered under two IDs, and that the device releases it once both are
/// unregistered.
pub fn regions_can_be_registered_and_released(on: &dyn Subject) {
    each(on, |mut bench| {
        for round in 0..20u32 {
            let region = Arc::new(HostRegion::new(WORDS * 4).unwrap());
            region.write(0..WORDS * 4).unwrap().fill(round as u8);
            // Two stages on one device register the same region under two IDs.
            for id in [1, 2] {
                bench.device.register_region(RegionId(id), Arc::clone(&region)).unwrap();
            }
            let to = all(0);
            let up = Command::Upload { region: RegionId(1 + round % 2), offset: 0, to };
            let up = bench.commands(QueueKind::Upload, vec![up], &[]);
            bench.wait(up);
            assert_eq!(region.read(0..1).unwrap()[0], round as u8, "registering changes the contents");
            for id in [1, 2] {
                bench.device.unregister_region(RegionId(id)).unwrap();
            }
            assert_eq!(Arc::strong_count(&region), 1, "nothing holds an unregistered region");
            same(&bench.words(0), &vec![u32::from_ne_bytes([round as u8; 4]); WORDS], "the uploaded words");
        }
    });
}

/// Checks that timings are in order and lie between submission and completion.
pub fn timings_are_in_order_between_submission_and_completion(on: &dyn Subject) {
    each(on, |mut bench| {
        let mut timings: Vec<Timing> = Vec::new();
        let mut last_end_ns = 0;
        for _ in 0..10 {
            let before_ns = Timing::now_ns();
            let commands = vec![upload(0), scale(all(0), all(1), 3), download(1)];
            let ran = bench.commands(QueueKind::Compute, commands, &[]);
            bench.wait(ran);
            timings.clear();
            bench.device.take_timings(&mut timings);
            let after_ns = Timing::now_ns();
            let [timing] = timings[..] else { panic!("{timings:?}") };
            assert_eq!(timing.point, ran);
            let order = [before_ns, timing.start_ns, timing.end_ns, after_ns];
            assert!(order.is_sorted() && last_end_ns <= timing.start_ns, "{order:?} after {last_end_ns}");
            last_end_ns = timing.end_ns;
        }
    });
}

/// Checks that a program that mixes launches, copies, fills, uploads and downloads can be replayed. Each run
/// must use the current contents of the region.
pub fn programs_replay(on: &dyn Subject) {
    let program = vec![
        upload(0),
        scale(all(0), all(1), 5),
        scale(all(1), all(2), 7),
        Command::Copy { from: all(2), to: all(3) },
        Command::Fill { to: buffer_range(3, 0, 16), word: 42 },
        download(3),
        scale(all(3), all(0), 1),
        Command::Copy { from: buffer_range(0, 0, 8), to: buffer_range(1, 8, 8) },
    ];
    each(on, |mut bench| {
        bench.device.record(ProgramId(0), program.clone()).unwrap();
        for round in 0..10u32 {
            bench.fill_region(|at| at.wrapping_mul(round));
            let ran = bench.program(0, &[]);
            bench.wait(ran);
            let result = |at: u32| if at < 16 { 42 } else { 7 * (5 * at.wrapping_mul(round) + 1) + 1 };
            same(&bench.region_words(), &expected(result), format!("{} round {round}", bench.label()));
            let copied = |at: u32| if (8..16).contains(&at) { 43 } else { 5 * at.wrapping_mul(round) + 1 };
            same(&bench.words(1), &expected(copied), format!("{} round {round}", bench.label()));
        }
    });
}

/// Checks that all groups run if a grid exceeds the device's limit. APIs guarantee a limit of at least 65535
/// groups along each axis.
pub fn large_grids_are_launched_in_parts(on: &dyn Subject) {
    each(on, |mut bench| {
        let most = bench.device.adapter().caps.max_allocation_bytes.min(64 << 20);
        let words = (most / 4).min(70_000 * 64) as usize;
        for id in [10, 11] {
            bench.device.create_buffer(BufferId(id), words as u64 * 4).unwrap();
        }
        let fill = |buffer, word| Command::Fill { to: buffer_range(buffer, 0, words), word };
        let from = buffer_range(10, 0, words);
        let commands = vec![fill(10, 3), fill(11, 0), scale(from, buffer_range(11, 0, words), 5)];
        let ran = bench.commands(QueueKind::Compute, commands, &[]);
        bench.wait(ran);
        for first in [0, words / 2, words - WORDS] {
            let piece = Command::Copy { from: buffer_range(11, first, WORDS), to: buffer_range(0, 0, WORDS) };
            let copied = bench.commands(QueueKind::Compute, vec![piece], &[]);
            bench.wait(copied);
            same(&bench.words(0), &vec![16; WORDS], format!("{} from {first} on", bench.label()));
        }
    });
}

/// Checks that commands take effect in order if their ranges overlap.
pub fn commands_that_overlap_in_part_take_effect_in_order(on: &dyn Subject) {
    each(on, |mut bench| {
        let alignment = bench.device.adapter().caps.binding_alignment_bytes as usize / 4;
        let part = |buffer, at: usize| buffer_range(buffer, at * alignment, alignment);
        for _ in 0..20 {
            let mut commands = vec![Command::Fill { to: buffer_range(0, 0, WORDS), word: 1 }];
            for at in 0..8 {
                commands.push(scale(part(0, at), part(0, at + 1), 2));
                commands.push(Command::Copy { from: part(0, at + 1), to: part(1, at) });
                commands.push(Command::Fill { to: part(0, at), word: 9 });
            }
            let ran = bench.commands(QueueKind::Compute, commands, &[]);
            bench.wait(ran);
            let words = bench.words(1);
            for at in 0..8 {
                let wanted = vec![(2 << (at + 1)) - 1; alignment];
                same(&words[at * alignment..(at + 1) * alignment], &wanted, format!("part {at}"));
            }
        }
    });
}

/// Checks that loading a source with an error returns the compiler's log, and that the device still works
/// afterwards.
pub fn a_build_failure_shows_the_log(on: &dyn Subject) {
    each(on, |mut bench| {
        let language = language(&bench);
        let code = scale_code(language).unwrap();
        let (from, to, said) = match language {
            KernelLanguage::Ptx => ("mul.wide.u32", "no.such.instruction", "line"),
            KernelLanguage::Wgsl => ("constants.factor", "no_such_name", "no_such_name"),
            KernelLanguage::SpirV => ("", "", "damaged"),
            _ => ("factor * in", "no_such_name * in", "no_such_name"),
        };
        let broken = match &code {
            Code::Text(text) => Code::Text(text.replacen(from, to, 1).into()),
            Code::Binary(binary) => Code::Binary(binary[..64].into()),
        };
        let module = |code| module_of_codes(language, vec![(code, function("scale"))]);
        match bench.device.create_module(ModuleId(1), &module(broken)) {
            Err(Error::Compile { log }) => assert!(log.contains(said), "{log}"),
            other => panic!("{other:?}"),
        }
        let fine = bench.device.create_module(ModuleId(1), &module(code));
        assert_eq!(fine, Ok(()), "the device still works");
    });
}

/// Checks that the error for a missing function contains the name of the function.
pub fn a_missing_function_is_named(on: &dyn Subject) {
    each(on, |mut bench| {
        let language = language(&bench);
        let code = scale_code(language).unwrap();
        let missing = module_of_codes(language, vec![(code, function("no_such_kernel"))]);
        let refused = bench.device.create_module(ModuleId(1), &missing);
        assert!(
            matches!(&refused, Err(Error::Compile { log }) if log.contains("no_such_kernel")),
            "{refused:?}"
        );
    });
}

/// Checks copies between imported pages of the host and buffers, for drivers that only copy such pages.
pub fn imported_pages_only_take_copies(on: &dyn Subject) {
    each(on, |mut bench| {
        let pages = Arc::new(HostPages::new(WORDS as u64 * 4).unwrap());
        let memory = SharedMemory { bytes: pages.bytes(), handle: pages };
        bench.device.import_buffer(BufferId(9), &memory).unwrap();
        bench.device.import_buffer(BufferId(10), &memory).unwrap();
        let copy = |from: u32, to: u32| Command::Copy { from: all(from), to: all(to) };
        // Command buffers of OpenCL leave the copies out.
        let program =
            vec![upload(0), scale(all(0), all(1), 3), copy(1, 9), copy(10, 2), scale(all(2), all(3), 5)];
        bench.device.record(ProgramId(0), program).unwrap();
        for round in 1..4u32 {
            bench.fill_region(|at| at ^ round);
            let ran = bench.program(0, &[]);
            bench.wait(ran);
            same(&bench.words(3), &expected(|at| 5 * (3 * (at ^ round) + 1) + 1), bench.label());
        }
        let fill = Command::Fill { to: all(9), word: 1 };
        for refused in [
            bench.device.record(ProgramId(1), vec![scale(all(9), all(1), 3)]).unwrap_err(),
            bench.failure(QueueKind::Compute, vec![fill]).unwrap(),
        ] {
            assert!(refused.to_string().contains("imported memory"), "{refused}");
        }
    });
}
