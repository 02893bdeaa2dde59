//! Requests and answers of `ragtag plan --api`: plain data, one JSON value per line. This module opens no file and
//! makes no plan.

use crate::json;
use crate::objective::Objective;
use crate::plan::Plan;
use ragtag_graph::execution::KvUse;
use ragtag_graph::{Granularity, WireType};
use ragtag_kernels::{Activations, KvType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request for a plan.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlanRequest {
    /// Any value. The answer repeats it.
    pub id: Value,
    /// Path of the model. Default: the model of the command line.
    pub model: Option<String>,
    /// A fleet, the path of a fleet file, or a list of cards. Default: the fleet of the command line, or this machine.
    #[schemars(schema_with = "crate::schemas::requested_fleet")]
    pub fleet: Option<Value>,
    /// Settings of the plan.
    pub options: PlanOptions,
}

/// Settings of a plan, with the names of the plan format and of the options of `ragtag plan`. The default of each is
/// the option on the command line.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlanOptions {
    /// Maximum length of a sequence, in tokens.
    #[schemars(range(min = 1, max = MAX_TOKENS))]
    pub context: Option<u32>,
    /// Number of sequences that must fit at the same time.
    #[schemars(range(min = 1, max = MAX_SEQUENCES))]
    pub sequences: Option<u32>,
    /// Maximum number of prompt tokens in one micro-batch.
    #[schemars(range(min = 1, max = MAX_CHUNK))]
    pub chunk: Option<u32>,
    /// Objective to minimise.
    pub objective: Option<Objective>,
    /// Prompt tokens of the request to plan for.
    #[schemars(range(max = MAX_TOKENS))]
    pub prompt_tokens: Option<u32>,
    /// Generated tokens of the request to plan for.
    #[schemars(range(max = MAX_TOKENS))]
    pub new_tokens: Option<u32>,
    /// Memory for keys and values in all devices together, in bytes.
    pub kv_memory_bytes: Option<u64>,
    /// When sequences take blocks of the KV cache, and whether it keeps the blocks of earlier sequences.
    pub kv_use: Option<KvUse>,
    /// Types of keys and values.
    #[schemars(schema_with = "crate::schemas::kv_type")]
    pub kv: Option<KvType>,
    /// Type of activations in products with quantized weights: `f32` or `int8`.
    #[schemars(schema_with = "crate::schemas::activations")]
    pub activations: Option<Activations>,
    /// Wire type of activations between stages.
    #[schemars(schema_with = "crate::schemas::wire_type")]
    pub wire_type: Option<WireType>,
    /// Smallest unit of placement.
    #[schemars(schema_with = "crate::schemas::granularity")]
    pub granularity: Option<Granularity>,
    /// Maximum number of stages.
    #[schemars(range(min = 1, max = MAX_STAGES))]
    pub max_stages: Option<u32>,
    /// The placement, such as `0-5=cpu:0,6-13=cpu:1`.
    pub split: Option<String>,
    /// Placements of segments on devices, each in the syntax of `split`.
    pub pins: Option<Vec<String>>,
    /// Labels of devices that the plan leaves out.
    pub exclude: Option<Vec<String>>,
}

const MAX_TOKENS: u32 = 1 << 24;
const MAX_SEQUENCES: u32 = 4096;
const MAX_CHUNK: u32 = 1 << 16;
const MAX_STAGES: u32 = 64;

impl PlanRequest {
    /// Parses a request and checks the ranges of its numbers.
    ///
    /// # Errors
    /// Returns the `id` if it can be read, and a message with the path of the first invalid value.
    pub fn from_json(text: &str) -> Result<Self, (Value, String)> {
        #[derive(Deserialize)]
        struct Named {
            id: Value,
        }
        let request = json::parse::<Self>(text).map_err(|message| {
            (serde_json::from_str(text).map_or(Value::Null, |Named { id }| id), message)
        })?;
        match request.options.out_of_range() {
            Some(message) => Err((request.id, message)),
            None => Ok(request),
        }
    }
}

impl PlanOptions {
    fn out_of_range(&self) -> Option<String> {
        let ranges = [
            ("context", self.context, 1, MAX_TOKENS),
            ("sequences", self.sequences, 1, MAX_SEQUENCES),
            ("chunk", self.chunk, 1, MAX_CHUNK),
            ("prompt_tokens", self.prompt_tokens, 0, MAX_TOKENS),
            ("new_tokens", self.new_tokens, 0, MAX_TOKENS),
            ("max_stages", self.max_stages, 1, MAX_STAGES),
        ];
        let wrong = |(name, value, least, most): (&str, Option<u32>, u32, u32)| {
            let value = value.filter(|value| !(least..=most).contains(value))?;
            Some(format!("options.{name}: is {value}, must be {least} to {most}"))
        };
        let placed_twice = self.split.is_some() && (self.pins.is_some() || self.exclude.is_some());
        let conflict = (placed_twice || self.split.is_some() && self.max_stages.is_some())
            .then(|| "options.split: conflicts with pins, exclude and max_stages".to_owned());
        let f16 = (self.activations == Some(Activations::F16))
            .then(|| "options.activations: is f16, must be f32 or int8".to_owned());
        ranges.into_iter().find_map(wrong).or(conflict).or(f16)
    }
}

/// The answer to a request: a plan or an error.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum PlanAnswer {
    /// The request was answered.
    Planned {
        /// The `id` of the request.
        id: Value,
        /// The plan.
        #[schemars(schema_with = "crate::schemas::plan")]
        plan: Box<Plan>,
    },
    /// The request failed.
    Failed {
        /// The `id` of the request. Null if the request cannot be read.
        id: Value,
        /// The error.
        error: PlanFailure,
    },
}

/// The error of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PlanFailure {
    /// Kind of error.
    pub kind: FailureKind,
    /// Message for a person.
    pub message: String,
}

/// Kind of error. Each kind corresponds to an exit code of `ragtag plan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// 1: a defect, or a device that failed.
    Internal,
    /// 2: an invalid request.
    Usage,
    /// 3: a model file that is damaged or not supported.
    Model,
    /// 4: an invalid fleet, split or constraint.
    Plan,
    /// 5: an invalid selection of devices.
    Devices,
    /// 6: no plan fits in memory.
    Memory,
    /// 7: a file that cannot be read.
    File,
    /// 8: refused by `--strict`.
    Strict,
}

impl FailureKind {
    /// Returns the kind of an error with this exit code.
    pub fn of_exit_code(code: u8) -> Self {
        match code {
            2 => Self::Usage,
            3 => Self::Model,
            4 => Self::Plan,
            5 => Self::Devices,
            6 => Self::Memory,
            7 => Self::File,
            8 => Self::Strict,
            _ => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_checked_and_errors_repeat_the_id() {
        let text = r#"{"id": [7], "model": "m.gguf", "fleet": {"a": 1}, "options": {"context": 16777216, "kv": "q8_0/q4_0",
            "objective": {"mix": {"latency": 1, "throughput": 0, "first_token": 2}}, "pins": ["0=cpu:0"]}}"#;
        let request = PlanRequest::from_json(text).unwrap();
        assert_eq!((request.id, request.options.kv), (serde_json::json!([7]), Some(KvType::Q8_0Q4_0)));
        assert_eq!(PlanRequest::from_json("{}"), Ok(PlanRequest::default()));
        for (options, message) in [
            (r#"{"context": 0}"#, "options.context: is 0, must be 1 to 16777216"),
            (r#"{"sequences": 4097}"#, "options.sequences: is 4097, must be 1 to 4096"),
            (r#"{"chunk": 65537}"#, "options.chunk: is 65537"),
            (r#"{"max_stages": 65}"#, "options.max_stages: is 65"),
            (r#"{"prompt_tokens": 16777217}"#, "options.prompt_tokens: is 16777217"),
            (r#"{"new_tokens": 16777217}"#, "options.new_tokens: is 16777217"),
            (r#"{"activations": "f16"}"#, "options.activations: is f16, must be f32 or int8"),
            (r#"{"split": "0=a", "max_stages": 1}"#, "options.split: conflicts with pins, exclude and"),
            (r#"{"split": "0=a", "pins": []}"#, "options.split: conflicts with"),
            (r#"{"contxt": 1}"#, "options.contxt: unknown field `contxt`"),
            (r#"{"wire_type": "f64"}"#, "options.wire_type: unknown variant"),
            ("[]", "options: invalid type"),
        ] {
            let text = format!(r#"{{"id": "a", "options": {options}}}"#);
            let (id, found) = PlanRequest::from_json(&text).unwrap_err();
            assert!(id == "a" && found.starts_with(message), "{id}: {found}");
        }
        for text in ["", "[]", "{\"id\": 1", "1"] {
            assert_eq!(PlanRequest::from_json(text).unwrap_err().0, Value::Null, "{text}");
        }
    }
}
