//! Conversations: the input of a chat template.

use crate::meter::{Evaluated, Fault, Meter};
use crate::strftime::Moment;
use crate::value::{Dict, Key, Value};
use indexmap::IndexMap;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A JSON value. Objects keep the order of their keys, because templates print them.
#[derive(Clone, Debug)]
pub struct Data(Value);

/// A JSON object that keeps the order of its keys.
#[derive(Clone, Debug, Default)]
pub struct Object(Arc<Dict>);

/// A message of a conversation. Besides a role and a content, it may have any other fields, such as
/// `tool_calls`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Message(Object);

/// Input of a chat template.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Conversation {
    /// Messages, oldest first.
    pub messages: Vec<Message>,
    /// Descriptions of the functions that the model may call.
    pub tools: Option<Vec<Object>>,
    /// Documents that the model may cite.
    pub documents: Option<Vec<Object>>,
    /// Whether the prompt ends with the start of the assistant's next message.
    pub add_generation_prompt: bool,
    /// Text of the token that begins a text.
    pub bos_token: Option<String>,
    /// Text of the token that ends a text.
    pub eos_token: Option<String>,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: BTreeMap<String, Data>,
    /// Time for `strftime_now`.
    pub now: Option<Moment>,
}

/// Names of the field in which a model's reasoning is found, the most common name first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl Message {
    /// Creates a message with a role and a text.
    pub fn new(role: &str, content: &str) -> Message {
        Message::default().with("role", role).with("content", content)
    }

    /// Sets a field.
    #[must_use]
    pub fn with(self, name: &str, value: impl Into<Data>) -> Message {
        Message(self.0.with(name, value))
    }

    /// Returns the role.
    pub fn role(&self) -> Option<&str> {
        self.0.text("role")
    }

    /// Returns the content, if it is a text.
    pub fn content(&self) -> Option<&str> {
        self.0.text("content")
    }

    /// Returns a field.
    pub fn get(&self, name: &str) -> Option<Data> {
        self.0.get(name)
    }

    /// Replaces each text in the message, except its role, by the result of `replace`. Replaces the names of fields of
    /// nested objects, too.
    pub fn replace_texts(&mut self, replace: &mut dyn FnMut(&str) -> String) {
        let fields = self.0.0.map.iter().map(|(name, value)| match name.as_str() {
            Some("role") => (name.clone(), value.clone()),
            _ => (name.clone(), replaced(value, replace)),
        });
        self.0 = Object(Dict::new(fields.collect()).unwrap_or_default());
    }

    pub(crate) fn dict(&self) -> &Dict {
        &self.0.0
    }

    /// Returns the fields as `transformers` passes them to the template: without fields that are null, and
    /// with the reasoning under each name that templates read.
    fn value(&self) -> Evaluated<Value> {
        let mut fields = self.0.0.map.clone();
        fields.retain(|_, value| !matches!(value, Value::None));
        let reasoning = REASONING.iter().find_map(|name| fields.get(&Key::text(*name)).cloned());
        if let Some(reasoning) = reasoning {
            let mut aliased = IndexMap::from([(Key::text("thinking"), reasoning.clone())]);
            aliased.extend(fields);
            aliased.insert(Key::text("reasoning_content"), reasoning);
            fields = aliased;
        }
        Dict::new(fields).map(Value::Dict)
    }
}

/// Returns `value` with the result of `replace` for each text.
fn replaced(value: &Value, replace: &mut dyn FnMut(&str) -> String) -> Value {
    match value {
        Value::Str(text) => Value::from(replace(text).as_str()),
        Value::List(items) => {
            let items = items.items.iter().map(|item| replaced(item, replace)).collect();
            Value::list(items).unwrap_or(Value::None)
        }
        Value::Dict(dict) => {
            let entries = dict.map.iter().map(|(name, value)| {
                let name = name.as_str().map_or_else(|| name.clone(), |name| Key::text(replace(name)));
                (name, replaced(value, replace))
            });
            Dict::new(entries.collect()).map_or(Value::None, Value::Dict)
        }
        other => other.clone(),
    }
}

impl Object {
    /// Sets a field. A value that is nested too deeply becomes null.
    #[must_use]
    pub fn with(self, name: &str, value: impl Into<Data>) -> Object {
        let mut map = self.0.map.clone();
        map.insert(Key::text(name), value.into().0);
        Object(Dict::new(map).unwrap_or_default())
    }

    /// Returns a field.
    pub fn get(&self, name: &str) -> Option<Data> {
        self.0.get(name).cloned().map(Data)
    }

    /// Replaces each text in the object, and each name of a field, by the result of `replace`.
    pub fn replace_texts(&mut self, replace: &mut dyn FnMut(&str) -> String) {
        if let Value::Dict(dict) = replaced(&Value::Dict(Arc::clone(&self.0)), replace) {
            self.0 = dict;
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.0.get(name) {
            Some(Value::Str(text)) => Some(text),
            _ => None,
        }
    }
}

impl Data {
    /// Returns the text, if the value is one.
    pub fn as_str(&self) -> Option<&str> {
        match &self.0 {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the object, if the value is one.
    pub fn as_object(&self) -> Option<Object> {
        match &self.0 {
            Value::Dict(dict) => Some(Object(Arc::clone(dict))),
            _ => None,
        }
    }
}

impl Conversation {
    /// Creates a conversation without tools, documents and tokens.
    pub fn new(messages: Vec<Message>) -> Conversation {
        Conversation { messages, ..Conversation::default() }
    }

    /// Returns the variables of the template.
    pub(crate) fn values(&self, meter: &Meter) -> Evaluated<BTreeMap<&str, Value>> {
        meter.make_items(self.messages.len().saturating_mul(16))?;
        let objects = |objects: &Option<Vec<Object>>| match objects {
            None => Ok(Value::None),
            Some(objects) => {
                Value::list(objects.iter().map(|object| Value::Dict(Arc::clone(&object.0))).collect())
            }
        };
        let mut values = BTreeMap::new();
        let tokens = [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)];
        for (name, token) in tokens {
            if let Some(token) = token {
                values.insert(name, Value::from(token.as_str()));
            }
        }
        values.extend(self.variables.iter().map(|(name, value)| (name.as_str(), value.0.clone())));
        let messages: Vec<_> = self.messages.iter().map(Message::value).collect::<Evaluated<_>>()?;
        values.insert("messages", Value::list(messages)?);
        // Without tools and documents, these variables are defined and `None`.
        values.insert("tools", objects(&self.tools)?);
        values.insert("documents", objects(&self.documents)?);
        values.insert("add_generation_prompt", Value::Bool(self.add_generation_prompt));
        Ok(values)
    }
}

impl From<&str> for Data {
    fn from(text: &str) -> Self {
        Data(text.into())
    }
}

impl From<bool> for Data {
    fn from(flag: bool) -> Self {
        Data(Value::Bool(flag))
    }
}

impl From<Object> for Data {
    fn from(object: Object) -> Self {
        Data(Value::Dict(object.0))
    }
}

impl From<Vec<Data>> for Data {
    /// Returns a list. A list that is nested too deeply becomes null.
    fn from(items: Vec<Data>) -> Self {
        Data(Value::list(items.into_iter().map(|item| item.0).collect()).unwrap_or(Value::None))
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DataVisitor)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

fn too_deep<E: serde::de::Error>(_: Box<Fault>) -> E {
    E::custom("values are nested too deeply")
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Object, A::Error> {
        let mut map = IndexMap::new();
        while let Some((key, value)) = access.next_entry::<String, Data>()? {
            map.insert(Key::text(key), value.0);
        }
        Dict::new(map).map(Object).map_err(too_deep)
    }
}

struct DataVisitor;

impl<'de> Visitor<'de> for DataVisitor {
    type Value = Data;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Data, E> {
        Ok(Data(Value::None))
    }

    fn visit_none<E>(self) -> Result<Data, E> {
        Ok(Data(Value::None))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Data, D::Error> {
        Data::deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Data, E> {
        Ok(Data(Value::Bool(flag)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Data, E> {
        Ok(Data(Value::Int(number.into())))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Data, E> {
        Ok(Data(Value::Int(number)))
    }

    /// Takes the digits of an integer outside the range of `i128`, which [`from_json`](crate::from_json) passes.
    fn visit_bytes<E: serde::de::Error>(self, digits: &[u8]) -> Result<Data, E> {
        let digits = std::str::from_utf8(digits).map_err(E::custom)?;
        Ok(Data(Value::Big(digits.into())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Data, E> {
        Ok(Data(Value::Int(number.into())))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Data, E> {
        Ok(Data(Value::Float(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Data, E> {
        Ok(Data(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Data, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element::<Data>()? {
            items.push(item.0);
        }
        Value::list(items).map(Data).map_err(too_deep)
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Data, A::Error> {
        ObjectVisitor.visit_map(access).map(Data::from).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Conversation, Message, Template};

    /// Renders the fields of the first message.
    fn fields(message: &str) -> String {
        let message: Message = serde_json::from_str(message).unwrap();
        let template = Template::compile("{{ messages[0] | items | list }}").unwrap();
        template.render(&Conversation::new(vec![message])).unwrap()
    }

    #[test]
    fn messages_keep_unknown_fields_in_order() {
        let message = Message::new("user", "hi").with("z", true).with("a", "b");
        assert_eq!((message.role(), message.content()), (Some("user"), Some("hi")));
        assert_eq!(message.get("a").unwrap().as_str(), Some("b"));
        assert!(message.get("x").is_none() && Message::default().role().is_none());
        assert_eq!(
            fields(r#"{"z": 1, "role": "user", "a": [2.0]}"#),
            "[('z', 1), ('role', 'user'), ('a', [2.0])]"
        );
        // If a key occurs twice, its last value counts, at the place of the first, as in Python.
        assert_eq!(fields(r#"{"a": 1, "b": 2, "a": 3}"#), "[('a', 3), ('b', 2)]");
    }

    #[test]
    fn fields_without_value_are_absent_and_reasoning_has_all_names() {
        assert_eq!(fields(r#"{"role": "user", "content": null}"#), "[('role', 'user')]");
        let all = "[('thinking', 'r'), ('a', 1), ('reasoning', 'r'), ('reasoning_content', 'r')]";
        assert_eq!(fields(r#"{"a": 1, "reasoning": "r"}"#), all);
        let first = "[('thinking', 't'), ('reasoning_content', 'c')]";
        assert_eq!(fields(r#"{"reasoning_content": "c", "thinking": "t"}"#), first);
    }

    #[test]
    fn deep_and_wrong_values_are_errors() {
        let deep = format!("{{\"a\": {}1{}}}", "[".repeat(120), "]".repeat(120));
        assert!(serde_json::from_str::<Message>(&deep).is_ok());
        let deeper = format!("{{\"a\": {}1{}}}", "[".repeat(1000), "]".repeat(1000));
        assert!(serde_json::from_str::<Message>(&deeper).is_err());
        for wrong in ["[]", "1", "\"a\"", "null"] {
            let error = serde_json::from_str::<Message>(wrong).unwrap_err().to_string();
            assert!(error.contains("expected an object"), "{error}");
        }
    }

    #[test]
    fn several_threads_may_share_a_template() {
        fn shared<T: Send + Sync>() {}
        shared::<Template>();
        shared::<Conversation>();
    }
}
