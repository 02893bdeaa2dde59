//! The prefill stage of a plan: one stage on one device that computes long prompts in place of the other
//! stages.

use super::validate::wrong;
use super::{InvalidPlan, Plan, PlanStage};
use crate::split::check_partition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A stage that computes long prompts in place of the other stages. It shares the resident weights and the KV
/// cache of the stages on its device, and streams weights that other devices hold. The keys and values of
/// segments that other devices decode are copied to these devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrefillStage {
    /// The stage. It covers all segments. Another device decodes each streamed segment. The memory is what the
    /// stage needs in addition to the other stages of its device.
    pub stage: PlanStage,
    /// Minimum number of prompt tokens from which the prefill stage computes a prompt.
    pub from_tokens: u32,
}

impl Plan {
    /// Checks the prefill stage. The plan does not say which segments can be streamed, so any other segment may
    /// be resident on the device although another device decodes it.
    pub(super) fn validate_prefill_stage(&self, devices: &[&str]) -> Result<(), InvalidPlan> {
        let Some(PrefillStage { stage, from_tokens }) = &self.prefill_stage else { return Ok(()) };
        let wrong = |what: String| wrong(format!("prefill_stage: {what}"));
        if let Err(error) = check_partition(&[(stage.segments, &stage.device)], self.model.segments, devices)
        {
            return wrong(error.to_string());
        }
        if let Some(what) = stage.wrong_streamed(self.model.segments - 1) {
            return wrong(format!("streamed: {what}"));
        }
        if let Some(at) = stage.from_file.first() {
            return wrong(format!("from_file: the stage cannot read segment {at} from the model's file"));
        }
        if stage.streamed.is_empty() {
            return wrong("streamed: the stage must stream segments that other devices decode".into());
        }
        let own = |other: &&PlanStage| other.device == stage.device;
        let decodes = |at: &&u32| {
            self.stages.iter().filter(own).any(|other| other.segments.range().contains(&(**at as usize)))
        };
        if let Some(at) = stage.streamed.iter().find(decodes) {
            let device = &stage.device;
            return wrong(format!("streamed: {device} decodes segment {at}, so its weights are resident"));
        }
        if let Some(at) = self.stages.iter().filter(own).find_map(|other| other.streamed.first()) {
            let device = &stage.device;
            return wrong(format!(
                "a stage on {device} streams segment {at}, so the prefill stage cannot share it"
            ));
        }
        match from_tokens {
            0 => wrong("from_tokens must be at least 1".into()),
            _ => Ok(()),
        }
    }
}
