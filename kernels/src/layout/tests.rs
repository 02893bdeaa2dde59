//! Tests of the layouts: their sizes, the shapes that they reject, and every packed byte against the
//! definition.

use super::*;
use crate::blocks::dequantise;
use crate::cases::Random;
use half::{bf16, f16};

#[test]
fn sizes_follow_from_the_sections() {
    let bytes = |t, columns| Resident::new(t, Layout::Rows16, 17, columns).unwrap().bytes();
    assert_eq!(bytes(TensorType::F16, 64), 2 * 64 * 32);
    assert_eq!(bytes(TensorType::F8_E4M3, 96), 2 * 3 * 576);
    assert_eq!(bytes(TensorType::Q8_0, 32), 2 * 576); // 544 and padding
    assert_eq!(bytes(TensorType::Q4_0, 256), 2 * 8 * 288);
    assert_eq!(bytes(TensorType::Q4_1, 96), 2 * 3 * 320);
    assert_eq!(bytes(TensorType::Q5_0, 32), 2 * 384); // 352 and padding
    assert_eq!(bytes(TensorType::Q5_1, 64), 2 * 2 * 384);
    assert_eq!(bytes(TensorType::Q2_K, 512), 2 * 2 * (8 * 160 + 64));
    assert_eq!(bytes(TensorType::Q3_K, 512), 2 * 2 * (8 * 224 + 32));
    assert_eq!(bytes(TensorType::Q4_K, 256), 2 * (8 * 288 + 64));
    assert_eq!(bytes(TensorType::Q5_K, 256), 2 * (8 * 352 + 64));
    assert_eq!(bytes(TensorType::Q6_K, 512), 2 * 2 * (8 * 416 + 32));
    assert_eq!(bytes(TensorType::IQ4_NL, 256), bytes(TensorType::Q4_0, 256));
    assert_eq!(bytes(TensorType::IQ4_XS, 256), 2 * (8 * 272 + 32 + 32)); // 32 bytes of padding
    assert_eq!(bytes(TensorType::MXFP4, 128), 2 * 4 * 272);
    assert_eq!(bytes(TensorType::TQ1_0, 512), bytes(TensorType::TQ2_0, 512));
    assert_eq!(bytes(TensorType::TQ2_0, 512), 2 * 2 * (8 * 128 + 32));
}

/// Checks that f32 rows of any length keep their values at the pitch of `RowMajor`, with zeros after them.
#[test]
fn rows_of_any_length_are_padded_with_zeros() {
    for columns in 1..=100usize {
        let resident = Resident::of_any_columns(3, columns as u64).unwrap();
        let pitch = pitch_values(columns as u32) as usize;
        assert_eq!(
            (resident.layout(), pitch % PITCH_VALUES, columns.div_ceil(64)),
            (Layout::RowMajor, 0, pitch / 64)
        );
        let values: Vec<f32> = (0..3 * columns).map(|at| at as f32 - 7.5).collect();
        let source: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let mut out = vec![0xff; resident.bytes() as usize];
        resident.pack(0..1, &source, &mut out).unwrap();
        let found: Vec<f32> = out.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(found.len(), GROUP_ROWS * pitch);
        for (at, value) in found.iter().enumerate() {
            let (row, column) = (at / pitch, at % pitch);
            let wanted = if row < 3 && column < columns { values[row * columns + column] } else { 0.0 };
            assert_eq!(*value, wanted, "row {row}, column {column} of {columns}");
        }
    }
    assert!(matches!(Resident::of_any_columns(1, 0), Err(LayoutError::Columns { .. })));
    assert!(matches!(Resident::of_any_columns(1 << 40, 1 << 40), Err(LayoutError::TooLarge { .. })));
}

#[test]
fn rejects_shapes_that_do_not_fit() {
    assert!(matches!(
        Resident::new(TensorType::Q4_K, Layout::Rows16, 1, 128),
        Err(LayoutError::Columns { block: 256, .. })
    ));
    assert!(matches!(
        Resident::new(TensorType::F32, Layout::Rows16, 1, 33),
        Err(LayoutError::Columns { block: 32, .. })
    ));
    assert!(matches!(Resident::new(TensorType::F32, Layout::Rows16, 1, 0), Err(LayoutError::Columns { .. })));
    for (rows, columns) in [(u64::MAX, 32), (1 << 40, 1 << 30), (3, u64::MAX - 31)] {
        assert!(matches!(
            Resident::new(TensorType::Q8_0, Layout::Rows16, rows, columns),
            Err(LayoutError::TooLarge { .. })
        ));
    }
}

#[test]
fn rejects_wrong_lengths() {
    let layout = Resident::new(TensorType::Q8_0, Layout::Rows16, 20, 64).unwrap();
    let mut out = vec![7; layout.group_bytes()];
    assert!(matches!(layout.pack(1..2, &[0; 5 * 68], &mut out), Err(LayoutError::Bytes { wanted: 272, .. })));
    assert!(matches!(layout.pack(1..3, &[0; 4 * 68], &mut out), Err(LayoutError::Groups { groups: 2, .. })));
    assert!(out.iter().all(|b| *b == 7));
    layout.pack(1..2, &[0; 4 * 68], &mut out).unwrap();
}

/// Reads a value of a group as the documentation of the layouts defines it. It is slow, but independent of
/// the packing code.
fn value(layout: &Resident, group: &[u8], row: usize, column: usize) -> f32 {
    let mut rest = group;
    let mut parts = Vec::new();
    for section in sections(layout.tensor_type()) {
        let (part, after) = rest.split_at(layout.columns() / section.columns * section.bytes);
        parts.push(part);
        rest = after;
    }
    let (block, top) = (column / 32, column / 256);
    let (quad, lane) = (column % 32 / 4, column % 4);
    let byte = |part: usize, vector: usize| parts[part][vector * 64 + row * 4 + lane];
    let half_bytes = |part: usize, array: usize| {
        let at = (array * 16 + row) * 2;
        [parts[part][at], parts[part][at + 1]]
    };
    let half = |part: usize, array: usize| f16::from_le_bytes(half_bytes(part, array)).to_f32();
    let nibble = || (byte(0, block * 4 + quad % 4) >> (quad / 4 * 4)) & 15;
    let five_bits = || f32::from(nibble() | ((byte(1, block) >> quad) & 1) << 4);
    let sub = |part: usize, array: usize| parts[part][(block * 2 + array) * 16 + row];
    match layout.tensor_type() {
        TensorType::F32 => f32::from_le_bytes(parts[0].as_chunks().0[column * 16 + row]),
        TensorType::F16 => half(0, column),
        TensorType::BF16 => bf16::from_le_bytes(half_bytes(0, column)).to_f32(),
        TensorType::F8_E4M3 => {
            let (quant, at) = (i32::from(byte(0, block * 8 + quad)), (block * 16 + row) * 4);
            let scale = f32::from_le_bytes(parts[1][at..at + 4].try_into().unwrap());
            let (exponent, mantissa) = (quant / 8 % 16, quant % 8);
            let leading = if exponent > 0 { 8 } else { 0 };
            let sign = if quant < 128 { scale } else { -scale };
            sign * (leading + mantissa) as f32 * 2f32.powi(exponent.max(1) - 10)
        }
        TensorType::Q8_0 => half(1, block) * (f32::from(byte(0, block * 8 + quad)) - 128.0),
        TensorType::Q4_0 => half(1, block) * (f32::from(nibble()) - 8.0),
        TensorType::Q4_1 => half(1, block * 2) * f32::from(nibble()) + half(1, block * 2 + 1),
        TensorType::Q5_0 => half(2, block) * (five_bits() - 16.0),
        TensorType::Q5_1 => half(2, block * 2) * five_bits() + half(2, block * 2 + 1),
        TensorType::Q2_K => {
            let quant = (byte(0, block * 2 + quad / 4) >> (quad % 4 * 2)) & 3;
            let both = sub(1, quad / 4);
            half(2, top * 2) * f32::from(both & 15) * f32::from(quant)
                - half(2, top * 2 + 1) * f32::from(both >> 4)
        }
        TensorType::Q3_K => {
            let byte = |vector: usize| byte(0, block * 3 + vector);
            let quant = match quad {
                6 | 7 => byte(quad - 6) >> 6 | ((byte(2) >> quad) & 1) << 2,
                _ => (byte(quad / 2) >> (quad % 2 * 3)) & 7,
            };
            half(2, top) * f32::from(sub(1, quad / 4) as i8) * (f32::from(quant) - 4.0)
        }
        TensorType::Q4_K => {
            let (scale, minimum) = (f32::from(sub(1, 0)), f32::from(sub(1, 1)));
            half(2, top * 2) * scale * f32::from(nibble()) - half(2, top * 2 + 1) * minimum
        }
        TensorType::Q5_K => {
            let (scale, minimum) = (f32::from(sub(2, 0)), f32::from(sub(2, 1)));
            half(3, top * 2) * scale * five_bits() - half(3, top * 2 + 1) * minimum
        }
        TensorType::Q6_K => {
            let high = (byte(1, block * 2 + quad % 2) >> (quad / 2 * 2)) & 3;
            let scale = f32::from(sub(2, quad / 4) as i8);
            half(3, top) * scale * (f32::from(nibble() | high << 4) - 32.0)
        }
        TensorType::IQ4_NL => {
            let values = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
            half(1, block) * values[usize::from(nibble())] as f32
        }
        TensorType::IQ4_XS => {
            let values = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
            let scale = f32::from(parts[1][block * 16 + row] as i8);
            half(2, top) * scale * values[usize::from(nibble())] as f32
        }
        TensorType::MXFP4 => {
            let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
            let sign = if nibble() < 8 { 1.0 } else { -1.0 };
            2f32.powi(i32::from(parts[1][block * 16 + row]) - 127) * values[usize::from(nibble() % 8)] * sign
        }
        TensorType::TQ1_0 | TensorType::TQ2_0 => {
            let field = (byte(0, block * 2 + quad / 4) >> (quad % 4 * 2)) & 3;
            half(1, top) * (f32::from(field) - 1.0)
        }
    }
}

#[test]
fn packed_groups_match_the_table() {
    for tensor_type in TensorType::ALL {
        let unit = tensor_type.block_values().max(COLUMN_BLOCK);
        for (rows, columns) in [(1, unit), (15, unit * 3), (20, 512), (32, unit * 2), (33, unit)] {
            let layout = Resident::new(tensor_type, Layout::Rows16, rows as u64, columns as u64).unwrap();
            let file = Random::new(7).blocks(tensor_type, rows * columns);
            let mut expected = vec![0.0; rows * columns];
            dequantise(tensor_type, &file, &mut expected).unwrap();
            // The rows that pad the last group are zero.
            expected.resize(layout.groups() * GROUP_ROWS * columns, 0.0);
            let mut resident = vec![0xff; layout.bytes() as usize];
            layout.pack(0..layout.groups(), &file, &mut resident).unwrap();
            for (at, expected) in expected.into_iter().enumerate() {
                let (row, column) = (at / columns, at % columns);
                let group = &resident[row / GROUP_ROWS * layout.group_bytes()..][..layout.group_bytes()];
                let value = value(&layout, group, row % GROUP_ROWS, column);
                assert_eq!(value, expected, "{tensor_type} row {row} of {rows} column {column} of {columns}");
            }
            let section_bytes = sections(tensor_type).iter().map(|s| columns / s.columns * s.bytes);
            let used = section_bytes.sum::<usize>();
            for group in resident.chunks_exact(layout.group_bytes()) {
                assert!(group[used..].iter().all(|byte| *byte == 0), "{tensor_type}: padding of a group");
            }
        }
    }
}

#[test]
fn row_major_matrices_are_file_rows_and_zeros() {
    let types = [(TensorType::F32, 4), (TensorType::F16, 2), (TensorType::BF16, 2)];
    for (tensor_type, value_bytes) in types {
        for (rows, columns) in [(1, 32), (20, 96), (16, 128)] {
            let layout = Resident::new(tensor_type, Layout::RowMajor, rows, columns).unwrap();
            let (rows, columns) = (rows as usize, columns as usize);
            let (pitch, row_bytes) = (columns.div_ceil(64) * 64 * value_bytes, columns * value_bytes);
            assert_eq!(layout.bytes() as usize, rows.div_ceil(16) * 16 * pitch);
            let file = Random::new(3).blocks(tensor_type, rows * columns);
            let mut resident = vec![0xff; layout.bytes() as usize];
            // Group by group, as it is uploaded.
            for (group, out) in resident.chunks_exact_mut(layout.group_bytes()).enumerate() {
                let rows = layout.rows_of(group..group + 1);
                let rows = &file[rows.start * row_bytes..rows.end * row_bytes];
                layout.pack(group..group + 1, rows, out).unwrap();
            }
            for (row, bytes) in resident.chunks_exact(pitch).enumerate() {
                let (values, padding) = bytes.split_at(row_bytes);
                let expected = file.get(row * row_bytes..(row + 1) * row_bytes);
                assert_eq!(values, expected.unwrap_or(&vec![0; row_bytes]), "{tensor_type} row {row}");
                assert!(padding.iter().all(|byte| *byte == 0));
            }
        }
    }
    for tensor_type in TensorType::ALL.into_iter().filter(|t| t.block_values() > 1) {
        let layout = Resident::new(tensor_type, Layout::RowMajor, 16, 256);
        assert_eq!(layout, Err(LayoutError::Blocks { tensor_type }));
    }
    for (rows, columns) in [(u64::MAX, 32), (1 << 40, 1 << 30), (3, u64::MAX - 31)] {
        let layout = Resident::new(TensorType::F32, Layout::RowMajor, rows, columns);
        assert!(matches!(layout, Err(LayoutError::TooLarge { .. })));
    }
}
