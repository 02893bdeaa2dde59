//! Checks that `docs/models.md` lists the architectures, and the tests that verify them.

use crate::support::{self, CHECKPOINTS, MODELS};
use ragtag_graph::ARCHITECTURES;
use std::collections::BTreeMap;
use std::fmt::Write;

const PAGE: &str = "docs/models.md";

const INTRODUCTION: &str = "\
# Models

This page lists the architectures that Ragtag runs, and how their results are verified. `RAGTAG_WRITE_DOCS=1
cargo test --test integration models_page` writes it from the tests' tables.

Every tiny model has random weights, and logits that `transformers` computed in float64
(`tests/support/golden/tiny.py`). Its sequence is longer than its window and than its original context. The
script fails if a feature of the model, switched off, moves the logits by less than 1e-3. The tests compare
the logits from the model directory and from a GGUF file with the same weights, on the CPU (one device, and
cut in two) and on every other device. The relative error is at most 1e-4 in class exact, and 2e-2 in class
fast.

The models of `experts.json` are mixtures of experts, those of `hybrids.json` and `kimi.json` have recurrent
layers, and those of `recent.json` have other recent architectures. Their weights follow from formulas (`tests/support/golden/experts.py`,
`hybrids.py`). A GGUF file of a Mixtral model names the architecture
`llama`, one of DeepSeek V3, Kimi K2 or GLM-4.7-Flash names `deepseek2`, and one of OLMo 3 names `olmo2`.

| architecture in GGUF | class in `config.json` | model directory | GGUF |
| --- | --- | --- | --- |
";

/// Models that tests run against independent results, by architecture and then by format.
fn verified() -> BTreeMap<String, [Vec<String>; 2]> {
    let mut all: BTreeMap<String, [Vec<String>; 2]> = BTreeMap::new();
    let mut add = |architecture: &str, is_gguf: bool, name: &str| {
        let names = &mut all.entry(architecture.into()).or_default()[usize::from(is_gguf)];
        let name = format!("`{name}`");
        if !names.contains(&name) {
            names.push(name);
        }
    };
    for name in CHECKPOINTS {
        for model in support::Checkpoint::open(name).models {
            add(&model.hyperparameters().architecture, model.graph().metadata().is_some(), name);
        }
    }
    for (model, is_gguf, file) in crate::experts::verified() {
        add(&model.hyperparameters().architecture, is_gguf, file);
    }
    for (model, is_gguf, file) in crate::hybrids::verified() {
        add(&model.hyperparameters().architecture, is_gguf, file);
    }
    for name in MODELS {
        let model = ragtag::Model::open(support::model_path(name)).unwrap();
        add(&model.hyperparameters().architecture, true, name);
    }
    all
}

#[test]
fn models_page_is_up_to_date() {
    let verified = verified();
    let mut page = String::from(INTRODUCTION);
    for architecture in ARCHITECTURES {
        let [directory, gguf] = verified.get(architecture.name).cloned().unwrap_or_default();
        let cell = |texts: Vec<String>| if texts.is_empty() { "–".to_owned() } else { texts.join(", ") };
        let classes = architecture.classes.iter().map(|class| format!("`{class}`"));
        let texts = architecture.multimodal_classes.iter().map(|class| format!("`{class}` (its text part)"));
        let cells = [cell(classes.chain(texts).collect()), cell(directory), cell(gguf)].join(" | ");
        let names = std::iter::once(&architecture.name).chain(architecture.multimodal_names);
        let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
        writeln!(page, "| {} | {cells} |", names.join(", ")).unwrap();
        assert!(verified.contains_key(architecture.name), "no test runs {}", architecture.name);
    }
    let path = support::root().join(PAGE);
    if std::env::var_os("RAGTAG_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "{PAGE} is out of date: RAGTAG_WRITE_DOCS=1 cargo test --test integration models_page"
    );
}
