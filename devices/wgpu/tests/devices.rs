//! Tests on every wgpu device of the machine: kernels, programs, memory, transfers, leases and errors.

#![allow(clippy::print_stdout)] // a skip is visible

mod support;

use ragtag_hal::{BufferId, Command, Device, Error, HostRegion, ModuleId, QueueKind, RegionId};
use std::sync::Arc;
use support::*;

device_bench::device_tests!(subject());

/// Checks that a launch can read one part of a buffer and write another. wgpu rejects such bindings unless
/// all bindings are writable.
#[test]
fn parts_of_one_buffer_are_read_and_written() {
    each(&subject(), |mut bench| {
        bench.fill_region(|at| at);
        let half = WORDS / 2;
        let launch = scale(buffer_range(0, 0, half), buffer_range(0, half, half), 3);
        let ran = bench.commands(QueueKind::Compute, vec![upload(0), launch], &[]);
        bench.wait(ran);
        let (first, rest) = (0..half as u32, 0..half as u32);
        let wanted: Vec<u32> = first.chain(rest.map(|at| 3 * at + 1)).collect();
        same(&bench.words(0), &wanted, bench.label());
    });
}

/// Checks that a submission can transfer more bytes than the belts can hold, at two unaligned offsets.
#[test]
fn large_transfers_are_split() {
    each(&subject(), |mut bench| {
        let bytes = (100 << 20) + 5;
        let region = Arc::new(HostRegion::new(bytes + 3).unwrap());
        let word = |at: usize| (at as u32).wrapping_mul(0x9e37_79b9).to_le_bytes();
        for (at, place) in region.write(3..bytes + 3).unwrap().chunks_mut(4).enumerate() {
            place.copy_from_slice(&word(at)[..place.len()]);
        }
        bench.device.register_region(RegionId(1), Arc::clone(&region)).unwrap();
        bench.device.create_buffer(BufferId(10), bytes as u64).unwrap();
        let all = ragtag_hal::BufferRange { buffer: BufferId(10), offset: 0, bytes: bytes as u64 };
        let up = Command::Upload { region: RegionId(1), offset: 3, to: all };
        let up = bench.commands(QueueKind::Upload, vec![up], &[]);
        bench.wait(up);
        region.write(0..bytes + 3).unwrap().fill(0xe7);
        let down = Command::Download { from: all, region: RegionId(1), offset: 1 };
        let down = bench.commands(QueueKind::Download, vec![down], &[]);
        bench.wait(down);
        let held = region.read(0..bytes + 3).unwrap();
        let wrong = held[1..=bytes].chunks(4).enumerate().position(|(at, got)| got != &word(at)[..got.len()]);
        assert_eq!(wrong, None, "{}: the first wrong word", bench.label());
        assert_eq!((held[0], held[bytes + 1]), (0xe7, 0xe7), "around it");
    });
}

/// Checks that an upload waits for an earlier download of the same bytes, whether in the same submission or
/// in a different one. This matters because the encoder reads the bytes when it encodes the upload.
#[test]
fn downloads_can_be_uploaded_again() {
    each(&subject(), |mut bench| {
        bench.fill_region(|at| at);
        let all = |buffer| buffer_range(buffer, 0, WORDS);
        let fill = Command::Fill { to: all(0), word: 77 };
        let there = bench.commands(
            QueueKind::Compute,
            vec![fill, download(0), upload(1), scale(all(1), all(2), 2)],
            &[],
        );
        let down = bench.commands(QueueKind::Download, vec![download(2)], &[there]);
        let up = bench.commands(QueueKind::Upload, vec![upload(3)], &[down]);
        bench.wait(up);
        same(&bench.words(1), &[77; WORDS], format!("{}: within a submission", bench.label()));
        same(&bench.words(3), &[155; WORDS], format!("{}: through two queues", bench.label()));
    });
}

#[test]
fn functions_are_checked_against_their_abi() {
    each(&subject(), |mut bench| {
        let other = source().replacen("@binding(1)", "@binding(2)", 1);
        let refused = bench.device.create_module(ModuleId(1), &module(other.into()));
        assert!(matches!(refused, Err(Error::Compile { .. })), "{refused:?}");
        // The kernel reads a constant that its ABI does not contain. A launch that does not supply this
        // constant causes an error.
        let more = source().replacen("count: u32", "count: u32, more: array<u32, 4>", 1);
        let more = module(more.replacen("constants.count", "constants.more[3]", 1).into());
        bench.device.create_module(ModuleId(2), &more).unwrap();
        let all = |buffer| buffer_range(buffer, 0, WORDS);
        let Command::Dispatch(mut launch) = scale(all(0), all(1), 0) else { unreachable!() };
        launch.module = ModuleId(2);
        let ran = bench.commands(QueueKind::Compute, vec![Command::Dispatch(launch)], &[]);
        assert!(matches!(bench.outcome(ran), Some(error) if matches!(error.root(), Error::Invalid { .. })));
    });
}
