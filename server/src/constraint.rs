//! Constraints of answers: formats in the words of each API, and demanded calls of functions. Both become grammars.
//! Pure.

use crate::job::{Rest, check_rest};
use crate::refusal::Refusal;
use crate::tools::{END, Format};
use ragtag_engine::chat::{Data, Message, Object, to_json};
use ragtag_engine::grammar::Grammar;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Maximum number of calls after the first one, if several are demanded.
const MORE_CALLS: u32 = 7;
/// Maximum number of choices.
const MAX_CHOICES: usize = 4096;

/// Format of an answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct AnswerFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    kind: String,
    /// The schema with its name, for chats.
    json_schema: Option<NamedSchema>,
    /// The schema, for responses and messages.
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

/// A JSON schema with a name.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct NamedSchema {
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

/// Fields that describe a schema. Every schema is obeyed strictly.
const DESCRIPTIONS: &[&str] = &["name", "description", "strict"];

impl AnswerFormat {
    /// Returns the grammar of the format, or `None` for text. `param` is the name of the field.
    pub(crate) fn grammar(self, param: &str) -> Result<Option<Grammar>, Refusal> {
        check_rest(&self.rest, DESCRIPTIONS)?;
        let named =
            self.json_schema.map(|named| check_rest(&named.rest, DESCRIPTIONS).map(|()| named.schema));
        let schema = named.transpose()?.flatten().or(self.schema);
        match self.kind.as_str() {
            "text" => Ok(None),
            "json_object" => Ok(Some(schema.map_or_else(any_object, Grammar::JsonSchema))),
            "json_schema" => match schema {
                Some(schema) => Ok(Some(Grammar::JsonSchema(schema))),
                None => Err(Refusal::of(param, "the type json_schema needs a schema")),
            },
            kind => Err(Refusal::of(
                param,
                format!("the type {kind:?} is unknown: use text, json_object or json_schema"),
            )),
        }
    }
}

fn any_object() -> Grammar {
    Grammar::JsonSchema(json!({ "type": "object" }))
}

/// Constraint in the words of vLLM. One of the fields is set.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct StructuredOutputs {
    /// A JSON schema, or its text.
    #[schema(value_type = Option<Object>)]
    json: Option<Value>,
    regex: Option<String>,
    /// Possible answers.
    choice: Option<Vec<String>>,
    /// A grammar in GBNF or Lark.
    grammar: Option<String>,
    json_object: Option<bool>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

impl StructuredOutputs {
    fn grammars(self) -> Result<Vec<Grammar>, Refusal> {
        check_rest(&self.rest, &[])?;
        let json = self.json.map(|json| schema("structured_outputs", json)).transpose()?;
        let choice = match self.choice {
            Some(texts) if texts.is_empty() || texts.len() > MAX_CHOICES => {
                let message = format!("choice must have 1 to {MAX_CHOICES} texts");
                return Err(Refusal::of("structured_outputs", message));
            }
            texts => texts.map(|texts| Grammar::Choice(texts.into_iter().map(Grammar::Text).collect())),
        };
        // Only GBNF has this sign.
        let grammar = self.grammar.map(|source| match source.contains("::=") {
            true => Grammar::Gbnf(source),
            false => Grammar::Lark(source),
        });
        let object = self.json_object.unwrap_or(false).then(any_object);
        Ok([json, self.regex.map(Grammar::Regex), choice, grammar, object].into_iter().flatten().collect())
    }
}

/// Returns the grammar of a JSON schema, which may be a text.
fn schema(param: &str, schema: Value) -> Result<Grammar, Refusal> {
    match schema {
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(schema) => Ok(Grammar::JsonSchema(schema)),
            Err(cause) => Err(Refusal::of(param, format!("the schema is not JSON: {cause}"))),
        },
        schema => Ok(Grammar::JsonSchema(schema)),
    }
}

/// Constraints of a request in the words of OpenAI, vLLM and llama.cpp.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct Constraints {
    response_format: Option<AnswerFormat>,
    structured_outputs: Option<StructuredOutputs>,
    /// A grammar in GBNF, as llama.cpp takes it.
    grammar: Option<String>,
    /// A JSON schema, as llama.cpp takes it.
    #[schema(value_type = Option<Object>)]
    json_schema: Option<Value>,
}

impl Constraints {
    /// Returns the grammar of the answer, if it is constrained.
    pub(crate) fn grammar(self) -> Result<Option<Grammar>, Refusal> {
        let format = self.response_format.map(|format| format.grammar("response_format")).transpose()?;
        let outputs = self.structured_outputs.map(StructuredOutputs::grammars).transpose()?;
        let own = self.grammar.filter(|source| !source.is_empty()).map(Grammar::Gbnf);
        let json = self.json_schema.map(|json| schema("json_schema", json)).transpose()?;
        let mut all =
            format.flatten().into_iter().chain(outputs.into_iter().flatten()).chain(own).chain(json);
        match (all.next(), all.next()) {
            (only, None) => Ok(only),
            _ => Err(Refusal::of("response_format", "the answer can have only one constraint")),
        }
    }
}

/// Whether the model must call functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Calls {
    #[default]
    Free,
    /// The answer consists of calls.
    Required,
    /// The answer is one call of this function.
    Of(String),
}

impl Calls {
    /// Reads the choice in the APIs of OpenAI. Returns `None` if the model must not call functions.
    pub(crate) fn of(choice: Option<&Value>) -> Result<Option<Self>, Refusal> {
        let Some(choice) = choice else { return Ok(Some(Self::Free)) };
        let name = choice["function"]["name"].as_str().or(choice["name"].as_str());
        match (choice.as_str().or(choice["type"].as_str()), name) {
            (Some("auto"), _) => Ok(Some(Self::Free)),
            (Some("none"), _) => Ok(None),
            (Some("required"), _) => Ok(Some(Self::Required)),
            (Some("function"), Some(name)) => Ok(Some(Self::Of(name.to_owned()))),
            _ => {
                let message =
                    format!("tool_choice {choice} is not supported: use auto, none, required or a function");
                Err(Refusal::of("tool_choice", message).code("unsupported_parameter"))
            }
        }
    }

    /// Checks that the demanded functions exist.
    pub(crate) fn check(&self, tools: &[Object]) -> Result<(), Refusal> {
        match self {
            Self::Free => Ok(()),
            Self::Required if tools.is_empty() => {
                Err(Refusal::of("tool_choice", "tool_choice demands a call, but there are no tools"))
            }
            Self::Of(name) if !tools.iter().any(|tool| name_of(tool).as_deref() == Some(name)) => {
                Err(Refusal::of("tool_choice", format!("there is no tool {name:?}")))
            }
            _ => Ok(()),
        }
    }
}

fn name_of(tool: &Object) -> Option<String> {
    Some(tool.get("function")?.as_object()?.get("name")?.as_str()?.to_owned())
}

/// Returns the JSON schema of the arguments of a function.
fn arguments(tool: &Object) -> Result<Value, Refusal> {
    let function = tool.get("function").and_then(|function| function.as_object());
    let Some(parameters) = function.and_then(|function| function.get("parameters")) else {
        return Ok(json!({ "type": "object", "additionalProperties": false }));
    };
    match json_of(parameters) {
        Some(Value::Object(mut schema)) => {
            // Arguments are always an object.
            schema.entry("type").or_insert_with(|| "object".into());
            Ok(Value::Object(schema))
        }
        _ => Err(Refusal::of("tools", "the parameters of a function must be a JSON schema")),
    }
}

fn json_of(data: Data) -> Option<Value> {
    let written = to_json(&[Message::new("", "").with("data", data)]);
    serde_json::from_str::<Value>(&written).ok()?.get_mut(0)?.get_mut("data").map(Value::take)
}

/// Returns the grammar of an answer that consists of calls. `control` returns the control token with a text.
pub(crate) fn calls(
    format: Format,
    tools: &[Object],
    choice: &Calls,
    takes_one: bool,
    control: impl Fn(&str) -> Option<u32>,
) -> Result<Grammar, Refusal> {
    let marker = |text: &str| control(text).map_or_else(|| Grammar::Text(text.into()), Grammar::Token);
    let key = if format == Format::Bare { "parameters" } else { "arguments" };
    let is_chosen = |name: &str| !matches!(choice, Calls::Of(chosen) if chosen != name);
    let mut objects = Vec::new();
    for tool in tools {
        let Some(name) = name_of(tool).filter(|name| is_chosen(name)) else { continue };
        objects.push(Grammar::Sequence(vec![
            Grammar::Text(format!("{{\"name\": {}, \"{key}\": ", Value::from(name))),
            Grammar::JsonSchema(arguments(tool)?),
            Grammar::Text("}".into()),
        ]));
    }
    let object = Grammar::Choice(objects);
    let (call, separator) = match format {
        Format::Tagged => {
            let parts = [marker(format.begin()), Grammar::Text("\n".into()), object];
            let end = [Grammar::Text("\n".into()), marker(END)];
            (Grammar::Sequence(parts.into_iter().chain(end).collect()), "\n")
        }
        Format::Listed => (object, ", "),
        Format::Bare => (object, "; "),
    };
    let takes_one = takes_one || matches!(choice, Calls::Of(_));
    let all = match takes_one {
        true => call,
        false => {
            let next = Grammar::Sequence(vec![Grammar::Text(separator.into()), call.clone()]);
            let more = Grammar::Repeat(Box::new(next), MORE_CALLS);
            Grammar::Sequence(vec![call, Grammar::Choice(vec![Grammar::Text(String::new()), more])])
        }
    };
    Ok(match format {
        Format::Listed => {
            let open = [marker(format.begin()), Grammar::Text("[".into())];
            let close = [all, Grammar::Text("]".into())];
            Grammar::Sequence(open.into_iter().chain(close).collect())
        }
        Format::Tagged | Format::Bare => all,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammar(request: Value) -> Result<Option<Grammar>, Refusal> {
        serde_json::from_value::<Constraints>(request).unwrap().grammar()
    }

    #[test]
    fn each_api_has_its_words_for_the_same_grammar() {
        let schema = json!({ "type": "object", "properties": { "b": {}, "a": {} } });
        let same = [
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": schema, "strict": true } } }),
            json!({ "response_format": { "type": "json_object", "schema": schema } }),
            json!({ "structured_outputs": { "json": schema } }),
            json!({ "structured_outputs": { "json": schema.to_string() } }),
            json!({ "json_schema": schema }),
        ];
        for request in same {
            assert_eq!(grammar(request).unwrap(), Some(Grammar::JsonSchema(schema.clone())));
        }
        let gbnf = "root ::= \"a\"";
        for request in [json!({ "grammar": gbnf }), json!({ "structured_outputs": { "grammar": gbnf } })] {
            assert_eq!(grammar(request).unwrap(), Some(Grammar::Gbnf(gbnf.into())));
        }
        assert_eq!(grammar(json!({ "response_format": { "type": "text" }, "grammar": "" })).unwrap(), None);
    }

    #[test]
    fn unclear_constraints_are_refused() {
        for request in [
            json!({ "response_format": { "type": "json_schema" } }),
            json!({ "response_format": { "type": "xml" } }),
            json!({ "response_format": { "type": "text", "extra": 1 } }),
            json!({ "structured_outputs": { "choice": [] } }),
            json!({ "structured_outputs": { "structural_tag": "x" } }),
            json!({ "structured_outputs": { "json": "{" } }),
            json!({ "structured_outputs": { "regex": "a", "choice": ["b"] } }),
            json!({ "grammar": "root ::= \"a\"", "json_schema": {} }),
        ] {
            assert!(grammar(request.clone()).is_err(), "{request}");
        }
    }

    #[test]
    fn choices_of_tools_are_read() {
        let of = |choice: Value| Calls::of(Some(&choice));
        assert_eq!(Calls::of(None).unwrap(), Some(Calls::Free));
        assert_eq!(of(json!("none")).unwrap(), None);
        assert_eq!(of(json!("required")).unwrap(), Some(Calls::Required));
        let named = Some(Calls::Of("f".into()));
        assert_eq!(of(json!({ "type": "function", "function": { "name": "f" } })).unwrap(), named);
        assert_eq!(of(json!({ "type": "function", "name": "f" })).unwrap(), named);
        for choice in
            [json!("any"), json!({ "type": "function" }), json!(3), json!({ "type": "allowed_tools" })]
        {
            assert!(of(choice.clone()).is_err(), "{choice}");
        }
        let tool = crate::job::function("f", None, None);
        assert!(Calls::Of("g".into()).check(std::slice::from_ref(&tool)).is_err());
        assert!(Calls::Of("f".into()).check(&[tool]).is_ok());
        assert!(Calls::Required.check(&[]).is_err());
    }
}
