//! Writes the support table of the documentation from committed summaries of `ragtag selftest` reports. The
//! table says whether each backend has run on a device, only compiles, or does not exist yet.
//!
//! Knows nothing about individual tests. It only adds up their results.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Folder of the reports, relative to the root.
const REPORTS: &str = "docs/reports";
/// Page with the table, relative to the root.
const PAGE: &str = "docs/support.md";
/// Version of the report format that this task can read.
const VERSION: u32 = 1;

/// All planned backends, in order of preference. A backend exists if `devices/` contains a crate in a folder
/// of the same name.
const BACKENDS: [&str; 7] = ["cuda", "hip", "level-zero", "vulkan", "opencl", "wgpu", "cpu"];

const HEAD: &str = "\
# Support

This page lists the devices on which the conformance suite has run. `cargo xtask support-table` writes the page from the summaries in
[reports/](reports), and `cargo xtask test` checks that the page is up to date. `ragtag selftest --report FILE` writes the report of a
machine, and `cargo xtask support-table --add FILE` adds its summary.

- **executed**: the suite ran on this device. The columns give the numbers of tests in the report, whose suite may be older
  than this page. A test is skipped if the device or the driver
  lacks a feature, and the report gives the reason. In the report `hip-on-cuda-h200`, a stand-in for AMD's driver ran on the device shown.
  [hip.md](hip.md) describes what such a report covers.
- **failed**: the suite ran, and no test passed.
- **compiled**: the backend is built, linted and tested on a stand-in for its driver. No device has a report.
- **never**: the backend does not exist yet.

| backend | state | device | driver | system | passed | failed | skipped | exact | fast | report |
| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |
";

const FOOT: &str = "
The columns \"exact\" and \"fast\" give the largest relative error ‖out − reference‖ / ‖reference‖ of all kernels in each numerics class.
The bounds are 1e-4 (exact) and 2e-2 (fast).
";

/// Fields of a report that the table needs. `docs/formats.md` describes the full format.
#[derive(Debug, Deserialize, Serialize)]
struct Report<D = Summary> {
    ragtag_selftest: u32,
    ragtag: String,
    os: String,
    arch: String,
    started_unix_s: u64,
    only: String,
    reports: Vec<D>,
}

/// Device in a report of `ragtag selftest`.
#[derive(Debug, Deserialize)]
struct Device {
    adapter: Adapter,
    tests: Vec<Test>,
}

/// Summary of a device in docs/reports.
#[derive(Debug, Deserialize, Serialize)]
struct Summary {
    adapter: Adapter,
    passed: usize,
    /// Reason of each failure, by the name of the failed test.
    failed: BTreeMap<String, String>,
    /// Number of skipped tests for each reason.
    skipped: BTreeMap<String, usize>,
    /// Largest relative error of the kernels in each numerics class.
    relative_errors: BTreeMap<String, f64>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Adapter {
    backend: String,
    name: String,
    driver: String,
}

#[derive(Debug, Deserialize)]
struct Test {
    name: String,
    verdict: Verdict,
    #[serde(alias = "why")]
    reason: Option<String>,
    class: Option<String>,
    relative_error: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

impl From<Device> for Summary {
    fn from(device: Device) -> Self {
        let mut summary = Summary {
            adapter: device.adapter,
            passed: 0,
            failed: BTreeMap::new(),
            skipped: BTreeMap::new(),
            relative_errors: BTreeMap::new(),
        };
        for test in device.tests {
            let reason = test.reason.unwrap_or_default();
            match test.verdict {
                Verdict::Passed => summary.passed += 1,
                Verdict::Failed => drop(summary.failed.insert(test.name, reason)),
                Verdict::Skipped => *summary.skipped.entry(reason).or_default() += 1,
            }
            if let (Verdict::Passed, Some(class), Some(error)) =
                (test.verdict, test.class, test.relative_error)
            {
                let worst = summary.relative_errors.entry(class).or_insert(error);
                *worst = worst.max(error);
            }
        }
        summary
    }
}

/// Summarises a report of `ragtag selftest` and writes the summary to docs/reports, under the report's file
/// name.
pub(crate) fn add(root: &Path, file: &Path) -> Result<(), String> {
    let about = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let text = std::fs::read_to_string(file).map_err(|e| about(&e))?;
    let name = file.file_name().ok_or_else(|| about(&"not a file"))?;
    let to = root.join(REPORTS).join(name);
    let text =
        serde_json::to_string_pretty(&summarised(&text).map_err(|e| about(&e))?).map_err(|e| about(&e))?;
    std::fs::write(&to, text + "\n").map_err(|e| format!("{}: {e}", to.display()))
}

fn summarised(text: &str) -> serde_json::Result<Report> {
    let Report { ragtag_selftest, ragtag, os, arch, started_unix_s, only, reports } =
        serde_json::from_str::<Report<Device>>(text)?;
    let reports = reports.into_iter().map(Summary::from).collect();
    Ok(Report { ragtag_selftest, ragtag, os, arch, started_unix_s, only, reports })
}

/// Writes the support page. If `check` is set, only checks that the page is up to date.
pub(crate) fn run(root: &Path, check: bool) -> Result<(), String> {
    let is_built = |backend: &str| root.join("devices").join(backend).join("Cargo.toml").is_file();
    let page = page(&read(&root.join(REPORTS))?, is_built)?;
    let path = root.join(PAGE);
    if !check {
        return std::fs::write(&path, page).map_err(|e| format!("{PAGE}: {e}"));
    }
    let found = std::fs::read_to_string(&path).map_err(|e| format!("{PAGE}: {e}"))?;
    if found == page {
        Ok(())
    } else {
        Err(format!("{PAGE} is out of date: run `cargo xtask support-table`"))
    }
}

/// Reads all summaries in a folder. Returns each summary with its name, sorted by name.
fn read(folder: &Path) -> Result<Vec<(String, Report)>, String> {
    let about = |e: &dyn std::fmt::Display| format!("{REPORTS}: {e}");
    let mut reports = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|e| about(&e))? {
        let path = entry.map_err(|e| about(&e))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".json") else { continue };
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{REPORTS}/{name}: {e}"))?;
        let report = serde_json::from_str(&text).map_err(|e| format!("{REPORTS}/{name}: {e}"))?;
        reports.push((stem.to_owned(), report));
    }
    reports.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(reports)
}

fn page(reports: &[(String, Report)], is_built: impl Fn(&str) -> bool) -> Result<String, String> {
    for (name, report) in reports {
        check_report(report).map_err(|e| format!("{REPORTS}/{name}.json: {e}"))?;
    }
    let mut page = HEAD.to_owned();
    for backend in BACKENDS {
        let devices =
            reports.iter().flat_map(|(name, report)| report.reports.iter().map(move |d| (name, report, d)));
        let rows: Vec<_> = devices
            .filter(|(.., device)| device.adapter.backend == backend)
            .map(|(name, report, device)| row(name, report, device))
            .collect();
        if rows.is_empty() {
            let state = if is_built(backend) { "compiled" } else { "never" };
            // Writing to a string cannot fail.
            let _ = writeln!(page, "| {backend} | {state} |{}", "  |".repeat(9));
        }
        page.extend(rows);
    }
    page.push_str(FOOT);
    Ok(page)
}

/// Returns an error if the report covers only a part of the suite, or if its version or a backend is unknown.
fn check_report(report: &Report) -> Result<(), String> {
    if report.ragtag_selftest != VERSION {
        return Err(format!("version {}; {VERSION} is wanted", report.ragtag_selftest));
    }
    if !report.only.is_empty() {
        return Err(format!("only tests with {:?} were run; run the whole suite", report.only));
    }
    for device in &report.reports {
        let backend = &device.adapter.backend;
        if !BACKENDS.contains(&backend.as_str()) {
            return Err(format!("unknown backend {backend}: add it to BACKENDS in xtask/src/support.rs"));
        }
    }
    Ok(())
}

fn row(name: &str, report: &Report, device: &Summary) -> String {
    let error = |class: &str| device.relative_errors.get(class).map_or(String::new(), |e| format!("{e:.1e}"));
    let Adapter { backend, name: device_name, driver } = &device.adapter;
    let state = if device.passed > 0 { "executed" } else { "failed" };
    // A driver's name must not end a table cell.
    let cell = |text: &str| text.replace('|', "\\|");
    format!(
        "| {backend} | {state} | {} | {} | {} {}, ragtag {} | {} | {} | {} | {} | {} | [{name}](reports/{name}.json) |\n",
        cell(device_name),
        cell(driver),
        report.os,
        report.arch,
        report.ragtag,
        device.passed,
        device.failed.len(),
        device.skipped.values().sum::<usize>(),
        error("exact"),
        error("fast"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(backend: &str, only: &str, version: u32) -> (String, Report) {
        let text = format!(
            r#"{{"ragtag_selftest": {version}, "ragtag": "0.1.0", "os": "linux", "arch": "x86_64", "only": "{only}",
            "started_unix_s": 1, "absent": [], "reports": [{{
                "adapter": {{"backend": "{backend}", "index": 0, "name": "A|B", "driver": "1.2"}},
                "tests": [
                    {{"name": "a", "verdict": "passed", "relative_error": 2e-6, "class": "exact", "duration_us": 1}},
                    {{"name": "b", "verdict": "passed", "relative_error": 3e-6, "class": "exact", "duration_us": 1}},
                    {{"name": "c", "verdict": "passed", "relative_error": null, "duration_us": 1}},
                    {{"name": "d", "verdict": "skipped", "reason": "x", "class": "fast", "duration_us": 1}},
                    {{"name": "e", "verdict": "failed", "why": "y", "class": "fast", "duration_us": 1}}
                ]
            }}]}}"#
        );
        ("box".into(), summarised(&text).unwrap())
    }

    #[test]
    fn the_table_counts_the_reported_tests() {
        let page = page(&[report("opencl", "", 1)], |backend| backend == "cpu").unwrap();
        for line in [
            "| opencl | executed | A\\|B | 1.2 | linux x86_64, ragtag 0.1.0 | 3 | 1 | 1 | 3.0e-6 |  | [box](reports/box.json) |",
            "| cpu | compiled |  |  |  |  |  |  |  |  |  |",
            "| cuda | never |  |  |  |  |  |  |  |  |  |",
        ] {
            assert!(page.lines().any(|l| l == line), "{line} in {page}");
        }
        assert_eq!(page.lines().filter(|line| line.contains("opencl |")).count(), 1);
        let (_, Report { reports, .. }) = report("opencl", "", 1);
        assert_eq!(reports[0].failed, BTreeMap::from([("e".into(), "y".into())]));
        assert_eq!(reports[0].skipped, BTreeMap::from([("x".into(), 1)]));
    }

    #[test]
    fn refuses_partial_and_unknown_reports() {
        let refusal = |report| page(&[report], |_| true).unwrap_err();
        assert!(refusal(report("cpu", "matmul", 1)).contains("only tests with \"matmul\""));
        assert!(refusal(report("cpu", "", 2)).contains("version 2"));
        assert!(refusal(report("abacus", "", 1)).contains("abacus"));
    }

    #[test]
    fn finds_an_outdated_page() {
        let root = std::env::temp_dir().join(format!("ragtag-support-{}", std::process::id()));
        std::fs::create_dir_all(root.join(REPORTS)).unwrap();
        let checked = |check| run(&root, check);
        assert!(checked(true).is_err());
        checked(false).unwrap();
        checked(true).unwrap();
        std::fs::write(root.join(PAGE), "| cpu | executed |\n").unwrap();
        assert!(checked(true).unwrap_err().contains("cargo xtask support-table"));
        std::fs::write(root.join(REPORTS).join("x.json"), "{").unwrap();
        assert!(checked(false).unwrap_err().contains("docs/reports/x.json"));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
