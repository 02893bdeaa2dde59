//! Tests with ternary weights, weights of two bits, and experts. `checkpoint/tests.rs` tests 8-bit floats.

use super::lookup::Tiles;
use super::*;
use crate::source::MemorySource;
use ragtag_kernels::blocks::{dequantise, quantise};

fn place(bytes: Vec<u8>) -> TensorBytes {
    let size = bytes.len() as u64;
    // The tensor does not start at the start of the file.
    let bytes = [vec![0xff; 7], bytes].concat();
    TensorBytes { source: Arc::new(MemorySource::new("file", bytes)), offset: 7, bytes: size }
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
    let bytes = sources[info.shard].range(0..info.bytes)?;
    let mut values = vec![f32::NAN; (columns * rows) as usize];
    dequantise(info.tensor_type, &bytes, &mut values).unwrap();
    values.iter_mut().for_each(|value| *value *= sources[info.shard].factor());
    Ok((info.tensor_type, values))
}

#[test]
fn packed_ternary_weights_keep_their_values() {
    // f16 holds 0.375, but not 0.3, and no number as large or as small as the last two.
    for (columns, scale, wanted) in [
        (256, 0.375, TensorType::TQ2_0),
        (512, 0.375, TensorType::TQ2_0),
        (128, 0.375, TensorType::F8_E4M3),
        (128, 0.3, TensorType::F8_E4M3),
        (256, 0.3, TensorType::TQ2_0),
        (256, 70_000.0, TensorType::TQ2_0),
        (256, 3e-9, TensorType::TQ2_0),
    ] {
        for (packing, bytes) in [(Packing::Rows, by_rows(8, columns)), (Packing::I2S, i2_s(8, columns))] {
            let shape = [columns as u64, 8];
            let ternary = Ternary::new("t", shape, place(bytes), packing, Some(scale)).unwrap();
            let (tensor_type, values) = read(ternary, shape).unwrap();
            assert_eq!(tensor_type, wanted);
            for (at, value) in values.into_iter().enumerate() {
                let exact = weight(at / columns, at % columns) as f32 * scale;
                assert!(
                    (value - exact).abs() <= scale * f32::EPSILON,
                    "{columns} at {at}: {value} for {exact}"
                );
            }
        }
    }
}

#[test]
fn rounded_weights_are_ternary_with_their_mean_as_the_scale() {
    let (columns, rows) = (256, 4);
    // The magnitudes are 0.125 to 1.375, and values between half the mean and the mean round up.
    let mut all: Vec<f32> = (0..columns * rows)
        .map(|at| (at % 12) as f32 * 0.125 * if at % 5 < 2 { -1.0 } else { 1.0 })
        .collect();
    // More than half the mean, but half of the bf16 nearest to the mean.
    all[0] = -0.34375;
    let mean = all.iter().map(|value| value.abs()).sum::<f32>() / all.len() as f32;
    for tensor_type in [TensorType::BF16, TensorType::F16, TensorType::F32] {
        let mut bytes = vec![0; all.len() * tensor_type.block_bytes()];
        quantise(tensor_type, &all, &mut bytes).unwrap();
        let shape = [columns as u64, rows as u64];
        let ternary = Ternary::new("t", shape, place(bytes), Packing::Rounded(tensor_type), None).unwrap();
        let (found, values) = read(ternary, shape).unwrap();
        assert_eq!(found, TensorType::TQ2_0);
        let scale = values.iter().fold(0f32, |most, value| most.max(*value));
        assert!((scale / mean - 1.0).abs() < 3e-7, "{scale} for {mean}");
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
    // bf16 weights that are not numbers, and of 100352, which f16 cannot hold.
    let rounded = |bytes: [u8; 2]| {
        let bytes = place(bytes.repeat(256 * 4));
        Ternary::new("t", [256, 4], bytes, Packing::Rounded(TensorType::BF16), None)
    };
    let error = rounded([0xc0, 0x7f]).err().unwrap().to_string();
    assert_eq!(error, "file: tensor t: its scale NaN is not finite and positive");
    let (_, values) = read(rounded([0xc4, 0x47]).unwrap(), [256, 4]).unwrap();
    assert_eq!(values, [100_352.0; 1024]);
}

#[test]
fn tensors_of_partial_blocks_are_refused() {
    let ternary = Ternary::new("t", [48, 4], place(by_rows(4, 48)), Packing::Rows, Some(1.0)).unwrap();
    assert!(add(&mut Vec::new(), "t".into(), vec![48, 4], ternary).is_none());
}

/// Returns the elements of an array in the order of the axes `axes`. The last one varies fastest.
fn transposed(data: &[u8], shape: &[usize], axes: &[usize]) -> Vec<u8> {
    assert_eq!(data.len(), shape.iter().product::<usize>());
    let stride = |axis: usize| shape[axis + 1..].iter().product::<usize>();
    let mut at = vec![0];
    for axis in axes {
        at = at.iter().flat_map(|at| (0..shape[*axis]).map(move |i| at + i * stride(*axis))).collect();
    }
    at.into_iter().map(|at| data[at]).collect()
}

/// Cuts `[rows][units]` into tiles and runs, and returns `[tiles][runs][units of a run][rows of a run]`.
fn tiled(units: &[u8], rows: usize, tiles: (usize, usize), run: (usize, usize)) -> Vec<u8> {
    let across = units.len() / rows;
    let shape = [rows / tiles.0, tiles.0 / run.0, run.0, across / tiles.1, tiles.1 / run.1, run.1];
    transposed(units, &shape, &[0, 3, 1, 4, 5, 2])
}

/// Joins two units of 32 rows as nibbles, and exchanges the second and the third eight of the rows.
fn nibbles(units: &[u8]) -> Vec<u8> {
    let joined: Vec<u8> =
        units.chunks_exact(64).flat_map(|two| (0..32).map(|row| two[row] << 4 | two[32 + row])).collect();
    let eights = joined.as_chunks::<8>().0.as_chunks::<4>().0;
    eights.iter().flat_map(|[a, b, c, d]| [*a, *c, *b, *d]).flatten().collect()
}

/// Returns the weights of each `N` columns as a number in base 3.
fn groups<const N: usize>(rows: usize, columns: Range<usize>) -> Vec<i32> {
    let starts = (0..rows).flat_map(|row| columns.clone().step_by(N).map(move |column| (row, column)));
    starts.map(|(row, column)| (0..N).fold(0, |sum, i| sum * 3 + weight(row, column + i))).collect()
}

/// Packs the weights of a matrix in TL1.
fn tl1(rows: usize, columns: usize, tiles: &Tiles) -> Vec<u8> {
    let pairs: Vec<u8> = groups::<2>(rows, 0..columns).into_iter().map(|pair| (pair + 4) as u8).collect();
    let [tile_rows, tile_columns, run] = [tiles.rows, tiles.columns, tiles.run].map(|n| n as usize);
    let tiled = tiled(&pairs, rows, (tile_rows, tile_columns / 2), (run, 128 / run));
    // Two pairs of 16 rows fill 16 bytes.
    let shape = [tiled.len() / 128, 256 / run / 4, 2, run / 16, 16];
    let ordered = transposed(&tiled, &shape, &[0, 3, 1, 4, 2]);
    ordered.as_chunks().0.iter().map(|[high, low]| high << 4 | low).collect()
}

/// Packs the weights of a matrix in TL2.
fn tl2(rows: usize, columns: usize, tiles: &Tiles) -> Vec<u8> {
    let [tile_rows, tile_columns] = [tiles.rows, tiles.columns].map(|n| n as usize);
    let split = columns - columns % tile_columns;
    let triples = groups::<3>(rows, 0..split);
    let of = |value: fn(&i32) -> u8| triples.iter().map(value).collect::<Vec<_>>();
    let tile = (tile_rows, tile_columns / 3);
    let mut out = nibbles(&tiled(&of(|triple| triple.unsigned_abs() as u8), rows, tile, (32, 2)));
    let signs = tiled(&of(|triple| u8::from(*triple < 0)), rows, tile, (32, 8));
    for run in signs.chunks_exact(256) {
        let word = |item: usize| (0..16).fold(0, |word, i| word | u16::from(run[i * 16 + item]) << (15 - i));
        out.extend((0..16).flat_map(|item| word(item).to_le_bytes()));
    }
    let pairs: Vec<u8> = groups::<2>(rows, split..columns).into_iter().map(|pair| (pair + 4) as u8).collect();
    out.extend(nibbles(&tiled(&pairs, rows, (tile_rows, 16), (32, 2))));
    out.resize((columns - 256) * rows / 3 * 5 / 8 + rows * 64, 0);
    out
}

#[test]
fn weights_in_lookup_tables_keep_their_values() {
    // Digests of what the steps of Microsoft's converter make of the same weights.
    for (table, rows, columns, tiles, digest) in [
        (Table::Pairs, 128, 256, [64, 128, 32], 0xe626_4776_68ab_7cac),
        (Table::Pairs, 128, 256, [64, 64, 64], 0x8e1d_0295_7fb9_023c),
        (Table::Triples, 64, 448, [64, 96, 32], 0x326d_0b82_3cda_b576),
        (Table::Triples, 64, 384, [32, 192, 32], 0x8b00_00bf_c1f8_18a0),
    ] {
        let tiles = Tiles { rows: tiles[0], columns: tiles[1], run: tiles[2] };
        let pack = if table == Table::Pairs { tl1 } else { tl2 };
        let bytes = pack(rows, columns, &tiles);
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        assert_eq!(bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix), digest, "{table:?} {tiles:?}");
        let shape = [columns as u64, rows as u64];
        assert_eq!(lookup_bytes(table, shape), Some((bytes.len() as u64).next_multiple_of(32)));

        let open = |bytes: Vec<u8>| {
            let packing = Packing::Lookup(Lookup::new(table, shape, tiles));
            read(Ternary::new("t", shape, place(bytes), packing, Some(0.375)).unwrap(), shape)
        };
        let (_, values) = open(bytes.clone()).unwrap();
        for (at, value) in values.into_iter().enumerate() {
            assert_eq!(value, weight(at / columns, at % columns) as f32 * 0.375, "{table:?} at {at}");
        }
        // An index beyond the table.
        let wrong = [&[0xff], &bytes[1..]].concat();
        let error = open(wrong).unwrap_err().to_string();
        assert_eq!(error, "file: tensor t: a weight of row 0 is not ternary");
    }
}

#[test]
fn the_order_of_weights_in_lookup_tables_is_known_for_some_matrices() {
    assert!(Lookup::find(Table::Pairs, [4096, 1536]).is_some());
    assert!(Lookup::find(Table::Pairs, [4096, 14336]).is_none(), "the repository has two orders");
    assert!(Lookup::find(Table::Triples, [4096, 14336]).is_some());
    assert!(Lookup::find(Table::Triples, [2560, 6912]).is_none());
    assert_eq!(lookup_bytes(Table::Triples, [128, 64]), None);
    assert_eq!(lookup_bytes(Table::Pairs, [u64::MAX, 64]), None);
}

#[test]
fn weights_of_two_bits_keep_their_values() {
    // Each byte holds four weights from the lowest bits on.
    let codes: Vec<u8> = (0..64).map(|i: u32| (i * 37 % 251) as u8).collect();
    let value = |at: usize| [-2.0, -1.0, 1.0, 2.0][usize::from((codes[at / 4] >> (at % 4 * 2)) & 3)];
    // f16 of 1, 2, 4 and so on.
    let scale = |block: usize| (1 << block) as f32;
    let bits = |block: usize| (0x3c00 + 0x400 * block as u16).to_le_bytes();
    let with_scales = |put: &dyn Fn(usize) -> [u8; 2]| {
        let blocks = codes.chunks_exact(8).enumerate();
        blocks.flat_map(|(i, codes)| [codes, &put(i)[..]].concat()).collect::<Vec<u8>>()
    };
    let read = |bytes: Vec<u8>, has_scales| {
        let (mut sources, mut values) = (Vec::new(), vec![f32::NAN; 256]);
        let two_bits = TwoBits { tensor: "t".into(), values: place(bytes), has_scales };
        let info = add(&mut sources, "t".into(), vec![64, 4], two_bits).unwrap();
        let bytes = sources[info.shard].range(0..info.bytes)?;
        dequantise(info.tensor_type, &bytes, &mut values).unwrap();
        Ok::<_, SourceError>(values)
    };
    for (at, found) in read(codes.clone(), false).unwrap().into_iter().enumerate() {
        assert_eq!(found, value(at), "{at}");
    }
    for (at, found) in read(with_scales(&bits), true).unwrap().into_iter().enumerate() {
        assert_eq!(found, value(at) * scale(at / 32), "{at}");
    }
    for bits in [0x7c00u16, 0x7e00, 0, 0xb800] {
        let error = read(with_scales(&|_| bits.to_le_bytes()), true).unwrap_err().to_string();
        assert!(error.contains("of a block is not finite and positive"), "{error}");
    }
}

/// Adds a tensor. Checks that any part of it has the bytes of the whole, and returns the values.
fn read_in_parts(shape: Vec<u64>, conversion: impl Conversion) -> Vec<f32> {
    let mut sources = Vec::new();
    let count: u64 = shape.iter().product();
    let info = add(&mut sources, "t".into(), shape, conversion).unwrap();
    let source = &sources[info.shard];
    let whole = source.range(0..info.bytes).unwrap().into_owned();
    let third = info.bytes / 3;
    for (start, end) in [(0, 1), (3, 30), (17, 34), (34, info.bytes), (third, 2 * third)] {
        let part = source.range(start..end).unwrap();
        assert!(*part == whole[start as usize..end as usize], "bytes {start} to {end}");
    }
    let mut values = vec![f32::NAN; count as usize];
    dequantise(info.tensor_type, &whole, &mut values).unwrap();
    values
}

/// Returns the value of a row in the order of products, and a column, of an expert with `rows` rows.
fn of_expert(expert: usize, row: usize, column: usize) -> f32 {
    ((expert * 31 + row * 7 + column * 3) % 50) as f32 - 20.0
}

/// Returns the place of a row among the rows of its expert in the file.
fn in_file(row: usize, rows: usize, parts: usize) -> usize {
    row % (rows / parts) * parts + row / (rows / parts)
}

#[test]
fn experts_are_read_in_the_order_of_products() {
    let (experts, rows, columns) = (3, 6, 64);
    for parts in [1, 2, 3] {
        let order = ExpertRows { rows: rows as u64, parts: parts as u64 };
        let mut file = vec![0.0; experts * rows * columns];
        let mut biases = vec![0.0; experts * rows];
        let mut expected = Vec::new();
        for (expert, row) in (0..experts).flat_map(|expert| (0..rows).map(move |row| (expert, row))) {
            let place = in_file(row, rows, parts);
            biases[expert * rows + place] = of_expert(expert, row, 0);
            for column in 0..columns {
                let value = of_expert(expert, row, column);
                file[(expert * columns + column) * rows + place] = value;
                expected.push(value);
            }
        }
        for tensor_type in [TensorType::F32, TensorType::F16, TensorType::BF16] {
            let stored = |values: &[f32]| {
                let mut bytes = vec![0; values.len() * tensor_type.block_bytes()];
                quantise(tensor_type, values, &mut bytes).unwrap();
                place(bytes)
            };
            let matrices =
                Transposed { tensor_type, columns: columns as u64, rows: order, values: stored(&file) };
            let shape = vec![columns as u64, rows as u64, experts as u64];
            assert_eq!(read_in_parts(shape, matrices), expected, "{tensor_type}, {parts} parts");
            let (experts, values) = (experts as u64, stored(&biases));
            let parted = PartedBiases { tensor_type, experts, rows: order, values };
            let shape = vec![(rows / parts) as u64, experts, parts as u64];
            let found = read_in_parts(shape, parted);
            let of_parts = (0..parts).flat_map(|part| (0..3).map(move |expert| (part, expert)));
            let rows_of = |(part, expert): (usize, usize)| {
                (0..rows / parts).map(move |row| of_expert(expert, part * (rows / parts) + row, 0))
            };
            assert_eq!(
                found,
                of_parts.flat_map(rows_of).collect::<Vec<f32>>(),
                "{tensor_type}, {parts} parts"
            );
        }
    }
}

#[test]
fn mxfp4_blocks_keep_their_values() {
    let (experts, rows, columns) = (2, 4, 64);
    let blocks = experts * rows * columns / 32;
    let quants: Vec<u8> = (0..blocks * 16).map(|at| (at * 37 % 251) as u8).collect();
    let scales: Vec<u8> = (0..blocks).map(|at| 120 + (at * 5 % 13) as u8).collect();
    let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0f32];
    let value = |at: usize| {
        let quant = quants[at / 2] >> (at % 2 * 4) & 15;
        let sign = if quant < 8 { 1.0 } else { -1.0 };
        sign * values[usize::from(quant % 8)] * 2f32.powi(i32::from(scales[at / 32]) - 127)
    };
    for parts in [1, 2] {
        let mxfp4 = |scales: Vec<u8>| Mxfp4 {
            tensor: "t".into(),
            columns: columns as u64,
            rows: ExpertRows { rows: rows as u64, parts: parts as u64 },
            quants: place(quants.clone()),
            scales: place(scales),
        };
        let shape = vec![columns as u64, rows as u64, experts as u64];
        let found = read_in_parts(shape.clone(), mxfp4(scales.clone()));
        for (at, found) in found.into_iter().enumerate() {
            let (row, column) = (at / columns, at % columns);
            let from = row / rows * rows + in_file(row % rows, rows, parts);
            assert_eq!(found, value(from * columns + column), "{parts} parts, value {at}");
        }
        let mut spoiled = scales.clone();
        spoiled[3] = 255;
        let mut sources = Vec::new();
        let info = add(&mut sources, "t".into(), shape, mxfp4(spoiled)).unwrap();
        let error = sources[0].range(0..info.bytes).unwrap_err().to_string();
        assert!(error.contains("a scale is NaN"), "{error}");
    }
}
