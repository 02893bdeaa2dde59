//! Tests of buffers and copies.

use crate::bench::{Attempt, Bench, Context, expect_bytes, expect_equal, part, pattern};
use crate::report::Verdict;
use crate::suite::{Outcomes, Test};
use ragtag_hal::{Command, Device, Error, QueueKind};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "memory/round-trip", run: round_trip, destroys: false },
    Test { name: "memory/fill", run: fill, destroys: false },
    Test { name: "memory/copy", run: copy, destroys: false },
    Test { name: "memory/parts", run: parts, destroys: false },
    Test { name: "memory/reuse", run: reuse, destroys: false },
    Test { name: "memory/heaps", run: heaps, destroys: false },
    Test { name: "memory/out-of-memory", run: out_of_memory, destroys: true },
];

/// Checks that downloads return the uploaded data unchanged. Tests sizes below and above every page size and
/// staging size.
fn round_trip(bench: &mut Bench) -> Outcomes {
    for (seed, bytes) in [1, 3, 64, 4095, 4096, 100_003, (1 << 20) + 7].into_iter().enumerate() {
        let data = pattern(bytes, seed as u64);
        let buffer = bench.filled(&data)?;
        expect_bytes(&bench.get(buffer)?, &data, &format!("{bytes} bytes up and down"))?;
    }
    Ok(Verdict::PASSED)
}

/// Checks that a fill writes its word over its range and leaves the rest unchanged.
fn fill(bench: &mut Bench) -> Outcomes {
    let mut data = pattern(1000, 1);
    let buffer = bench.filled(&data)?;
    for (offset, bytes, word) in [(0, 4, 0xdead_beef), (8, 500, 0x7fc0_0001), (996, 4, 1), (600, 64, 0)] {
        bench.compute(vec![Command::Fill { to: part(buffer, offset as u64, bytes as u64), word }])?;
        data[offset..offset + bytes]
            .chunks_exact_mut(4)
            .for_each(|at| at.copy_from_slice(&u32::to_le_bytes(word)));
        expect_bytes(&bench.get(buffer)?, &data, &format!("a fill of {bytes} bytes at {offset}"))?;
    }
    Ok(Verdict::PASSED)
}

/// Checks that copies between buffers and within a buffer change only the destination range. Tests offsets
/// and lengths that are aligned as the device requires, and ranges that end at an odd byte.
fn copy(bench: &mut Bench) -> Outcomes {
    const BYTES: usize = 9001;
    let (source, mut target) = (pattern(BYTES, 2), pattern(BYTES, 3));
    let (from, to) = (bench.filled(&source)?, bench.filled(&target)?);
    let inner = [(1, 0, 1), (3, 4, 4096), (0, 7, 1001), (4097, 13, 4099)];
    let inner = inner.map(|(out, at, bytes)| (bench.aligned(out), bench.aligned(at), bench.aligned(bytes)));
    for (out, at, bytes) in inner.into_iter().chain([(0, 0, BYTES), (BYTES - 1, BYTES - 1, 1)]) {
        let ranges = (part(from, out as u64, bytes as u64), part(to, at as u64, bytes as u64));
        bench.put(to, &pattern(BYTES, 3))?;
        target.copy_from_slice(&pattern(BYTES, 3));
        bench.compute(vec![Command::Copy { from: ranges.0, to: ranges.1 }])?;
        target[at..at + bytes].copy_from_slice(&source[out..out + bytes]);
        expect_bytes(&bench.get(to)?, &target, &format!("a copy of {bytes} bytes from {out} to {at}"))?;
        expect_bytes(&bench.get(from)?, &source, "the source of the copy")?;
    }
    for queue in QueueKind::ALL {
        let content = pattern(BYTES, queue.index() as u64 + 4);
        bench.put(from, &content)?;
        let whole = (part(from, 0, BYTES as u64), part(to, 0, BYTES as u64));
        let copied = bench.commands(queue, vec![Command::Copy { from: whole.0, to: whole.1 }], &[])?;
        bench.wait(copied)?;
        target.copy_from_slice(&content);
        expect_bytes(&bench.get(to)?, &target, &format!("a copy on the {} queue", queue.name()))?;
    }
    let first = bench.aligned(1);
    let ranges = (part(to, first as u64, 100), part(to, first as u64 + 100, 100));
    bench.compute(vec![Command::Copy { from: ranges.0, to: ranges.1 }])?;
    target.copy_within(first..first + 100, first + 100);
    expect_bytes(&bench.get(to)?, &target, "a copy within a buffer")?;
    Ok(Verdict::PASSED)
}

/// Checks copies from parts of regions to parts of buffers and back, on every queue that supports them.
fn parts(bench: &mut Bench) -> Outcomes {
    const BYTES: usize = 5001;
    const REGION_BYTES: usize = 6000;
    let mut data = pattern(BYTES, 4);
    let buffer = bench.filled(&data)?;
    let (id, region) = bench.region(REGION_BYTES)?;
    let source = pattern(REGION_BYTES, 5);
    let inner = [(0, 1, 1), (17, 3, 999)];
    let inner = inner.map(|(offset, at, bytes)| (offset, bench.aligned(at), bench.aligned(bytes)));
    let ends = [(REGION_BYTES - 1, BYTES - 1, 1), (999, 0, BYTES)];
    for (up, down) in [(QueueKind::Upload, QueueKind::Download), (QueueKind::Compute, QueueKind::Compute)] {
        for (offset, at, bytes) in inner.into_iter().chain(ends) {
            region.write(0..REGION_BYTES).context("a lease")?.copy_from_slice(&source);
            let range = part(buffer, at as u64, bytes as u64);
            let upload = Command::Upload { region: id, offset: offset as u64, to: range };
            let uploaded = bench.commands(up, vec![upload], &[])?;
            // Copy back to the other end of the region, shifted by one byte.
            let back = REGION_BYTES - bytes - usize::from(offset == 0);
            let download = Command::Download { from: range, region: id, offset: back as u64 };
            let downloaded = bench.commands(down, vec![download], &[uploaded])?;
            bench.wait(downloaded)?;
            data[at..at + bytes].copy_from_slice(&source[offset..offset + bytes]);
            let mut wanted = source.clone();
            wanted[back..back + bytes].copy_from_slice(&source[offset..offset + bytes]);
            let what = format!("{bytes} bytes at {offset} by way of {at} to {back}");
            expect_bytes(&region.read(0..REGION_BYTES).context("a lease")?, &wanted, &what)?;
            expect_bytes(&bench.get(buffer)?, &data, &what)?;
        }
    }
    Ok(Verdict::PASSED)
}

/// Checks that the id of a destroyed buffer can be reused for a buffer of another size.
fn reuse(bench: &mut Bench) -> Outcomes {
    let first = bench.filled(&pattern(1 << 18, 6))?;
    let other = bench.filled(&pattern(100, 7))?;
    for bytes in [100, 2 << 20, 1] {
        let device = bench.device();
        device.destroy_buffer(first.buffer).context("destroying")?;
        device.create_buffer(first.buffer, bytes as u64).context("creating again")?;
        let buffer = part(first, 0, bytes as u64);
        let data = pattern(bytes, 8);
        bench.put(buffer, &data)?;
        expect_bytes(&bench.get(buffer)?, &data, "a buffer under an id used before")?;
        expect_bytes(&bench.get(other)?, &pattern(100, 7), "a buffer that was left alone")?;
    }
    Ok(Verdict::PASSED)
}

/// Checks that the heap sizes that the device reports are plausible.
fn heaps(bench: &mut Bench) -> Outcomes {
    let heaps = bench.device().memory().context("asking for the heaps")?;
    expect_equal(heaps.is_empty(), false, "no heaps")?;
    for heap in heaps {
        if heap.total_bytes == 0 || heap.free_bytes.is_some_and(|free| free > heap.total_bytes) {
            return Err(format!("an impossible heap: {heap:?}"));
        }
    }
    Ok(Verdict::PASSED)
}

/// Checks that an allocation beyond the available memory fails with an error that contains the sizes. Then
/// checks that a smaller allocation succeeds.
fn out_of_memory(bench: &mut Bench) -> Outcomes {
    let smaller = 1 << 20;
    let free = bench.device().memory().context("asking for the heaps")?[0].free_bytes;
    let largest = bench.caps().max_allocation_bytes;
    let (wanted, error) = match free {
        Some(free) if free < largest => {
            let wanted = free.saturating_add(free / 4).saturating_add(smaller).min(largest);
            (wanted, bench.try_buffer(wanted).err())
        }
        _ => exhaust(bench, largest)?,
    };
    match error {
        Some(Error::OutOfMemory { wanted: said, free }) => {
            expect_equal(said, wanted, "the bytes wanted")?;
            if free.is_some_and(|free| free >= wanted) {
                return Err(format!("the device refuses {wanted} bytes although {free:?} are free"));
            }
        }
        Some(other) => return Err(format!("the device refuses {wanted} bytes with {other:?}")),
        None => return Err(format!("the device allocates {wanted} bytes although only {free:?} are free")),
    }
    bench.clear()?;
    let data = pattern(smaller as usize, 9);
    let buffer = bench.filled(&data)?;
    expect_bytes(&bench.get(buffer)?, &data, "a buffer after running out of memory")?;
    Ok(Verdict::PASSED)
}

/// Allocates buffers of `bytes` bytes until the device is out of memory. The test needs this if a single
/// allocation of the maximum size fits into the free memory, or if the device does not report its free
/// memory.
fn exhaust(bench: &mut Bench, bytes: u64) -> Attempt<(u64, Option<Error>)> {
    for _ in 0..1024 {
        if let Err(error) = bench.try_buffer(bytes) {
            return Ok((bytes, Some(error)));
        }
    }
    Ok((bytes, None))
}
