//! Workers: the command on both sides, each in a process of its own.

use crate::recovery;
use crate::support::{environment, golden, ragtag};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A running `ragtag worker`, and the value of `--worker` that it prints.
struct Worker(Child, String);

impl Worker {
    fn start(folder: &std::path::Path, devices: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ragtag"));
        // Workers with GPU APIs use the drivers of this test.
        let drivers = ["OCL_ICD_VENDORS", "VK_DRIVER_FILES"];
        let hides = devices.starts_with("cpu");
        for (name, value) in
            environment().into_iter().filter(|(name, _)| hides || drivers.iter().all(|d| name != d))
        {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--device", devices]);
        command.arg("--key").arg(folder.join("key"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("--worker ").unwrap_or_else(|| panic!("{line:?}"));
        Self(child, address.to_owned())
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

/// Each order of the CPU, OpenCL and Vulkan, each on a worker of its own, as far as this machine has drivers.
#[test]
fn workers_with_three_apis_generate_the_golden_tokens_in_each_order() {
    let folder = tempfile::tempdir().unwrap();
    let own = recovery::labels();
    let workers: Vec<_> = own.iter().map(|label| Worker::start(folder.path(), label)).collect();
    let addresses = workers.iter().map(|worker| worker.1.as_str()).collect::<Vec<_>>().join(",");
    let (golden, count) = (golden("tales-bitnet-tq2_0"), 8);
    let case = &golden.cases[0];
    for order in permutations(own.len()) {
        let parts = order.iter().enumerate().map(|(at, &worker)| {
            let (first, last) = (at * 14 / own.len(), (at + 1) * 14 / own.len() - 1);
            format!("{first}-{last}=worker{}/{}", worker + 1, own[worker])
        });
        let split = parts.collect::<Vec<_>>().join(",");
        let mut run = ragtag();
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
