//! Any text as a plan: read, held against a model and devices, written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ragtag_scheduler::plan::{Plan, PlanModel};
use ragtag_scheduler::split::Split;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let plan = match Plan::from_json(text) {
        Ok(plan) => plan,
        // A message may quote the file, but stays short and free of control characters.
        Err(error) => {
            let message = error.to_string();
            return assert!(message.len() < 4000 && !message.contains(char::is_control), "{message}");
        }
    };
    let split = plan.split();
    let again = Plan::from_json(&plan.to_json()).expect("what was written can be read");
    assert_eq!(again, plan);
    let (digest, granularity) = (plan.model.digest.clone(), plan.model.granularity);
    let model = PlanModel { name: "m".into(), digest, segments: 14, granularity };
    for devices in [&["cpu:0", "cpu:1"][..], &["cpu:0"], &[]] {
        match plan.validate(&model, devices) {
            Ok(()) => {
                // A valid plan covers the segments in order, each device once.
                let mut next = 0;
                for stage in &plan.stages {
                    let range = stage.segments.range();
                    assert!(range.start == next && range.end > next && devices.contains(&stage.device.as_str()));
                    next = range.end;
                }
                assert_eq!(next, 14);
                assert_eq!(split.to_string().parse::<Split>().as_ref(), Ok(&split));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});
