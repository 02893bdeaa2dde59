//! Reads from Linux how two devices are connected: the PCIe generation and width, the NUMA distance, and the
//! cores near a device.
//!
//! Linux does not report NVLink or xGMI. A link that is faster than PCIe allows must be such a fabric.

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
    /// The devices have a direct link, such as NVLink or xGMI: transfers are faster than PCIe allows.
    Fabric,
    /// The transfers cross PCIe, as far as Ragtag can tell. The figures are those of the slower end. A figure
    /// that the system does not report is `None`.
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
            LinkClass::Fabric => f.write_str("GPU fabric"),
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
pub(crate) struct Topology {
    root: PathBuf,
}

impl Topology {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the hardware between two devices. `is_same` tells whether they are one physical device.
    /// `bytes_per_s` is the measured rate of large transfers between them, or 0.
    pub(super) fn class(&self, ends: [&Adapter; 2], is_same: bool, bytes_per_s: f64) -> LinkClass {
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
        let of = |state: &str| {
            let generation = slower(&|address| self.generation(address, state));
            (generation, slower(&|address| self.width(address, state)))
        };
        // An idle link may run below its maximum, so only the maximum limits the rate.
        let most_bytes_per_s = match of("max") {
            (Some(generation), Some(width)) => Some(raw_bytes_per_s(generation, width)),
            _ => None,
        };
        let (generation, width) = of("current");
        match most_bytes_per_s {
            Some(most) if bytes_per_s > most && !ends.into_iter().any(on_host) => LinkClass::Fabric,
            _ => LinkClass::Pcie { generation, width },
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

    /// Returns the cores of the NUMA node on which the ring between two devices belongs: the node of the GPU,
    /// or that of a CPU device without a GPU. If both devices are GPUs, the sender's node counts. Empty if
    /// the machine has only one node, or if the node is unknown.
    pub(crate) fn ring_cores(&self, ends: [&Adapter; 2]) -> Vec<usize> {
        if self.nodes().len() < 2 {
            return Vec::new();
        }
        let is_gpu = |a: &&&Adapter| matches!(a.kind, AdapterKind::Discrete | AdapterKind::Integrated);
        let (gpus, others): (Vec<_>, Vec<_>) = ends.iter().partition(is_gpu);
        let node = gpus.into_iter().chain(others).find_map(|adapter| self.node(adapter));
        node.and_then(|node| self.cores(node)).unwrap_or_default()
    }

    /// Returns the cores of a NUMA node.
    fn cores(&self, node: u32) -> Option<Vec<usize>> {
        listed(&self.line(&format!("sys/devices/system/node/node{node}/cpulist"))?)
    }

    /// Returns the NUMA node of all cores on which this process may run, or `None` if they belong to several.
    fn own_node(&self) -> Option<u32> {
        let nodes = self.nodes();
        if let [only] = nodes[..] {
            return Some(only);
        }
        let status = fs::read_to_string(self.root.join("proc/self/status")).ok()?;
        let allowed = listed(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)?;
        let holds =
            |node: &u32| self.cores(*node).is_some_and(|cores| allowed.iter().all(|c| cores.contains(c)));
        nodes.into_iter().find(holds).filter(|_| !allowed.is_empty())
    }

    /// Returns the PCIe generation of a device's link. `state` is `current` or `max`.
    fn generation(&self, address: PciAddress, state: &str) -> Option<u32> {
        // The file holds `16.0 GT/s PCIe`.
        let speed = self.of_device(address, &format!("{state}_link_speed"))?;
        let gt_per_s: f64 = speed.split_ascii_whitespace().next()?.parse().ok()?;
        let at = GENERATIONS_GT_PER_S.iter().position(|known| (known - gt_per_s).abs() < 0.1)?;
        Some(at as u32 + 1)
    }

    /// Returns the number of lanes of a device's link. `state` is `current` or `max`.
    fn width(&self, address: PciAddress, state: &str) -> Option<u32> {
        // Devices without a link report a width of 0 or 255.
        let width = self.of_device(address, &format!("{state}_link_width"))?.parse().ok()?;
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
            (AdapterKind::Cpu | AdapterKind::Software, _) => self.own_node(),
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

/// Maximum number of a core in a list of cores. Larger numbers are damage.
const MAX_CORES: usize = 1 << 16;

/// Returns the numbers in a list such as `0-3,8`. Returns `None` if it is damaged.
fn listed(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MAX_CORES || numbers.len() > MAX_CORES {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Returns the rate of a PCIe link in bytes per second, without the overhead of its encoding. No transfer can
/// be faster.
fn raw_bytes_per_s(generation: u32, width: u32) -> f64 {
    let gt_per_s = GENERATIONS_GT_PER_S.get(generation as usize - 1).copied().unwrap_or(f64::INFINITY);
    gt_per_s * 1e9 / 8.0 * f64::from(width)
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
        write("devices/system/node/node0/cpulist", "0-3,8-9");
        write("devices/system/node/node2/cpulist", "4-7");
        for (bus, speed, width, node) in [
            ("01", "32.0 GT/s PCIe", "16", "0"),
            ("02", "16.0 GT/s PCIe", "8", "2"),
            ("03", "Unknown", "255", "-1"),
        ] {
            let of = |file: &str| format!("bus/pci/devices/0000:{bus}:00.0/{file}");
            for state in ["current", "max"] {
                write(&of(&format!("{state}_link_speed")), speed);
                write(&of(&format!("{state}_link_width")), width);
            }
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
        let class = |a: &Adapter, b: &Adapter| machine.class([a, b], false, 0.0).to_string();
        assert_eq!(class(&first, &cpu), "PCIe 5 x16");
        assert_eq!(class(&first, &second), "PCIe 4 x8");
        assert_eq!(class(&first, &odd), "PCIe", "the other end is unknown");
        assert_eq!(class(&first, &adapter(AdapterKind::Discrete, 0)), "PCIe");
        assert_eq!(class(&cpu, &adapter(AdapterKind::Software, 0)), "host");
        assert_eq!(machine.class([&first, &first], true, 1e15), LinkClass::SameDie);
    }

    #[test]
    fn a_link_faster_than_pcie_is_a_fabric() {
        let (_root, machine) = machine();
        let [first, second, odd] = [1, 2, 3].map(|bus| adapter(AdapterKind::Discrete, bus));
        let cpu = adapter(AdapterKind::Cpu, 0);
        let class = |a: &Adapter, b: &Adapter, rate: f64| machine.class([a, b], false, rate);
        // PCIe 4 x8 transfers at most 16 GB/s.
        assert_eq!(class(&first, &second, 15e9).to_string(), "PCIe 4 x8");
        assert_eq!(class(&first, &second, 17e9), LinkClass::Fabric);
        assert_eq!(class(&first, &cpu, 1e12).to_string(), "PCIe 5 x16", "a measuring error");
        assert_eq!(class(&first, &odd, 1e12).to_string(), "PCIe", "the limit is unknown");
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

    #[test]
    fn rings_are_near_the_gpu_or_the_cores_of_the_process() {
        let (root, machine) = machine();
        let [first, second, odd] = [1, 2, 3].map(|bus| adapter(AdapterKind::Discrete, bus));
        let cpu = adapter(AdapterKind::Cpu, 0);
        let near = |from: &Adapter, to: &Adapter| machine.ring_cores([from, to]);
        let [zero, two] = [vec![0, 1, 2, 3, 8, 9], vec![4, 5, 6, 7]];
        assert_eq!([near(&first, &cpu), near(&cpu, &first)], [zero.clone(), zero.clone()]);
        assert_eq!([near(&second, &first), near(&odd, &second)], [two.clone(), two.clone()]);
        assert!(near(&cpu, &cpu).is_empty() && near(&odd, &cpu).is_empty(), "the nodes are unknown");
        // The process may run only on cores of one node, or on cores of both.
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let allow = |cores: &str| {
            let status = format!("Name:\tragtag\nCpus_allowed_list:\t{cores}\n");
            fs::write(root.path().join("proc/self/status"), status).unwrap();
        };
        allow("5-6");
        assert_eq!([near(&cpu, &cpu), near(&first, &cpu), near(&odd, &cpu)], [two.clone(), zero, two]);
        assert_eq!(machine.numa_distance([&first, &cpu]), Some(21));
        for cores in ["3-4", "", "nonsense", "0-99999999"] {
            allow(cores);
            assert!(near(&cpu, &cpu).is_empty(), "{cores}");
        }
        fs::remove_dir_all(root.path().join("sys/devices/system/node/node2")).unwrap();
        assert!(near(&first, &cpu).is_empty(), "there is one node");
    }

    #[test]
    fn lists_of_cores_have_numbers_and_ranges() {
        assert_eq!(listed("0-2,7,9-9\n"), Some(vec![0, 1, 2, 7, 9]));
        assert_eq!(listed(""), Some(Vec::new()));
        for damaged in ["a", "1-", "3-1", "0-65536", "-1", "1-2-3"] {
            assert_eq!(listed(damaged), None, "{damaged}");
        }
    }
}
