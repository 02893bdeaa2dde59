//! Tests with malformed checkpoints. The reader must return an error that names the problem and its position.
//! It must never size an allocation by a number from the file.

use super::files::{INDEX, MODEL};
use super::tests::{Made, put, safetensors, with_header};
use super::*;
use crate::error::FormatError;
use crate::model::Model;
use crate::safetensors::Stored;
use crate::source::MemorySource;
use proptest::prelude::*;
use serde_json::{Value, json};

fn parse(bytes: &[u8]) -> Result<Vec<Stored>, FormatError> {
    crate::safetensors::parse(&MemorySource::new("m.safetensors", bytes.to_vec()), 0)
}

fn small() -> Vec<u8> {
    safetensors(&[("a".into(), vec![3]), ("b".into(), vec![2, 4])])
}

/// Returns the error for a file with the header `header`, followed by `data` zero bytes.
fn refused(header: &str, data: usize) -> String {
    let error = parse(&with_header(header, vec![0; data])).unwrap_err().to_string();
    assert!(error.len() < 600 && !error.contains(char::is_control), "{error}");
    error
}

fn entry(shape: &Value, begin: u64, end: u64) -> Value {
    json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, end] })
}

#[test]
fn rejects_truncation_at_any_byte() {
    let whole = small();
    assert_eq!(parse(&whole).unwrap().len(), 2);
    for end in 0..whole.len() {
        let error = parse(&whole[..end]).unwrap_err();
        assert!(
            matches!(error, FormatError::Truncated { bytes, .. } if bytes == end as u64),
            "{end}: {error}"
        );
    }
    let longer = [&whole[..], &[0]].concat();
    let error = parse(&longer).unwrap_err().to_string();
    assert!(error.contains("1 bytes after the last tensor belong to no tensor"), "{error}");
}

#[test]
fn rejects_false_lengths() {
    for lie in [100_000_001, 1 << 32, 1 << 62, 1 << 63, u64::MAX - 8, u64::MAX] {
        let mut bytes = small();
        bytes[..8].copy_from_slice(&u64::to_le_bytes(lie));
        let error = parse(&bytes).unwrap_err().to_string();
        assert!(error.contains("exceed the limit of 100000000"), "{error}");
    }
    for lie in [100_000_000, 500] {
        let mut bytes = small();
        bytes[..8].copy_from_slice(&u64::to_le_bytes(lie));
        let error = parse(&bytes).unwrap_err();
        assert!(matches!(error, FormatError::Truncated { .. }), "{error}");
    }
    let mut bytes = small();
    bytes[..8].copy_from_slice(&[0; 8]);
    assert!(parse(&bytes).unwrap_err().to_string().contains("begins with nothing"));
    bytes[0] = 5;
    assert!(matches!(parse(&bytes).unwrap_err(), FormatError::Json { .. }));
}

#[test]
fn rejects_invalid_headers() {
    assert!(refused(" {}", 0).contains("begins with byte 0x20, not with {"));
    assert!(refused("[]", 0).contains("begins with byte 0x5b"));
    for header in
        ["{", "{}x", "{\"a\"}", "{\"a\":{}}", "{\"a\":1}", "{\"a\":null}", "{'a':1}", "{\"\u{1}\":1}"]
    {
        refused(header, 0);
    }
    assert!(
        refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4)
            .contains("invalid value")
    );
    assert!(
        refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4)
            .contains("invalid type")
    );
    assert!(
        refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1e9],\"data_offsets\":[0,4]}}", 4)
            .contains("invalid type")
    );
    assert!(
        refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4)
            .contains("invalid length")
    );
    assert!(refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 4).contains("duplicate field"));
    assert!(refused("{\"__metadata__\":{\"a\":1}}", 0).contains("invalid type"));
    assert!(
        refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0).contains("the key __metadata__ occurs twice")
    );
    let one = entry(&json!([1]), 0, 4);
    assert!(refused(&format!("{{\"a\":{one},\"a\":{one}}}"), 4).contains("the key a occurs twice"));
    // A name that would clear the screen, followed by a megabyte of text.
    let name = format!("\\u001b[2J{}", "x".repeat(1 << 20));
    refused(&format!("{{\"{name}\":{one},\"{name}\":{one}}}"), 4);
    // The nested arrays replace a tensor, or the value of a field that is never read.
    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
    refused(&format!("{{\"a\":{open}{close}}}"), 0);
    refused(&format!("{{\"a\":{{\"x\":{open}{close}}}}}"), 0);
    assert_eq!(parse(&with_header("{}", vec![])).unwrap(), []);
}

#[test]
fn rejects_false_data_ranges() {
    let tensors = |entries: &[(&str, Value)]| {
        let entries: Vec<_> = entries.iter().map(|(name, entry)| format!("\"{name}\":{entry}")).collect();
        format!("{{{}}}", entries.join(","))
    };
    let four = json!([4]);
    let a = ("a", entry(&four, 0, 16));
    let both = |begin, end| tensors(&[a.clone(), ("b", entry(&four, begin, end))]);
    assert!(parse(&with_header(&both(16, 32), vec![0; 32])).is_ok());
    assert!(refused(&both(20, 36), 36).contains("leaves a hole: it begins at 20 instead of 16"));
    assert!(refused(&both(12, 28), 28).contains("overlaps another tensor: it begins at 12 instead of 16"));
    assert!(refused(&both(0, 16), 16).contains("overlaps another tensor"));
    assert!(refused(&both(16, 36), 36).contains("its shape takes 16 bytes, its data lies from 16 to 36"));
    assert!(refused(&both(16, 8), 32).contains("its data lies from 16 to 8"));
    assert!(refused(&both(16, 32), 31).contains("needs 16 bytes"));
    assert!(refused(&tensors(&[("a", entry(&four, 4, 20))]), 20).contains("leaves a hole"));
    let big = u64::MAX - 15;
    assert!(refused(&both(big, big), 32).contains("its data lies from"));
    assert!(
        refused(&tensors(&[("a", entry(&json!([4]), big, u64::MAX))]), 32).contains("its data lies from")
    );
    for shape in
        [json!([1u64 << 63, 2]), json!([u64::MAX]), json!([1u64 << 32, 1u64 << 32]), json!([1u64 << 62])]
    {
        assert!(refused(&tensors(&[("a", entry(&shape, 0, 16))]), 16).contains("is larger than any file"));
    }
    let huge = tensors(&[("a", entry(&json!([1u64 << 40]), 0, 1 << 42))]);
    assert!(refused(&huge, 16).contains("the file is truncated or corrupt"));
    for zero in [json!([0]), json!([4, 0]), json!([0, u64::MAX])] {
        assert!(refused(&tensors(&[("a", entry(&zero, 0, 0))]), 0).contains("is zero"));
    }
    assert!(refused(&tensors(&[("a", entry(&json!(vec![1; 9]), 0, 4))]), 4).contains("9 dimensions"));
    for dtype in ["I8", "F64", "F8_E5M2", "f32", "", "\u{1b}"] {
        let mut entry = entry(&four, 0, 16);
        entry["dtype"] = dtype.into();
        assert!(
            refused(&tensors(&[("a", entry)]), 16)
                .contains("which is not supported; supported are F32, F16, BF16, F8_E4M3, U8")
        );
    }
}

#[test]
fn rejects_indexes_that_leave_the_directory() {
    let made = Made::new();
    let fails = |index: &str| {
        let mut directory = Directory::new("d");
        put(&mut directory, CONFIG, made.config.to_string().into_bytes());
        put(&mut directory, INDEX, index.as_bytes().to_vec());
        let error = shard_names(&directory).unwrap_err().to_string();
        assert!(error.starts_with("d/model.safetensors.index.json: ") && error.len() < 300, "{error}");
        error
    };
    for name in [
        "../other/model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "C:model.safetensors",
        "..",
        "",
        "passwd",
        ".safetensors",
        ".hidden.safetensors",
        "a\u{0}b.safetensors",
        "\u{1b}[2J.safetensors",
        "model.safetensors/",
    ] {
        let error = fails(&json!({ "weight_map": { "a": "fine.safetensors", "b": name } }).to_string());
        assert!(error.contains("is not the name of a .safetensors file beside it"), "{error}");
    }
    assert!(fails("{\"weight_map\":{}}").contains("names no file"));
    for index in
        ["", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":null}"]
    {
        fails(index);
    }
    let deep = format!("{{\"weight_map\":{}{}}}", "{\"a\":".repeat(10_000), "}".repeat(10_000));
    fails(&deep);
    assert_eq!(shard_names(&Directory::new("d")).unwrap_err().to_string(), "d has no config.json");
    let mut directory = Directory::new("d");
    put(&mut directory, CONFIG, b"{}".to_vec());
    assert_eq!(
        shard_names(&directory).unwrap_err().to_string(),
        "d has no model.safetensors and no model.safetensors.index.json"
    );
}

/// Checks that the reader rejects invalid numbers in the configuration, and numbers that contradict the
/// weights.
#[test]
fn rejects_invalid_and_contradictory_numbers() {
    let counts = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ];
    for key in counts {
        for lie in
            [json!(0), json!(-1), json!(i64::MIN), json!(1u64 << 32), json!(u64::MAX), json!(16_777_217)]
        {
            let error = Made::new().with(key, lie.clone()).error();
            assert!(error.contains(&format!("{key} in config.json: {lie} is not in 1 …")), "{error}");
        }
        for other in [json!("32"), json!(32.5), json!(32.0), json!([32]), json!({}), json!(true)] {
            let error = Made::new().with(key, other).error();
            assert!(error.contains(&format!("{key} should be a whole number, but is")), "{error}");
        }
        for lie in [1, 3, 128, 16_777_216] {
            _ = Made::new()
                .with(key, lie.into())
                .open()
                .map_err(|error| assert!(error.to_string().len() < 300));
        }
    }
    for key in ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
    {
        assert_eq!(
            Made::new().with(key, Value::Null).error(),
            format!("d/config.json has no metadata {key}"),
            "null is nothing"
        );
        assert!(Made::new().with(key, 7.into()).open().is_err(), "{key}");
    }
    let error = Made::new().with("num_attention_heads", 3.into()).error();
    assert!(error.contains("3 heads do not divide a width of 32"), "{error}");
    let error = Made::new().with("num_key_value_heads", 3.into()).error();
    assert!(
        error.contains("num_key_value_heads in config.json: 2 heads cannot share 3 key-value"),
        "{error}"
    );
    let error = Made::new().with("head_dim", 15.into()).error();
    assert!(error.contains("head_dim in config.json: 15 of 15 dimensions cannot rotate"), "{error}");
    let error = Made::new().with("head_dim", 16_777_216.into()).error();
    assert!(error.contains("2 heads of 16777216"), "{error}");
    for (key, lies) in [
        ("rms_norm_eps", [json!(0), json!(-1e-5), json!(1e300), json!(1e-60)]),
        ("rope_theta", [json!(0), json!(-1), json!(1e300), json!(-0.0)]),
    ] {
        for lie in lies {
            let error = Made::new().with(key, lie).error();
            assert!(error.contains(&format!("{key} in config.json: ")), "{error}");
            assert!(error.contains("is not finite and positive"), "{error}");
        }
    }
}

#[test]
fn rejects_features_that_would_be_ignored() {
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("quantization_config", json!({ "bits": 4 })),
        ("sliding_window", json!(4096)),
        ("use_sliding_window", json!(true)),
        ("partial_rotary_factor", json!(0.5)),
    ] {
        let error = Made::new().with(key, value.clone()).error();
        let shown = if value.is_object() { "an object".to_owned() } else { value.to_string() };
        assert_eq!(error, format!("not supported: {key} in config.json = {shown}"));
    }
    for (key, tensor) in [("attention_bias", "self_attn.q_proj"), ("mlp_bias", "mlp.gate_proj")] {
        let error = Made::new().with(key, json!(true)).error();
        assert_eq!(error, format!("tensor model.layers.0.{tensor}.bias is missing"));
        let error = Made::new().with(key, json!("no")).error();
        assert!(error.contains(&format!("{key} should be true or false")), "{error}");
        // This class has no biases of this kind.
        let mistral = Made::new().with("architectures", json!(["MistralForCausalLM"]));
        let error = mistral.with(key, json!(true)).error();
        assert_eq!(error, format!("not supported: {key} in config.json = true"));
    }
    for (key, value) in
        [("attention_bias", json!(false)), ("hidden_act", json!("silu")), ("partial_rotary_factor", json!(1))]
    {
        assert!(Made::new().with(key, value).open().is_ok(), "{key}");
    }
    // If sliding windows are off, their size has no effect.
    let off = Made::new().with("use_sliding_window", json!(false)).with("sliding_window", json!(4096));
    assert!(off.with("layer_types", json!(["full_attention"])).open().is_ok());
    for types in [json!(["full_attention", "sliding_attention"]), json!("full_attention")] {
        let error = off.with("layer_types", types).error();
        assert_eq!(error, "not supported: layer_types in config.json other than \"full_attention\"");
    }
    let error = Made::new().with("architectures", json!(["MambaForCausalLM"])).error();
    let known = "architecture \"MambaForCausalLM\" is not supported; supported are LlamaForCausalLM";
    assert!(error.starts_with(known), "{error}");
    for other in
        [json!([]), json!("LlamaForCausalLM"), json!(["LlamaForCausalLM", "x"]), json!([1]), json!({})]
    {
        let error = Made::new().with("architectures", other).error();
        assert!(error.contains("architectures should be a list of one class"), "{error}");
    }
    for (key, value) in
        [("rope_scaling", json!(1)), ("rope_parameters", json!("x")), ("tie_word_embeddings", json!(1))]
    {
        assert!(Made::new().with(key, value).error().contains(&format!("{key} should be")));
    }
}

#[test]
fn rejects_files_that_are_no_configuration() {
    let fails = |config: &[u8]| {
        let mut directory = Made::new().directory();
        put(&mut directory, CONFIG, config.to_vec());
        let error = Model::from_directory(directory).unwrap_err().to_string();
        assert!(
            error.starts_with("d/config.json") && error.len() < 300 && !error.contains(char::is_control),
            "{error}"
        );
        error
    };
    for config in
        [&b""[..], b"{", b"[]", b"1", b"\"x\"", b"null", b"\xff\xfe", b"{\"a\":\xff}", b"{\"\x1b\":", b"{}"]
    {
        fails(config);
    }
    let whole = Made::new().config.to_string();
    for end in 0..whole.len() {
        fails(&whole.as_bytes()[..end]);
    }
    fails(format!("{}{}", "{\"a\":".repeat(100_000), "}".repeat(100_000)).as_bytes());
    assert!(fails(&vec![b' '; (MAX_CONFIG_BYTES + 1) as usize]).contains("at most 16777216 are read"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that parsing a header with two changed bytes fails, or returns tensors that lie within the
    /// file.
    #[test]
    fn any_change_is_an_error_or_harmless(at in 0usize..4000, byte in any::<u8>(), and in 0usize..4000) {
        let made = Made::new();
        let mut bytes = safetensors(&made.tensors);
        let header = bytes.len() - 4 * made.tensors.iter().map(|t| t.1.iter().product::<u64>() as usize).sum::<usize>();
        bytes[at % header] = byte;
        bytes[and % header] = byte.wrapping_mul(7);
        if let Ok(tensors) = parse(&bytes) {
            for tensor in tensors {
                prop_assert!(tensor.offset + tensor.bytes <= bytes.len() as u64);
            }
        }
        let mut directory = made.directory();
        put(&mut directory, MODEL, bytes);
        _ = Model::from_directory(directory);
    }
}
