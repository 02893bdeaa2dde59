//! Tests of recorded programs.

use crate::bench::{Bench, Context, expect_bytes, part, pattern};
use crate::report::Verdict;
use crate::suite::{Outcomes, Test};
use ragtag_hal::{Command, Device, QueueKind, Work};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "programs/replay", run: replay, destroys: false },
    Test { name: "programs/upload-used", run: upload_used, destroys: false },
    Test { name: "programs/record-anew", run: record_anew, destroys: false },
    Test { name: "programs/side-by-side", run: side_by_side, destroys: false },
];

const BYTES: usize = 8192;

/// Checks that each run of a program uses the current content of its region.
fn replay(bench: &mut Bench) -> Outcomes {
    let (input, output) = (bench.buffer(BYTES as u64)?, bench.buffer(2 * BYTES as u64)?);
    let (id, region) = bench.region(BYTES)?;
    let half = BYTES as u64;
    let first = bench.aligned(1);
    let rest = (BYTES - first) as u64;
    let program = bench.record(vec![
        Command::Fill { to: output, word: 0x5555_5555 },
        Command::Upload { region: id, offset: 0, to: input },
        Command::Copy { from: part(input, first as u64, rest), to: part(output, 0, rest) },
        Command::Copy { from: part(output, 0, 100), to: part(output, half, 100) },
    ])?;
    for round in 0..5 {
        let data = pattern(BYTES, 200 + round);
        region.write(0..BYTES).context("a lease")?.copy_from_slice(&data);
        let point = bench.submit(QueueKind::Compute, Work::Program(program), &[])?;
        bench.wait(point)?;
        let mut wanted = vec![0x55; 2 * BYTES];
        wanted[..BYTES - first].copy_from_slice(&data[first..]);
        wanted[BYTES..BYTES + 100].copy_from_slice(&data[first..first + 100]);
        expect_bytes(&bench.get(output)?, &wanted, &format!("run {round} of a program"))?;
    }
    Ok(Verdict::PASSED)
}

/// Checks that each run of a program uploads at least the words that its region counts as used, and changes
/// the others only to those of the region.
fn upload_used(bench: &mut Bench) -> Outcomes {
    const BYTES: usize = 400_000;
    const COUNT_AT: usize = 3;
    let (to, (id, region)) = (bench.buffer(BYTES as u64)?, bench.region(BYTES)?);
    let upload = Command::UploadUsed { region: id, offset: 0, to, used: COUNT_AT as u32 };
    let program = bench.record(vec![Command::Fill { to, word: 0x5555_5555 }, upload])?;
    for (round, words) in [BYTES / 4, 4, 5, 9_000, 70_000, usize::MAX].into_iter().enumerate() {
        let mut data = pattern(BYTES, 300 + round as u64);
        data[4 * COUNT_AT..4 * COUNT_AT + 4].copy_from_slice(&(words as u32).to_ne_bytes());
        region.write(0..BYTES).context("a lease")?.copy_from_slice(&data);
        let point = bench.submit(QueueKind::Compute, Work::Program(program), &[])?;
        bench.wait(point)?;
        let (got, what) = (bench.get(to)?, format!("an upload of {words} words"));
        let (used, others) = got.split_at(4 * words.min(BYTES / 4));
        expect_bytes(used, &data[..used.len()], &what)?;
        let allowed = others.iter().zip(&data[used.len()..]);
        let allowed: Vec<_> = allowed.map(|(byte, new)| if byte == new { *new } else { 0x55 }).collect();
        expect_bytes(others, &allowed, &format!("the words after {what}"))?;
    }
    Ok(Verdict::PASSED)
}

/// Checks that recording a program under an existing id replaces its commands.
fn record_anew(bench: &mut Bench) -> Outcomes {
    let buffer = bench.buffer(BYTES as u64)?;
    let program = bench.record(vec![Command::Fill { to: buffer, word: 1 }])?;
    for word in [1u32, 2, 3] {
        if word > 1 {
            let commands = vec![Command::Fill { to: buffer, word }];
            bench.device().record(program, commands).context("recording anew")?;
        }
        let point = bench.submit(QueueKind::Compute, Work::Program(program), &[])?;
        bench.wait(point)?;
        expect_bytes(
            &bench.get(buffer)?,
            &word.to_le_bytes().repeat(BYTES / 4),
            &format!("recording {word}"),
        )?;
    }
    Ok(Verdict::PASSED)
}

/// Puts several programs and plain commands in flight together, and checks that they run in the order that
/// their points define.
fn side_by_side(bench: &mut Bench) -> Outcomes {
    let buffer = bench.buffer(BYTES as u64)?;
    let sum = bench.buffer(4 * 16)?;
    let mut programs = Vec::new();
    for at in 0..16u64 {
        programs.push(bench.record(vec![
            Command::Fill { to: buffer, word: at as u32 },
            Command::Copy { from: part(buffer, BYTES as u64 - 4, 4), to: part(sum, at * 4, 4) },
        ])?);
    }
    let mut last = bench.commands(QueueKind::Compute, vec![Command::Fill { to: sum, word: 99 }], &[])?;
    for program in programs.into_iter().rev() {
        let run = bench.submit(QueueKind::Compute, Work::Program(program), &[last])?;
        last = bench.commands(QueueKind::Compute, vec![Command::Fill { to: buffer, word: 77 }], &[run])?;
    }
    bench.wait(last)?;
    let wanted: Vec<u8> = (0..16u32).flat_map(u32::to_le_bytes).collect();
    expect_bytes(&bench.get(sum)?, &wanted, "output of sixteen programs")?;
    expect_bytes(&bench.get(buffer)?, &77u32.to_le_bytes().repeat(BYTES / 4), "the last write")?;
    Ok(Verdict::PASSED)
}
