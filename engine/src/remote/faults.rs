//! Tests of workers behind a proxy that disturbs their connections, and of many requests.

use super::WorkerAddress;
use super::tests::{Worker, devices_with, generated, tokens};
use crate::{Engine, EngineOptions, Model, Planner};
use ragtag_kernels::Activations;
use std::time::Duration;
use test_support::{Proxy, nightly};

/// Stages of the coordinator, of the first worker and of the second one.
const THREE: &str = "0-3=cpu:0,4-8=worker1/cpu:0,9-13=worker2/cpu:0";

/// Returns a proxy before a worker, and the address of the worker behind it.
fn behind(worker: &Worker, delay: Duration) -> (Proxy, WorkerAddress) {
    let proxy = Proxy::start(worker.1.address().parse().unwrap(), delay);
    let address = WorkerAddress::new(proxy.address().to_string(), worker.1.key.clone());
    (proxy, address)
}

#[test]
fn delays_change_no_token() {
    let expected = tokens("0-13=cpu:0", &[], 12, |_| ()).unwrap();
    let workers = [Worker::start(), Worker::start()];
    for delay_us in [100, 1000, 10_000] {
        let proxies = workers.each_ref().map(|worker| behind(worker, Duration::from_micros(delay_us)));
        let addresses = proxies.each_ref().map(|(_, address)| address.clone());
        assert_eq!(tokens(THREE, &addresses, 12, |_| ()).unwrap(), expected, "{delay_us} µs");
    }
}

/// The first worker is cut off, falls silent, or loses its stream to the second worker.
#[test]
fn a_cut_and_a_stall_are_lost_devices() {
    let expected = tokens("0-13=cpu:0", &[], 40, |_| ()).unwrap();
    for (what, fault) in [
        ("cut", Proxy::cut as fn(&Proxy)),
        ("stalled", Proxy::stall),
        ("cut between the workers", Proxy::cut_newest),
    ] {
        let workers = [Worker::start(), Worker::start()];
        let (proxy, address) = behind(&workers[0], Duration::ZERO);
        let addresses = [address, workers[1].1.clone()];
        let disturb = |count| {
            if count == 9 {
                fault(&proxy);
            }
        };
        assert_eq!(tokens(THREE, &addresses, 40, disturb).unwrap(), expected, "{what}");
    }
}

#[test]
fn workers_that_cannot_reach_one_another_go_through_the_coordinator() {
    let model = Model::bundled().unwrap();
    let workers = [Worker::start(), Worker::start()];
    let addresses = workers.each_ref().map(|worker| worker.1.clone());
    let mut devices = devices_with(1).with_workers(&model, &addresses, None).unwrap();
    assert!(devices.relayed_workers().is_empty());
    devices.hosts.direct.clear();
    assert_eq!(devices.relayed_workers(), [["worker1", "worker2"]]);
    let plan =
        Planner::new(&model).devices(&devices).context(256).split(THREE.parse().unwrap()).plan().unwrap();
    let relayed = "edge worker1/cpu:0 -> worker2/cpu:0: through the coordinator";
    assert!(plan.reasons.iter().any(|reason| reason.starts_with(relayed)), "{:?}", plan.reasons);
    let expected = tokens("0-13=cpu:0", &[], 12, |_| ()).unwrap();
    assert_eq!(generated(&model, &devices, THREE, 12, |_| ()).unwrap(), expected);
}

/// CI sends 50 requests, and the nightly run 500.
#[test]
fn no_request_of_many_is_lost() {
    let (model, workers) = (Model::bundled().unwrap(), [(); 3].map(|()| Worker::start()));
    let addresses = workers.each_ref().map(|worker| worker.1.clone());
    let split = "0-2=worker3/cpu:0,3-6=cpu:0,7-9=worker1/cpu:0,10-13=worker2/cpu:0";
    let all = |devices, split: &str| -> Vec<Vec<u32>> {
        let planner = Planner::new(&model).devices(&devices).activations(Activations::F32).context(256);
        let plan = planner.sequences(8).split(split.parse().unwrap()).plan().unwrap();
        let engine = Engine::start_exact(&model, &devices, &plan, EngineOptions::default()).unwrap();
        let count = if nightly() { 500 } else { 50 };
        let prompts: Vec<String> = (0..count).map(|at| format!("There were {at} kings")).collect();
        prompts.chunks(8).flat_map(|prompts| super::tests::texts(&engine, prompts, 8)).collect()
    };
    let far = all(devices_with(1).with_workers(&model, &addresses, None).unwrap(), split);
    assert_eq!(far, all(devices_with(1), "0-13=cpu:0"));
}
