//! Which devices are linked, how fast, and how bytes cross.

use ragtag_hal::{Adapter, AdapterKind, DeviceId};
use serde::{Deserialize, Serialize};

/// How an activation crosses an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Route {
    /// Both stages are on one device: nothing moves.
    SameDevice,
    /// The source writes into the destination's memory. Named for later: nothing chooses it yet.
    Peer,
    /// The destination has imported the source's memory. Named for later: nothing chooses it yet.
    Import,
    /// Through a bounded ring of pinned host memory that both devices reach.
    HostStaged {
        /// Bytes of one chunk.
        chunk_bytes: u64,
        /// Chunks in the ring.
        depth: u32,
    },
}

impl Route {
    /// The host-staged route with the usual ring: chunks large enough that a copy's fixed cost does not show, and enough
    /// of them that one leaves the source while another enters the destination and a third waits on either side.
    pub const HOST_STAGED: Route = Route::HostStaged { chunk_bytes: 256 << 10, depth: 4 };

    /// Bytes of pinned host memory that the route takes.
    pub fn staging_bytes(&self) -> u64 {
        match *self {
            Route::HostStaged { chunk_bytes, depth } => chunk_bytes.saturating_mul(u64::from(depth)),
            Route::SameDevice | Route::Peer | Route::Import => 0,
        }
    }
}

/// The path from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Source.
    pub from: DeviceId,
    /// Destination.
    pub to: DeviceId,
    /// Time before the first byte arrives.
    pub latency_us: f64,
    /// Rate of a long copy.
    pub bandwidth_bytes_per_s: f64,
}

impl Link {
    /// Time for `bytes` bytes.
    pub fn time_us(&self, bytes: u64) -> f64 {
        self.latency_us + bytes as f64 / self.bandwidth_bytes_per_s * 1e6
    }
}

/// Every directed pair of devices with its link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    links: Vec<Link>,
}

impl Topology {
    /// Guesses links from what the adapters are: a copy within host memory for those that share it, an expansion bus
    /// for each discrete end. To be replaced pair by pair with what a probe measures.
    pub fn infer(devices: &[(DeviceId, &Adapter)]) -> Self {
        let mut links = Vec::new();
        for &(from, source) in devices {
            for &(to, destination) in devices.iter().filter(|(to, _)| *to != from) {
                let discrete =
                    [source, destination].iter().filter(|a| a.kind == AdapterKind::Discrete).count() as f64;
                // Host copies run at about 8 GB/s a thread; an expansion bus adds its own latency, and staging hides
                // its rate behind the slower half.
                let latency_us = 5.0 + 10.0 * discrete;
                links.push(Link { from, to, latency_us, bandwidth_bytes_per_s: 8e9 });
            }
        }
        Self { links }
    }

    /// A topology of these links; of several for one pair the first counts.
    pub fn new(links: Vec<Link>) -> Self {
        Self { links }
    }

    /// All links.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// The link from one device to another; `None` within a device and where nothing is known.
    pub fn link(&self, from: DeviceId, to: DeviceId) -> Option<&Link> {
        self.links.iter().find(|l| l.from == from && l.to == to)
    }

    /// The route from one device to another; `None` where there is no link.
    pub fn route(&self, from: DeviceId, to: DeviceId) -> Option<Route> {
        if from == to {
            return Some(Route::SameDevice);
        }
        self.link(from, to).map(|_| Route::HOST_STAGED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_hal::{Caps, PhysicalIdentity, QueueLayout};

    fn adapter(kind: AdapterKind) -> Adapter {
        Adapter {
            backend: "made-up".into(),
            index: 0,
            name: "made-up".into(),
            driver: String::new(),
            kind,
            identity: PhysicalIdentity::default(),
            memory: Vec::new(),
            caps: Caps {
                languages: Default::default(),
                features: Default::default(),
                queues: QueueLayout::Separate,
                foreign_points: true,
                records_programs: false,
                max_allocation_bytes: u64::MAX,
                max_binding_bytes: u64::MAX,
                binding_alignment_bytes: 64,
                copy_alignment_bytes: 1,
                parallel_units: 1,
                max_work_group_items: 1,
                local_memory_bytes: 0,
                clocks: Default::default(),
                gemm: None,
                sharing: Default::default(),
            },
        }
    }

    #[test]
    fn every_directed_pair_has_a_link_and_a_route() {
        let (cpu, gpu) = (adapter(AdapterKind::Cpu), adapter(AdapterKind::Discrete));
        let ids = [DeviceId(0), DeviceId(1), DeviceId(2)];
        let topology = Topology::infer(&[(ids[0], &cpu), (ids[1], &cpu), (ids[2], &gpu)]);
        assert_eq!(topology.links().len(), 6);
        for from in ids {
            for to in ids {
                let staged = matches!(topology.route(from, to), Some(Route::HostStaged { .. }));
                assert_eq!(staged, from != to);
            }
        }
        let near = topology.link(ids[0], ids[1]).unwrap().time_us(1 << 20);
        let far = topology.link(ids[0], ids[2]).unwrap().time_us(1 << 20);
        assert!(near < far);
        assert_eq!(topology.route(ids[0], DeviceId(9)), None);
    }

    #[test]
    fn each_discrete_end_adds_the_latency_of_its_bus() {
        let (cpu, gpu) = (adapter(AdapterKind::Cpu), adapter(AdapterKind::Discrete));
        let topology = Topology::infer(&[(DeviceId(0), &cpu), (DeviceId(1), &gpu), (DeviceId(2), &gpu)]);
        let latency_us = |from, to| topology.link(DeviceId(from), DeviceId(to)).unwrap().latency_us;
        assert_eq!([latency_us(0, 1), latency_us(1, 0), latency_us(1, 2)], [15.0, 15.0, 25.0]);
    }

    #[test]
    fn a_transfer_takes_its_latency_and_its_bytes_at_the_rate() {
        let (from, to) = (DeviceId(0), DeviceId(1));
        let link = Link { from, to, latency_us: 7.0, bandwidth_bytes_per_s: 2e6 };
        assert_eq!(link.time_us(30), 7.0 + 15.0);
    }

    #[test]
    fn a_ring_takes_a_mebibyte_of_host_memory() {
        assert_eq!(Route::HOST_STAGED.staging_bytes(), 1 << 20);
        assert_eq!(Route::SameDevice.staging_bytes(), 0);
    }
}
