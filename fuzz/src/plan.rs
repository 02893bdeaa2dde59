//! Reads arbitrary text as a plan, validates it for a model and devices, writes it, and reads it again.

use super::short;
use ragtag_planner::plan::{Plan, PlanModel};
use ragtag_planner::split::{Split, SplitPart};

/// Returns whether the plan is valid for two devices.
pub fn run(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let plan = match Plan::from_json(text) {
        Ok(plan) => plan,
        Err(error) => return short(&error),
    };
    let split = plan.split();
    let again = Plan::from_json(&plan.to_json()).expect("written plans can be read");
    assert_eq!(again, plan);
    let (digest, granularity) = (plan.model.digest.clone(), plan.model.granularity);
    let model = PlanModel { name: "m".into(), digest, segments: 14, granularity };
    let mut valid = false;
    for devices in [&["cpu:0", "cpu:1"][..], &["cpu:0"], &[]] {
        match plan.validate(&model, devices) {
            Ok(()) => {
                // A valid plan covers the segments in order, and uses each device once.
                let mut next = 0;
                for stage in &plan.stages {
                    let range = stage.segments.range();
                    assert!(
                        range.start == next && range.end > next && devices.contains(&stage.device.as_str())
                    );
                    next = range.end;
                }
                assert_eq!(next, 14);
                // The text of a split names neither the streamed segments nor the prefill stage.
                let part = |SplitPart { span, device, .. }: &SplitPart| SplitPart {
                    span: *span,
                    device: device.clone(),
                    streamed: None,
                    arenas: None,
                    from_file: Vec::new(),
                };
                let plain = Split { parts: split.parts.iter().map(part).collect(), prefill: None };
                assert_eq!(split.to_string().parse::<Split>(), Ok(plain));
                valid = true;
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    valid
}
