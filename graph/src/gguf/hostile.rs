//! Tests with corrupt and truncated files, and with files in other formats. The reader must return an error
//! that names the problem and its position.

use super::*;
use crate::source::MemorySource;
use proptest::prelude::*;
use ragtag_kernels::TensorType;

/// Numbers that overflow an addition or a multiplication, or exceed the size of any allocation.
const LIES: [u64; 10] = [
    0xffff_ffff,
    1 << 32,
    1 << 40,
    1 << 60,
    (1 << 61) + 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 7,
    u64::MAX - 1,
    u64::MAX,
];

/// Builder that writes the bytes of a file without any checks.
#[derive(Clone, Default)]
struct Raw(Vec<u8>);

impl Raw {
    /// Writes the magic number, version 3, and the numbers of tensors and of metadata entries.
    fn file(tensors: u64, entries: u64) -> Self {
        Raw::default().bytes(b"GGUF").u32(3).u64(tensors).u64(entries)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    fn text(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// Writes the key and value type of a metadata entry.
    fn entry(self, key: &str, kind: ValueType) -> Self {
        self.text(key).u32(kind.gguf_id())
    }

    fn tensor(self, name: &str, shape: &[u64], tensor_type: u32, offset: u64) -> Self {
        let named = self.text(name).u32(shape.len() as u32);
        shape.iter().fold(named, |raw, extent| raw.u64(*extent)).u32(tensor_type).u64(offset)
    }

    /// Pads with zeros to the next multiple of 32, then appends `count` zeros.
    fn data(mut self, count: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + count, 0);
        self
    }

    fn open(&self) -> Result<ModelFile, FormatError> {
        open(&self.0)
    }

    fn error(&self) -> String {
        self.open().unwrap_err().to_string()
    }
}

fn open(bytes: &[u8]) -> Result<ModelFile, FormatError> {
    ModelFile::open(vec![Arc::new(MemorySource::new("m.gguf", bytes.to_vec()))])
}

const F32: u32 = 0;
const Q8_0: u32 = 8;

/// Builds a small valid file that contains every structure of the format.
fn sound() -> Raw {
    Raw::file(2, 5)
        .entry("general.architecture", ValueType::Str)
        .text("llama")
        .entry("number", ValueType::U32)
        .u32(7)
        .entry("numbers", ValueType::Array)
        .u32(ValueType::F32.gguf_id())
        .u64(3)
        .bytes(&[0; 12])
        .entry("words", ValueType::Array)
        .u32(ValueType::Str.gguf_id())
        .u64(2)
        .text("once")
        .text("upon")
        .entry("flag", ValueType::Bool)
        .bytes(&[1])
        .tensor("a", &[3], F32, 0)
        .tensor("b", &[32, 2], Q8_0, 32)
        .data(32 + 68)
}

#[test]
fn opens_the_valid_file() {
    let model = sound().open().unwrap();
    assert_eq!(model.weights.tensors().len(), 2);
    assert_eq!(model.metadata.iter().count(), 5);
}

#[test]
fn truncation_at_any_byte_names_the_place() {
    let whole = sound().0;
    for end in 0..whole.len() {
        let error = open(&whole[..end]).unwrap_err();
        let FormatError::Truncated { at, wanted, bytes, .. } = &error else { panic!("at {end}: {error}") };
        assert_eq!(*bytes, end as u64, "{error}");
        assert!(*at <= whole.len() as u64 && at + wanted > *bytes, "{error}");
        assert!(error.to_string().starts_with(&format!("m.gguf ends at byte {end}, but ")), "{error}");
    }
}

/// Checks that a file truncated at a structural boundary gives an error that names the first missing item.
#[test]
fn truncation_at_a_boundary_names_the_missing_item() {
    let head = Raw::file(1, 1);
    let key = head.clone().text("k");
    let array = key.clone().u32(ValueType::Array.gguf_id());
    let strings = array.clone().u32(ValueType::Str.gguf_id());
    let metadata = key.clone().u32(ValueType::Bool.gguf_id()).bytes(&[0]);
    let name = metadata.clone().text("t");
    let shape = name.clone().u32(2).u64(3).u64(5);
    let info = shape.clone().u32(F32).u64(0);
    let cases = [
        (Raw::default(), "the magic number"),
        (Raw::default().bytes(b"GGUF"), "the version"),
        (Raw::default().bytes(b"GGUF").u32(3), "the number of tensors"),
        (Raw::default().bytes(b"GGUF").u32(3).u64(1), "the number of metadata entries"),
        (head.clone(), "the length of the key of metadata entry 0 of 1"),
        (head.clone().u64(3), "the key of metadata entry 0 of 1"),
        (key.clone(), "the value type of metadata k"),
        (key.clone().u32(ValueType::U32.gguf_id()), "the value of metadata k"),
        (key.clone().u32(ValueType::Str.gguf_id()), "the length of the value of metadata k"),
        (key.clone().u32(ValueType::Str.gguf_id()).u64(9), "the value of metadata k"),
        (array.clone(), "the element type of the value of metadata k"),
        (strings.clone(), "the count of the value of metadata k"),
        (strings.clone().u64(2).text("x"), "the length of element 1 of 2 of the value of metadata k"),
        (strings.clone().u64(2).u64(1), "element 0 of 2 of the value of metadata k"),
        (array.clone().u32(ValueType::F64.gguf_id()).u64(2), "2 elements of the value of metadata k"),
        (metadata.clone(), "the length of the name of tensor 0 of 1"),
        (metadata.clone().u64(4), "the name of tensor 0 of 1"),
        (name.clone(), "the number of dimensions of tensor t"),
        (name.clone().u32(2), "dimension 0 of tensor t"),
        (name.clone().u32(2).u64(3), "dimension 1 of tensor t"),
        (shape.clone(), "the type of tensor t"),
        (shape.clone().u32(F32), "the offset of tensor t"),
        (info.clone(), "the data of tensor t"),
        (info.clone().data(0), "the data of tensor t"),
        (info.clone().data(59), "the data of tensor t"),
    ];
    for (raw, missing) in cases {
        let FormatError::Truncated { what, .. } = raw.open().unwrap_err() else { panic!("{missing}") };
        assert_eq!(what, missing);
    }
    assert!(info.data(60).open().is_ok());
}

#[test]
fn rejects_false_counts_and_lengths() {
    let head = Raw::default().bytes(b"GGUF").u32(3);
    for lie in LIES {
        let truncated = |raw: Raw| {
            let error = raw.open().unwrap_err();
            assert!(matches!(error, FormatError::Truncated { .. }), "{lie}: {error}");
        };
        let refused = |raw: Raw| {
            raw.open().unwrap_err();
        };
        let key = Raw::file(0, 1).text("k");
        let array = key.clone().u32(ValueType::Array.gguf_id());
        truncated(head.clone().u64(lie).u64(0));
        truncated(head.clone().u64(0).u64(lie));
        truncated(Raw::file(0, 1).u64(lie).data(99));
        truncated(key.clone().u32(ValueType::Str.gguf_id()).u64(lie).data(99));
        truncated(Raw::file(1, 0).u64(lie).data(99));
        for element in (0..13).filter_map(ValueType::from_gguf_id) {
            // Zeros are valid elements of every type, so only the count is invalid.
            refused(array.clone().u32(element.gguf_id()).u64(lie).data(99));
        }
        let nested = array.clone().u32(ValueType::Array.gguf_id()).u64(1);
        refused(nested.u32(ValueType::I16.gguf_id()).u64(lie).data(99));
    }
}

#[test]
fn rejects_false_shapes_and_offsets() {
    for lie in LIES {
        for shape in [&[lie][..], &[lie, lie], &[32, lie], &[lie, 32, lie, 2], &[1 << 32, 1 << 32]] {
            for tensor_type in [F32, Q8_0] {
                Raw::file(1, 0).tensor("t", shape, tensor_type, 0).data(256).open().unwrap_err();
            }
        }
        let aligned = lie & !31;
        let error = Raw::file(1, 0).tensor("t", &[4], F32, aligned).data(256).open().unwrap_err();
        let beyond = format!("16 bytes from offset {aligned}: that is larger than any file");
        let is_cut = matches!(error, FormatError::Truncated { wanted: 16, .. });
        assert!(is_cut || error.to_string().contains(&beyond), "{error}");
    }
    let error = Raw::file(1, 0).tensor("t", &[1 << 32, 1 << 32], F32, 0).data(256).error();
    assert!(
        error.contains("the shape [4294967296, 4294967296] of tensor t: is larger than any file"),
        "{error}"
    );
    let error = Raw::file(1, 0).tensor("t", &[4], F32, 16).data(256).error();
    assert!(error.contains("the offset of tensor t: 16 is not a multiple of the alignment, 32"), "{error}");
    let error = Raw::file(1, 0).tensor("t", &[33, 2], Q8_0, 0).data(256).error();
    assert!(error.contains("rows of 33 values are not whole blocks of 32 (Q8_0)"), "{error}");
    // The shape has 64 values, as many as two blocks hold, but its rows of two values are not whole blocks.
    Raw::file(1, 0).tensor("t", &[2, 32], Q8_0, 0).data(256).open().unwrap_err();
}

#[test]
fn rejects_other_formats_and_versions() {
    let error = Raw::default().bytes(b"PK\x03\x04 and more").error();
    assert_eq!(error, "m.gguf is not a GGUF file: it begins with [50, 4b, 03, 04] instead of \"GGUF\"");
    assert!(Raw::default().bytes(b"hi").error().starts_with("m.gguf is not a GGUF file"));
    assert!(Raw::default().bytes(b"FUGG").u32(3).error().starts_with("m.gguf is not a GGUF file"));
    for version in [0, 1, 4, 99, u32::MAX] {
        let error = Raw::default().bytes(b"GGUF").u32(version).data(64).error();
        assert_eq!(error, format!("m.gguf has GGUF version {version}; versions 2 and 3 are supported"));
    }
    for version in [1u32, 2, 3, 4] {
        let error = Raw::default().bytes(b"GGUF").bytes(&version.to_be_bytes()).data(64).error();
        assert_eq!(error, "m.gguf is a big-endian GGUF file; only little-endian files are supported");
    }
}

#[test]
fn rejects_invalid_values() {
    for unknown in [13, 255, u32::MAX] {
        let error = Raw::file(0, 1).text("k").u32(unknown).data(64).error();
        assert!(
            error.contains(&format!(
                "byte 33: the value type of metadata k: there is no value type {unknown}"
            ))
        );
        let array = Raw::file(0, 1).entry("k", ValueType::Array).u32(unknown).data(64).error();
        assert!(array.contains(&format!("there is no value type {unknown}")), "{array}");
    }
    let error = Raw::file(0, 1).entry("k", ValueType::Bool).bytes(&[2]).error();
    assert!(error.contains("byte 37: the value of metadata k: a bool is 0 or 1, not 2"), "{error}");
    let flags =
        Raw::file(0, 1).entry("k", ValueType::Array).u32(ValueType::Bool.gguf_id()).u64(3).bytes(&[1, 0, 7]);
    assert!(flags.error().contains("element 2 of 3 of the value of metadata k: a bool"), "{}", flags.error());
    let error = Raw::file(0, 1).entry("k", ValueType::Str).u64(3).bytes(b"a\xff\xff").error();
    assert!(error.contains("byte 46: the value of metadata k: is not UTF-8"), "{error}");
    let error = Raw::file(0, 1).u64(2).bytes(b"\xc3\x28").data(64).error();
    assert!(error.contains("the key of metadata entry 0 of 1: is not UTF-8"), "{error}");
}

/// Builds a file whose arrays are nested `depth` levels deep. The innermost array is empty.
fn nested(depth: usize) -> Raw {
    let outer = Raw::file(0, 1).entry("k", ValueType::Array);
    let outer = (1..depth).fold(outer, |raw, _| raw.u32(ValueType::Array.gguf_id()).u64(1));
    outer.u32(ValueType::U8.gguf_id()).u64(0)
}

#[test]
fn nesting_is_bounded() {
    for depth in 1..=4 {
        nested(depth).open().unwrap();
    }
    for depth in [5, 6, 100, 1_000_000] {
        let error = nested(depth).error();
        assert!(error.ends_with("arrays are nested deeper than 4"), "{error}");
        assert!(error.len() < 400, "{error}");
    }
}

#[test]
fn names_occur_once() {
    let error =
        Raw::file(0, 2).entry("k", ValueType::U8).bytes(&[1]).entry("k", ValueType::U8).bytes(&[2]).error();
    assert!(error.contains("byte 38: the key of metadata entry 1: k occurs twice"), "{error}");
    let error = Raw::file(2, 0).tensor("t", &[1], F32, 0).tensor("t", &[2], F32, 32).data(64).error();
    assert_eq!(error, "m.gguf: duplicate tensor t");
}

#[test]
fn tensor_names_are_bounded_and_escaped() {
    let with_name = |name: &str| Raw::file(1, 0).tensor(name, &[1], F32, 0).data(64);
    assert!(with_name(&"n".repeat(64)).open().is_ok());
    assert!(with_name("").error().contains("has 0 bytes, where 1 to 64 are allowed"));
    assert!(with_name(&"n".repeat(65)).error().contains("has 65 bytes"));
    let error = Raw::file(1, 0).tensor("\u{1b}[2J", &[0], F32, 0).data(64).error();
    assert!(error.contains("tensor \\u{1b}[2J: is zero"), "{error}");
}

#[test]
fn alignments() {
    let aligned = |alignment: u32| {
        let raw = Raw::file(1, 1).entry("general.alignment", ValueType::U32).u32(alignment);
        raw.tensor("t", &[1], F32, 0).data(8192)
    };
    for good in [8, 16, 64, 4096] {
        aligned(good).open().unwrap();
    }
    for bad in [0, 1, 3, 4, 48, u32::MAX] {
        let error = aligned(bad).error();
        let expected =
            "m.gguf: metadata general.alignment should be a power of two of at least 8, but is u32";
        assert_eq!(error, format!("{expected} {bad}"));
    }
    // The alignment is valid, but the data would start beyond the end of the file.
    let error = aligned(1 << 31).open().unwrap_err();
    assert!(matches!(error, FormatError::Truncated { at: 0x8000_0000, .. }), "{error}");
    let error = Raw::file(0, 1).entry("general.alignment", ValueType::Str).text("32").error();
    assert!(error.contains("should be an unsigned 32-bit integer, but is string \"32\""), "{error}");
}

#[test]
fn dimensions() {
    for dimensions in [0, 5, u32::MAX] {
        let error = Raw::file(1, 0).text("t").u32(dimensions).data(256).error();
        let expected = format!("the number of dimensions of tensor t: {dimensions} is not 1 to 4");
        assert!(error.contains(&expected), "{error}");
    }
    for shape in [&[0][..], &[32, 0], &[32, 2, 0, 1]] {
        let error = Raw::file(1, 0).tensor("t", shape, Q8_0, 0).data(256).error();
        assert!(error.contains("of tensor t: is zero"), "{error}");
    }
}

#[test]
fn errors_name_unsupported_tensor_types() {
    let supported = "which is not supported; supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, \
                     Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, TQ1_0, TQ2_0";
    for (id, name) in [(16, "IQ2_XXS"), (21, "IQ3_S"), (31, "Q4_0_4_4"), (40, "NVFP4"), (4711, "number 4711")]
    {
        let error = Raw::file(1, 0).tensor("blk.0.attn_q.weight", &[256], id, 0).data(256).error();
        assert_eq!(error, format!("m.gguf: tensor blk.0.attn_q.weight has type {name}, {supported}"));
    }
}

#[test]
fn ternary_weights_of_bitnet_have_one_scale() {
    const I2_S: u32 = 36;
    let raw = |shape: &[u64], size: usize| Raw::file(1, 0).tensor("t", shape, I2_S, 0).data(size);
    // Codes 0, 1 and 2 in each byte, then the scale.
    let mut file = raw(&[128, 2], 64 + 32);
    let data = file.0.len() - 96;
    file.0[data..data + 64].fill(0b0001_1001);
    file.0[data + 64..data + 68].copy_from_slice(&0.3f32.to_le_bytes());
    let model = file.open().unwrap();
    let tensor = model.weights.tensor("t").unwrap();
    let mut values = vec![0.0; 256];
    let bytes = model.weights.bytes(tensor).unwrap();
    ragtag_kernels::blocks::dequantise(tensor.tensor_type, &bytes, &mut values).unwrap();
    let expected = [-0.3, 0.0, 0.3, 0.0];
    assert!(values.iter().enumerate().all(|(at, value)| *value == expected[at / 32 % 4]), "{values:?}");
    // A header without data describes the tensor all the same.
    let source = Arc::new(MemorySource::new("m.gguf", file.0[..data].to_vec()));
    let header = ModelFile::open_headers(vec![source]).unwrap();
    assert_eq!(header.weights.without_data().map(|tensor| tensor.name.as_str()), Some("t"));

    assert!(raw(&[128, 2], 96).error().contains("its scale 0 is not finite and positive"));
    assert!(raw(&[128], 96).error().contains("is not a matrix (I2_S)"));
    assert!(raw(&[48, 4], 96).error().contains("not whole blocks of 32, 128 or 256 (I2_S)"));
    assert!(raw(&[128, 1 << 62], 128).error().contains("is larger than any file"));
    let error = raw(&[128, 8], 480).error();
    assert!(error.contains("has 480 bytes, but I2_S needs 288, QK256 256, and blocks of 32"), "{error}");
    assert!(raw(&[128, 8], 200).error().contains("truncated"));
}

#[test]
fn sizes_tell_packings_of_bitnet_apart() {
    let open = |number: u32, shape: &[u64], size: usize| {
        let mut file = Raw::file(1, 0).tensor("t", shape, number, 0).data(size);
        let data = file.0.len() - size;
        // f16 of 1.06 at every other byte, and codes 3, 0, 0, 0, and 1, 3, 3, 0.
        file.0[data..].iter_mut().enumerate().for_each(|(at, byte)| *byte = [0x3d, 0x3c][at % 2]);
        let model = file.open().unwrap();
        let tensor = model.weights.tensor("t").unwrap();
        let mut values = vec![0.0; shape.iter().product::<u64>() as usize];
        let bytes = model.weights.bytes(tensor).unwrap();
        ragtag_kernels::blocks::dequantise(tensor.tensor_type, &bytes, &mut values).unwrap();
        (tensor.tensor_type, values)
    };
    let codes = |values: &[f32]| values[..4].to_vec();
    let (found, values) = open(36, &[256, 4], 256);
    assert_eq!((found, codes(&values)), (TensorType::Q4_0, vec![-1.0, 2.0, 2.0, -2.0]));
    let (found, values) = open(36, &[32, 4], 40);
    let scale = 1.0 + 0x3d as f32 / 1024.0;
    assert_eq!(
        (found, codes(&values)),
        (TensorType::Q4_0, vec![-scale, 2.0 * scale, 2.0 * scale, -2.0 * scale])
    );
    // MXFP4 has the number of TL2.
    assert_eq!(open(39, &[32, 4], 68).0, TensorType::MXFP4);
}

#[test]
fn lookup_tables_of_unknown_order_are_refused() {
    let raw =
        |shape: &[u64], number: u32, size: usize| Raw::file(1, 0).tensor("t", shape, number, 0).data(size);
    let error = raw(&[128, 2], 38, 96).error();
    assert!(error.contains("has type TL1 and 2 rows of 128 weights (the order of its weights"), "{error}");
    let error = raw(&[288, 96], 39, 6816).error();
    assert!(error.contains("has type TL2 and 96 rows of 288 weights (the order of its weights"), "{error}");
    assert!(raw(&[128], 38, 96).error().contains("is not a matrix (TL1)"));
}

#[test]
fn the_scale_of_a_lookup_table_follows_it() {
    let (columns, rows) = (1536, 1536);
    let packed = columns * rows / 4;
    // Two pairs of zeros in each byte. The scale is in the tensor, or in a tensor of its own.
    for apart in [false, true] {
        let shape = [columns as u64, rows as u64];
        let mut file = Raw::file(if apart { 2 } else { 1 }, 0).tensor("t", &shape, 38, 0);
        if apart {
            file = file.tensor("t_scale", &[1], 0, packed as u64);
        }
        file = file.data(packed + 32);
        let data = file.0.len() - packed - 32;
        file.0[data..data + packed].fill(0x44);
        file.0[data + packed..][..4].copy_from_slice(&0.5f32.to_le_bytes());
        file.0[data] = 0x48;
        let model = file.open().unwrap();
        assert_eq!(model.weights.tensors().len(), 1);
        let tensor = model.weights.tensor("t").unwrap();
        let bytes = model.weights.bytes(tensor).unwrap();
        let mut values = vec![0.0; columns * rows];
        ragtag_kernels::blocks::dequantise(tensor.tensor_type, &bytes, &mut values).unwrap();
        // The low nibble of the first byte holds columns 2 and 3 of the first row.
        let nonzero: Vec<_> = values.iter().enumerate().filter(|(_, value)| **value != 0.0).collect();
        assert_eq!(nonzero, [(2, &0.5), (3, &0.5)]);
    }
}

/// Opens a file, and reads all its metadata and weights.
fn read_all(bytes: &[u8]) -> Result<(), FormatError> {
    let model = open(bytes)?;
    for (_, value) in model.metadata.iter() {
        if let Value::Array(array) = value? {
            array.list::<&str>().try_for_each(|text| text.map(drop)).ok();
        }
    }
    for tensor in model.weights.tensors() {
        assert_eq!(model.weights.bytes(tensor)?.len() as u64, tensor.bytes);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_behind_a_head(tensors in 0u64..4, entries in 0u64..4, tail in proptest::collection::vec(any::<u8>(), 0..200)) {
        _ = read_all(&Raw::file(tensors, entries).bytes(&tail).0);
    }

    /// Checks that a valid file with small or huge numbers at a few positions is read safely or rejected.
    #[test]
    fn a_sound_file_with_changes(
        changes in proptest::collection::vec((0usize..400, prop_oneof![0u64..20, any::<u64>(), proptest::sample::select(&LIES[..])], 1usize..9), 1..4),
    ) {
        let mut bytes = sound().0;
        for (at, value, count) in changes {
            let at = at % bytes.len();
            let end = (at + count.min(8)).min(bytes.len());
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        _ = read_all(&bytes);
    }
}
