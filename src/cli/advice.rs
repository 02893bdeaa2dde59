//! Words the library's errors and their advice with the flags and subcommands of this command.

use crate::{Advice, Error, Remedy};
use ragtag_planner::PlanError;
use ragtag_scheduler::sim::DrawnText;

/// Returns the text of an error with its advice.
pub(super) fn worded(error: &Error) -> String {
    match error {
        Error::Planner(PlanError::DoesNotFit(cause)) => cause.worded(remedy),
        Error::Planner(PlanError::SmallCache { .. }) => format!("{error}; set another --kv-memory or --ctx"),
        _ => error.to_string() + &error.advice().map_or_else(String::new, appended),
    }
}

/// Returns advice as it follows the text of an error.
fn appended(advice: Advice<'_>) -> String {
    match advice {
        Advice::AssumeType => " with --assume-type TYPE".into(),
        Advice::GiveTemplate => " (give one with --template FILE)".into(),
        Advice::ChooseTemplate { known } => format!(" (it has {}; choose one with --name)", known.join(", ")),
        Advice::FindDevices => " (`ragtag devices --doctor` shows what is missing)".into(),
        Advice::SelectBackend { backend } => format!(": use --device {backend}"),
        Advice::SelectSoftwareDevice { device } => {
            format!("; use --device cpu, or name a software device: --device {device}")
        }
        Advice::SelectDevice { device, selected } => {
            format!(" (to select it, use --device {},{device})", selected.join(","))
        }
        Advice::SelectTwoDevices => " (select them with --device, or use --cpu-devices 2)".into(),
        Advice::CheckDriver => {
            " (run `ragtag devices --doctor` to check the driver, or leave the device out with --device)"
                .into()
        }
        Advice::UpdateDriver { device } => format!(
            " (update the driver, leave the device out with --exclude or --device, or run `ragtag selftest --device \
             {device}` for all tests; --no-self-test uses it anyway)"
        ),
        Advice::TestDevice { device } => {
            format!(" (run `ragtag selftest --device {device}`, or leave the device out with --exclude)")
        }
        Advice::ProbeLink => {
            "; check the link with `ragtag devices --links --reprobe`, or leave a device out".into()
        }
        Advice::ProbeLinks => {
            "; check the links with `ragtag devices --links --reprobe`, or leave a device out with --device"
                .into()
        }
        Advice::AvoidPrefillStage => {
            "; to run without a prefill stage, leave a device out with --device".into()
        }
        Advice::SelectInt8Activations => " (use --activations int8)".into(),
        Advice::CorrectLengths { of: DrawnText::Prompt } => " (set by --prompt-tokens)".into(),
        Advice::CorrectLengths { of: DrawnText::Answer } => " (set by --new-tokens)".into(),
        Advice::ResetDriver { device } => format!(
            "; reset its driver or restart the machine, or leave the device out with --exclude {device}; \
             --compute-timeout sets another limit"
        ),
        Advice::SetStallTimeout => "; --stall-timeout sets another limit".into(),
        // The text of the error contains its remedies. The library may get more kinds of advice.
        _ => String::new(),
    }
}

fn remedy(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Context(positions) => format!("--ctx {positions} fits"),
        Remedy::Kv(_) => format!("--kv {}", remedy.to_string().trim_start_matches("type ")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WireType;
    use ragtag_devices::SelectionError;
    use ragtag_scheduler::Error as RunError;
    use ragtag_scheduler::sim::LoadError;

    #[test]
    fn errors_name_the_flags_that_may_help() {
        let text = |error: Error| worded(&error);
        let (device, what) = (String::from("cuda:0"), String::from("weights"));
        let stalled = RunError::StalledCopy { what, device: device.clone(), seconds: 60 };
        assert_eq!(
            text(stalled.into()),
            "cuda:0 has copied no weights for 60 s; --stall-timeout sets another limit"
        );
        let stalled = RunError::StalledCompute { stage: 1, device: device.clone(), seconds: 60 };
        assert_eq!(
            text(stalled.into()),
            "stage 1 on cuda:0 has not completed a computation for 60 s; reset its driver or restart the machine, or leave \
             the device out with --exclude cuda:0; --compute-timeout sets another limit"
        );
        let corrupted = RunError::WrongKeysAndValues { from: "a".into(), stage: 1, to: "b".into() };
        assert!(text(corrupted.into()).ends_with(
            "at stage 1 on b; check the links with `ragtag devices --links --reprobe`, or leave a device out with --device"
        ));
        let (driver, kernel) = ("a driver".into(), "matmul: wrong".into());
        assert_eq!(
            text(Error::Untrusted { device: device.clone(), driver, kernel }),
            "cuda:0 (a driver) fails its self-test: matmul: wrong (update the driver, leave the device out with --exclude \
             or --device, or run `ragtag selftest --device cuda:0` for all tests; --no-self-test uses it anyway)"
        );
        let software = vec![("vulkan:0".into(), "llvmpipe".into())];
        assert_eq!(
            text(SelectionError::NoGpu { found: Vec::new(), software }.into()),
            "no GPU found; software devices: vulkan:0 (llvmpipe); use --device cpu, or name a software device: --device \
             vulkan:0"
        );
        let lengths = LoadError::Lengths { of: DrawnText::Answer, lengths: "9-8".into(), least: 0 };
        let said = text(lengths.into());
        assert!(said.starts_with("invalid load: the lengths of an answer are 9-8; must"), "{said}");
        assert!(said.ends_with(" (set by --new-tokens)"), "{said}");
        let boundary = PlanError::ExactBoundary { wire_type: WireType::F16 };
        assert!(text(boundary.into()).ends_with(" (use --activations int8)"));
        let kv = Remedy::Kv(ragtag_kernels::KvType::Q8_0);
        assert_eq!(remedy(&kv), "--kv q8_0 nearly halves keys and values");
        assert_eq!(remedy(&Remedy::Context(512)), "--ctx 512 fits");
    }
}
