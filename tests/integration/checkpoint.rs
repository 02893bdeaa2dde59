//! Tests model directories through the command line. Every command must accept a directory and report errors
//! in its files, and a plan must identify the model by all files of the directory.

use crate::support::{self, ragtag, text};
use ragtag::Model;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const MODEL: i32 = 3;
const PLACEMENT: i32 = 4;
const FILE: i32 = 7;

const SECOND_SHARD: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Copy of the checkpoint that a test may corrupt.
struct Copied {
    folder: TempDir,
}

impl Copied {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(support::checkpoint()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        Self { folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn path(&self) -> &str {
        text(self.folder.path())
    }

    /// Replaces the first occurrence of `from` in the file `name` with `to`.
    fn change(&self, name: &str, from: &str, to: &str) -> &Self {
        let old = std::fs::read_to_string(self.file(name)).unwrap();
        let new = old.replacen(from, to, 1);
        assert_ne!(new, old, "{from}");
        std::fs::write(self.file(name), new).unwrap();
        self
    }

    fn refused(&self, code: i32, words: &[&str]) {
        refused(&["run", self.path(), "-n", "1"], code, words);
    }
}

fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let output = ragtag().args(arguments).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {err}");
    assert!(output.stdout.is_empty() && !err.contains("panicked") && !err.contains("internal:"), "{err}");
    words.iter().for_each(|word| assert!(err.contains(word), "{word:?} in {err}"));
}

fn succeeds(arguments: &[&str]) -> String {
    let output = ragtag().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_command_accepts_a_directory() {
    let folder = support::checkpoint();
    let model = text(&folder);
    let scratch = tempfile::tempdir().unwrap();
    let json = |out: &str| serde_json::from_str::<serde_json::Value>(out).unwrap();

    let inspected = json(&succeeds(&["inspect", model, "--json", "--tensors"]));
    assert_eq!(inspected["model"], "tiny-hf");
    assert_eq!(inspected["hyperparameters"]["rope"]["pairing"], "halves");
    assert_eq!(inspected["tensor_types"]["F16"]["tensors"], 38);
    assert_eq!(inspected["parameters"], 180_512);
    for same in [format!("{model}/"), format!("{model}/.")] {
        assert!(succeeds(&["inspect", &same]).contains("tiny-hf"));
    }
    let here = ragtag().current_dir(model).args(["inspect", "."]).output().unwrap();
    assert!(String::from_utf8_lossy(&here.stdout).contains("tiny-hf"));

    let plan = scratch.path().join("plan.json");
    let devices = ["--cpu-devices", "2", "--threads", "1"];
    let planned =
        succeeds(&[&["plan", model, "--split", "0-2=cpu:0,3-5=cpu:1", "--json"], &devices[..]].concat());
    assert_eq!(json(&planned)["model"]["digest"], inspected["fingerprint"]);
    std::fs::write(&plan, planned).unwrap();
    let run =
        ["run", model, "-p", "Once upon a time", "-n", "8", "--temp", "0", "--json", "--plan", text(&plan)];
    let ran = json(&succeeds(&[&run[..], &devices].concat()));
    assert_eq!(ran["prompt_tokens"][0], 1, "starts with the begin token");
    assert_eq!(ran["tokens"].as_array().unwrap().len(), 8);

    let (out, ids) = (scratch.path().join("out.npy"), support::Checkpoint::open("tiny-hf").ids);
    let ids = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    succeeds(&["logits", model, "--ids", &ids, "-o", text(&out), "--activations", "f32"]);
    let read = |path: &Path| ragtag::npy::decode(&std::fs::read(path).unwrap()).unwrap();
    let ((logits, columns), (reference, _)) = (read(&out), read(&folder.join("logits.npy")));
    assert_eq!((logits.len(), columns), (13 * 4096, 4096));
    // The reference has the first two positions.
    assert!(support::relative_error(&logits[..reference.len()], &reference) <= 1e-4);

    let held = test_support::golden("held.txt");
    let arguments = ["perplexity", model, "-f", text(&held), "--ctx", "64", "--chunks", "2", "--json"];
    assert!(json(&succeeds(&arguments))["perplexity"].as_f64().unwrap() > 1.0);
    let arguments = ["bench", model, "-p", "16", "-n", "4", "-r", "1", "--json"];
    assert_eq!(json(&succeeds(&arguments))["model"], "tiny-hf");
}

#[test]
fn plans_identify_a_directory_by_all_its_files() {
    let copied = Copied::new();
    let model = Model::open(copied.folder.path()).unwrap();
    let (fingerprint, digest) = (model.fingerprint().unwrap(), model.digest().unwrap());
    assert_eq!(fingerprint, Model::open(support::checkpoint()).unwrap().fingerprint().unwrap());
    let bytes: u64 = model.graph().weights().tensors().iter().map(|t| t.bytes).sum();
    assert!(model.file_bytes() > bytes + std::fs::metadata(copied.file("tokenizer.json")).unwrap().len());
    let plan = copied.file("plan.json");
    std::fs::write(&plan, succeeds(&["plan", copied.path(), "--json"])).unwrap();

    // A changed weight changes the digest. Changed metadata also changes the model identity that plans
    // record.
    let shard = copied.file(SECOND_SHARD);
    let mut weights = std::fs::read(&shard).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    std::fs::write(&shard, &weights).unwrap();
    let other = Model::open(copied.folder.path()).unwrap();
    assert_eq!(other.fingerprint().unwrap(), fingerprint);
    assert_ne!(other.digest().unwrap(), digest);
    copied.change("config.json", "\"rope_theta\": 10000.0", "\"rope_theta\": 20000.0");
    assert_ne!(Model::open(copied.folder.path()).unwrap().fingerprint().unwrap(), fingerprint);
    refused(&["run", copied.path(), "--plan", text(&plan)], PLACEMENT, &["the plan was made for the model"]);
}

/// Checks a directory with a single weights file and no tokenizer. `logits` must work, and `run` must fail.
#[test]
fn a_directory_with_one_weights_file_runs() {
    let copied = Copied::new();
    let whole = Model::open(support::checkpoint()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for shard in ["model-00001-of-00002.safetensors", SECOND_SHARD] {
        let bytes = std::fs::read(copied.file(shard)).unwrap();
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let entries: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&bytes[8..end]).unwrap();
        for (name, mut entry) in entries.into_iter().filter(|(name, _)| name != "__metadata__") {
            for place in 0..2 {
                let offset = entry["data_offsets"][place].as_u64().unwrap();
                entry["data_offsets"][place] = (offset + data.len() as u64).into();
            }
            header.insert(name, entry);
        }
        data.extend_from_slice(&bytes[end..]);
        std::fs::remove_file(copied.file(shard)).unwrap();
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(copied.file("model.safetensors"), file).unwrap();
    for name in ["tokenizer.json", "tokenizer.model", "tokenizer_config.json", "generation_config.json"] {
        std::fs::remove_file(copied.file(name)).unwrap();
    }
    let one = Model::open(copied.folder.path()).unwrap();
    for tensor in whole.graph().weights().tensors() {
        let same = one.graph().weights().tensor(&tensor.name).unwrap();
        assert_eq!(
            one.graph().weights().bytes(same),
            whole.graph().weights().bytes(tensor),
            "{}",
            tensor.name
        );
    }
    let out = copied.file("out.npy");
    succeeds(&["logits", copied.path(), "--ids", "1,2,3", "-o", text(&out)]);
    refused(&["run", copied.path(), "-n", "1"], MODEL, &["has no tokenizer.json and no tokenizer.model"]);
}

#[test]
fn refuses_directories_that_are_no_model() {
    let empty = tempfile::tempdir().unwrap();
    refused(&["run", text(empty.path())], MODEL, &["has no config.json"]);
    let copied = Copied::new();
    let shard = copied.file(SECOND_SHARD);
    refused(&["run", text(&shard)], MODEL, &[SECOND_SHARD, "not supported: a single safetensors file"]);

    let weights = std::fs::read(&shard).unwrap();
    std::fs::remove_file(&shard).unwrap();
    copied.refused(FILE, &["cannot read", SECOND_SHARD, "No such file"]);
    std::fs::write(&shard, &weights[..weights.len() - 1]).unwrap();
    copied.refused(MODEL, &[SECOND_SHARD, "the file is truncated or corrupt"]);
    std::fs::write(&shard, &weights[..weights.len() / 2]).unwrap();
    copied.refused(MODEL, &[SECOND_SHARD, "the file is truncated or corrupt"]);
    std::fs::write(&shard, b"").unwrap();
    copied.refused(MODEL, &[SECOND_SHARD, "ends at byte 0"]);
    std::fs::write(&shard, [&u64::MAX.to_le_bytes(), &weights[8..]].concat()).unwrap();
    copied.refused(MODEL, &[SECOND_SHARD, "exceed the limit of 100000000"]);
    std::fs::write(&shard, &weights).unwrap();

    let secret = format!("../{}", copied.folder.path().file_name().unwrap().to_str().unwrap());
    let index = |to: &str, words: &[&str]| {
        let copied = Copied::new();
        copied.change(INDEX, SECOND_SHARD, to).refused(MODEL, words);
    };
    let out = "is not the name of a .safetensors file beside it";
    index(&format!("{secret}/{SECOND_SHARD}"), &[INDEX, out]);
    index("/etc/passwd", &["\"/etc/passwd\"", out]);
    index("..", &["\"..\"", out]);
    index("model-00001-of-00002.safetensors", &[INDEX, "should be in", "but is in"]);

    let config = |from: &str, to: &str, words: &[&str]| {
        let copied = Copied::new();
        copied.change("config.json", from, to).refused(MODEL, words);
    };
    config(
        "LlamaForCausalLM",
        "MambaForCausalLM",
        &["\"MambaForCausalLM\" is not supported; supported are LlamaForCausalLM"],
    );
    config("\"attention_bias\": false", "\"attention_bias\": true", &["self_attn.q_proj.bias is missing"]);
    config("\"mlp_bias\": false", "\"mlp_bias\": true", &["mlp.gate_proj.bias is missing"]);
    config("\"rope_type\": \"default\"", "\"rope_type\": \"spiral\"", &["rotary scaling of type \"spiral\""]);
    config(
        "\"num_attention_heads\": 2",
        "\"num_attention_heads\": 0",
        &["num_attention_heads in config.json: 0 is not in"],
    );
    config(
        "\"num_hidden_layers\": 4",
        "\"num_hidden_layers\": 5",
        &["model.layers.4.input_layernorm.weight is missing"],
    );
    config("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3", &["model.layers.3.", "is not part of"]);
    config("\"hidden_size\": 32", "\"hidden_size\": 96", &["model.embed_tokens.weight has shape [32, 4096]"]);
    config("{", "[", &["config.json: ", "at line 1 column"]);
    let copied = Copied::new();
    std::fs::remove_file(copied.file(INDEX)).unwrap();
    copied.refused(MODEL, &["has no model.safetensors and no model.safetensors.index.json"]);
    let copied = Copied::new();
    copied
        .change("tokenizer.json", "\"BPE\"", "\"WordPiece\"")
        .refused(MODEL, &["a tokenizer of type \"WordPiece\""]);
}
