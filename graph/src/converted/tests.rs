//! Tests with ternary weights. `checkpoint/tests.rs` tests 8-bit floats.

use super::*;
use crate::source::MemorySource;
use ragtag_kernels::blocks::{dequantise, quantise};

fn place(bytes: Vec<u8>) -> Place {
    let size = bytes.len() as u64;
    // The tensor does not start at the start of the file.
    let bytes = [vec![0xff; 7], bytes].concat();
    Place { source: Arc::new(MemorySource::new("file", bytes)), offset: 7, bytes: size }
}

/// Returns the weight of a row and a column as −1, 0 or 1.
fn weight(row: usize, column: usize) -> i32 {
    (row * 7 + column * column * 5 + column / 3) as i32 % 3 - 1
}

/// Packs the weights of a matrix as bytes that each hold four weights. `place` returns the byte and the shift
/// of a weight.
fn packed(rows: usize, columns: usize, place: impl Fn(usize, usize) -> (usize, usize)) -> Vec<u8> {
    let mut bytes = vec![0u8; rows * columns / 4];
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        let (at, shift) = place(row, column);
        bytes[at] |= ((weight(row, column) + 1) as u8) << shift;
    }
    bytes
}

fn by_rows(rows: usize, columns: usize) -> Vec<u8> {
    packed(rows, columns, |row, column| (row % (rows / 4) * columns + column, row / (rows / 4) * 2))
}

fn i2_s(rows: usize, columns: usize) -> Vec<u8> {
    packed(rows, columns, |row, column| {
        let at = row * columns + column;
        (at / 128 * 32 + at % 32, 6 - at % 128 / 32 * 2)
    })
}

/// Adds a matrix, reads it, and returns its type and values.
fn read(ternary: Ternary, [columns, rows]: [u64; 2]) -> Result<(TensorType, Vec<f32>), SourceError> {
    let mut sources = Vec::new();
    let info = add(&mut sources, "t".into(), vec![columns, rows], ternary).unwrap();
    let bytes = sources[info.shard].whole(0..info.bytes)?;
    let mut values = vec![f32::NAN; (columns * rows) as usize];
    dequantise(info.tensor_type, &bytes, &mut values).unwrap();
    Ok((info.tensor_type, values))
}

#[test]
fn packed_ternary_weights_keep_their_values() {
    // f16 holds 0.375, but not 0.3.
    for (columns, scale, wanted) in [
        (256, 0.375, TensorType::TQ2_0),
        (512, 0.375, TensorType::TQ2_0),
        (128, 0.375, TensorType::F8_E4M3),
        (256, 0.3, TensorType::F8_E4M3),
    ] {
        for (packing, bytes) in [(Packing::Rows, by_rows(8, columns)), (Packing::I2S, i2_s(8, columns))] {
            let shape = [columns as u64, 8];
            let ternary = Ternary::new("t", shape, place(bytes), packing, Some(scale)).unwrap();
            let (tensor_type, values) = read(ternary, shape).unwrap();
            assert_eq!(tensor_type, wanted);
            for (at, value) in values.into_iter().enumerate() {
                assert_eq!(value, weight(at / columns, at % columns) as f32 * scale, "{columns} at {at}");
            }
        }
    }
}

#[test]
fn rounded_weights_are_ternary_with_their_mean_as_the_scale() {
    let (columns, rows) = (256, 4);
    // The magnitudes are 0.125 to 1.375, and values between half the mean and the mean round up.
    let all: Vec<f32> = (0..columns * rows)
        .map(|at| (at % 12) as f32 * 0.125 * if at % 5 < 2 { -1.0 } else { 1.0 })
        .collect();
    let mean = all.iter().map(|value| value.abs()).sum::<f32>() / all.len() as f32;
    for (tensor_type, wanted) in [
        (TensorType::BF16, TensorType::TQ2_0),
        (TensorType::F16, TensorType::TQ2_0),
        (TensorType::F32, TensorType::F8_E4M3),
    ] {
        let mut bytes = vec![0; all.len() * tensor_type.block_bytes()];
        quantise(tensor_type, &all, &mut bytes).unwrap();
        let shape = [columns as u64, rows as u64];
        let ternary = Ternary::new("t", shape, place(bytes), Packing::Rounded(tensor_type), None).unwrap();
        let (found, values) = read(ternary, shape).unwrap();
        assert_eq!(found, wanted);
        let scale = values.iter().fold(0f32, |most, value| most.max(*value));
        assert!((scale / mean - 1.0).abs() < 4e-3, "{scale} for {mean}");
        for (value, plain) in values.iter().zip(&all) {
            assert_eq!(*value, (plain / mean).round().clamp(-1.0, 1.0) * scale, "{plain}");
        }
    }
}

#[test]
fn invalid_ternary_weights_are_errors() {
    let shape = [128, 4];
    let open = |bytes: Vec<u8>, scale| Ternary::new("t", shape, place(bytes), Packing::Rows, Some(scale));
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = open(by_rows(4, 128), scale).err().unwrap().to_string();
        assert!(
            error.starts_with("file: tensor t: its scale ") && error.contains("not finite and positive"),
            "{error}"
        );
    }
    let mut bytes = by_rows(4, 128);
    bytes[3] |= 0x30;
    let error = read(open(bytes, 1.0).unwrap(), shape).unwrap_err().to_string();
    assert_eq!(error, "file: tensor t: a weight of row 2 is not ternary");
    // bf16 weights of 100352, which f16 cannot hold.
    let large = [0xc4, 0x47].repeat(256 * 4);
    let rounded =
        Ternary::new("t", [256, 4], place(large), Packing::Rounded(TensorType::BF16), None).unwrap();
    let error = read(rounded, [256, 4]).unwrap_err().to_string();
    assert!(error.starts_with("file: tensor t: f16 cannot hold its scale"), "{error}");
}

#[test]
fn tensors_of_partial_blocks_are_refused() {
    let ternary = Ternary::new("t", [48, 4], place(by_rows(4, 48)), Packing::Rows, Some(1.0)).unwrap();
    assert!(add(&mut Vec::new(), "t".into(), vec![48, 4], ternary).is_none());
}
