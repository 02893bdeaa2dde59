//! Pipelines whose stages run on several hosts, which are threads of this process here.

use super::*;
use ragtag_scheduler::remote::{
    FromHost, Remote, RemoteHost, RemoteStage, Stream, ToHost, read_frame, serve, write_frame,
};
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Returns both ends of a connection.
fn pair() -> [Stream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [near, listener.accept().unwrap().0].map(stream)
}

fn stream(socket: TcpStream) -> Stream {
    socket.set_nodelay(true).unwrap();
    let (reader, writer) = (socket.try_clone().unwrap(), socket.try_clone().unwrap());
    let close = move || drop(socket.shutdown(Shutdown::Both));
    Stream { reader: Box::new(reader), writer: Box::new(writer), close: Arc::new(close) }
}

/// Returns the part of a pipeline that the host `own` runs. `placement` has the host of each stage, and 0 is the
/// coordinator. `hosts` has the other hosts: at the coordinator all in order, and elsewhere the coordinator.
fn part(setup: &Setup, placement: &[usize], own: usize, hosts: Vec<RemoteHost>) -> PipelineSpec {
    let PipelineSpec { devices, mut stages, .. } = setup.specs();
    let is_own =
        |device: usize| setup.hosts.iter().zip(placement).any(|(d, host)| *d == device && *host == own);
    let kept: Vec<usize> = (0..devices.len()).filter(|device| is_own(*device)).collect();
    let mut remote = Remote { stages: Vec::new(), hosts };
    for (stage, &host) in stages.iter_mut().zip(placement) {
        if host == own {
            stage.device = kept.iter().position(|device| *device == stage.device).unwrap();
            continue;
        }
        let label = format!("worker{host}/cpu:{}", stage.device);
        stage.device = kept.len() + remote.stages.len();
        remote.stages.push(RemoteStage { label, host: if own == 0 { host - 1 } else { 0 } });
    }
    let devices = devices.into_iter().enumerate().filter(|(device, _)| is_own(*device));
    let devices = devices.map(|(_, device)| device).collect();
    PipelineSpec { devices, stages, prefill: None, events: None, remote }
}

/// Streams between the coordinator and the workers. The first of each pair is the coordinator's.
fn connect(placement: &[usize]) -> Vec<[RemoteHost; 2]> {
    let workers = *placement.iter().max().unwrap();
    let connect = |worker: usize| {
        let [near, far] = pair();
        let host = |name: String, is_coordinator, control| RemoteHost {
            name,
            is_coordinator,
            control: Some(control),
            edges: Vec::new(),
        };
        let mut ends = [host(format!("worker{worker}"), false, near), host("coordinator".into(), true, far)];
        for (edge, between) in placement.windows(2).enumerate() {
            if between[0] != between[1] && between.contains(&worker) {
                ends.iter_mut().zip(pair()).for_each(|(end, stream)| end.edges.push((edge, stream)));
            }
        }
        ends
    };
    (1..=workers).map(connect).collect()
}

type Worker = JoinHandle<Result<()>>;

/// Starts workers, and returns the coordinator's part.
fn workers(setup: &Setup, placement: &[usize]) -> (PipelineSpec, Vec<Worker>) {
    let (near, far): (Vec<_>, Vec<_>) = connect(placement).into_iter().map(|[near, far]| (near, far)).unzip();
    let start = |(index, far)| {
        let (spec, options) = (part(setup, placement, index + 1, vec![far]), setup.options.clone());
        std::thread::spawn(move || serve(spec, &options))
    };
    let workers = far.into_iter().enumerate().map(start).collect();
    (part(setup, placement, 0, near), workers)
}

fn hosted(hosts: &[usize]) -> Setup {
    let mut setup = Setup::on(hosts);
    setup.options.routes = vec![Route::HostStaged { chunk_bytes: 100, depth: 2 }.into(); hosts.len() - 1];
    setup
}

#[test]
fn stages_on_other_hosts_generate_equal_tokens() {
    for (hosts, placement) in [
        (&[0, 1][..], &[0, 1][..]),
        (&[0, 1], &[1, 0]),
        (&[0], &[1]),
        (&[0, 1, 2], &[1, 0, 1]),
        (&[0, 1, 2], &[1, 1, 0]),
        (&[0, 1, 2], &[1, 2, 1]),
        (&[0, 1, 0], &[0, 1, 0]),
        (&[0, 1, 0], &[1, 2, 1]),
        (&[0, 1, 2], &[0, 1, 2]),
    ] {
        let setup = hosted(hosts);
        let (spec, workers) = workers(&setup, placement);
        let pipeline = Pipeline::start(spec, &setup.options, |_| {}).unwrap();
        let requests = (0..7).map(|at| prompt(1 + at * 9, at));
        let requests: Vec<_> =
            requests.map(|prompt| (submit(&pipeline, &prompt, generate(20)).1, prompt)).collect();
        for (replies, prompt) in &requests {
            let replies = all(replies);
            let last = replies.last();
            assert_eq!(tokens(&replies), setup.model.reference(prompt, 20), "{placement:?}: {last:?}");
        }
        assert_eq!(settled(&pipeline).free_credits, setup.options.credits);
        assert!(pipeline.shutdown().left.is_empty());
        for worker in workers {
            worker.join().unwrap().unwrap();
        }
    }
}

#[test]
fn a_lost_worker_is_a_lost_device_and_other_stages_go_on() {
    for command in [30, 60, 90] {
        let mut setup = hosted(&[0, 1]);
        setup.devices[1].lost_at_command = Some(command);
        let (spec, workers) = workers(&setup, &[0, 1]);
        let (pipeline, recovery) = Pipeline::start_recoverable(spec, &setup.options, |_| {}).unwrap();
        let (_, replies) = submit(&pipeline, &prompt(9, 1), generate(30));
        let interruption = recovery.wait().unwrap();
        assert_eq!(interruption.device.as_deref(), Some("worker1/cpu:1"), "{}", interruption.error);
        assert!(recovery.clear().is_empty());
        let next = Setup::new(1);
        recovery.restart(next.specs(), &next.options, |_| {}).unwrap();
        assert_eq!(tokens(&all(&replies)), next.model.reference(&prompt(9, 1), 30));
        assert!(workers.into_iter().all(|worker| worker.join().unwrap().is_err()));
    }
}

/// Starts a pipeline with a worker that loads nothing and then does what `after` says with its stream. Returns the error
/// of a request.
fn faked(after: impl FnOnce(Stream) + Send + 'static) -> Error {
    let setup = hosted(&[0, 1]);
    let [near, far] = connect(&[0, 1]).pop().unwrap();
    let worker = std::thread::spawn(move || {
        let mut control = far.control.unwrap();
        write_frame(control.writer.as_mut(), &FromHost::Ready, &[]).unwrap();
        let edge = &mut { far.edges }[0].1;
        // The first micro-batch arrives.
        let _: (serde_json::Value, Vec<u8>) = read_frame(edge.reader.as_mut(), 1 << 20).unwrap();
        after(control);
    });
    let pipeline = Pipeline::start(part(&setup, &[0, 1], 0, vec![near]), &setup.options, |_| {}).unwrap();
    let error = failed(&all(&submit(&pipeline, &prompt(9, 1), generate(3)).1));
    worker.join().unwrap();
    error
}

#[test]
fn a_host_that_breaks_the_protocol_ends_the_run_with_an_error() {
    let send = |bytes: Vec<u8>| {
        move |mut control: Stream| {
            control.writer.write_all(&bytes).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let frame = |message: &str, payload: u32| {
        let mut frame = (message.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&payload.to_le_bytes());
        frame.extend_from_slice(message.as_bytes());
        frame
    };
    let returned = r#"{"Returned":{"micro_batch":0,"rows":{"credit":77,"whole":1,"all":1}}}"#;
    let on = "stage 1 on worker1/cpu:1: device lost: ";
    for (bytes, expected) in [
        (frame("{}", 0), "connection to worker1: a frame with an unknown message"),
        (vec![0xff; 64], "connection to worker1: a frame with a message of 4294967295 bytes"),
        (frame("\"Ping\"", u32::MAX), "exceeds the limits"),
        (frame("\"Ready\"", 0), "Ready from a host that runs"),
        (frame(returned, 0), "invalid results"),
        (frame(r#"{"Failed":"Stopped"}"#, 0), "the pipeline has been shut down"),
    ] {
        let error = faked(send(bytes)).to_string();
        assert!(error.contains(on.trim_end()) && error.contains(expected), "{error}: {expected}");
    }
    let error = faked(drop).to_string();
    assert!(error.contains("worker1 has closed the connection"), "{error}");
}

#[test]
fn random_bytes_are_no_message() {
    let mut state = 7u64;
    for length in 0..3000 {
        let bytes = (0..length % 300).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        });
        let mut bytes: Vec<u8> = bytes.collect();
        if bytes.len() >= 8 {
            bytes[1..4].fill(0);
            bytes[5..8].fill(0);
        }
        assert!(read_frame::<FromHost>(&mut &bytes[..], 1 << 20).is_err(), "{bytes:?}");
        assert!(read_frame::<ToHost>(&mut &bytes[..], 1 << 20).is_err(), "{bytes:?}");
        assert!(read_frame::<core::StageEvent>(&mut &bytes[..], 1 << 20).is_err(), "{bytes:?}");
    }
}
