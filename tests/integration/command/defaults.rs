//! Tests `ragtag bench --defaults`, which compares a run with the default settings with runs that each change
//! one setting.

use super::done;
use crate::support::{ragtag, text};
use ragtag_kernels::TensorType;
use ragtag_synth::{Preset, Shape};

/// Returns a model whose context is long enough for only the shortest prompt of the benchmark.
fn model() -> Vec<u8> {
    let shape = Shape { tensor_type: TensorType::Q8_0, context: 600, layers: 1, ..Preset::Tiny.shape() };
    ragtag_synth::in_memory(&shape, 1).unwrap()
}

#[test]
fn every_cell_has_named_alternatives_with_samples() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, model()).unwrap();
    let arguments = ["bench", text(&path), "--defaults", "-r", "1", "--threads", "2", "--json"];
    let report = done(&[&arguments[..], &["--no-calibration"]].concat());
    assert!(report.err.contains("skipped pp8192: the model's context is 600"), "{}", report.err);
    let report = report.json();
    let cells: Vec<_> = report["cells"].as_array().unwrap().iter().collect();
    let names: Vec<_> = cells.iter().map(|cell| cell["cell"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp512", "tg64 × 1", "tg64 × 8", "tg64 × 64"]);
    for cell in cells {
        let alternatives = cell["alternatives"].as_array().unwrap();
        assert!((1..=12).contains(&alternatives.len()), "{cell}");
        let mut least = f64::INFINITY;
        for alternative in alternatives {
            let rate = |field: &str| alternative[field].as_f64().unwrap();
            let samples = |field: &str| -> Vec<f64> {
                alternative[field].as_array().unwrap().iter().map(|sample| sample.as_f64().unwrap()).collect()
            };
            let (own, others) = (samples("default_samples_tokens_per_s"), samples("samples_tokens_per_s"));
            let mut ratios: Vec<f64> = own.iter().zip(&others).map(|(own, other)| own / other).collect();
            ratios.sort_by(f64::total_cmp);
            let ratio = (ratios[(ratios.len() - 1) / 2] + ratios[ratios.len() / 2]) / 2.0;
            assert!(ratio > 0.0 && (rate("ratio") / ratio - 1.0).abs() < 1e-9, "{alternative}");
            assert!(rate("default_tokens_per_s") > 0.0 && rate("tokens_per_s") > 0.0, "{alternative}");
            least = least.min(ratio);
        }
        assert!((cell["ratio"].as_f64().unwrap() / least - 1.0).abs() < 1e-9, "{cell}");
    }
    let names = |cell: &serde_json::Value| {
        let names = cell["alternatives"].as_array().unwrap().iter().map(|a| a["change"].as_str().unwrap());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(names(&report["cells"][0]).iter().any(|name| name == "--chunk 128"), "{report}");
    assert!(names(&report["cells"][2]).iter().any(|name| name == "2 decode groups"), "{report}");
}

#[test]
fn the_cells_cannot_be_changed() {
    let refused = ragtag().args(["bench", "--defaults", "-p", "64"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("--defaults") && said.contains("cannot be used with"), "{said}");
}
