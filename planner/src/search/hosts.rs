//! Host memory of a plan, for each host, and plans for hosts that have too little of it.

use super::PlannerInput;
use super::grid::Choice;
use super::problem::{Problem, Run};
use crate::plan::{HostMemory, OtherHost, Plan, StageMemory};

/// Maximum number of plans that the search makes for less and less memory of the devices in host memory.
const TRIES: usize = 8;

/// Memory of another host than the coordinator's. Labels of its devices begin with its name and a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// Name.
    pub name: String,
    /// Free memory, in bytes. If `None`, the planner does not check it.
    pub memory_bytes: Option<u64>,
    /// Labels of the devices that use this memory. [`DeviceFacts::in_host_memory`](crate::DeviceFacts::in_host_memory)
    /// means the coordinator's host.
    pub in_host_memory: Vec<String>,
}

/// Returns the name of the host of a device. It is empty on the coordinator's host.
pub(crate) fn host_of(label: &str) -> &str {
    label.split_once('/').map_or("", |(host, _)| host)
}

/// Returns the memory that a choice needs on the coordinator's host. `memories` lists the device memory of all its
/// stages.
pub(super) fn coordinator(problem: &Problem<'_>, chosen: &Choice, memories: &[StageMemory]) -> HostMemory {
    let input = problem.input;
    let in_host = |device: usize| input.devices[device].in_host_memory;
    host_memory(problem, chosen, memories, ("", &in_host, input.host_memory_bytes))
}

/// Returns the memory that a choice needs on each other host with stages.
pub(super) fn others(problem: &Problem<'_>, chosen: &Choice, memories: &[StageMemory]) -> Vec<OtherHost> {
    let devices = problem.input.devices;
    let has_stages = |name: &str| chosen.all_runs().any(|run| host_of(&devices[run.device].label) == name);
    let hosts = problem.input.hosts.iter().filter(|host| has_stages(&host.name));
    let memory = |host: &HostFacts| {
        let in_host = |device: usize| host.in_host_memory.contains(&devices[device].label);
        let memory_bytes = host_memory(problem, chosen, memories, (&host.name, &in_host, host.memory_bytes));
        OtherHost { name: host.name.clone(), memory_bytes }
    };
    hosts.map(memory).collect()
}

/// Returns the memory that a choice needs on the host `name`. `in_host` returns whether a device uses this memory.
fn host_memory(
    problem: &Problem<'_>,
    chosen: &Choice,
    memories: &[StageMemory],
    (name, in_host, available): (&str, &dyn Fn(usize) -> bool, Option<u64>),
) -> HostMemory {
    let (input, shape) = (problem.input, &problem.shape);
    let is_own = |run: &Run| host_of(&input.devices[run.device].label) == name;
    let own = || chosen.all_runs().zip(memories).filter(|(run, _)| is_own(run));
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    // Each host of a pipeline has places for all results.
    let results = shape.logits_bytes().saturating_add(shape.picks_bytes());
    let logits = results.saturating_mul(u64::from(chosen.credits));
    // Each end of an edge between two hosts has a ring.
    let leaving = chosen.runs.windows(2).zip(memories.iter().skip(1));
    let leaving = leaving.filter(|(ends, _)| is_own(&ends[0]) && !is_own(&ends[1]));
    let staging = sum(&mut own().chain(leaving.map(|(ends, ring)| (&ends[1], ring))).map(|(_, m)| m.staging));
    let stages = own().count() as u64;
    let slots = u64::from(shape.slots).saturating_mul(stages);
    let checksums = shape.checksum_bytes().saturating_mul(stages);
    let receivers =
        chosen.runs.iter().filter(|run| chosen.prefill_run().is_some_and(|of| of.device != run.device));
    let passing_sums = sum(&mut receivers.map(|run| problem.passing_sum_bytes(run).saturating_mul(2)));
    let checksums = checksums.saturating_add(passing_sums);
    let parameters = shape.params_bytes().saturating_mul(slots).saturating_add(checksums);
    let devices = sum(&mut own().filter(|(run, _)| in_host(run.device)).map(|(_, memory)| memory.total));
    let streamed = sum(&mut own().map(|(run, _)| run.pinned_bytes(&problem.lowered.sizes)));
    let shared = chosen.prefill_run().map_or(0, |prefill| problem.shared_bytes(&chosen.runs, prefill));
    let weights = streamed.saturating_sub(shared);
    let kv = chosen.prefill_run().map_or(0, |prefill| problem.passing_bytes(&chosen.runs, prefill));
    let total = sum(&mut [logits, staging, parameters, devices, weights, kv].into_iter());
    HostMemory { logits, staging, parameters, devices, weights, kv, total, available }
}

/// Makes plans for less and less memory of the devices in host memory, until each host has room for the rest of the
/// pipeline. Returns `None` if `make` returns none, or if a host is short without such devices.
pub(super) fn relieved(
    input: &PlannerInput<'_>,
    make: impl Fn(&PlannerInput<'_>) -> Option<Plan>,
) -> Option<Plan> {
    let mut devices = input.devices.to_vec();
    for _ in 0..TRIES {
        let plan = make(&PlannerInput { devices: &devices, ..*input })?;
        if plan.fits_hosts() {
            return Some(plan);
        }
        let own = [("", &plan.host_memory_bytes)].into_iter();
        let memories =
            own.chain(plan.other_hosts.iter().map(|host| (host.name.as_str(), &host.memory_bytes)));
        for (name, memory) in memories.filter(|(_, memory)| !memory.fits()) {
            let missing = memory.total.saturating_sub(memory.available?);
            if memory.devices == 0 {
                return None;
            }
            let host = input.hosts.iter().find(|host| host.name == name);
            for device in &mut devices {
                let in_host =
                    host.map_or(device.in_host_memory, |host| host.in_host_memory.contains(&device.label));
                let stages = plan.stages.iter().filter(|stage| in_host && stage.device == device.label);
                let own = stages.map(|stage| stage.memory_bytes.total).fold(0, u64::saturating_add);
                let share = (u128::from(missing) * u128::from(own)).div_ceil(u128::from(memory.devices));
                if own > 0 {
                    device.memory_bytes = own.saturating_sub(u64::try_from(share).unwrap_or(u64::MAX));
                }
            }
        }
    }
    None
}
