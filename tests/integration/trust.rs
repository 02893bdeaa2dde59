//! Tests the first use of a device: a device whose kernels compute wrong values is left out by name.

use crate::support::{last_vulkan, model_path, run_with_vulkan, text, within};
use std::path::Path;
use test_drivers::with_vulkan_faults;

/// Kernel in which the layer flips one bit, and its name in messages.
const KERNEL: (&str, &str) = ("rms_norm", "rms-norm");
const MODEL: &str = "tales-bitnet-tq2_0";

/// Runs the command with the cache folder `cache` and returns its exit code, standard output and standard
/// error. The layer changes a kernel if `wrong` is set.
fn run(
    drivers: Option<&std::ffi::OsStr>,
    cache: &Path,
    wrong: bool,
    arguments: &[&str],
) -> (i32, String, String) {
    let (code, out, said) = run_with_vulkan(drivers, |command| {
        command.env("RAGTAG_CACHE_DIR", cache).env("NODEVICE_SELECT", "1");
        if wrong {
            command.env("RAGTAG_VULKAN_FAULTS_WRONG", KERNEL.0);
        }
        let model = model_path(MODEL);
        command.args(["run", "-n", "2", "-p", "Once", "--temp", "0", "--ctx", "64", text(&model)]);
        command.args(["--prompt-tokens", "48", "--new-tokens", "1"]).args(arguments);
    });
    (code.unwrap(), out, said)
}

/// Checks that a flipped bit of one kernel is found, that the message names the kernel, the device, its
/// driver and both errors, and that the rest of the machine runs the model.
#[test]
fn a_device_with_one_wrong_bit_is_left_out_by_name() {
    let test = "trust::a_device_with_one_wrong_bit_is_left_out_by_name";
    let drivers = std::env::var_os("VK_DRIVER_FILES");
    within(300, move || {
        with_vulkan_faults(test, &[("RAGTAG_VULKAN_FAULTS_GPUS", "1")], |_| {
            let Some(label) = last_vulkan() else { return };
            let folder = tempfile::tempdir().unwrap();
            let wrong = |arguments: &[&str]| run(drivers.as_deref(), folder.path(), true, arguments);
            // A machine may have several Vulkan devices, which are all wrong.
            let names_all = |said: &str| {
                let found =
                    said.lines().find(|line| line.contains("fails its self-test")).unwrap_or_default();
                for part in ["vulkan:", ", Vulkan 1.", KERNEL.1, "relative error ", ", at most 1e-"] {
                    assert!(found.contains(part), "{part}: {said}");
                }
            };

            let (code, right, said) = run(drivers.as_deref(), folder.path(), false, &["--device", "cpu"]);
            assert_eq!(code, 0, "{said}");
            // The planner prefers the supposed GPU for one stage.
            let one_stage = ["--device", "gpu,cpu", "--max-stages", "1"];
            let (code, out, said) = wrong(&one_stage);
            assert_eq!((code, &out), (0, &right), "{said}");
            names_all(&said);
            assert!(said.contains("trying without vulkan:") && said.contains(": plan: 0-13=cpu:0"), "{said}");

            // Without another GPU, the selection auto uses the CPU.
            let (code, out, said) = wrong(&[]);
            assert_eq!((code, &out), (0, &right), "{said}");
            names_all(&said);
            assert!(said.contains("using the CPU") && said.contains("plan: 0-13=cpu:0"), "{said}");

            for (arguments, expected) in [
                (&[&one_stage[..], &["--strict"]].concat()[..], 8),
                (&["--device", &format!("{label},cpu:0"), "--max-stages", "1"], 1),
                (&["--device", "vulkan"], 1),
                (&["--device", "gpu,cpu", "--split", &format!("0-13={label}")], 1),
                (&["--device", "gpu,cpu", "--pin", &format!("3={label}")], 1),
                (&["--device", "gpu"], 1),
            ] {
                let (code, out, said) = wrong(arguments);
                assert_eq!((code, out.as_str()), (expected, ""), "{arguments:?}: {said}");
                names_all(&said);
            }

            // Without the test, the wrong values arrive.
            let (code, _, said) = wrong(&["--device", "gpu", "--no-self-test"]);
            assert!(code == 1 && said.contains("logits are NaN") && !said.contains("self-test"), "{said}");
        });
    });
}

/// Checks that kernels that have passed are not tested again: a driver that becomes wrong without another
/// version is not found until the outcome expires. New kernels are tested.
#[test]
fn kernels_are_tested_once_for_each_driver() {
    let test = "trust::kernels_are_tested_once_for_each_driver";
    let drivers = std::env::var_os("VK_DRIVER_FILES");
    within(300, move || {
        with_vulkan_faults(test, &[], |_| {
            let Some(label) = last_vulkan() else { return };
            let folder = tempfile::tempdir().unwrap();
            let run = |wrong: bool, more: &[&str]| {
                run(drivers.as_deref(), folder.path(), wrong, &[&["--device", &label], more].concat())
            };
            let (code, _, said) = run(false, &["--activations", "f32"]);
            assert_eq!(code, 0, "{said}");
            let files = std::fs::read_dir(folder.path().join("profiles")).unwrap();
            let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
            assert_eq!(files.filter(|name| name.starts_with("kernels-")).count(), 1);
            let (code, _, said) = run(true, &["--activations", "f32"]);
            assert_eq!(code, 0, "known kernels: {said}");
            let (code, _, said) = run(true, &["--activations", "int8"]);
            assert_eq!(code, 1, "new kernels: {said}");
        });
    });
}
