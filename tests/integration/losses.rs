//! Tests pipelines that lose a Vulkan or wgpu device during a run. A layer over Vulkan's drivers causes the
//! loss.
//!
//! Without a Vulkan device the tests record a skip. `RAGTAG_TEST_VULKAN_ADAPTERS` sets the required number of
//! devices.

use crate::gpus::compiles_anew;
use crate::support::{self, Checkpoint, SMALL, Setup, block_on, greedy, listen, within};
use ragtag::cli::exit_code;
use ragtag::{DeviceOptions, Devices, Engine, Error, Event, Prompt};
use ragtag_hal::Error as DeviceError;
use ragtag_kernels::NumericsClass;
use ragtag_scheduler::Error as RunError;
use test_drivers::{Faults, LostAt, with_vulkan_faults};

/// Number of tokens to generate in a run without a loss.
const TOKENS: u32 = 8;
/// Number of tokens to receive before the test requests the loss of the device.
const BEFORE: usize = 5;

/// Returns the labels of an API's devices. Those without a shader cache come last. Records a skip if there are none.
fn labels(backend: &str) -> Vec<String> {
    let found = Devices::probe(&DeviceOptions::default()).unwrap();
    let adapters = found.report().adapters().filter(|adapter| adapter.backend == backend);
    let (slowest, quick): (Vec<_>, Vec<_>) = adapters.partition(|adapter| compiles_anew(adapter));
    let labels: Vec<_> = quick.iter().chain(&slowest).map(|adapter| adapter.label()).collect();
    if labels.is_empty() {
        assert!(std::env::var_os("RAGTAG_TEST_VULKAN_ADAPTERS").is_none(), "no device of {backend}");
        test_support::skip!(test_support::driver(backend), "no device of {backend}");
    }
    labels
}

fn tokens(engine: &Engine, prompt: &[u32]) -> Vec<u32> {
    let stream = engine.session().generate(Prompt::Tokens(prompt), &greedy(TOKENS)).unwrap();
    block_on(listen(stream)).unwrap().ids
}

/// Continues `prompt`, and makes the layer lose device `number` after [`BEFORE`] tokens. Returns all received
/// tokens and the error of the run.
fn loses(engine: &Engine, prompt: &[u32], faults: &Faults, number: u32, at: LostAt) -> (Vec<u32>, Error) {
    let mut stream = engine.session().generate(Prompt::Tokens(prompt), &greedy(100)).unwrap();
    let mut ids = Vec::new();
    loop {
        if ids.len() == BEFORE {
            faults.lose(number, at, 2);
        }
        match block_on(stream.next_event()) {
            Ok(Event::Token { id, .. }) => ids.extend(id),
            Ok(Event::Finished(summary)) => panic!("{summary:?}"),
            Err(error) => return (ids, error),
        }
    }
}

/// Checks a run that loses one of two devices. Each device runs a stage, with a CPU stage between the two.
/// After the loss, the other device must still work.
fn a_stage_is_lost(faults: &Faults, [first, last]: [&str; 2], lost: usize, at: LostAt) {
    let checkpoint = Checkpoint::open(SMALL);
    let (model, prompt) = (&checkpoint.models[0], &checkpoint.ids);
    let (wanted, split) = (format!("{first},{last},cpu:0"), format!("0-1={first},2-3=cpu:0,4-5={last}"));
    // The numbers of the devices follow the order in which the engine opens them.
    let setup =
        Setup { devices: &wanted, split: Some(&split), chunk: 32, no_self_test: true, ..Setup::default() };
    let opened = faults.opened();
    let engine = support::engine(model, &setup);
    let numbers = opened..faults.opened();
    let expected = tokens(&engine, prompt);
    let (said, error) = loses(&engine, prompt, faults, opened + lost as u32, at);
    println!("{split}: {} tokens, then: {error}", said.len());
    let (stage, device) = [(0, first), (2, last)][lost];
    match &error {
        Error::Run(RunError::Stage { stage: named, device: label, cause: DeviceError::Lost { .. } }) => {
            assert_eq!((*named, label.as_str()), (stage, device), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(exit_code(&error), 1);
    let most = said.len().min(expected.len());
    assert!(most >= BEFORE && said[..most] == expected[..most], "{said:?} of {expected:?}");
    engine.shutdown();
    for number in numbers {
        assert_eq!((faults.is_open(number), faults.held(number)), (false, 0), "{split}: {number} is closed");
    }

    // The process continues with the remaining devices.
    let other = [last, first][lost];
    let (wanted, rest) = (format!("{other},cpu:0"), format!("0-2={other},3-5=cpu:0"));
    let left = Setup { devices: &wanted, split: Some(&rest), ..setup.clone() };
    let engine = support::engine(model, &left);
    let logits = block_on(engine.session().logits(prompt)).unwrap();
    let error = checkpoint.error(&logits);
    assert!(error <= NumericsClass::Exact.tolerance(), "{rest}: {error}");
    engine.shutdown();
}

/// Checks a run that loses one of the first two devices of an API.
fn one_is_lost(faults: &Faults, backend: &str, lost: usize, at: LostAt) {
    match &labels(backend)[..] {
        [first, second, ..] => a_stage_is_lost(faults, [first, second], lost, at),
        _ => test_support::skip!("two Vulkan devices", "for {backend}"),
    }
}

#[test]
fn a_lost_vulkan_device_ends_the_run_and_leaves_the_others_usable() {
    within(600, || {
        let test = "losses::a_lost_vulkan_device_ends_the_run_and_leaves_the_others_usable";
        with_vulkan_faults(test, &[], |faults| one_is_lost(faults, "vulkan", 0, LostAt::Submit));
    });
}

#[test]
fn a_lost_wgpu_device_ends_the_run_and_leaves_the_others_usable() {
    within(600, || {
        let test = "losses::a_lost_wgpu_device_ends_the_run_and_leaves_the_others_usable";
        with_vulkan_faults(test, &[], |faults| one_is_lost(faults, "wgpu", 1, LostAt::Wait));
    });
}
