//! Figures of the transport on the loopback interface, each beside plain TCP in the same run. As a test, each takes one small
//! sample. Measure with `RAGTAG_FIGURES=1 cargo test --release -p ragtag-engine --features remote --lib remote::figures -- --nocapture --test-threads 1`.

#![allow(clippy::print_stdout)] // prints a report

use super::tests::{Worker, devices_with};
use super::tls::{Tls, TlsStream};
use super::{WorkerAddress, WorkerKey};
use crate::{Devices, Engine, EngineOptions, Event, Generation, Model, Planner, Prompt};
use ragtag_hal::{DeviceId, Point, QueueKind, TimelineId};
use ragtag_kernels::Activations;
use ragtag_scheduler::core::StageEvent;
use ragtag_scheduler::remote::{EdgeMessage, read_frame, read_frame_into, write_frame};
use ragtag_transfer::{Piece, ToReceiver, TransferId};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a decode hop: one row of 4096 values in F32.
const HOP_BYTES: usize = 16 << 10;
/// Bytes of a place of the staged route's ring.
const PLACE_BYTES: usize = 256 << 10;

/// Returns the number of samples per figure, and the bytes that a sample of prefill activations sends. The samples of the two
/// sides alternate.
fn samples() -> (usize, usize) {
    if std::env::var_os("RAGTAG_FIGURES").is_some() { (15, 64 << 20) } else { (1, 1 << 20) }
}

/// Returns both ends of a connection over the loopback interface.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    [&near, &far].iter().for_each(|socket| socket.set_nodelay(true).unwrap());
    (near, far)
}

/// Returns both ends of an encrypted or plain connection.
fn streams(is_plain: bool) -> (TlsStream, TlsStream) {
    let tls = Tls::new(&WorkerKey::generate().unwrap(), is_plain).unwrap();
    let (near, far) = sockets();
    let accepting = {
        let tls = tls.clone();
        std::thread::spawn(move || Tls::accept(far, |_| (tls, ())).unwrap().0)
    };
    let near = tls.connect(near).unwrap();
    assert_eq!(near.is_plain(), is_plain);
    (near, accepting.join().unwrap())
}

/// Returns the message of a piece of activations.
fn piece(bytes: usize) -> EdgeMessage {
    let piece = Piece { place: 0, offset: 0, bytes: bytes as u64 };
    let timeline = TimelineId { device: DeviceId(1), queue: QueueKind::Download };
    let ready = Point { timeline, value: 1 };
    let event = StageEvent::FromPrevious(ToReceiver::Piece { transfer: TransferId(1), piece, ready });
    EdgeMessage::Event { number: 1, event }
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Prints the medians of two sides, and the median of the quotients of samples next to each other.
fn print(what: &str, unit: &str, own: &[f64], plain: &[f64]) {
    let quotients: Vec<f64> = own.iter().zip(plain).map(|(own, plain)| own / plain).collect();
    println!(
        "{what}: {:.1} {unit}, plain {:.1} {unit}, {:.2} times",
        median(own),
        median(plain),
        median(&quotients)
    );
}

#[test]
fn a_decode_hop_beside_plain_tcp() {
    let echo = |is_plain| {
        let (near, mut far) = streams(is_plain);
        std::thread::spawn(move || {
            while let Ok((message, payload)) = read_frame::<EdgeMessage>(&mut far, HOP_BYTES) {
                write_frame(&mut far, &message, &payload).unwrap();
            }
        });
        near
    };
    let mut near = [echo(false), echo(true)];
    let (mut plain, mut plain_far) = sockets();
    let message = piece(HOP_BYTES);
    std::thread::spawn(move || {
        let mut bytes = vec![0; HOP_BYTES];
        while plain_far.read_exact(&mut bytes).is_ok() {
            plain_far.write_all(&bytes).unwrap();
        }
    });
    let mut bytes = vec![7; HOP_BYTES];
    let (mut own, mut raw) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in 0..samples().0 * 200 {
        let start = Instant::now();
        plain.write_all(&bytes).unwrap();
        plain.read_exact(&mut bytes).unwrap();
        raw.push(start.elapsed().as_secs_f64() * 1e6);
        for (near, own) in near.iter_mut().zip(&mut own) {
            let start = Instant::now();
            write_frame(near, &message, &bytes).unwrap();
            let (_, returned) = read_frame::<EdgeMessage>(near, HOP_BYTES).unwrap();
            own.push(start.elapsed().as_secs_f64() * 1e6);
            assert_eq!(returned, bytes);
        }
    }
    print("round trip of 16 KiB, encrypted", "µs", &own[0], &raw);
    print("round trip of 16 KiB, not encrypted", "µs", &own[1], &raw);
}

/// Returns the seconds that `connections` threads need for a sample together.
fn in_parallel<S: Send>(
    pairs: &mut [(S, S)],
    send: impl Fn(&mut S, usize) + Sync,
    receive: impl Fn(&mut S, usize) + Sync,
) -> f64 {
    let places = samples().1 / PLACE_BYTES / pairs.len();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (near, far) in pairs {
            scope.spawn(|| send(near, places));
            scope.spawn(|| receive(far, places));
        }
    });
    start.elapsed().as_secs_f64()
}

#[test]
fn prefill_activations_beside_plain_tcp() {
    let payload = vec![3; PLACE_BYTES];
    let message = piece(PLACE_BYTES);
    let mut plain = [sockets()];
    for (connections, is_plain) in [(1, false), (2, false), (4, false), (1, true), (2, true)] {
        let mut pairs: Vec<_> = (0..connections).map(|_| streams(is_plain)).collect();
        let (mut own, mut raw) = (Vec::new(), Vec::new());
        for _ in 0..samples().0 {
            let send = |stream: &mut TcpStream, places| {
                (0..places).for_each(|_| stream.write_all(&payload).unwrap())
            };
            let receive = |stream: &mut TcpStream, places| {
                let mut bytes = vec![0; PLACE_BYTES];
                (0..places).for_each(|_| stream.read_exact(&mut bytes).unwrap());
            };
            raw.push(samples().1 as f64 / in_parallel(&mut plain, send, receive) / 1e6);
            let send = |stream: &mut TlsStream, places| {
                (0..places).for_each(|_| write_frame(stream, &message, &payload).unwrap());
            };
            let receive = |stream: &mut TlsStream, places| {
                let mut bytes = Vec::new();
                for _ in 0..places {
                    read_frame_into::<EdgeMessage>(stream, PLACE_BYTES, &mut bytes).unwrap();
                }
            };
            own.push(samples().1 as f64 / in_parallel(&mut pairs, send, receive) / 1e6);
        }
        let kind = if is_plain { "plain" } else { "encrypted" };
        print(&format!("activations over {connections} {kind} connections"), "MB/s", &own, &raw);
    }
}

/// Returns the time of a request that generates `count` tokens from `prompt` on an engine.
fn seconds(engine: &Engine, prompt: &[u32], count: u32) -> f64 {
    let generation = Generation { max_tokens: count, ignore_end: true, cache: false, ..Generation::greedy() };
    let start = Instant::now();
    let mut stream = engine.session().generate(Prompt::Tokens(prompt), &generation).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { while !matches!(stream.next_event().await.unwrap(), Event::Finished(_)) {} });
    start.elapsed().as_secs_f64()
}

/// Compares two workers with the same split in one process. `RAGTAG_FIGURES_MODEL` names the model, for example one that
/// `cargo xtask synth-model --preset 1.1b` makes.
#[test]
fn two_workers_beside_one_process() {
    let path = std::env::var_os("RAGTAG_FIGURES_MODEL");
    let open = || path.as_ref().map_or_else(Model::bundled, Model::open).unwrap();
    let model = open();
    let workers = [Worker::start(), Worker::start()];
    let addresses: Vec<WorkerAddress> = workers.iter().map(|worker| worker.1.clone()).collect();
    let last = model.graph().segment_count() - 1;
    let start = |devices: &Devices, labels: [&str; 2]| {
        let half = last / 2;
        let split = format!("0-{half}={},{}-{last}={}", labels[0], half + 1, labels[1]);
        let planner = Planner::new(&model).devices(devices).activations(Activations::F32).context(1024);
        let plan = planner.split(split.parse().unwrap()).plan().unwrap();
        Engine::start_exact(&model, devices, &plan, EngineOptions::default()).unwrap()
    };
    let far = start(
        &devices_with(1).with_workers(&model, &addresses, None).unwrap(),
        ["worker1/cpu:0", "worker2/cpu:0"],
    );
    let near = start(&devices_with(2), ["cpu:0", "cpu:1"]);
    for (what, rows, count) in [("decoding", 8, 33), ("prefill", 512, 1)] {
        let rate = |engine| 1.0 / seconds(engine, &vec![1; rows], count);
        let (mut own, mut raw) = (Vec::new(), Vec::new());
        for _ in 0..samples().0 {
            own.push(rate(&far));
            raw.push(rate(&near));
        }
        print(&format!("{what} by two workers"), "requests/s", &own, &raw);
    }
    // The workers end before their pipes.
    drop(far);
    std::thread::sleep(Duration::from_millis(50));
}
