//! Reads from Linux how two devices are connected: the PCIe generation and width, and the NUMA distance.

use ragtag_hal::{Adapter, AdapterKind, PciAddress};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Transfer rates of PCIe generations 1 to 6, in GT/s.
const GENERATIONS_GT_PER_S: [f64; 6] = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];

/// Hardware between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkClass {
    /// Both devices are one physical device, seen through two APIs.
    SameDie,
    /// Both devices compute on the host's processor.
    Host,
    /// The transfers cross PCIe. The figures are those of the slower end. A figure that the system does not
    /// report is `None`.
    Pcie {
        /// Generation of the protocol.
        generation: Option<u32>,
        /// Number of lanes.
        width: Option<u32>,
    },
}

impl fmt::Display for LinkClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkClass::SameDie => f.write_str("same die"),
            LinkClass::Host => f.write_str("host"),
            LinkClass::Pcie { generation, width } => {
                f.write_str("PCIe")?;
                generation.iter().try_for_each(|generation| write!(f, " {generation}"))?;
                width.iter().try_for_each(|width| write!(f, " x{width}"))
            }
        }
    }
}

/// The file system of a machine. Tests use a folder as the root of a fake machine.
#[derive(Debug)]
pub(super) struct Topology {
    root: PathBuf,
}

impl Topology {
    pub(super) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the hardware between two devices. `is_same` tells whether they are one physical device.
    pub(super) fn class(&self, ends: [&Adapter; 2], is_same: bool) -> LinkClass {
        let on_host = |a: &Adapter| matches!(a.kind, AdapterKind::Cpu | AdapterKind::Software);
        if is_same {
            return LinkClass::SameDie;
        }
        let [from, to] = ends;
        if on_host(from) && on_host(to) {
            return LinkClass::Host;
        }
        let pci = || ends.into_iter().filter(|end| !on_host(end)).map(|end| end.identity.pci);
        // The slower end is known only if both ends are known.
        let slower = |of: &dyn Fn(PciAddress) -> Option<u32>| {
            let figures: Option<Vec<u32>> = pci().map(|address| of(address?)).collect();
            figures?.into_iter().min()
        };
        LinkClass::Pcie {
            generation: slower(&|address| self.generation(address)),
            width: slower(&|address| self.width(address)),
        }
    }

    /// Returns the NUMA distance between the memories of two devices. The distance of a node from itself is
    /// 10. Returns `None` if the node of a device is unknown, or if a CPU device spans several nodes.
    pub(super) fn numa_distance(&self, [from, to]: [&Adapter; 2]) -> Option<u32> {
        let (from, to) = (self.node(from)?, self.node(to)?);
        let distances = self.line(&format!("sys/devices/system/node/node{from}/distance"))?;
        // The list has an entry for each node that is online.
        let at = self.nodes().iter().position(|node| *node == to)?;
        distances.split_ascii_whitespace().nth(at)?.parse().ok()
    }

    fn generation(&self, address: PciAddress) -> Option<u32> {
        // The file holds `16.0 GT/s PCIe`.
        let speed = self.of_device(address, "current_link_speed")?;
        let gt_per_s: f64 = speed.split_ascii_whitespace().next()?.parse().ok()?;
        let at = GENERATIONS_GT_PER_S.iter().position(|known| (known - gt_per_s).abs() < 0.1)?;
        Some(at as u32 + 1)
    }

    fn width(&self, address: PciAddress) -> Option<u32> {
        // Devices without a link report a width of 0 or 255.
        let width = self.of_device(address, "current_link_width")?.parse().ok()?;
        (1..=32).contains(&width).then_some(width)
    }

    /// Returns the NUMA node of a device's memory.
    fn node(&self, adapter: &Adapter) -> Option<u32> {
        match (adapter.kind, adapter.identity.pci) {
            (AdapterKind::Discrete | AdapterKind::Integrated, Some(address)) => {
                // The file holds -1 if the node is unknown.
                self.of_device(address, "numa_node")?.parse().ok()
            }
            (AdapterKind::Discrete | AdapterKind::Integrated, None) => None,
            (AdapterKind::Cpu | AdapterKind::Software, _) => match self.nodes()[..] {
                [only] => Some(only),
                _ => None,
            },
        }
    }

    /// Returns the numbers of the NUMA nodes in ascending order.
    fn nodes(&self) -> Vec<u32> {
        let folder = fs::read_dir(self.root.join("sys/devices/system/node"));
        let names =
            folder.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut nodes: Vec<u32> = names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
        nodes.sort_unstable();
        nodes
    }

    fn of_device(&self, address: PciAddress, file: &str) -> Option<String> {
        self.line(&format!("sys/bus/pci/devices/{address}/{file}"))
    }

    fn line(&self, path: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(Path::new(path))).ok()?;
        Some(text.lines().next()?.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a machine with two nodes and two GPUs.
    fn machine() -> (tempfile::TempDir, Topology) {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join("sys").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        write("devices/system/node/node0/distance", "10 21");
        write("devices/system/node/node2/distance", "21 10");
        for (bus, speed, width, node) in [
            ("01", "32.0 GT/s PCIe", "16", "0"),
            ("02", "16.0 GT/s PCIe", "8", "2"),
            ("03", "Unknown", "255", "-1"),
        ] {
            let of = |file: &str| format!("bus/pci/devices/0000:{bus}:00.0/{file}");
            write(&of("current_link_speed"), speed);
            write(&of("current_link_width"), width);
            write(&of("numa_node"), node);
        }
        let topology = Topology::new(root.path());
        (root, topology)
    }

    fn adapter(kind: AdapterKind, bus: u8) -> Adapter {
        let options = crate::DeviceOptions::selecting("cpu");
        let found = crate::Devices::probe(&options).unwrap().selected()[0].clone();
        let mut adapter = Adapter { kind, ..found };
        adapter.identity.pci = (bus > 0).then_some(PciAddress { domain: 0, bus, device: 0, function: 0 });
        adapter
    }

    #[test]
    fn the_slower_end_of_a_pcie_link_counts() {
        let (_root, machine) = machine();
        let [first, second, odd] = [1, 2, 3].map(|bus| adapter(AdapterKind::Discrete, bus));
        let cpu = adapter(AdapterKind::Cpu, 0);
        let class = |a: &Adapter, b: &Adapter| machine.class([a, b], false).to_string();
        assert_eq!(class(&first, &cpu), "PCIe 5 x16");
        assert_eq!(class(&first, &second), "PCIe 4 x8");
        assert_eq!(class(&first, &odd), "PCIe", "the other end is unknown");
        assert_eq!(class(&first, &adapter(AdapterKind::Discrete, 0)), "PCIe");
        assert_eq!(class(&cpu, &adapter(AdapterKind::Software, 0)), "host");
        assert_eq!(machine.class([&first, &first], true), LinkClass::SameDie);
    }

    #[test]
    fn numa_distances_come_from_the_nodes_of_the_devices() {
        let (root, machine) = machine();
        let [first, second, odd] = [1, 2, 3].map(|bus| adapter(AdapterKind::Discrete, bus));
        let cpu = adapter(AdapterKind::Cpu, 0);
        assert_eq!(machine.numa_distance([&first, &second]), Some(21));
        assert_eq!(machine.numa_distance([&second, &second]), Some(10));
        assert_eq!(machine.numa_distance([&first, &odd]), None);
        assert_eq!(machine.numa_distance([&first, &cpu]), None, "the processor has two nodes");
        fs::remove_dir_all(root.path().join("sys/devices/system/node/node2")).unwrap();
        assert_eq!(machine.numa_distance([&first, &cpu]), Some(10));
        assert_eq!(Topology::new(root.path().join("none")).numa_distance([&cpu, &cpu]), None);
    }
}
