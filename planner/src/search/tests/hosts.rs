//! Tests of the memory of several hosts.

use super::*;

const WORKER: &str = "worker1/cpu:0";

/// Returns a world with a GPU of the coordinator and a CPU device of a worker.
fn world(memory_bytes: Option<u64>) -> World {
    let devices = vec![device("gpu:0", 60 * MIB, 1.0), device(WORKER, 200 * MIB, 0.5)];
    let host = HostFacts { name: "worker1".into(), memory_bytes, in_host_memory: vec![WORKER.into()] };
    let world = World::new(model(8, 10 * MIB, 4 * MIB), devices);
    World { hosts: vec![host], host_memory_bytes: Some(1 << 40), ..world }
}

#[test]
fn each_host_has_a_proof_of_its_own() {
    let plan = world(None).split("0-3=gpu:0,4-9=worker1/cpu:0").plan().expect("fits");
    let [other] = &plan.other_hosts[..] else { panic!("{:?}", plan.other_hosts) };
    let (own, worker, stages) = (plan.host_memory_bytes, other.memory_bytes, &plan.stages);
    assert_eq!((other.name.as_str(), worker.available), ("worker1", None));
    // Each end of the edge has a ring.
    assert!(stages[1].memory_bytes.staging > 0);
    assert_eq!([own.staging, worker.staging], [stages[1].memory_bytes.staging; 2]);
    assert_eq!([own.devices, worker.devices], [0, stages[1].memory_bytes.total]);
    assert!(own.parameters > 0 && own.parameters == worker.parameters);
    assert_eq!(own.logits, worker.logits);
    assert_eq!(worker.total, worker.logits + worker.staging + worker.parameters + worker.devices);
    // In one process, the same stages share a ring, and one host has all parameters.
    let mut single = world(None).split("0-3=gpu:0,4-9=cpu:0");
    single.devices[1] =
        DeviceFacts { label: "cpu:0".into(), in_host_memory: true, ..single.devices[1].clone() };
    let single = single.plan().expect("fits");
    let memory = single.host_memory_bytes;
    assert!(single.other_hosts.is_empty());
    assert_eq!((memory.staging, memory.parameters), (own.staging, own.parameters + worker.parameters));
    assert_eq!((memory.logits, memory.devices), (own.logits, worker.devices));
}

#[test]
fn a_worker_without_memory_for_its_part_is_named() {
    let of = |memory: u64, split: &str| world(Some(memory)).split(split);
    let whole = |memory| of(memory, "0-3=gpu:0,4-9=worker1/cpu:0").plan();
    let least = whole(1 << 40).expect("fits").other_hosts[0].memory_bytes;
    let (mut fit, mut short) = (0, 0);
    for part in 1..=16u64 {
        let memory = least.total * part / 16;
        match whole(memory) {
            Ok(plan) => {
                let proved = plan.other_hosts[0].memory_bytes;
                assert!(proved.total <= memory && proved.available == Some(memory), "{proved:?}");
                fit += 1;
            }
            Err(error @ PlanError::OtherHost(_)) => {
                assert!(error.to_string().contains(" of host memory on worker1 ("), "{error}");
                short += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(fit > 0 && short > 0, "{fit} {short}");
    // A device that is not in the memory of its host leaves the rings, the parameters and the results.
    let mut discrete = of(MIB / 64, "0-3=gpu:0,4-9=worker1/cpu:0");
    discrete.hosts[0].in_host_memory.clear();
    let Err(PlanError::OtherHost(host)) = discrete.plan() else { panic!("no room for rings") };
    assert_eq!((host.name.as_str(), host.memory_bytes.devices), ("worker1", 0));
    assert!(host.memory_bytes.staging > MIB / 64);
}

#[test]
fn devices_give_up_the_memory_that_their_host_needs() {
    // The device takes all memory of its host, which leaves nothing for the rest.
    let plan = world(Some(200 * MIB)).plan().expect("fits");
    let [other] = &plan.other_hosts[..] else { panic!("{}", plan.split()) };
    assert!(other.memory_bytes.fits() && other.memory_bytes.total > 50 * MIB, "{other:?}");
    let mut alone = world(Some(30 * MIB));
    alone.devices[0].memory_bytes = 1 << 30;
    let plan = alone.plan().expect("fits without the worker, or with little of it");
    assert!(plan.fits_hosts(), "{:?}", plan.other_hosts);
}
