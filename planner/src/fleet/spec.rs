//! Parses the one-line form of fleets: `2x-arc-a770+rx7900xtx`. This module knows nothing about values.

use super::{FLEET_VERSION, Fleet, FleetDevice, InvalidFleet, MAX_DEVICES, card};
use crate::json::quoted;

/// Parses card names joined by `+`. Each name may be preceded by a count: `2x-` or `2x`.
pub(super) fn parse(line: &str) -> Result<Fleet, InvalidFleet> {
    if line.split('+').count() > MAX_DEVICES {
        return Err(InvalidFleet::wrong("the line", format!("has more than {MAX_DEVICES} parts")));
    }
    let devices: Vec<_> = line.split('+').map(|part| device(part.trim())).collect::<Result<_, _>>()?;
    let all: u32 = devices.iter().map(|device| device.count.unwrap_or(1)).sum();
    if all as usize > MAX_DEVICES {
        let why = format!("has {all} devices; a fleet has 1 to {MAX_DEVICES} in all");
        return Err(InvalidFleet::wrong("the line", why));
    }
    Ok(Fleet {
        ragtag_fleet: FLEET_VERSION,
        devices,
        links: vec![],
        shared_links: vec![],
        host_memory_bytes: None,
        hosts: vec![],
    })
}

fn device(part: &str) -> Result<FleetDevice, InvalidFleet> {
    let wrong = |why: String| InvalidFleet::Wrong { path: format!("\"{}\"", quoted(part)), why };
    if part.is_empty() {
        return Err(wrong("names no card; write for example 2x-arc-a770+rx7900xtx".into()));
    }
    let (count, name) = match part.split_once('x') {
        Some((count, name)) if !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit()) => {
            let count = count.parse::<u32>().ok().filter(|n| (1..=MAX_DEVICES as u32).contains(n));
            let count = count.ok_or_else(|| wrong(format!("a count is 1 to {MAX_DEVICES}")))?;
            (Some(count), name.strip_prefix('-').unwrap_or(name))
        }
        _ => (None, part),
    };
    card(name).map_err(|nearest| {
        wrong(format!("unknown card \"{}\"; similar cards are {}", quoted(name), nearest.join(", ")))
    })?;
    Ok(FleetDevice { card: Some(name.into()), count, ..FleetDevice::default() })
}
