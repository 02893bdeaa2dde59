//! Rows of stages with experts, after many runs.

use super::{SoloBatch, SoloDevice};
use crate::calibrate::filling::Filling;
use crate::calibrate::steps::Steps;
use crate::{CalibrationOptions, DeviceOptions, Devices, Model};
use ragtag_kernels::TensorType;
use ragtag_synth::{Preset, Shape};

/// Returns the mean of the cosines between all pairs of rows.
fn likeness(values: &[f32], rows: usize) -> f64 {
    let row = |index: usize| &values[index * values.len() / rows..(index + 1) * values.len() / rows];
    let product =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = |a, b| product(row(a), row(b)) / (product(row(a), row(a)) * product(row(b), row(b))).sqrt();
    let pairs: Vec<f64> = (0..rows).flat_map(|a| (0..a).map(move |b| cosine(a, b))).collect();
    pairs.iter().sum::<f64>() / pairs.len() as f64
}

#[test]
fn rows_that_choose_experts_stay_different() {
    for tensor_type in [TensorType::Q4_K, TensorType::F16] {
        let shape = Shape { width: 512, layers: 4, tensor_type, vocabulary: 512, ..Preset::B1A03.shape() };
        let bytes = ragtag_synth::in_memory(&shape, 1).unwrap();
        let model = Model::from_bytes("mixture", bytes).unwrap();
        let steps = Steps::new(&model, &CalibrationOptions { sequences: 8, ..CalibrationOptions::default() })
            .unwrap();
        let devices = Devices::probe(&DeviceOptions::selecting("cpu")).unwrap();
        let opened = devices.open(&["cpu:0".into()]).unwrap();
        let (adapter, device) = opened.into_iter().next().unwrap();
        let compiled = steps.compile_decode(1..3, &adapter).unwrap();
        let mut device = SoloDevice::new(Box::new(device));
        let filling = Filling::new(&compiled);
        let mut stage = device.load(compiled, &filling).unwrap();
        let batch = SoloBatch::decode(8, 64);
        let mut rows_after = |runs| {
            for _ in 0..runs {
                stage.burst_us(&batch).unwrap();
            }
            stage.output(&batch, &[]).unwrap()
        };
        let rows = rows_after(1);
        assert!(likeness(&rows, 8) < 0.5, "{tensor_type:?}: {}", likeness(&rows, 8));
        assert_eq!(rows_after(30), rows, "{tensor_type:?}");
    }
}
