//! Workers: the command on both sides, each in a process of its own.

mod namespaces;

use crate::recovery;
use crate::support::{environment, golden, ragtag};
use namespaces::{Host, Namespaces};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// A running `ragtag worker`, and the value of `--worker` that it prints.
struct Worker(Child, String);

impl Worker {
    fn start(folder: &std::path::Path, devices: &str) -> Self {
        Self::with(folder, devices, None, &[])
    }

    /// Starts a worker with more options, in the network namespace of a host if there is one.
    fn with(folder: &std::path::Path, devices: &str, host: Option<&Host>, options: &[&str]) -> Self {
        let program = env!("CARGO_BIN_EXE_ragtag");
        let mut command = Command::new(host.map_or(program, |_| "ip"));
        let namespace = host.map(|host| ["netns", "exec", &host.namespace, program]);
        command.args(namespace.iter().flatten());
        let listen = format!("{}:0", host.map_or("127.0.0.1", |host| &host.address));
        shelter(&mut command, devices.starts_with("cpu"));
        command.args(["worker", "--listen", &listen, "--threads", "1", "--device", devices]);
        command.args(options).arg("--key").arg(folder.join("key"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("--worker ").unwrap_or_else(|| panic!("{line:?}"));
        Self(child, address.to_owned())
    }
}

/// Gives a command the environment of the tests. Those with GPU APIs use the drivers of this process.
fn shelter(command: &mut Command, hides: bool) {
    let drivers = ["OCL_ICD_VENDORS", "VK_DRIVER_FILES"];
    for (name, value) in
        environment().into_iter().filter(|(name, _)| hides || drivers.iter().all(|d| name != d))
    {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Common options of runs on the bundled model.
const USUAL: [&str; 6] = ["--no-calibration", "--device", "cpu", "--threads", "1", "--worker"];

#[test]
fn stages_on_workers_generate_the_golden_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["cpu", "cpu"].map(|devices| Worker::start(folder.path(), devices));
    let workers = format!("{},{}", first.1, second.1);
    let plan = ragtag().args(["plan", "--json"]).args(USUAL).arg(&workers).assert().success();
    let plan: Value = serde_json::from_str(&text(&plan.get_output().stdout)).unwrap();
    assert!(plan["stages"].is_array(), "{plan}");
    let golden = golden("tales-bitnet-tq2_0");
    let case = &golden.cases[0];
    let count = case.greedy_ids.len().min(24);
    for split in [
        "0-6=cpu:0,7-13=worker1/cpu:0",
        "0-6=worker1/cpu:0,7-13=cpu:0",
        "0-3=worker2/cpu:0,4-8=cpu:0,9-13=worker1/cpu:0",
        "0-3=cpu:0,4-8=worker2/cpu:0,9-13=worker1/cpu:0",
    ] {
        let mut run = ragtag();
        run.args(["run", "--json", "--temp", "0", "--activations", "f32", "--split", split]);
        run.args(["-n", &count.to_string(), "-p", &case.prompt]).args(USUAL).arg(&workers);
        let output = run.assert().success();
        let output: Value = serde_json::from_str(&text(&output.get_output().stdout)).unwrap();
        let ids: Vec<u32> = serde_json::from_value(output["tokens"].clone()).unwrap();
        assert_eq!(ids, case.greedy_ids[..count], "{split}");
    }
}

/// Each order of the CPU, OpenCL and Vulkan, each on a worker of its own, as far as this machine has drivers. Each worker
/// has a network namespace of its own, as far as this process may make them.
#[test]
fn workers_with_three_apis_generate_the_golden_tokens_in_each_order() {
    let folder = tempfile::tempdir().unwrap();
    let own = recovery::labels();
    let namespaces = Namespaces::new(own.len());
    let start = |(at, label): (usize, &String)| {
        let host = namespaces.as_ref().map(|namespaces| namespaces.worker(at));
        Worker::with(folder.path(), label, host, &[])
    };
    let workers: Vec<_> = own.iter().enumerate().map(start).collect();
    let addresses = workers.iter().map(|worker| worker.1.as_str()).collect::<Vec<_>>().join(",");
    let (golden, count) = (golden("tales-bitnet-tq2_0"), 8);
    let case = &golden.cases[0];
    for order in permutations(own.len()) {
        let parts = order.iter().enumerate().map(|(at, &worker)| {
            let (first, last) = (at * 14 / own.len(), (at + 1) * 14 / own.len() - 1);
            format!("{first}-{last}=worker{}/{}", worker + 1, own[worker])
        });
        let split = parts.collect::<Vec<_>>().join(",");
        let mut run = namespaces.as_ref().map_or_else(ragtag, Namespaces::ragtag);
        run.args(["run", "--json", "--temp", "0", "--activations", "f32", "--split", &split]);
        run.args(["-n", &count.to_string(), "-p", &case.prompt]).args(USUAL).arg(&addresses);
        let output = run.assert().success();
        let output: Value = serde_json::from_str(&text(&output.get_output().stdout)).unwrap();
        let ids: Vec<u32> = serde_json::from_value(output["tokens"].clone()).unwrap();
        assert_eq!(ids, case.greedy_ids[..count], "{split}");
    }
}

/// Returns all orders of the numbers below `count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let insert = |shorter: Vec<usize>| {
        (0..count).map(move |at| {
            let mut longer = shorter.clone();
            longer.insert(at, count - 1);
            longer
        })
    };
    permutations(count - 1).into_iter().flat_map(insert).collect()
}

/// A worker whose link goes down in a run is silent, and closes nothing.
#[test]
fn a_lost_link_is_a_lost_device() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    let (folder, host) = (tempfile::tempdir().unwrap(), namespaces.worker(0));
    let worker = Worker::with(folder.path(), "cpu", Some(host), &[]);
    let run = || {
        let mut run = namespaces.command();
        shelter(&mut run, true);
        run.args(["run", "--temp", "0", "--activations", "f32", "-n", "200", "-p", "Once upon a time"]);
        run.args(USUAL).arg(&worker.1).stdout(Stdio::piped()).stderr(Stdio::piped());
        run
    };
    let own = run().args(["--split", "0-13=cpu:0"]).output().unwrap();
    let mut child = run().args(["--split", "0-6=cpu:0,7-13=worker1/cpu:0"]).spawn().unwrap();
    let (mut out, mut written) = (child.stdout.take().unwrap(), vec![0; 24]);
    out.read_exact(&mut written).unwrap();
    host.disconnect();
    out.read_to_end(&mut written).unwrap();
    let errors = text(&child.wait_with_output().unwrap().stderr);
    assert_eq!(text(&written), text(&own.stdout), "{errors}");
    assert!(errors.contains("worker1 is silent"), "{errors}");
}

/// The proof of a plan counts the rings, parameters and results of each host.
#[test]
fn a_worker_without_memory_for_its_rings_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |caps: &str, more: &[&str]| {
        let worker = Worker::with(folder.path(), "cpu", None, &["--memory", caps]);
        let mut plan = ragtag();
        plan.args(["plan", "--ctx", "64", "--split", "0-6=cpu:0,7-13=worker1/cpu:0"]);
        plan.args(more).args(USUAL).arg(&worker.1).assert()
    };
    let error = text(&plan("host=6MiB", &[]).code(6).get_output().stderr);
    assert!(error.contains(" of host memory on worker1 ("), "{error}");
    let fits = text(&plan("host=64MiB", &["--json"]).success().get_output().stdout);
    let fits: Value = serde_json::from_str(&fits).unwrap();
    let other = &fits["other_hosts"][0];
    assert_eq!(
        (&other["name"], other["memory_bytes"]["available"].as_u64()),
        (&"worker1".into(), Some(64 << 20))
    );
    // Each end of the edge has a ring.
    let stages = &fits["stages"];
    assert_eq!(other["memory_bytes"]["staging"], stages[1]["memory_bytes"]["staging"]);
    assert_eq!(fits["host_memory_bytes"]["staging"], stages[1]["memory_bytes"]["staging"]);
    let table = text(&plan("host=64MiB", &[]).success().get_output().stdout);
    assert!(table.contains("host memory of worker1: "), "{table}");
}

#[test]
fn a_wrong_key_and_a_missing_worker_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let worker = Worker::start(folder.path(), "cpu");
    let address = worker.1.split_once('#').unwrap().0;
    for (workers, expected) in [
        (format!("{address}#{}", "0".repeat(32)), "key"),
        (format!("127.0.0.1:1#{}", "0".repeat(32)), "worker 127.0.0.1:1: "),
    ] {
        let refused = ragtag().args(["plan"]).args(USUAL).arg(&workers).assert().code(5);
        let error = text(&refused.get_output().stderr);
        assert!(error.contains(expected), "{error}");
    }
    ragtag().args(["plan"]).args(USUAL).arg("somewhere").assert().code(2);
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
