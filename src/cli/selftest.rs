//! Implements `ragtag selftest`, which checks that the devices of this machine compute correctly.

use super::args::SelftestArgs;
use super::error::Result;
use super::files::{self, write_file};
use super::output::{inform, out_width, print_json, show, table, to_json};
use super::progress;
use crate::Devices;
use crate::selftest::SelfTest;
use ragtag_conformance::{Outcome, Report, Shapes, Verdict};
use ragtag_devices::SelectionOrigin;
use ragtag_hal::Adapter;
use ragtag_kernels::NumericsClass;

/// Maximum number of test names that the output lists for each reason.
const NAMES: usize = 3;

pub(super) fn run(args: &SelftestArgs) -> Result<()> {
    files::check(&args.report, [])?;
    let devices = Devices::probe(&super::start::devices::options(&args.devices))?;
    let adapters: Vec<Adapter> = match devices.choice().source {
        SelectionOrigin::Default => devices.report().adapters().cloned().collect(),
        SelectionOrigin::Flag | SelectionOrigin::Environment => devices.selected().to_vec(),
    };
    let labels: Vec<_> = adapters.iter().map(Adapter::label).collect();
    let shapes = Shapes { count: args.shapes, seed: args.seed, ..Shapes::default() };
    let random = format!("{} random shapes per kernel, first seed {}", shapes.count, shapes.seed);
    inform(&format!("testing {} with {random}", labels.join(", ")));
    if args.devices.strict {
        super::strict::check_devices(&devices)?;
    }
    let only = args.only.as_deref().unwrap_or_default();
    let bar = progress::steps("testing", (SelfTest::tests(only) * adapters.len()) as u64);
    let found = SelfTest::run(&devices, &adapters, only, shapes, |adapter, test| {
        bar.set_message(format!("{} {test}", adapter.label()));
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    let printed = if args.json { print_json(&found) } else { show(&as_text(&found, out_width())) };
    let reported = args.report.iter().try_for_each(|path| write_file(path, to_json(&found).as_bytes()));
    // A failed test takes precedence over a failed write.
    found.check()?;
    printed.and(reported)
}

/// Formats the results: the table, the failed and skipped tests with their reasons, and the unavailable
/// backends.
pub(super) fn as_text(found: &SelfTest, width: Option<u16>) -> String {
    let columns =
        ["device", "+name", "+driver", ">passed", ">failed", ">skipped", ">exact", ">fast", ">time"];
    let mut table = table(&columns, width);
    for report in &found.reports {
        let error = |class| report.worst_relative_error(class).map_or(String::new(), |e| format!("{e:.1e}"));
        let duration_us: u64 = report.tests.iter().map(|test| test.duration_us).sum();
        table.add_row([
            report.adapter.label(),
            report.adapter.name.clone(),
            report.adapter.driver.to_string(),
            report.passed().to_string(),
            failures(report).len().to_string(),
            skips(report).len().to_string(),
            error(NumericsClass::Exact),
            error(NumericsClass::Fast),
            format!("{:.1} s", duration_us as f64 / 1e6),
        ]);
    }
    let mut text = format!("{table}\n");
    for report in &found.reports {
        text.push_str(&reasons(report, "failed", &failures(report)));
        text.push_str(&reasons(report, "skipped", &skips(report)));
    }
    for absent in &found.absent {
        text.push_str(&format!("{}: {}\n", absent.backend, absent.cause));
    }
    text
}

/// A test that failed or was skipped, with the reason.
type Reason<'a> = (&'a Outcome, &'a str);

fn failures(report: &Report) -> Vec<Reason<'_>> {
    let reason = |test: &'_ Outcome| matches!(test.verdict, Verdict::Failed { .. });
    report.tests.iter().filter(|test| reason(test)).map(with_reason).collect()
}

fn skips(report: &Report) -> Vec<Reason<'_>> {
    let skipped = |test: &'_ Outcome| matches!(test.verdict, Verdict::Skipped { .. });
    report.tests.iter().filter(|test| skipped(test)).map(with_reason).collect()
}

fn with_reason(test: &Outcome) -> Reason<'_> {
    match &test.verdict {
        Verdict::Failed { why: reason } | Verdict::Skipped { reason } => (test, reason),
        Verdict::Passed { .. } => (test, ""),
    }
}

/// Formats one line for each reason in `tests`, with the names of the tests that have this reason.
fn reasons(report: &Report, what: &str, tests: &[Reason<'_>]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (test, reason) in tests {
        match groups.iter_mut().find(|(known, _)| known == reason) {
            Some((_, names)) => names.push(&test.name),
            None => groups.push((reason, vec![&test.name])),
        }
    }
    let line = |(reason, names): &(&str, Vec<&str>)| {
        let shown = names[..names.len().min(NAMES)].join(", ");
        let more = match names.len().saturating_sub(NAMES) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        format!("{} {what}: {reason}: {shown}{more}\n", report.adapter.label())
    };
    groups.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceOptions;

    /// Returns a self-test of the CPU device with the given test names and verdicts.
    fn found(tests: &[(&str, Verdict)]) -> SelfTest {
        let cpu = DeviceOptions::selecting("cpu");
        let devices = Devices::probe(&cpu).unwrap();
        let mut found =
            SelfTest::run(&devices, devices.selected(), "memory/fill", Shapes::default(), |_, _| {}).unwrap();
        let outcome = |(name, verdict): &(&str, Verdict)| Outcome {
            name: name.to_string(),
            verdict: verdict.clone(),
            class: Some(NumericsClass::Exact),
            duration_us: 500_000,
        };
        found.reports.truncate(1);
        found.reports[0].tests = tests.iter().map(outcome).collect();
        found.absent =
            vec![ragtag_conformance::Absent { backend: "abacus".into(), cause: "no beads".into() }];
        found
    }

    #[test]
    fn failures_and_skips_are_grouped_by_reason() {
        let passed = |error| Verdict::Passed { relative_error: error };
        let skipped = |reason: &str| Verdict::Skipped { reason: reason.into() };
        let failed = |why: &str| Verdict::Failed { why: why.into() };
        let found = found(&[
            ("a", passed(Some(2e-6))),
            ("b", passed(Some(3e-6))),
            ("c", passed(None)),
            ("d", skipped("too small")),
            ("e", skipped("too slow")),
            ("f", skipped("too small")),
            ("g", skipped("too small")),
            ("h", skipped("too small")),
            ("i", failed("wrong")),
        ]);
        let text = as_text(&found, Some(80));
        let (table, lines) = text.split_at(text.find("cpu:0 failed").unwrap());
        let row: Vec<_> = table.lines().last().unwrap().split('|').map(str::trim).collect();
        assert_eq!(row[2..7], ["3", "1", "5", "3.0e-6", ""]);
        assert_eq!(
            lines,
            "cpu:0 failed: wrong: i\ncpu:0 skipped: too small: d, f, g and 1 more\ncpu:0 skipped: too slow: e\nabacus: no beads\n"
        );
    }
}
