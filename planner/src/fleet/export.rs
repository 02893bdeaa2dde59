//! Writes the planner's input as a fleet. This module knows nothing about measuring.

use super::resolve::BUS_SHARE;
use super::{FLEET_VERSION, Fleet, FleetDevice, FleetFigure, FleetHost, FleetLink, FleetSharedLink};
use crate::cost::{DeviceFacts, Figure, FigureSource, Links, SharedLink};
use serde_json::Value;

impl Fleet {
    /// Returns a fleet of these devices and links. [`Fleet::facts`] returns the devices and the links between
    /// them unchanged, and the rates of shared links up to rounding.
    pub fn of(devices: &[DeviceFacts], links: &Links, host_memory_bytes: Option<u64>) -> Self {
        let pairs = devices.iter().flat_map(|from| devices.iter().map(move |to| (from, to)));
        let link = |(from, to): (&DeviceFacts, &DeviceFacts)| FleetLink {
            from: from.label.clone(),
            to: to.label.clone(),
            both_ways: false,
            latency_us: None,
            bandwidth_gb_per_s: None,
            measured: Some(links.between(&from.label, &to.label).clone()),
        };
        let entry = |facts: &DeviceFacts| {
            let (host, label) = facts.label.split_once('/').unzip();
            let (host, label) = (host.map(str::to_owned), label.map(str::to_owned));
            FleetDevice { host, label, measured: Some(facts.clone()), ..FleetDevice::default() }
        };
        let mut hosts: Vec<String> = Vec::new();
        for (host, _) in devices.iter().filter_map(|device| device.label.split_once('/')) {
            if !hosts.iter().any(|name| name == host) {
                hosts.push(host.into());
            }
        }
        let host = |name| FleetHost { name, memory_gib: None, networks: Vec::new() };
        Self {
            ragtag_fleet: FLEET_VERSION,
            devices: devices.iter().map(entry).collect(),
            links: pairs.filter(|(from, to)| from.label != to.label).map(link).collect(),
            shared_links: links.shared.iter().map(shared).collect(),
            host_memory_bytes,
            hosts: hosts.into_iter().map(host).collect(),
        }
    }

    /// Returns the fleet as indented JSON, without absent values.
    pub fn to_json(&self) -> String {
        // JSON serialization cannot fail for structs of strings and numbers.
        let mut value = serde_json::to_value(self).expect("fleets are plain data");
        remove_nulls(&mut value);
        format!("{value:#}\n")
    }
}

fn shared(link: &SharedLink) -> FleetSharedLink {
    let Figure { value, source } = link.bandwidth_bytes_per_s;
    let share = if source == FigureSource::Datasheet { BUS_SHARE } else { 1.0 };
    let bandwidth_gb_per_s = FleetFigure(Figure { value: value / share / 1e9, source });
    FleetSharedLink { name: link.name.clone(), users: link.users.clone(), bandwidth_gb_per_s }
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}
