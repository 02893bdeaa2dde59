//! Hardware monitors of Linux, through which the drivers of AMD's and Intel's GPUs report their sensors.

use ragtag_hal::Condition;
use std::fs;
use std::path::Path;

/// Maximum number of temperature sensors of a monitor.
const MAX_SENSORS: u32 = 16;

/// Returns the condition that the monitors of a PCI device report. `device` is the device's folder.
pub(super) fn condition(device: &Path) -> Condition {
    let Ok(monitors) = fs::read_dir(device.join("hwmon")) else { return Condition::default() };
    let conditions = monitors.filter_map(Result::ok).map(|monitor| of_monitor(&monitor.path()));
    conditions.fold(Condition::default(), |all, one| all.or(&one))
}

/// Returns the condition that one monitor reports. A monitor reports millidegrees, microwatts and hertz.
fn of_monitor(folder: &Path) -> Condition {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<i64>().ok();
    let celsius = (1..=MAX_SENSORS).filter_map(|at| number(&format!("temp{at}_input"))).max();
    let mw = |name: &str| u64::try_from(number(name)? / 1000).ok();
    let mhz = |name: &str| u32::try_from(number(name)? / 1_000_000).ok();
    Condition {
        celsius: celsius.and_then(|millidegrees| i32::try_from(millidegrees / 1000).ok()),
        power_mw: mw("power1_average").or_else(|| mw("power1_input")),
        power_limit_mw: mw("power1_cap").or_else(|| mw("power1_max")),
        compute_mhz: mhz("freq1_input"),
        memory_mhz: mhz("freq2_input"),
        ..Condition::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitors_report_the_hottest_sensor_power_and_clocks() {
        let device = tempfile::tempdir().unwrap();
        assert_eq!(condition(device.path()), Condition::default());
        let monitor = device.path().join("hwmon/hwmon3");
        fs::create_dir_all(&monitor).unwrap();
        let files = [
            ("temp1_input", "54000\n"),
            ("temp2_input", "71500\n"),
            ("temp3_input", "nonsense"),
            ("power1_average", "203000000\n"),
            ("power1_cap", "303000000\n"),
            ("freq1_input", "2304000000\n"),
            ("freq2_input", "96000000\n"),
        ];
        for (name, text) in files {
            fs::write(monitor.join(name), text).unwrap();
        }
        let text = condition(device.path()).to_string();
        assert_eq!(text, "71 °C, 203 W of 303 W, 2304 MHz");
        assert_eq!(condition(device.path()).memory_mhz, Some(96));
    }
}
