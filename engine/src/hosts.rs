//! Devices of other hosts. Plans use them like devices of this host, and a stage on one of them runs on its host.

use crate::error::{Error, Result};
use crate::prepared::Options;
use ragtag_hal::Adapter;
use ragtag_planner::plan::Plan;
use ragtag_planner::{DeviceFacts, LinkFacts};
use ragtag_scheduler::remote::{Remote, RemoteHost, RemoteStage};
use std::sync::Arc;

/// Devices of other hosts, and how to reach them.
#[derive(Clone, Default)]
pub(crate) struct Hosts {
    pub(crate) devices: Vec<RemoteDevice>,
    pub(crate) hosts: Vec<Arc<dyn Connect>>,
    /// Whether the only host is the coordinator of this worker. Then each run uses it.
    pub(crate) is_worker: bool,
    /// Links to and between these devices: source, destination, description.
    pub(crate) links: Vec<(String, String, LinkFacts)>,
}

/// A device of another host. Its label begins with the name of the host and a slash.
#[derive(Clone)]
pub(crate) struct RemoteDevice {
    pub(crate) adapter: Adapter,
    /// Description for the planner. Absent on a worker, which makes no plan.
    pub(crate) facts: Option<DeviceFacts>,
    /// Index of the host.
    pub(crate) host: usize,
}

/// A run that another host takes part in.
pub(crate) struct Run<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) options: &'a Options,
    /// The adapters of all stages of other hosts and of this host.
    pub(crate) adapters: Vec<Adapter>,
    /// Edges between a stage of that host and a stage of another one.
    pub(crate) edges: Vec<usize>,
}

/// Connects to another host.
pub(crate) trait Connect: Send + Sync {
    /// Makes the host load its stages of a plan, and returns the streams to it.
    fn connect(&self, run: &Run<'_>) -> Result<RemoteHost>;
}

impl Hosts {
    fn device(&self, label: &str) -> Option<&RemoteDevice> {
        self.devices.iter().find(|device| device.adapter.label() == label)
    }

    /// Returns the adapter of a device of another host.
    pub(crate) fn adapter(&self, label: &str) -> Option<&Adapter> {
        self.device(label).map(|device| &device.adapter)
    }

    /// Returns the descriptions of the devices.
    pub(crate) fn facts(&self) -> impl Iterator<Item = DeviceFacts> {
        self.devices.iter().filter_map(|device| device.facts.clone())
    }

    /// Connects to the hosts of a plan's stages. `adapters` has the adapter of each stage, and `own` is the number of
    /// devices of this host. Returns the stages of other hosts, and their device indices by stage.
    pub(crate) fn connect(
        &self,
        plan: &Plan,
        options: &Options,
        (adapters, own): (&[Adapter], usize),
    ) -> Result<(Remote, Vec<Option<usize>>)> {
        let host = |label: &String| self.device(label).map(|device| device.host);
        let of_stages: Vec<Option<usize>> = plan.stages.iter().map(|stage| host(&stage.device)).collect();
        if of_stages.iter().all(Option::is_none) && !self.is_worker {
            return Ok((Remote::default(), of_stages));
        }
        if plan.all_stages().any(|stage| !stage.streamed.is_empty()) || plan.prefill_stage.is_some() {
            let what = "a plan over several hosts cannot stream weights or have a prefill stage";
            return Err(Error::Usage(what.into()));
        }
        let (mut remote, mut devices) = (Remote::default(), Vec::new());
        let mut used: Vec<usize> = if self.is_worker { vec![0] } else { Vec::new() };
        for (stage, host) in plan.stages.iter().zip(&of_stages) {
            let Some(host) = *host else {
                devices.push(None);
                continue;
            };
            let at = used.iter().position(|other| *other == host).unwrap_or_else(|| {
                used.push(host);
                used.len() - 1
            });
            devices.push(Some(own + remote.stages.len()));
            remote.stages.push(RemoteStage { label: stage.device.clone(), host: at });
        }
        for host in used {
            let is_here: Vec<bool> = of_stages.iter().map(|of| *of == Some(host)).collect();
            let edges = (0..is_here.len() - 1).filter(|edge| is_here[*edge] != is_here[edge + 1]).collect();
            let run = Run { plan, options, adapters: adapters.to_vec(), edges };
            let first = is_here.iter().position(|is| *is).unwrap_or_default();
            let lost = |error| lost(&plan.stages[first].device, error);
            remote.hosts.push(self.hosts[host].connect(&run).map_err(lost)?);
        }
        Ok((remote, devices))
    }
}

/// Returns the error of a device whose host cannot be used. A plan may do without the device.
fn lost(device: &str, error: Error) -> Error {
    match error {
        Error::Worker { .. } => {
            let cause = ragtag_hal::Error::Lost { cause: error.to_string() };
            Error::Device { device: device.into(), cause }
        }
        other => other,
    }
}
