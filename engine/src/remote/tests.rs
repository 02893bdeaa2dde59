//! Tests of workers, which are processes of this test program.

use super::protocol::{Answer, Request, Version};
use super::{WorkerAddress, WorkerKey, WorkerServer, WorkerSettings};
use crate::{
    DeviceOptions, Devices, Engine, EngineOptions, Error, Event, Generation, Model, Planner, Prompt,
};
use ragtag_kernels::Activations;
use ragtag_scheduler::remote::{read_frame, write_frame};
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Environment variable that makes the test `worker_process` a worker.
const WORKER: &str = "RAGTAG_TEST_WORKER_KEY";
/// First text of the line with the address of a worker.
const LISTENS: &str = "listens at ";

fn devices() -> Devices {
    devices_with(1)
}

/// Returns devices of the CPU with one thread each.
pub(super) fn devices_with(count: u32) -> Devices {
    let mut options = DeviceOptions::selecting("cpu");
    (options.cpu_threads, options.cpu_devices) = (Some(1), count);
    Devices::probe(&options).unwrap()
}

/// A worker in a process of its own.
pub(super) struct Worker(
    Child,
    pub(super) WorkerAddress,
    #[expect(dead_code, reason = "keeps the pipe open")] Lines<BufReader<ChildStdout>>,
);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn worker_process() {
    let Ok(key) = std::env::var(WORKER) else { return };
    let (listen, key) = ("127.0.0.1:0".parse().unwrap(), key.parse().unwrap());
    let server =
        WorkerServer::new(devices(), WorkerSettings { listen, key, model: None, plain: true }).unwrap();
    let mut out = std::io::stdout();
    writeln!(out, "\n{LISTENS}{}", server.address().unwrap()).unwrap();
    server.serve()
}

impl Worker {
    pub(super) fn start() -> Self {
        let key = WorkerKey::generate().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["remote::tests::worker_process", "--exact", "--nocapture"]);
        let mut child = command.env(WORKER, key.to_string()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.find_map(|line| line.unwrap().strip_prefix(LISTENS).map(str::to_owned)).unwrap();
        Self(child, WorkerAddress::new(address, key), lines)
    }
}

/// Returns greedy tokens of the bundled model with a split. Calls `at` after each token, with the number of tokens.
pub(super) fn tokens(
    split: &str,
    workers: &[WorkerAddress],
    count: u32,
    at: impl FnMut(usize),
) -> crate::Result<Vec<u32>> {
    let model = Model::bundled()?;
    let devices = devices().with_workers(&model, workers, None)?;
    generated(&model, &devices, split, count, at)
}

/// Returns greedy tokens of a model on devices. Calls `at` after each token, with the number of tokens.
pub(super) fn generated(
    model: &Model,
    devices: &Devices,
    split: &str,
    count: u32,
    mut at: impl FnMut(usize),
) -> crate::Result<Vec<u32>> {
    let planner = Planner::new(model).devices(devices).activations(Activations::F32).context(256);
    let plan = planner.split(split.parse().unwrap()).plan()?;
    let options = EngineOptions { max_recoveries: 4, ..EngineOptions::default() };
    let engine = Engine::start_exact(model, devices, &plan, options)?;
    let generation = Generation { max_tokens: count, ..Generation::greedy() };
    let mut stream = engine.session().generate("The old woman", &generation)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut tokens = Vec::new();
        loop {
            match stream.next_event().await? {
                Event::Token { id, .. } => tokens.extend(id),
                Event::Finished(_) => return Ok(tokens),
            }
            at(tokens.len());
        }
    })
}

/// Returns greedy tokens of prompts that an engine runs at the same time.
pub(super) fn texts(engine: &Engine, prompts: &[String], count: u32) -> Vec<Vec<u32>> {
    let generation = Generation { max_tokens: count, ..Generation::greedy() };
    let streams: Vec<_> = prompts
        .iter()
        .map(|prompt| engine.session().generate(prompt.as_str(), &generation).unwrap())
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let all = streams.into_iter().map(|mut stream| {
        runtime.block_on(async {
            let mut tokens = Vec::new();
            while let Event::Token { id, .. } = stream.next_event().await.unwrap() {
                tokens.extend(id);
            }
            tokens
        })
    });
    all.collect()
}

#[test]
fn all_orders_of_stages_give_equal_tokens() {
    let workers = [Worker::start(), Worker::start()];
    let addresses = [workers[0].1.clone(), workers[1].1.clone()];
    let expected = tokens("0-13=cpu:0", &[], 24, |_| ()).unwrap();
    assert_eq!(expected.len(), 24);
    for split in [
        "0-6=cpu:0,7-13=worker1/cpu:0",
        "0-6=worker1/cpu:0,7-13=cpu:0",
        "0-13=worker1/cpu:0",
        "0-3=cpu:0,4-8=worker1/cpu:0,9-13=worker2/cpu:0",
        "0-3=worker2/cpu:0,4-8=worker1/cpu:0,9-13=cpu:0",
        "0-3=worker1/cpu:0,4-8=cpu:0,9-13=worker2/cpu:0",
        "0-3=worker1/cpu:0,4-8=worker2/cpu:0,9-13=worker1/cpu:0",
    ] {
        assert_eq!(tokens(split, &addresses, 24, |_| ()).unwrap(), expected, "{split}");
    }
}

/// Each chunk of the prompt has several pieces. Two streams carry them at the same time.
#[test]
fn streams_beside_each_other_and_plain_ones_give_equal_tokens() {
    let (model, workers) = (Model::bundled().unwrap(), [Worker::start(), Worker::start()]);
    let prompt: Vec<u32> = (0..700).map(|at| 300 + at * 37 % 400).collect();
    let run = |devices: &Devices, split: &str| {
        let planner = Planner::new(&model).devices(devices).activations(Activations::F32).context(1024);
        let plan = planner.split(split.parse().unwrap()).plan().unwrap();
        let options = EngineOptions { verify_transfers: true, ..EngineOptions::default() };
        let engine = Engine::start_exact(&model, devices, &plan, options).unwrap();
        let generation = Generation { max_tokens: 8, ignore_end: true, ..Generation::greedy() };
        let mut stream = engine.session().generate(Prompt::Tokens(&prompt), &generation).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut tokens = Vec::new();
        while let Event::Token { id, .. } = runtime.block_on(stream.next_event()).unwrap() {
            tokens.extend(id);
        }
        tokens
    };
    let expected = run(&devices(), "0-13=cpu:0");
    assert_eq!(expected.len(), 8);
    for (plain, is_direct) in [(false, true), (true, true), (false, false)] {
        let addresses = workers.each_ref().map(|worker| worker.1.clone().plain(plain));
        let mut devices = devices().with_workers(&model, &addresses, None).unwrap();
        devices.hosts.streams = 3;
        if !is_direct {
            devices.hosts.direct.clear();
        }
        for split in ["0-6=cpu:0,7-13=worker1/cpu:0", "0-3=worker1/cpu:0,4-8=worker2/cpu:0,9-13=cpu:0"] {
            assert_eq!(run(&devices, split), expected, "{split}, plain: {plain}, direct: {is_direct}");
        }
    }
}

#[test]
fn plain_connections_are_for_activations_alone() {
    let worker = Worker::start();
    let mut stream = worker.1.clone().plain(true).connect_for_activations().unwrap();
    assert!(stream.is_plain());
    write_frame(&mut stream, &Request::Admit(WorkerKey::generate().unwrap()), &[]).unwrap();
    let answer = read_frame::<Answer>(&mut stream, 0).unwrap().0;
    assert!(matches!(&answer, Answer::Refused(why) if why.contains("for activations alone")), "{answer:?}");
    assert!(!worker.1.connect_for_activations().unwrap().is_plain());
    let text = format!("127.0.0.1:1#plain-{}", worker.1.key);
    assert!(text.parse::<WorkerAddress>().unwrap().plain);
}

#[test]
fn no_token_is_lost_with_a_worker() {
    let expected = tokens("0-13=cpu:0", &[], 60, |_| ()).unwrap();
    let moments =
        if test_support::nightly() { (0..20).map(|at| 1 + at * 3).collect() } else { vec![1, 20, 41] };
    for kill_at in moments {
        let mut worker = Worker::start();
        let address = [worker.1.clone()];
        let kill = |count| {
            if count == kill_at {
                worker.0.kill().unwrap();
            }
        };
        let split = "0-6=cpu:0,7-13=worker1/cpu:0";
        assert_eq!(tokens(split, &address, 60, kill).unwrap(), expected, "killed after {kill_at}");
    }
}

#[test]
fn workers_know_the_rope_scaling_and_run_for_embeddings() {
    let worker = Worker::start();
    let (bundled, split) = (Model::bundled().unwrap(), "0-6=cpu:0,7-13=worker1/cpu:0");
    let far = |model: &Model| devices().with_workers(model, std::slice::from_ref(&worker.1), None).unwrap();
    let scaled = bundled.with_rope_scaling("yarn:2".parse().unwrap()).unwrap();
    let tokens =
        |model: &Model, devices: &Devices, split| generated(model, devices, split, 12, |_| ()).unwrap();
    assert_eq!(tokens(&scaled, &far(&scaled), split), tokens(&scaled, &devices(), "0-13=cpu:0"));
    let embedding = bundled.for_embeddings().unwrap();
    let rows = |devices: &Devices, split: &str| {
        let planner = Planner::new(&embedding).devices(devices).activations(Activations::F32).context(64);
        let plan = planner.all_logits().split(split.parse().unwrap()).plan().unwrap();
        let options = EngineOptions { all_logits: true, ..EngineOptions::default() };
        let engine = Engine::start_exact(&embedding, devices, &plan, options).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(engine.session().logits(&[1, 5, 9])).unwrap()
    };
    assert_eq!(rows(&far(&embedding), split), rows(&devices(), "0-13=cpu:0"));
}

#[test]
fn wrong_keys_versions_and_bytes_are_refused_and_the_worker_goes_on() {
    let worker = Worker::start();
    let own = Version::own();
    let refused = |address: &WorkerAddress, version: &Version| match address.connect(version) {
        Err(Error::Worker { cause, .. }) => cause,
        other => panic!("{:?}", other.map(drop)),
    };
    let address = worker.1.address();
    let other = WorkerAddress::new(address, WorkerKey::generate().unwrap());
    assert!(refused(&other, &own).contains("key"), "{}", refused(&other, &own));
    let newer = Version { protocol: own.protocol + 1, ..own.clone() };
    let why = refused(&worker.1, &newer);
    assert!(why.contains("it runs Ragtag") && why.contains("use the same version"), "{why}");
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 1], &[0; 4096]] {
        TcpStream::connect(address).unwrap().write_all(bytes).unwrap();
    }
    let gone = WorkerAddress::new("127.0.0.1:1", WorkerKey::generate().unwrap());
    assert!(!refused(&gone, &own).is_empty());
    // Frames beyond the limits and unknown messages end their connections.
    for bytes in [vec![0xff; 64], [2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'].to_vec()] {
        let mut stream = worker.1.connect(&own).unwrap();
        stream.write_all(&bytes).unwrap();
        assert!(read_frame::<Answer>(&mut stream, 0).is_err());
    }
    assert_eq!(tokens("0-13=worker1/cpu:0", std::slice::from_ref(&worker.1), 3, |_| ()).unwrap().len(), 3);
}

#[test]
fn random_bytes_are_no_request() {
    let mut state = 3u64;
    for length in 0..2000 {
        let bytes: Vec<u8> = (0..length % 200)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(&bytes);
        assert!(read_frame::<Request>(&mut &frame[..], 0).is_err(), "{bytes:?}");
        assert!(read_frame::<Answer>(&mut &frame[..], 0).is_err(), "{bytes:?}");
        assert!(read_frame::<Version>(&mut &frame[..], 0).is_err(), "{bytes:?}");
    }
}
