//! Tests RoPE frequencies that depend on the length of a sequence: LongRoPE and dynamic scaling. The expected logits and
//! tokens are those of `transformers`, which `tests/support/golden/rope_lengths.py` wrote.

use crate::gpus::{LAVAPIPE, POCL, first_of_each_api, gpus_and};
use crate::streaming::start;
use crate::support::{
    Setup, argmax, block_on, devices, engine, greedy, listen, read_json, relative_error, with_prefill,
};
use ragtag::{Granularity, Model, Planner, Prompt, Session};
use ragtag_kernels::{Activations, KvType, NumericsClass};
use serde_json::Value;
use tempfile::TempDir;

/// A model with what `transformers` computes.
struct Golden {
    name: String,
    model: Model,
    ids: Vec<u32>,
    /// Lengths of prompts, each with the logits of its last row.
    rows: Vec<(usize, Vec<f32>)>,
    /// Greedy tokens that follow the first tokens.
    prompt: usize,
    greedy: Vec<u32>,
    _folder: TempDir,
}

fn whole(values: &Value) -> Vec<u32> {
    values.as_array().unwrap().iter().map(|value| value.as_u64().unwrap() as u32).collect()
}

/// Opens the golden models, with the changes of their configurations.
fn golden() -> Vec<Golden> {
    let all = read_json(&test_support::golden("rope_lengths.json"));
    let open = |(name, golden): (&String, &Value)| {
        let from = test_support::golden(golden["checkpoint"].as_str().unwrap());
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(from.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
        let mut config = read_json(&from.join("config.json"));
        for (key, value) in golden["changes"].as_object().unwrap() {
            config[key] = value.clone();
        }
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let row = |(length, row): (&String, &Value)| {
            let row = row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
            (length.parse().unwrap(), row)
        };
        Golden {
            name: name.clone(),
            model: Model::open(folder.path()).unwrap(),
            ids: whole(&golden["ids"]),
            rows: golden["rows"].as_object().unwrap().iter().map(row).collect(),
            prompt: golden["prompt"].as_u64().unwrap() as usize,
            greedy: whole(&golden["greedy"]),
            _folder: folder,
        }
    };
    all.as_object().unwrap().iter().map(open).collect()
}

impl Golden {
    /// Checks the logits of all prompts, which are in the pipeline at the same time, and the tokens that follow
    /// one of them.
    fn check(&self, session: &Session, what: &str) {
        let start = |(length, _): &(usize, _)| session.start_logits(&self.ids[..*length]);
        let streams: Vec<_> = self.rows.iter().map(start).collect();
        let grown = session.generate(Prompt::Tokens(&self.ids[..self.prompt]), &greedy(16)).unwrap();
        for ((length, row), stream) in self.rows.iter().zip(streams) {
            let logits = block_on(stream.collect()).unwrap();
            let error = relative_error(&logits[logits.len() - row.len()..], row);
            println!("{}, {length} tokens, {what}: relative error {error:.2e}", self.name);
            assert!(
                error <= NumericsClass::Exact.tolerance(),
                "{}, {length} tokens, {what}: {error}",
                self.name
            );
        }
        assert_eq!(block_on(listen(grown)).unwrap().ids, self.greedy, "{}, {what}", self.name);
    }
}

/// Checks contexts that hold only some of the prompts, whole and divided prompts, two stages, and KV rings.
#[test]
fn the_length_of_each_sequence_decides_not_the_context() {
    for golden in golden() {
        let last = golden.model.graph().segment_count() - 1;
        let split = format!("0-1=cpu:0,2-{last}=cpu:1");
        for (context, chunk, sequences) in [(64, 64, 5), (512, 7, 5), (512, 5, 1)] {
            for split in [None, Some(&*split)] {
                let setup = Setup { context, chunk, sequences, split, cpu_devices: 2, ..Setup::default() };
                let engine = engine(&golden.model, &setup);
                golden.check(&engine.session(), &format!("context {context}, chunks of {chunk}, {split:?}"));
            }
        }
        let (length, row) = &golden.rows[0];
        let shortest = Setup { context: *length as u32, ..Setup::default() };
        let logits = block_on(engine(&golden.model, &shortest).session().logits(&golden.ids[..*length]));
        let logits = logits.unwrap();
        assert!(relative_error(&logits[logits.len() - row.len()..], row) <= NumericsClass::Exact.tolerance());
    }
}

#[test]
fn lengths_decide_on_every_device() {
    for golden in golden() {
        for adapter in gpus_and(&[POCL, LAVAPIPE]) {
            let label = adapter.label();
            for (chunk, kv) in [(9, KvType::F32), (32, KvType::F16)] {
                let setup = Setup {
                    devices: &label,
                    context: 64,
                    sequences: 3,
                    chunk,
                    kv: Some(kv),
                    ..Setup::default()
                };
                if kv == KvType::F32 {
                    golden.check(
                        &engine(&golden.model, &setup).session(),
                        &format!("{label}, chunks of {chunk}"),
                    );
                    continue;
                }
                // Keys and values of fewer bits leave the tokens of the greatest logits.
                let session = engine(&golden.model, &setup).session();
                for (length, row) in &golden.rows {
                    let logits = block_on(session.logits(&golden.ids[..*length])).unwrap();
                    assert_eq!(argmax(&logits[logits.len() - row.len()..]), argmax(row), "{label}, {length}");
                }
            }
        }
    }
}

/// Checks a sequence whose prompt the prefill stage computes, and that is computed again there.
#[test]
fn a_prefill_stage_computes_a_growing_sequence_again() {
    for golden in golden() {
        let firsts = first_of_each_api(&[POCL]);
        let pairs = firsts.iter().map(|adapter| (format!("{},cpu", adapter.label()), adapter.label(), 1));
        for (selected, other, cpu_devices) in pairs.chain([("cpu".into(), "cpu:1".into(), 2)]) {
            let found = devices(&Setup { devices: &selected, cpu_devices, ..Setup::default() });
            let planner = Planner::new(&golden.model).devices(&found).context(64).chunk(8);
            let planner = planner.activations(Activations::F32).kv(KvType::F32);
            // Keys and values of both layers pass.
            let planner = planner.granularity(Granularity::HalfBlock);
            let split = format!("0-0={other},1-5=cpu:0").parse().unwrap();
            let plan = with_prefill(planner.split(split).plan().unwrap(), &other, 1);
            let engine = start(&golden.model, &found, &plan, false);
            let grown = engine.session().generate(Prompt::Tokens(&golden.ids[..golden.prompt]), &greedy(16));
            assert_eq!(
                block_on(listen(grown.unwrap())).unwrap().ids,
                golden.greedy,
                "{}, {selected}",
                golden.name
            );
        }
    }
}
