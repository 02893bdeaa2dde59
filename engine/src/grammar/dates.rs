//! Dates and times in JSON schemas, as exact regular expressions. The formats of llguidance allow a leap second at any
//! time, and the 29th of February in any year. Validators refuse such values.

use serde_json::Value;

/// Date of RFC 3339, with the days of each month.
macro_rules! date {
    () => {
        concat!(
            "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
            "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
            "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
        )
    };
}

/// Time of RFC 3339 with its offset, without leap seconds.
macro_rules! time {
    () => {
        concat!(
            "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?",
            "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
        )
    };
}

const DATE: &str = concat!("^", date!(), "$");
const TIME: &str = concat!("^", time!(), "$");
const DATE_TIME: &str = concat!("^", date!(), "[tT]", time!(), "$");

/// Keywords whose values are data, not schemas.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// Replaces the formats of dates and times in a schema by patterns. A schema with a pattern of its own keeps its format.
pub(super) fn make_exact(schema: &mut Value) {
    match schema {
        Value::Array(schemas) => schemas.iter_mut().for_each(make_exact),
        Value::Object(fields) => {
            let pattern = match fields.get("format").and_then(Value::as_str) {
                Some("date") => Some(DATE),
                Some("time") => Some(TIME),
                Some("date-time") => Some(DATE_TIME),
                _ => None,
            };
            if let Some(pattern) = pattern.filter(|_| !fields.contains_key("pattern")) {
                fields.remove("format");
                fields.insert("pattern".into(), pattern.into());
            }
            let schemas = fields.iter_mut().filter(|(name, _)| !DATA.contains(&name.as_str()));
            schemas.for_each(|(_, schema)| make_exact(schema));
        }
        _ => {}
    }
}
