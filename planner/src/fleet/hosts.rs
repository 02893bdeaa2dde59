//! Hosts of a fleet: the labels and the memory of their devices, and the network between them.

use super::figure::{GB_PER_S, MEMORY_GIB, MICROSECONDS};
use super::resolve::{GIB, Result, by_host, check_label, stated};
use super::{Fleet, FleetDevice, InvalidFleet};
use crate::cost::{DeviceFacts, Figure, LinkFacts, WeightSharing};
use crate::json::quoted;
use crate::search::HostFacts;
use crate::search::hosts::host_of;
use std::collections::{BTreeMap, HashMap};

/// Latency and rate of the network between two hosts.
type Network = (Figure, Figure);

/// Hosts besides the coordinator's, whose name is empty.
pub(super) struct Hosts {
    /// Memory of each host, by name.
    memory_bytes: BTreeMap<String, Option<u64>>,
    networks: HashMap<(String, String), Network>,
}

impl Hosts {
    pub(super) fn new(fleet: &Fleet) -> Result<Self> {
        let mut hosts = Self { memory_bytes: BTreeMap::new(), networks: HashMap::new() };
        for (at, host) in fleet.hosts.iter().enumerate() {
            let path = format!("hosts[{at}]");
            check_label(&format!("{path}.name"), &host.name)?;
            let memory =
                host.memory_gib.map(|gib| stated(&path, "memory_gib", &MEMORY_GIB, gib)).transpose()?;
            let memory_bytes = memory.map(|gib| (gib.figure.value * GIB) as u64);
            if hosts.memory_bytes.insert(host.name.clone(), memory_bytes).is_some() {
                let why = format!("\"{}\" is used twice", quoted(&host.name));
                return Err(InvalidFleet::wrong(&format!("{path}.name"), why));
            }
        }
        for (at, host) in fleet.hosts.iter().enumerate() {
            for (number, network) in host.networks.iter().enumerate() {
                let path = format!("hosts[{at}].networks[{number}]");
                let to = network.to.clone().unwrap_or_default();
                if to == host.name || !(to.is_empty() || hosts.memory_bytes.contains_key(&to)) {
                    let why = format!("\"{}\" is not another host of the fleet", quoted(&to));
                    return Err(InvalidFleet::wrong(&format!("{path}.to"), why));
                }
                let latency = stated(&path, "latency_us", &MICROSECONDS, network.latency_us)?.figure;
                let rate = stated(&path, "bandwidth_gb_per_s", &GB_PER_S, network.bandwidth_gb_per_s)?.figure;
                let figures = (latency, Figure { value: rate.value * 1e9, ..rate });
                for pair in [(to.clone(), host.name.clone()), (host.name.clone(), to.clone())] {
                    hosts.networks.insert(pair, figures);
                }
            }
        }
        Ok(hosts)
    }

    /// Puts a device on its host. The memory of another host is no memory of the coordinator's.
    pub(super) fn placed(&self, path: &str, device: &FleetDevice, facts: DeviceFacts) -> Result<DeviceFacts> {
        let Some(host) = &device.host else { return Ok(facts) };
        if !self.memory_bytes.contains_key(host) {
            let why = format!("there is no host with the name \"{}\" in the file", quoted(host));
            return Err(InvalidFleet::wrong(&format!("{path}.host"), why));
        }
        Ok(DeviceFacts {
            label: format!("{host}/{}", facts.label),
            weight_sharing: WeightSharing::None,
            ..facts
        })
    }

    /// Divides the memory of each host among its devices that use it. Returns the hosts.
    pub(super) fn share_memory(&self, devices: &mut [DeviceFacts]) -> Vec<HostFacts> {
        let share = |(name, memory_bytes): (&String, &Option<u64>)| {
            let uses = |device: &DeviceFacts| device.in_host_memory && host_of(&device.label) == name;
            let count = devices.iter().filter(|device| uses(device)).count() as u64;
            let mut in_host_memory = Vec::new();
            for device in devices.iter_mut().filter(|device| uses(device)) {
                device.in_host_memory = false;
                device.memory_bytes =
                    memory_bytes.map_or(device.memory_bytes, |bytes| device.memory_bytes.min(bytes / count));
                in_host_memory.push(device.label.clone());
            }
            HostFacts { name: name.clone(), memory_bytes: *memory_bytes, in_host_memory }
        };
        self.memory_bytes.iter().map(share).collect()
    }

    /// Returns the link between two devices without a link of their own.
    pub(super) fn between(&self, from: &DeviceFacts, to: &DeviceFacts) -> Result<LinkFacts> {
        let (own, [a, b]) = (by_host(from, to), [from, to].map(|device| host_of(&device.label)));
        if a == b {
            return Ok(own);
        }
        let Some((latency, rate)) = self.networks.get(&(a.to_owned(), b.to_owned())) else {
            let [a, b] = [a, b].map(|name| if name.is_empty() { "the coordinator's host" } else { name });
            return Err(InvalidFleet::wrong("hosts", format!("there is no network between {a} and {b}")));
        };
        let latency_us = Figure { value: own.latency_us.value + latency.value, ..*latency };
        let slower =
            if own.bandwidth_bytes_per_s.value < rate.value { own.bandwidth_bytes_per_s } else { *rate };
        Ok(LinkFacts { latency_us, bandwidth_bytes_per_s: slower, ..own }.over_network())
    }
}
