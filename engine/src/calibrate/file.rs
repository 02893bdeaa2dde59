//! Measures how fast weights are read from the model's file. The planner uses the rate if it streams weights from
//! there, because host memory is short.
//!
//! Reads a random sample of the file, as a stage would: in chunks, on all threads of rayon's pool, and in the
//! layouts of the device. The parts of the file that the page cache holds are read faster. The sample contains
//! them in the same proportion as the file. If memory has room for the whole file, all steps but the first read
//! it from the page cache, so the second reading of the sample counts. The rate is not cached.

use super::steps::Steps;
use crate::model::Model;
use crate::stage::FileWeights;
use ragtag_graph::WeightChunk;
use ragtag_hal::Adapter;
use ragtag_planner::{Figure, FigureSource};
use ragtag_scheduler::{WEIGHT_CHUNK_BYTES, WeightSource};
use rayon::iter::{IntoParallelRefMutIterator, ParallelIterator};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Number of segments in a sample.
const SEGMENTS: usize = 4;
/// Maximum number of chunks of a segment in a sample.
const CHUNKS: usize = 64;
/// Time after which a sample gets no more segments.
const LONGEST: Duration = Duration::from_millis(100);

/// Returns the rate for each device, except those for which the weights cannot be read. `stays` states whether the
/// file stays in the page cache.
pub(super) fn rates(
    model: &Model,
    steps: &Steps,
    adapters: &[Adapter],
    stays: bool,
) -> Vec<(String, Figure)> {
    // Samples of one file at different times overlap little.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let random = now.subsec_micros() as usize;
    let rate = |(at, adapter): (usize, &Adapter)| {
        Some((adapter.label(), rate(model, steps, adapter, (random + at, stays))?))
    };
    adapters.iter().enumerate().filter_map(rate).collect()
}

fn rate(model: &Model, steps: &Steps, adapter: &Adapter, (random, stays): (usize, bool)) -> Option<Figure> {
    let blocks = steps.blocks();
    let (began, mut bytes, mut busy) = (Instant::now(), 0, Duration::ZERO);
    for part in 0..SEGMENTS.min(blocks.len()) {
        let segment = blocks.start + (random + part * blocks.len() / SEGMENTS) % blocks.len();
        let compiled = steps.compile(segment..segment + 1, adapter).ok()?;
        let source = FileWeights::new(model, &compiled);
        let of_weight =
            |weight| source.chunks(weight, WEIGHT_CHUNK_BYTES).into_iter().map(move |it| (weight, it));
        let mut chunks: Vec<(usize, WeightChunk)> = (0..compiled.weights.len()).flat_map(of_weight).collect();
        let start = random % chunks.len().max(1);
        chunks.rotate_left(start);
        // The first write to a page takes longer, so each page is written before.
        let place = |(weight, chunk): (usize, WeightChunk)| (weight, chunk, vec![1; chunk.bytes as usize]);
        let mut places: Vec<_> = chunks.into_iter().take(CHUNKS).map(place).collect();
        let mut read = || {
            let start = Instant::now();
            let fill = |(weight, chunk, place): &mut (usize, _, Vec<u8>)| source.fill(*weight, chunk, place);
            places.par_iter_mut().try_for_each(fill).ok().map(|()| start.elapsed())
        };
        let first = read()?;
        busy += if stays { read()? } else { first };
        bytes += places.iter().map(|(_, chunk, _)| chunk.bytes).sum::<u64>();
        if began.elapsed() > LONGEST {
            break;
        }
    }
    let value = bytes as f64 / busy.as_secs_f64();
    (value.is_finite() && value >= 1.0).then_some(Figure { value, source: FigureSource::Measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read_at_a_measured_rate() {
        let model = Model::bundled().unwrap();
        let steps = Steps::new(&model, &crate::CalibrationOptions::default()).unwrap();
        let devices = crate::Devices::probe(&crate::DeviceOptions::selecting("cpu")).unwrap();
        for stays in [false, true] {
            let rates = rates(&model, &steps, devices.selected(), stays);
            let [(label, Figure { value, source: FigureSource::Measured })] = &rates[..] else {
                panic!("{rates:?}")
            };
            // Slower than a floppy disk or faster than any memory would be an error in the unit.
            assert!(label == "cpu:0" && (1e5..1e13).contains(value), "{label} {value}");
        }
    }
}
