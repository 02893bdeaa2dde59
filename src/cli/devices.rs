//! Implements `ragtag devices`, which lists the devices of this machine and the APIs that expose them.

use super::args::DevicesArgs;
use super::error::Result;
use super::output::{bytes, out_width, print_json, show, table};
use crate::Devices;
use ragtag_devices::{Report, Status};
use ragtag_hal::{Adapter, HeapKind};
use serde_json::json;

pub(super) fn run(args: &DevicesArgs) -> Result<()> {
    if args.doctor {
        return super::doctor::run(&super::start::devices::options(&args.devices), args.json);
    }
    if args.links {
        return super::links::run(args);
    }
    let devices = Devices::probe_all(&super::start::devices::options(&args.devices))?.with_sensors();
    if args.json {
        let choice = devices.choice();
        print_json(&json!({
            "requested": choice.requested,
            "detected": choice.detected,
            "selected": devices.labels(),
            "memory_caps": devices.memory_caps().to_strings(),
            "throttles": devices.throttles(),
            "report": devices.report(),
        }))?;
    } else {
        super::output::inform(&devices.start_line());
        let cap_bytes = |adapter: &Adapter| devices.cap_bytes(adapter);
        show(&as_table(devices.report(), &devices.labels(), cap_bytes, out_width()))?;
        for line in throttled(devices.report()).into_iter().chain(missing(devices.report())) {
            show(&format!("{line}\n"))?;
        }
    }
    // The list is printed even if `--strict` rejects the selection.
    if args.devices.strict { super::strict::check_devices(&devices) } else { Ok(()) }
}

/// Formats a table with a row for each physical device. The figures come from the API through which the device
/// is selected, or from its best API if it is not selected. A memory cap precedes the total memory.
pub(super) fn as_table(
    report: &Report,
    selected: &[String],
    cap_bytes: impl Fn(&Adapter) -> Option<u64>,
    width: Option<u16>,
) -> String {
    let columns = ["device", "name", "+kind", "+>free", ">total", "+>units", "+driver", "selected"];
    let mut table = table(&columns, width);
    for physical in &report.devices {
        let used: Vec<_> =
            physical.adapters.iter().filter(|label| selected.contains(label)).cloned().collect();
        let shown = used.first().or(physical.adapters.first());
        let Some(adapter) = shown.and_then(|label| report.adapter(label)) else { continue };
        let (free, total) = memory(adapter);
        let total = match cap_bytes(adapter) {
            Some(cap) => format!("{} of {total}", bytes(cap)),
            None => total,
        };
        table.add_row([
            physical.to_string(),
            adapter.name.clone(),
            format!("{:?}", adapter.kind).to_lowercase(),
            free,
            total,
            adapter.caps.parallel_units.to_string(),
            adapter.driver.to_string(),
            used.join(", "),
        ]);
    }
    format!("{table}\n")
}

fn memory(adapter: &Adapter) -> (String, String) {
    match adapter.memory.first() {
        Some(memory) => {
            let shared = if memory.heap == HeapKind::Host { " host" } else { "" };
            let free = memory.free_bytes.map_or("unknown".into(), bytes);
            (free, format!("{}{shared}", bytes(memory.total_bytes)))
        }
        None => ("unknown".into(), "unknown".into()),
    }
}

/// Returns a line for each GPU that limits its clocks.
fn throttled(report: &Report) -> Vec<String> {
    let condition = |physical: &ragtag_devices::Physical| {
        let condition = report.adapter(physical.adapters.first()?)?.condition.as_ref()?;
        (!condition.throttled_by.is_empty()).then(|| format!("{physical}: {condition}"))
    };
    report.devices.iter().filter_map(condition).collect()
}

fn missing(report: &Report) -> Vec<String> {
    let line = |backend: &ragtag_devices::BackendReport| match &backend.status {
        Status::Found { .. } | Status::NotProbed => None,
        Status::NotCompiled => {
            Some(format!("{}: not in this build (feature `{}`)", backend.name, backend.name))
        }
        Status::Unavailable(unavailable) => Some(format!("{}: {unavailable}", backend.name)),
    };
    report.backends.iter().filter_map(line).collect()
}
