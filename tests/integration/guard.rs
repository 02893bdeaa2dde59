//! Tests of `--verify-transfers`, `--stall-timeout` and `--compute-timeout`: transfers with wrong bytes, and copies and
//! computations that are late, fail or never complete.

use crate::support::{
    Setup, block_on, devices, engine, engine_on, golden, greedy, listen, model_path, ragtag, read_json, text,
    with_prefill, within,
};
use ragtag::cli::exit_code;
use ragtag::{DeviceOptions, Devices, Engine, EngineOptions, Error, KvType, Model, Planner, Prompt};
use ragtag_hal::{Checked, CopyFault, CopyFaultKind, Error as DeviceError, Faults, FaultyCopies};
use ragtag_scheduler::{Error as RunError, SpanKind};
use ragtag_transfer::{Route, Routes};
use std::time::Duration;

const MODEL: &str = "tales-bitnet-tq2_0";
/// Split over two devices.
const TWO: &str = "0-6=cpu:0,7-13=cpu:1";
/// Size of the smallest copy with a fault, in bytes. Checksums are smaller, and activations are larger.
const MIN_BYTES: u64 = 64;
const NEW_TOKENS: u32 = 24;
/// Number of right copies before the first fault.
const AFTER: u64 = 5;

fn model() -> Model {
    Model::open(model_path(MODEL)).unwrap()
}

fn setup<'a>() -> Setup<'a> {
    Setup { cpu_devices: 2, split: Some(TWO), all_logits: false, verify_transfers: true, ..Setup::default() }
}

/// Returns the devices. `cpu:0`, the source of the activations, has a fault.
fn faulty(setup: &Setup<'_>, copies: FaultyCopies, kind: CopyFaultKind, most: Option<u64>) -> Devices {
    let fault = CopyFault { kind, copies, least_bytes: MIN_BYTES, after: AFTER, most };
    devices(setup).checked_by(move |adapter, device| {
        let copy_fault = (adapter.label() == "cpu:0").then_some(fault);
        Checked::with_faults(device, Faults { copy_fault, ..Faults::default() })
    })
}

/// Generates tokens for the first golden prompt.
fn tokens(engine: &Engine) -> ragtag::Result<Vec<u32>> {
    let prompt = &golden(MODEL).cases[0].prompt_ids;
    let stream = engine.session().generate(Prompt::Tokens(prompt), &greedy(NEW_TOKENS))?;
    Ok(block_on(listen(stream))?.ids)
}

fn expected() -> Vec<u32> {
    golden(MODEL).cases[0].greedy_ids[..NEW_TOKENS as usize].into()
}

/// Returns the error of a run in which copies of activations have a fault.
fn error_with(setup: &Setup<'_>, copies: FaultyCopies, kind: CopyFaultKind) -> Error {
    let engine = engine_on(&model(), setup, &faulty(setup, copies, kind, None)).unwrap();
    let error = tokens(&engine).unwrap_err();
    // A later request gets the error that ended the run, and no thread hangs.
    let later = tokens(&engine).unwrap_err();
    assert!(later.to_string() == error.to_string() || matches!(later, Error::Run(RunError::Stopped)));
    engine.shutdown();
    error
}

#[test]
fn verified_transfers_change_no_token() {
    within(120, || {
        let model = model();
        let plain = Setup { verify_transfers: false, trace: true, ..setup() };
        let engine = engine(&model, &plain);
        assert_eq!(tokens(&engine).unwrap(), expected());
        assert_eq!(engine.verified_transfers(), None);
        assert!(engine.stage_reports().iter().all(|stage| stage.counts.verification.is_none()));
        assert!(engine.shutdown().trace.spans().iter().all(|span| span.kind != SpanKind::Checksum));
        // Devices with several stages, and micro-batches of several sequences.
        let interleaved = "0-3=cpu:0,4-7=cpu:1,8-10=cpu:0,11-13=cpu:1";
        for split in [TWO, interleaved] {
            for route in [Route::Peer, Route::Import, Route::HOST_STAGED] {
                let setup =
                    Setup { route: Some(route), split: Some(split), sequences: 3, chunk: 8, ..setup() };
                let setup = Setup { trace: true, ..setup };
                let engine = crate::support::engine(&model, &setup);
                let prompt = &golden(MODEL).cases[0].prompt_ids;
                let start =
                    |_| engine.session().generate(Prompt::Tokens(prompt), &greedy(NEW_TOKENS)).unwrap();
                for stream in [0, 1, 2].map(start) {
                    assert_eq!(block_on(listen(stream)).unwrap().ids, expected(), "{route:?}");
                }
                let edges = engine.stages().len() - 1;
                assert_eq!(engine.routes(), vec![Routes::or_staged(route); edges]);
                let verified = engine.verified_transfers().unwrap();
                assert!(verified.transfers >= u64::from(NEW_TOKENS) && verified.wrong == 0, "{verified:?}");
                assert!(verified.waited_us > 0.0 && verified.share > 0.0);
                // The trace names the route of every copy, and has two checksums of every transfer.
                let trace = engine.shutdown().trace;
                let of = |kind| trace.spans().iter().filter(move |span| span.kind == kind);
                let copies = || of(SpanKind::Upload).chain(of(SpanKind::Download));
                assert!(copies().count() > 0 && copies().all(|span| span.route == Some(route)));
                assert!(of(SpanKind::Checksum).count() as u64 >= 2 * verified.transfers);
            }
        }
    });
}

#[test]
fn a_later_wrong_byte_is_found_and_the_next_route_replaces_the_wrong_one() {
    within(120, || {
        let model = model();
        for route in [Route::Peer, Route::HOST_STAGED] {
            let shared = route.shares_memory();
            let copies = if shared { FaultyCopies::Shared } else { FaultyCopies::Downloads };
            for kind in [CopyFaultKind::Flipped, CopyFaultKind::Stale] {
                let setup = Setup { route: Some(route), ..setup() };
                // The staged route is the last one, so it must work again.
                let most = (!shared).then_some(1);
                let engine = engine_on(&model, &setup, &faulty(&setup, copies, kind, most)).unwrap();
                assert_eq!(engine.routes(), [Routes::or_staged(route)]);
                assert_eq!(tokens(&engine).unwrap(), expected(), "{route:?} {kind:?}");
                assert_eq!(engine.routes(), [Routes::from(Route::HOST_STAGED)]);
                assert_eq!(engine.verified_transfers().unwrap().wrong, 1);
                engine.shutdown();
            }
        }
    });
}

#[test]
fn without_another_route_wrong_bytes_end_the_run_with_their_edge() {
    within(120, || {
        let setup = Setup { route: Some(Route::HOST_STAGED), ..setup() };
        for kind in [CopyFaultKind::Flipped, CopyFaultKind::Stale] {
            let error = error_with(&setup, FaultyCopies::Downloads, kind);
            let (from, to, route) = ("cpu:0".to_string(), "cpu:1".to_string(), Route::HOST_STAGED);
            match &error {
                Error::Run(cause) => assert_eq!(*cause, RunError::Corrupted { from, to, route }),
                other => panic!("{other:?}"),
            }
            let said = "activations from cpu:0 to cpu:1 arrive with wrong bytes over the staged route";
            assert!(error.to_string().starts_with(said), "{error}");
            assert_eq!(exit_code(&error), 1);
        }
    });
}

/// Starts an engine in which `cpu:0` computes the prompts and `cpu:1` decodes half of the segments.
fn with_prefill_stage(devices: &Devices, verify_transfers: bool) -> Engine {
    let model = model();
    let planner = Planner::new(&model).devices(devices).context(128).chunk(8).kv(KvType::F32);
    let planner = planner.activations(setup().activations).split(TWO.parse().unwrap());
    let plan = with_prefill(planner.plan().unwrap(), "cpu:0", 1);
    let mut options = EngineOptions::default();
    (options.verify_transfers, options.trace) = (verify_transfers, true);
    Engine::start_exact(&model, devices, &plan, options).unwrap()
}

#[test]
fn keys_and_values_of_a_prefill_stage_are_verified() {
    within(120, || {
        let setup = setup();
        let engine = with_prefill_stage(&devices(&setup), true);
        for _ in 0..2 {
            assert_eq!(tokens(&engine).unwrap(), expected());
        }
        let verified = engine.verified_transfers().unwrap();
        assert!(verified.transfers > 2 * u64::from(NEW_TOKENS) && verified.wrong == 0, "{verified:?}");
        let trace = engine.shutdown().trace;
        let mut sums = trace.spans().iter().filter(|span| span.kind == SpanKind::Checksum);
        assert!(sums.any(|span| span.stage == 2), "the prefill stage computes checksums");
        for kind in [CopyFaultKind::Flipped, CopyFaultKind::Stale] {
            // The first copies that `cpu:0` makes to the host are those of keys and values.
            let fault = CopyFault {
                kind,
                copies: FaultyCopies::Downloads,
                least_bytes: MIN_BYTES,
                after: 0,
                most: None,
            };
            let faulty = devices(&setup).checked_by(move |adapter, device| {
                let copy_fault = (adapter.label() == "cpu:0").then_some(fault);
                Checked::with_faults(device, Faults { copy_fault, ..Faults::default() })
            });
            let engine = with_prefill_stage(&faulty, true);
            let error = tokens(&engine).unwrap_err();
            engine.shutdown();
            let (from, stage, to) = ("cpu:0".into(), 1, "cpu:1".into());
            let Error::Run(cause) = &error else { panic!("{error:?}") };
            assert_eq!(*cause, RunError::WrongKeysAndValues { from, stage, to }, "{kind:?}");
            let said =
                "keys and values of the prefill stage on cpu:0 arrive with wrong bytes at stage 1 on cpu:1";
            assert!(error.to_string().starts_with(said), "{error}");
            assert_eq!(exit_code(&error), 1);
        }
    });
}

#[test]
fn a_failing_copy_of_keys_and_values_names_the_prefill_stage() {
    within(120, || {
        for verify_transfers in [false, true] {
            let faulty = faulty(&setup(), FaultyCopies::Downloads, CopyFaultKind::Failing, None);
            let engine = with_prefill_stage(&faulty, verify_transfers);
            let error = tokens(&engine).unwrap_err();
            engine.shutdown();
            assert!(error.to_string().starts_with("keys and values of stage 2 on cpu:0: copy"), "{error}");
        }
    });
}

#[test]
fn a_failing_copy_ends_the_run_with_its_edge() {
    within(120, || {
        for (route, copies, name) in [
            (Route::HOST_STAGED, FaultyCopies::Downloads, "staged"),
            (Route::Peer, FaultyCopies::Shared, "peer"),
        ] {
            for verify_transfers in [false, true] {
                let setup = Setup { route: Some(route), verify_transfers, ..setup() };
                let error = error_with(&setup, copies, CopyFaultKind::Failing);
                let Error::Run(RunError::Transfer { cause: DeviceError::Api { .. }, .. }) = &error else {
                    panic!("{error:?}")
                };
                let copy = "copy (injected fault) failed with code -1";
                let said = format!("activations from cpu:0 to cpu:1 over the {name} route: {copy}");
                let why = "no other route can replace it, because the failure ends a queue of the device, \
                           and all routes use this queue";
                assert_eq!(error.to_string(), format!("{said}; {why}"));
            }
        }
    });
}

/// Returns the devices. The one with this label refuses some copies.
fn refusing(setup: &Setup<'_>, label: impl Into<String>, copies: FaultyCopies, most: Option<u64>) -> Devices {
    let (kind, label) = (CopyFaultKind::Refused, label.into());
    let fault = CopyFault { kind, copies, least_bytes: MIN_BYTES, after: AFTER, most };
    devices(setup).checked_by(move |adapter, device| {
        let copy_fault = (adapter.label() == label).then_some(fault);
        Checked::with_faults(device, Faults { copy_fault, ..Faults::default() })
    })
}

#[test]
fn the_next_route_replaces_one_whose_copy_is_refused() {
    within(120, || {
        let model = model();
        for (route, label, verify_transfers) in
            [(Route::Peer, "cpu:0", false), (Route::Peer, "cpu:0", true), (Route::Import, "cpu:1", true)]
        {
            let setup = Setup { route: Some(route), verify_transfers, sequences: 3, ..setup() };
            let devices = refusing(&setup, label, FaultyCopies::Shared, None);
            let engine = engine_on(&model, &setup, &devices).unwrap();
            assert_eq!(engine.routes(), [Routes::or_staged(route)]);
            let prompt = &golden(MODEL).cases[0].prompt_ids;
            let start = |_| engine.session().generate(Prompt::Tokens(prompt), &greedy(NEW_TOKENS)).unwrap();
            for stream in [0, 1, 2].map(start) {
                assert_eq!(block_on(listen(stream)).unwrap().ids, expected(), "{route:?}");
            }
            assert_eq!(engine.routes(), [Routes::from(Route::HOST_STAGED)]);
            engine.shutdown();
        }
        // The only route is used once more.
        let setup = Setup { route: Some(Route::HOST_STAGED), ..setup() };
        let devices = refusing(&setup, "cpu:0", FaultyCopies::Downloads, Some(1));
        let engine = engine_on(&model, &setup, &devices).unwrap();
        assert_eq!(tokens(&engine).unwrap(), expected());
        assert_eq!(engine.verified_transfers().unwrap().wrong, 1);
    });
}

/// Returns the labels of two devices of one OpenCL driver. Records a skip if there are none.
fn opencl_pair() -> Option<[String; 2]> {
    let found = Devices::probe(&DeviceOptions::default()).unwrap();
    let all: Vec<_> = found.report().adapters().filter(|adapter| adapter.backend == "opencl").collect();
    let twins = all.windows(2).find(|pair| pair[0].driver == pair[1].driver && pair[0].name == pair[1].name);
    let labels = twins.map(|twins| [twins[0].label(), twins[1].label()]);
    if labels.is_none() {
        test_support::skip!("OpenCL driver", "no two devices of one driver");
    }
    labels
}

#[test]
fn the_next_route_replaces_a_refused_peer_route_between_opencl_devices() {
    let Some([from, to]) = opencl_pair() else { return };
    within(300, move || {
        let (devices, split) = (format!("{from},{to}"), format!("0-6={from},7-13={to}"));
        for verify_transfers in [false, true] {
            let setup = Setup { route: Some(Route::Peer), verify_transfers, ..setup() };
            let setup = Setup { devices: &devices, split: Some(&split), cpu_devices: 1, ..setup };
            let devices = refusing(&setup, from.clone(), FaultyCopies::Shared, None);
            let engine = engine_on(&model(), &setup, &devices).unwrap();
            assert_eq!(engine.routes(), [Routes::or_staged(Route::Peer)], "the devices share memory");
            assert_eq!(tokens(&engine).unwrap(), expected());
            assert_eq!(engine.routes(), [Routes::from(Route::HOST_STAGED)]);
            engine.shutdown();
        }
    });
}

#[test]
fn a_refused_copy_that_no_route_replaces_ends_the_run_with_its_edge() {
    within(120, || {
        for (route, label, copies, name) in [
            (Route::Import, "cpu:1", FaultyCopies::Shared, "import"),
            (Route::HOST_STAGED, "cpu:0", FaultyCopies::Downloads, "staged"),
        ] {
            let setup = Setup { route: Some(route), verify_transfers: false, ..setup() };
            let engine = engine_on(&model(), &setup, &refusing(&setup, label, copies, None)).unwrap();
            let error = tokens(&engine).unwrap_err();
            engine.shutdown();
            let said = format!("activations from cpu:0 to cpu:1 over the {name} route: the driver refused");
            assert!(error.to_string().starts_with(&said), "{error}");
            assert!(error.to_string().contains("no other route can replace it"), "{error}");
        }
    });
}

#[test]
fn a_copy_that_never_completes_ends_the_run_after_the_limit() {
    within(120, || {
        for (route, copies, name) in [
            (Route::HOST_STAGED, FaultyCopies::Downloads, "staged"),
            (Route::Peer, FaultyCopies::Shared, "peer"),
        ] {
            for verify_transfers in [false, true] {
                let stall_timeout = Some(Duration::from_millis(200));
                let setup = Setup { route: Some(route), verify_transfers, stall_timeout, ..setup() };
                let error = error_with(&setup, copies, CopyFaultKind::Endless);
                let said = format!("no activations from cpu:0 to cpu:1 over the {name} route for 1 s");
                assert!(error.to_string().starts_with(&said), "{error}");
            }
        }
    });
}

#[test]
fn a_computation_that_never_completes_ends_the_run_after_the_limit() {
    within(120, || {
        let compute_timeout = Some(Duration::from_millis(200));
        let setup = Setup { route: Some(Route::HOST_STAGED), compute_timeout, ..setup() };
        let devices = devices(&setup).checked_by(|adapter, device| {
            let endless_computation = (adapter.label() == "cpu:1").then_some(4);
            Checked::with_faults(device, Faults { endless_computation, ..Faults::default() })
        });
        let engine = engine_on(&model(), &setup, &devices).unwrap();
        let error = tokens(&engine).unwrap_err();
        assert_eq!(error.to_string(), "stage 1 on cpu:1 has not completed a computation for 1 s");
        assert!(engine.shutdown().left.is_empty(), "only its reports are missing");
    });
}

#[test]
fn a_late_copy_does_not_end_the_run() {
    within(120, || {
        let late = CopyFaultKind::Late { us: 50_000 };
        for stall_timeout in [None, Some(Duration::from_secs(30)), Some(Duration::ZERO)] {
            let setup = Setup { route: Some(Route::HOST_STAGED), stall_timeout, ..setup() };
            let devices = faulty(&setup, FaultyCopies::Downloads, late, Some(6));
            let engine = engine_on(&model(), &setup, &devices).unwrap();
            assert_eq!(tokens(&engine).unwrap(), expected());
            engine.shutdown();
        }
    });
}

/// Checks the routes after a device has refused to share memory while it loaded.
#[test]
fn a_fallback_while_loading_shows_in_the_routes() {
    within(60, || {
        let setup = Setup { route: Some(Route::Peer), verify_transfers: false, ..setup() };
        let devices = devices(&setup).checked_by(|_, device| {
            Checked::with_faults(device, Faults { refuses_exports: true, ..Faults::default() })
        });
        let engine = engine_on(&model(), &setup, &devices).unwrap();
        assert_eq!(engine.plan().routes(), [Routes::or_staged(Route::Peer)]);
        assert_eq!(engine.routes(), [Routes::from(Route::HOST_STAGED)]);
    });
}

#[test]
fn the_command_shows_the_cost_and_the_routes_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let [receipt, trace] = ["receipt.json", "trace.json"].map(|name| folder.path().join(name));
    let model = model_path(MODEL);
    let common = ["--cpu-devices", "2", "--threads", "1", "--split", TWO, "--verify-transfers"];
    let run = |more: &[&str]| {
        let mut command = ragtag();
        command.args(["run", text(&model), "-p", "Once upon", "-n", "4", "--temp", "0"]);
        let output = command.args(common).args(more).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success(), "{err}");
        (out, err)
    };
    let records = ["--receipt", text(&receipt), "--trace", text(&trace)];
    let (_, said) = run(&records);
    assert!(said.contains("verified ") && said.contains(" % of the run), 0 sent again"), "{said}");
    let receipt = read_json(&receipt);
    // Without a probe, the edge uses host memory.
    assert_eq!(receipt["routes"][0][0]["route"]["host-staged"]["depth"], 4);
    assert_eq!(receipt["verified_transfers"]["wrong"], 0);
    let trace = std::fs::read_to_string(&trace).unwrap();
    assert!(trace.contains(r#""route":"staged""#) && trace.contains("checksum · micro-batch"));

    let (json, _) = run(&["--json", "--stall-timeout", "0", "--compute-timeout", "0"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let verified = &json["verified_transfers"];
    assert!(verified["transfers"].as_u64() > Some(0), "{verified}");
    assert!(verified["waited_us"].as_f64() > Some(0.0) && verified["share"].as_f64() > Some(0.0));

    let refused = ragtag().args(["run", "--stall-timeout", "-1"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}
