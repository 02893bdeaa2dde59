//! Tests of loading: weights in chunks, progress, and errors.

use super::*;
use ragtag_graph::WeightChunk;

/// A weight source that wraps another source and injects a fault. Its second field selects the fault.
pub struct Spoilt<S>(pub S, pub &'static str);

impl<S: WeightSource> WeightSource for Spoilt<S> {
    fn chunks(&self, weight: usize, max_bytes: u64) -> Vec<WeightChunk> {
        let mut chunks = self.0.chunks(weight, if self.1 == "small" { 500 } else { max_bytes });
        match self.1 {
            "gap" => drop(chunks.remove(1)),
            "short" => drop(chunks.pop()),
            "large" => chunks[0].bytes = max_bytes + 1,
            "panic" => panic!("on purpose"),
            _ => {}
        }
        chunks
    }

    fn fill(
        &self,
        weight: usize,
        chunk: &WeightChunk,
        out: &mut [u8],
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.1 == "fill" && chunk.offset > 0 {
            return Err("the file is shorter than it was".into());
        }
        assert_ne!(self.1, "panic in fill", "on purpose");
        self.0.fill(weight, chunk, out)
    }
}

#[test]
fn loading_that_fails_says_why_and_leaves_no_thread() {
    let start = |stage: usize, how: &'static str| {
        let setup = Setup::new(3);
        let mut specs = setup.specs();
        let segments = specs.stages[stage].compiled.segments.clone();
        specs.stages[stage].weights = Box::new(Spoilt(setup.model.weights(segments), how));
        Pipeline::start(specs, &setup.options, |_| {}).unwrap_err()
    };
    for (how, said) in [
        ("gap", "expected at byte"),
        ("short", "chunks cover"),
        ("large", "expected at byte"),
        ("fill", "the file is shorter than it was"),
    ] {
        match start(1, how) {
            Error::Weight { stage: 1, device, weight, cause } => {
                assert!(cause.contains(said), "{how}: {cause}");
                assert_eq!((device.as_str(), weight.as_str()), ("cpu:1", "layer 2"));
            }
            other => panic!("{how}: {other:?}"),
        }
    }
    for how in ["panic", "panic in fill"] {
        assert!(matches!(start(2, how), Error::Protocol { what } if what.contains("cpu:2")), "{how}");
    }
}

#[test]
fn a_device_that_is_too_small_is_named() {
    let mut setup = Setup::new(2);
    setup.devices[1].largest_allocation_bytes = Some(5000);
    let error = setup.start().unwrap_err();
    let Error::Memory { stage: 1, device, cause, held_bytes, needed_bytes } = &error else {
        panic!("{error:?}")
    };
    assert!(matches!(cause, DeviceError::OutOfMemory { free: Some(5000), .. }), "{cause}");
    assert!(*held_bytes > 0 && *needed_bytes > held_bytes + 5000, "{error:?}");
    let refused = error.refused_memory().unwrap();
    assert_eq!((refused.device, refused.available_bytes(true)), (device.as_str(), held_bytes + 5000));
    assert_eq!(device, "cpu:1");
}

#[test]
fn large_weights_load_completely_with_progress() {
    let mut setup = Setup::new(2);
    setup.model.layers = 2;
    setup.model.weight_bytes = (9 << 20) + 4;
    let (send, reports) = channel();
    let pipeline = Pipeline::start(setup.specs(), &setup.options, move |p| send.send(p).unwrap()).unwrap();
    let reports: Vec<_> = reports.try_iter().collect();
    let total = 2 * setup.model.weight_bytes;
    assert!(reports.iter().all(|p| p.total_bytes == total && p.done_bytes <= total));
    assert_eq!(reports.iter().map(|p| p.done_bytes).max(), Some(total));
    let prompt = prompt(5, 1);
    assert_eq!(tokens(&all(&submit(&pipeline, &prompt, generate(2)).1)), setup.model.reference(&prompt, 2));
}

/// The prefill stage streams the weights of the other device from its memory, unless it cannot import them.
#[test]
fn weights_of_a_prefill_stage_are_loaded_once() {
    for (failing_import, loads) in [(None, 12), (Some(3), 16)] {
        let mut setup = Setup::new(2);
        (setup.model.layers, setup.prefill, setup.options.prefill_from) = (12, Some(0), 2);
        setup.devices[0].failing_import = failing_import;
        let (send, reports) = channel();
        let pipeline =
            Pipeline::start(setup.specs(), &setup.options, move |p| send.send(p).unwrap()).unwrap();
        let reports: Vec<_> = reports.try_iter().collect();
        assert!(reports.iter().all(|p| p.total_bytes == 12 * setup.model.weight_bytes));
        let loaded = reports.iter().map(|p| p.done_bytes).max();
        assert_eq!(loaded, Some(loads * setup.model.weight_bytes), "{failing_import:?}");
        let prompt = prompt(9, 1);
        assert_eq!(
            tokens(&all(&submit(&pipeline, &prompt, generate(5)).1)),
            setup.model.reference(&prompt, 5)
        );
    }
    let mut setup = Setup::new(2);
    (setup.model.layers, setup.prefill) = (12, Some(0));
    setup.devices[1].failing_import = Some(1);
    let error = setup.start().unwrap_err();
    assert!(matches!(&error, Error::Stage { stage: 1, .. }), "{error:?}");
}

/// Each weight has more chunks than the staging buffer has places, so all places are in use at the same time.
#[test]
fn weights_of_many_chunks_load_completely() {
    let mut setup = Setup::new(1);
    setup.model.layers = 2;
    setup.model.weight_bytes = 200_000;
    let mut specs = setup.specs();
    let segments = specs.stages[0].compiled.segments.clone();
    specs.stages[0].weights = Box::new(Spoilt(setup.model.weights(segments), "small"));
    let (send, reports) = channel();
    let pipeline = Pipeline::start(specs, &setup.options, move |p| send.send(p.done_bytes).unwrap()).unwrap();
    assert_eq!(reports.try_iter().max(), Some(2 * setup.model.weight_bytes));
    let prompt = prompt(5, 1);
    assert_eq!(tokens(&all(&submit(&pipeline, &prompt, generate(2)).1)), setup.model.reference(&prompt, 2));
}

#[test]
fn programs_of_decode_steps_are_recorded_at_start() {
    let (specs, recorded) = support::null::counting_pipeline(&[1, 2, 4, 8, 16]);
    let mut options = PipelineOptions::new(1, 4096, 2048, 16);
    (options.slots, options.decode_groups, options.credits) = (2, 2, 3);
    let pipeline = Pipeline::start(specs, &options, |_| {}).unwrap();
    let count = || recorded.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(count(), 2 * 3, "a group has at most three of the five sequences");
    let requests = [1, 2, 3].map(|_| submit(&pipeline, &[0], Job::generate(9, support::null::Zero)));
    requests.iter().for_each(|(_, replies)| assert_eq!(finished(&all(replies)).new_tokens, 9));
    assert_eq!(count(), 2 * 3, "the first requests record no program");
}
