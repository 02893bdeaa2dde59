//! Tests with valid GGUF files.

use super::*;
use crate::source::MemorySource;
use ragtag_kernels::TensorType;

fn source(name: &str, bytes: Vec<u8>) -> Arc<dyn Source> {
    Arc::new(MemorySource::new(name.to_owned(), bytes))
}

fn open(bytes: Vec<u8>) -> Result<ModelFile, FormatError> {
    ModelFile::open(vec![source("m.gguf", bytes)])
}

/// Builds a file with a metadata value of every type and two tensors. The tensor data consists of the bytes
/// 0, 1, 2 and so on.
fn every_type(alignment: u32) -> (Writer, Vec<u8>) {
    let mut w = Writer::with_alignment(alignment);
    w.put("u8", 200u8);
    w.put("i8", -100i8);
    w.put("u16", 60_000u16);
    w.put("i16", -30_000i16);
    w.put("u32", 4_000_000_000u32);
    w.put("i32", -2_000_000_000i32);
    w.put("u64", u64::MAX);
    w.put("i64", i64::MIN);
    w.put("f32", 1.5f32);
    w.put("f64", -2.5f64);
    w.put("bool", true);
    w.put("text", "grüße");
    w.put("words", &["a", "", "▁b"][..]);
    w.put("numbers", &[1i32, -2, 3][..]);
    w.put("flags", &[true, false][..]);
    w.put("nested", &[&["x", "y"][..], &[][..], &["z"][..]][..]);
    w.tensor("a", TensorType::F32, &[3], 12);
    w.tensor("b", TensorType::Q8_0, &[64, 2, 3], 68 * 6);
    let mut bytes = w.header();
    bytes.extend((0..w.data_bytes()).map(|i| i as u8));
    (w, bytes)
}

#[test]
fn reads_every_type_in_both_versions() {
    for (version, alignment) in [(2, 32), (3, 32), (3, 8), (3, 4096)] {
        let (_, mut bytes) = every_type(alignment);
        bytes[4] = version;
        let model = open(bytes).unwrap();
        let m = &model.metadata;
        assert_eq!(m.get::<u32>("u8").unwrap(), 200);
        assert_eq!(m.get::<i32>("i8").unwrap(), -100);
        assert_eq!(m.get::<u32>("u16").unwrap(), 60_000);
        assert_eq!(m.get::<i32>("i16").unwrap(), -30_000);
        assert_eq!(m.get::<u64>("u32").unwrap(), 4_000_000_000);
        assert_eq!(m.get::<i32>("i32").unwrap(), -2_000_000_000);
        assert_eq!(m.get::<u64>("u64").unwrap(), u64::MAX);
        assert_eq!(m.get::<f32>("f32").unwrap(), 1.5);
        assert_eq!(m.get::<f32>("f64").unwrap(), -2.5);
        assert!(m.get::<bool>("bool").unwrap());
        assert_eq!(m.get::<&str>("text").unwrap(), "grüße");
        assert_eq!(m.list::<&str>("words").unwrap().collect::<Result<Vec<_>, _>>().unwrap(), ["a", "", "▁b"]);
        assert_eq!(m.list::<i32>("numbers").unwrap().collect::<Result<Vec<_>, _>>().unwrap(), [1, -2, 3]);
        assert_eq!(m.list::<bool>("flags").unwrap().collect::<Result<Vec<_>, _>>().unwrap(), [true, false]);
        let nested: Vec<Vec<&str>> = m
            .list::<Array<'_>>("nested")
            .unwrap()
            .map(|inner| inner.unwrap().list::<&str>().map(Result::unwrap).collect())
            .collect();
        assert_eq!(nested, [vec!["x", "y"], vec![], vec!["z"]]);
        assert_eq!(m.iter().count(), 17);
        assert!(m.iter().all(|(_, value)| value.is_ok()));
    }
}

#[test]
fn locates_tensors() {
    for alignment in [8, 32, 4096] {
        let (w, bytes) = every_type(alignment);
        let data = w.header().len() as u64;
        let model = open(bytes).unwrap();
        let [a, b] = model.weights.tensors() else { panic!("two tensors") };
        assert_eq!((a.name.as_str(), a.columns(), a.rows(), a.bytes, a.offset), ("a", 3, 1, 12, data));
        let second = 12u64.next_multiple_of(alignment.into());
        assert_eq!(
            (b.name.as_str(), b.columns(), b.rows(), b.bytes, b.offset),
            ("b", 64, 6, 408, data + second)
        );
        assert_eq!(b.tensor_type, TensorType::Q8_0);
        assert_eq!(model.weights.bytes(a).unwrap(), (0..12).collect::<Vec<u8>>());
        assert_eq!(model.weights.bytes(b).unwrap()[0], second as u8);
        assert_eq!(model.weights.tensor("b"), Some(b));
        assert_eq!(model.weights.tensor("c"), None);
    }
}

#[test]
fn type_errors_name_key_expected_type_and_value() {
    let (_, bytes) = every_type(32);
    let m = open(bytes).unwrap().metadata;
    let message = |e: FormatError| e.to_string();
    assert_eq!(message(m.get::<u32>("none").unwrap_err()), "m.gguf has no metadata none");
    assert_eq!(m.find::<u32>("none").unwrap(), None);
    assert_eq!(
        message(m.get::<u32>("text").unwrap_err()),
        "m.gguf: metadata text should be an unsigned 32-bit integer, but is string \"grüße\""
    );
    assert_eq!(
        message(m.get::<u32>("u64").unwrap_err()),
        "m.gguf: metadata u64 should be an unsigned 32-bit integer, but is u64 18446744073709551615"
    );
    assert!(message(m.find::<u32>("i8").unwrap_err()).ends_with("but is i8 -100"));
    assert!(
        message(m.get::<&str>("words").unwrap_err())
            .ends_with("should be a string, but is array of 3 string")
    );
    assert!(message(m.get::<f32>("u8").unwrap_err()).contains("should be a floating-point number"));
    let mut list = m.list::<u32>("numbers").unwrap();
    assert_eq!(list.next().unwrap().unwrap(), 1);
    assert!(message(list.next().unwrap().unwrap_err()).contains("numbers[1]"));
    assert!(list.next().is_none());
}

/// Builds shard `number` of a model with `count` shards. The shard contains one tensor, and claims that the
/// model has `tensors` tensors.
fn shard(number: u16, count: u16, tensors: i32, tensor: &str) -> Arc<dyn Source> {
    let mut w = Writer::new();
    w.put("split.no", number);
    w.put("split.count", count);
    w.put("split.tensors.count", tensors);
    if number == 0 {
        w.put("general.architecture", "llama");
    }
    w.tensor(tensor, TensorType::F32, &[1], 4);
    let mut bytes = w.header();
    bytes.extend_from_slice(&[number as u8; 32]);
    source(&format!("d/m-{:05}-of-{count:05}.gguf", number + 1), bytes)
}

#[test]
fn split_files_form_one_model() {
    let model = ModelFile::open(vec![shard(0, 3, 3, "a"), shard(1, 3, 3, "b"), shard(2, 3, 3, "c")]).unwrap();
    assert_eq!(model.metadata.get::<&str>("general.architecture").unwrap(), "llama");
    for (number, tensor) in model.weights.tensors().iter().enumerate() {
        assert_eq!(tensor.shard, number);
        assert_eq!(*model.weights.bytes(tensor).unwrap(), [number as u8; 4]);
    }
    let single = ModelFile::open(vec![shard(0, 1, 1, "a")]).unwrap();
    assert_eq!(single.weights.tensors().len(), 1);
}

#[test]
fn rejects_inconsistent_split_files() {
    let fails = |sources: Vec<Arc<dyn Source>>| ModelFile::open(sources).unwrap_err().to_string();
    let [a, b, c] = [shard(0, 3, 3, "a"), shard(1, 3, 3, "b"), shard(2, 3, 3, "c")];
    let missing = "d/m-00002-of-00003.gguf is missing: it is shard 2 of 3";
    assert_eq!(fails(vec![a.clone()]), missing);
    assert_eq!(fails(vec![a.clone(), c.clone()]), missing);
    assert_eq!(fails(vec![b.clone()]), "d/m-00001-of-00003.gguf is missing: it is shard 1 of 3");
    assert_eq!(
        fails(vec![a.clone(), c.clone(), b.clone()]),
        "d/m-00003-of-00003.gguf: is shard 3 of 3, but given as file 2"
    );
    assert!(fails(vec![a.clone(), b.clone(), b.clone()]).contains("shard 2 of 3 is given twice"));
    assert!(fails(vec![a.clone(), b.clone(), shard(2, 4, 3, "c")]).contains("belongs to a model of 4 files"));
    assert!(fails(vec![a.clone(), b.clone(), shard(2, 3, 3, "a")]).contains("duplicate tensor a"));
    assert!(fails(vec![a.clone(), b.clone(), shard(7, 3, 3, "c")]).contains("split.no is 7"));
    assert!(
        fails(vec![shard(0, 3, 9, "a"), b, c]).contains("split.tensors.count is 9, but the files hold 3")
    );
    assert!(fails(vec![shard(0, 1, 1, "a"), shard(0, 1, 1, "b")]).contains("is a whole model, but 2 files"));
    assert!(fails(vec![shard(0, 0, 1, "a")]).contains("split.count is 0"));
    assert_eq!(fails(vec![]), "model: no file given");
}

/// A source whose file shrinks after the header was read.
struct Shrunk(MemorySource);

impl Source for Shrunk {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
    fn read(&self, start: u64, out: &mut [u8]) -> Result<(), crate::SourceError> {
        match start {
            0 => self.0.read(start, out),
            _ => Err(crate::SourceError::Shrank { name: self.name().into(), had: self.bytes(), has: 5 }),
        }
    }
}

#[test]
fn a_file_may_shrink_after_its_header_was_read() {
    let (_, bytes) = every_type(32);
    let model = ModelFile::open(vec![Arc::new(Shrunk(MemorySource::new("m.gguf", bytes)))]).unwrap();
    let error = model.weights.bytes(&model.weights.tensors()[0]).unwrap_err().to_string();
    assert!(error.starts_with("m.gguf shrank while in use"), "{error}");
    assert_eq!(model.metadata.get::<&str>("text").unwrap(), "grüße");
    assert!(model.metadata.iter().all(|(_, value)| value.is_ok()));
}

/// A source that counts the bytes that are read from it.
struct Counted(MemorySource, std::sync::atomic::AtomicU64);

impl Source for Counted {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }
    fn read(&self, start: u64, out: &mut [u8]) -> Result<(), crate::SourceError> {
        self.1.fetch_add(out.len() as u64, std::sync::atomic::Ordering::Relaxed);
        self.0.read(start, out)
    }
}

#[test]
fn opening_reads_only_the_header() {
    let open = |text_bytes: usize, data_bytes: u64| {
        let mut w = Writer::new();
        w.put("text", "x".repeat(text_bytes).as_str());
        w.tensor("a", TensorType::F32, &[data_bytes / 4], data_bytes);
        let mut bytes = w.header();
        bytes.resize(bytes.len() + data_bytes as usize, 7);
        let source = Arc::new(Counted(MemorySource::new("m.gguf", bytes), 0.into()));
        let model = ModelFile::open(vec![source.clone()]).unwrap();
        assert_eq!(model.metadata.get::<&str>("text").unwrap().len(), text_bytes);
        source.1.load(std::sync::atomic::Ordering::Relaxed)
    };
    const MIB: usize = 1 << 20;
    assert_eq!(open(5, 9 << 20), MIB as u64);
    // The header ends just before, in, and after the first bytes that are read.
    for text_bytes in [MIB - 200, MIB - 50, MIB - 8, MIB, 3 * MIB] {
        assert!(open(text_bytes, 9 << 20) <= 5 * MIB as u64, "{text_bytes}");
    }
    assert!(open(6 * MIB, 4) <= 8 * MIB as u64, "a string that needs more bytes than usual");
}

#[test]
fn the_size_of_a_header_is_limited() {
    /// Zeros after the first bytes, without end.
    struct Endless(MemorySource);
    impl Source for Endless {
        fn name(&self) -> &str {
            self.0.name()
        }
        fn bytes(&self) -> u64 {
            1 << 50
        }
        fn read(&self, start: u64, out: &mut [u8]) -> Result<(), crate::SourceError> {
            out.fill(0);
            let count = (self.0.bytes() as usize).min(out.len());
            if start == 0 { self.0.read(0, &mut out[..count]) } else { Ok(()) }
        }
    }
    let mut first = b"GGUF".to_vec();
    first.extend_from_slice(&3u32.to_le_bytes());
    [0u64, 1].iter().for_each(|count| first.extend_from_slice(&count.to_le_bytes()));
    // The key of the only entry has 2^40 bytes.
    first.extend_from_slice(&(1u64 << 40).to_le_bytes());
    let error = ModelFile::open(vec![Arc::new(Endless(MemorySource::new("m.gguf", first)))]).unwrap_err();
    let limit = "ends at byte 1099511627808, and headers have at most 268435456 bytes";
    assert!(error.to_string().ends_with(limit), "{error}");
}
