//! Generates the JSON Schemas of fleets and plans from their Rust types. `cargo xtask schemas` writes them to
//! `docs/schemas`. Knows nothing about the purpose of the formats.

use crate::fleet::Fleet;
use crate::plan::Plan;
use ragtag_graph::{Granularity, WireType};
use ragtag_hal::AdapterKind;
use ragtag_kernels::{Activations, KvType};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

/// Returns every schema as a pair of file name and JSON text.
pub fn all() -> [(&'static str, String); 2] {
    [("fleet.schema.json", text::<Fleet>()), ("plan.schema.json", text::<Plan>())]
}

fn text<T: JsonSchema>() -> String {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>();
    // `{:#}` prints indented JSON.
    format!("{:#}\n", schema.as_value())
}

/// Returns a schema that allows exactly the serialised forms of `values`.
fn one_of(values: &[impl Serialize]) -> Schema {
    json_schema!({ "enum": values })
}

pub(crate) fn adapter_kind(_: &mut SchemaGenerator) -> Schema {
    use AdapterKind::{Cpu, Discrete, Integrated, Software};
    one_of(&[Some(Discrete), Some(Integrated), Some(Cpu), Some(Software), None])
}

pub(crate) fn kv_type(_: &mut SchemaGenerator) -> Schema {
    one_of(&KvType::ALL)
}

pub(crate) fn granularity(_: &mut SchemaGenerator) -> Schema {
    one_of(&[Granularity::Block, Granularity::HalfBlock])
}

pub(crate) fn wire_type(_: &mut SchemaGenerator) -> Schema {
    one_of(&WireType::ALL)
}

pub(crate) fn activations(_: &mut SchemaGenerator) -> Schema {
    one_of(&Activations::ALL)
}

/// Returns the schema of [`Routes`](ragtag_transfer::Routes).
pub(crate) fn routes(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "properties": {
                "up_to_bytes": {
                    "description": "Maximum size of a transfer over this route. Absent on the last route.",
                    "type": "integer",
                    "minimum": 0,
                },
                "route": route(generator),
            },
            "required": ["route"],
            "additionalProperties": false,
        },
    })
}

/// Returns the schema of [`Route`](ragtag_transfer::Route): a route name, or an object with the ring size.
fn route(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [
            { "enum": ["peer", "import"] },
            {
                "type": "object",
                "properties": {
                    "host-staged": {
                        "type": "object",
                        "properties": {
                            "chunk_bytes": { "type": "integer", "minimum": 1 },
                            "depth": { "type": "integer", "minimum": 1 },
                        },
                        "additionalProperties": false,
                    },
                },
                "required": ["host-staged"],
                "additionalProperties": false,
            },
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ragtag_transfer::Route;

    #[test]
    fn the_committed_schemas_are_those_of_the_types() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schemas/");
        for (name, text) in all() {
            let committed = std::fs::read_to_string(format!("{folder}{name}")).unwrap_or_default();
            assert_eq!(committed, text, "docs/schemas/{name} is stale; run `cargo xtask schemas`");
        }
    }

    /// Checks that the schema of routes matches the type. The schema is written by hand, so it could diverge.
    #[test]
    fn the_schema_of_routes_has_their_names() {
        let schema = route(&mut SchemaGenerator::default());
        let (names, ring) =
            (&schema.as_value()["anyOf"][0]["enum"], &schema.as_value()["anyOf"][1]["properties"]);
        let written = |route: Route| serde_json::to_value(route).unwrap();
        for route in [Route::Peer, Route::Import] {
            assert!(names.as_array().unwrap().contains(&written(route)));
        }
        let staged = written(Route::HOST_STAGED);
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&staged), keys(ring));
        assert_eq!(keys(&staged["host-staged"]), keys(&ring["host-staged"]["properties"]));
    }

    #[test]
    fn a_ring_without_figures_is_the_default_ring() {
        let read = |json: &str| serde_json::from_str::<Route>(json).unwrap();
        assert_eq!(read(r#"{"host-staged": {}}"#), Route::HOST_STAGED);
        let deep = Route::HostStaged { chunk_bytes: 256 << 10, depth: 9 };
        assert_eq!(read(r#"{"host-staged": {"depth": 9}}"#), deep);
    }
}
