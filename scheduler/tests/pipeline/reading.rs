//! Tests of streamed weights that are read from the model's file for each micro-batch.

use super::failures::nothing_leaks;
use super::*;
use ragtag_graph::WeightChunk;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fault of a read.
enum Fault {
    Error,
    Panic,
    /// The read sends a message, and waits for another one.
    Wait(Mutex<(std::sync::mpsc::Sender<()>, Receiver<()>)>),
}

/// A weight source with a fault in the read after the first `after` reads.
struct Faulty<S> {
    source: S,
    after: usize,
    reads: AtomicUsize,
    fault: Fault,
}

impl<S: WeightSource> WeightSource for Faulty<S> {
    fn chunks(&self, weight: usize, max_bytes: u64) -> Vec<WeightChunk> {
        self.source.chunks(weight, max_bytes)
    }

    fn fill(
        &self,
        weight: usize,
        chunk: &WeightChunk,
        out: &mut [u8],
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.reads.fetch_add(1, Ordering::Relaxed) == self.after {
            match &self.fault {
                Fault::Error => return Err("the file is shorter than it was".into()),
                Fault::Panic => panic!("on purpose"),
                Fault::Wait(ends) => {
                    let (waits, go_on) = &*ends.lock().unwrap();
                    waits.send(())?;
                    go_on.recv_timeout(TIMEOUT)?;
                }
            }
        }
        self.source.fill(weight, chunk, out)
    }
}

/// Returns a pipeline with one stage that reads all of its six layers, each in three chunks.
fn reading() -> Setup {
    let mut setup = Setup::new(1);
    setup.model.layers = 6;
    setup.streamed = (1..=6).collect();
    setup.from_file = setup.streamed.clone();
    setup
}

/// Starts this pipeline with a fault in a read.
fn faulty(after: usize, fault: Fault) -> (Pipeline, Vec<LeakWatch>) {
    start(&reading(), after, fault)
}

fn start(setup: &Setup, after: usize, fault: Fault) -> (Pipeline, Vec<LeakWatch>) {
    let (mut specs, watches) = setup.watched();
    let source = setup.model.weights(0..8);
    specs.stages[0].weights = Box::new(Faulty { source, after, reads: AtomicUsize::new(0), fault });
    (Pipeline::start(specs, &setup.options, |_| {}).unwrap(), watches)
}

#[test]
fn weights_from_the_file_change_no_token() {
    for (hosts, layers, streamed) in [
        (&[0][..], 7, &[1, 2, 5, 6][..]),
        (&[0], 9, &[1, 3, 5, 7, 9]),
        (&[0, 1], 12, &[1, 2, 3, 5, 7, 8, 9, 10]),
        (&[0, 1, 0], 16, &[1, 2, 3, 4, 12, 13, 14, 16]),
    ] {
        let mut setup = Setup::on(hosts);
        setup.model.layers = layers;
        setup.streamed = streamed.into();
        for (arenas, step) in [(0, 1), (0, 2), (8, 1), (8, 3)] {
            setup.arenas = arenas;
            setup.from_file = streamed.iter().copied().step_by(step).collect();
            check(&setup);
        }
        setup.devices.iter_mut().for_each(|device| device.random_delay_us = 100);
        (setup.options.slots, setup.options.credits) = (1, 6);
        check(&setup);
    }
}

#[test]
fn weights_in_the_file_are_not_loaded() {
    let mut setup = reading();
    setup.from_file = vec![2, 3, 6];
    let (send, reports) = channel();
    let pipeline = Pipeline::start(setup.specs(), &setup.options, move |p| send.send(p).unwrap()).unwrap();
    let reports: Vec<_> = reports.try_iter().collect();
    let loaded = 3 * setup.model.weight_bytes;
    assert!(reports.iter().all(|report| report.total_bytes == loaded));
    assert_eq!(reports.iter().map(|report| report.done_bytes).max(), Some(loaded));
    drop(pipeline);
}

#[test]
fn a_failed_read_ends_the_run_with_its_error() {
    // Each micro-batch reads 18 chunks.
    for after in [0, 20, 50] {
        let (pipeline, watches) = faulty(after, Fault::Error);
        let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
        let Error::Weight { stage: 0, device, weight, cause } = failed(&all(&replies)) else { panic!() };
        assert_eq!((device.as_str(), cause.as_str()), ("cpu:0", "the file is shorter than it was"));
        assert!(weight.starts_with("layer "), "{weight}");
        drop(pipeline);
        nothing_leaks(&watches, "failed");
    }
    let (pipeline, watches) = faulty(20, Fault::Panic);
    let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
    let error = failed(&all(&replies));
    assert!(matches!(&error, Error::Protocol { what } if what.contains("the reader of cpu:0")), "{error:?}");
    drop(pipeline);
    nothing_leaks(&watches, "panicked");
}

#[test]
fn a_pipeline_stops_while_it_reads() {
    let ((waits, waiting), (go_on, ends)) = (channel(), channel());
    let (pipeline, watches) = faulty(30, Fault::Wait(Mutex::new((waits, ends))));
    let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
    waiting.recv_timeout(TIMEOUT).unwrap();
    let stopping = std::thread::spawn(move || drop(pipeline));
    let last = all(&replies).pop();
    assert!(matches!(last, Some(Reply::Finished(_) | Reply::Failed(_))), "{last:?}");
    go_on.send(()).unwrap();
    stopping.join().unwrap();
    nothing_leaks(&watches, "stopped");
}

#[test]
fn a_read_that_never_ends_ends_the_run_after_the_limit() {
    let mut setup = reading();
    setup.options.stall_timeout = Some(Duration::from_millis(200));
    let ((waits, waiting), (go_on, ends)) = (channel(), channel());
    let (pipeline, watches) = start(&setup, 30, Fault::Wait(Mutex::new((waits, ends))));
    let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(40));
    let error = failed(&all(&replies));
    assert_eq!(error, Error::StalledRead { device: "cpu:0".into(), seconds: 1 });
    let said = error.to_string();
    assert!(said.contains("the model's file has given cpu:0 no weights for 1 s"), "{said}");
    waiting.recv_timeout(TIMEOUT).unwrap();
    // The pipeline leaves the read behind.
    drop(pipeline);
    go_on.send(()).unwrap();
    nothing_leaks(&watches, "stalled");
}

#[test]
fn a_trace_shows_reads_and_the_copies_after_them() {
    let mut setup = reading();
    (setup.from_file, setup.options.trace_spans) = (vec![2, 3, 6], 100_000);
    let trace = check(&setup).trace;
    let of = |kind, segment| {
        let spans = trace.spans.iter().filter(move |span| span.kind == kind);
        spans.filter(move |span| span.segments == (segment..segment + 1)).collect::<Vec<_>>()
    };
    for segment in 1..=6 {
        let (reads, is_read) = (of(SpanKind::Read, segment), setup.from_file.contains(&segment));
        assert_eq!(!reads.is_empty(), is_read, "segment {segment}");
        assert!(reads.iter().all(|read| read.start_ns <= read.end_ns && read.micro_batch.is_none()));
        let copies = of(SpanKind::Weights, segment);
        assert!(!copies.is_empty() && !of(SpanKind::Compute, segment).is_empty());
        // The pipeline may stop between the last read and its copy.
        assert!(copies.len() + 1 >= reads.len(), "segment {segment}");
        let mut pairs = reads.iter().zip(&copies);
        assert!(pairs.all(|(read, copy)| read.end_ns <= copy.start_ns), "segment {segment}");
    }
    let pipelined = of(SpanKind::Read, 2).len();
    assert!(of(SpanKind::Read, 6).len().abs_diff(pipelined) <= 1, "each step reads each part");
}
