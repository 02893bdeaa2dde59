//! Tests the comparison of each stage's first block with the CPU.

use crate::support::{self, Setup, last_vulkan, model_path, ragtag, run_with_vulkan, within};
use ragtag::cli::exit_code;
use ragtag::{Activations, Devices, Error, KvType, Model, Planner, check_first_blocks};
use ragtag_hal::{Checked, CopyFault, CopyFaultKind, Faults, FaultyCopies, ShortCopies};

const SPLIT: &str = "0-6=cpu:0,7-13=cpu:1";

/// Returns two CPU devices. `short` are the copies of `cpu:1` that leave out their last bytes.
fn two(short: Option<ShortCopies>) -> Devices {
    let devices = support::devices(&Setup { cpu_devices: 2, ..Setup::default() });
    devices.checked_by(move |adapter, device| {
        let short_copies = short.filter(|_| adapter.label() == "cpu:1");
        Checked::with_faults(device, Faults { short_copies, ..Faults::default() })
    })
}

/// Returns two CPU devices. `cpu:0` copies wrong values to the host after two right copies: the outputs of
/// its first block, or the rows and the keys of a prefill chunk.
fn wrong_keys() -> Devices {
    let devices = support::devices(&Setup { cpu_devices: 2, ..Setup::default() });
    devices.checked_by(|adapter, device| {
        let (kind, copies) = (CopyFaultKind::Stale, FaultyCopies::Downloads);
        let fault = CopyFault { kind, copies, least_bytes: 1, after: 2, most: None };
        let copy_fault = (adapter.label() == "cpu:0").then_some(fault);
        Checked::with_faults(device, Faults { copy_fault, ..Faults::default() })
    })
}

#[test]
fn a_stage_that_differs_from_the_cpu_is_named() {
    within(300, || {
        let model = Model::open(model_path("tales-bitnet-tq2_0")).unwrap();
        let plan = |split: &str, activations, kv| {
            let planner = Planner::new(&model).devices(&two(None)).context(64).split(split.parse().unwrap());
            planner.activations(activations).kv(kv).plan().unwrap()
        };
        let exact = plan(SPLIT, Activations::F32, KvType::F32);
        let blocks = check_first_blocks(&model, &two(None), &exact).unwrap();
        let checked: Vec<_> =
            blocks.iter().map(|b| (b.stage, b.device.as_str(), b.segment, b.bound)).collect();
        assert_eq!(checked, [(0, "cpu:0", 1, 1e-4), (1, "cpu:1", 7, 1e-4)]);
        assert!(blocks.iter().all(|block| block.error <= block.bound), "{blocks:?}");

        // The embedding and the head can be stages of their own.
        let ends = plan("0=cpu:0,1-12=cpu:1,13=cpu:0", Activations::Int8, KvType::F16);
        let blocks = check_first_blocks(&model, &two(None), &ends).unwrap();
        let checked: Vec<_> = blocks.iter().map(|block| (block.segment, block.bound)).collect();
        assert_eq!(checked, [(0, 2e-2), (1, 2e-2), (13, 2e-2)]);

        let error = check_first_blocks(&model, &two(Some(ShortCopies::All)), &exact).unwrap_err();
        assert_eq!(exit_code(&error), 1);
        let (said, route) = (error.to_string(), "rows arrive from cpu:0 by the staged route");
        assert!(matches!(error, Error::Canary { stage: 1, .. }), "{said}");
        assert!(said.starts_with(&format!("stage 1 on cpu:1 ({route}): its first block differs")), "{said}");
    });
}

#[test]
fn keys_and_values_of_a_prefill_stage_are_compared() {
    within(300, || {
        let model = Model::open(model_path("tales-q8_0")).unwrap();
        let planner = Planner::new(&model).devices(&two(None)).context(64).split(SPLIT.parse().unwrap());
        let plan = planner.activations(Activations::F32).kv(KvType::F32).plan().unwrap();
        let plan = support::with_prefill(plan, "cpu:0", 1);
        let blocks = check_first_blocks(&model, &two(None), &plan).unwrap();
        let checked: Vec<_> =
            blocks.iter().map(|b| (b.stage, b.device.as_str(), b.segment, b.keys_to.as_deref())).collect();
        let expected = [(0, "cpu:0", 1, None), (1, "cpu:1", 7, None), (2, "cpu:0", 7, Some("cpu:1"))];
        assert_eq!(checked, expected);
        assert!(blocks.iter().all(|block| block.error <= block.bound), "{blocks:?}");

        let error = check_first_blocks(&model, &wrong_keys(), &plan).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, Error::Canary { stage: 2, .. }), "{said}");
        let route = "prefill; keys and values pass to cpu:1 through host memory";
        assert!(said.starts_with(&format!("stage 2 on cpu:0 ({route}): its first block differs")), "{said}");
    });
}

#[test]
fn the_command_compares_before_it_generates() {
    let placement = ["--cpu-devices", "2", "--threads", "1", "--split", SPLIT, "--canary"];
    for command in [&["run", "-n", "1"][..], &["bench", "-p", "1", "-n", "1", "-r", "1"]] {
        let output = ragtag().args(command).args(placement).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("canary: stage 1 on cpu:1: segment 7 differs from the CPU's by "), "{said}");
    }
    ragtag().args(["bench", "links", "--canary"]).assert().code(2);
}

#[test]
fn blocks_on_vulkan_agree_with_the_cpu() {
    let drivers = std::env::var_os("VK_DRIVER_FILES");
    within(300, move || {
        let Some(label) = last_vulkan() else { return };
        let (code, _, said) = run_with_vulkan(drivers.as_deref(), |command| {
            command.args(["run", "-n", "1", "--canary", "--split", &format!("0-6=cpu:0,7-13={label}")]);
            command.args(["--device", &format!("cpu:0,{label}"), "--activations", "f32"]);
        });
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains(&format!("canary: stage 1 on {label}: segment 7 differs")), "{said}");
        assert!(said.contains("(at most 1e-4)"), "{said}");
    });
}
