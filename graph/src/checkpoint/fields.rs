//! Fields of JSON objects, such as those of `config.json`. Each error names the file and the field.

use super::files::{CONFIG, MAX_CONFIG_BYTES};
use crate::arch::hyperparameters::{in_range, positive};
use crate::error::{FormatError, ModelError, Quoted};
use crate::json;
use crate::source::Source;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Fields of a JSON object, which callers read by key. A `null` field counts as missing.
pub(crate) struct Fields {
    file: String,
    /// Path of this object within the file. Messages prepend it to each key.
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// Reads a file that consists of one JSON object.
    pub(crate) fn read(source: &dyn Source) -> Result<Self, FormatError> {
        let json = json::whole_file(source, MAX_CONFIG_BYTES)?;
        let map = json::parse_slice(source.name(), &json::quote_words(&json))?;
        Ok(Fields { file: source.name().to_owned(), path: String::new(), map })
    }

    /// Adds a field unless the object has it. A `null` field is not missing here.
    pub(super) fn add_missing(&mut self, key: &str, value: Value) {
        self.map.entry(key).or_insert(value);
    }

    pub(super) fn set(&mut self, key: &str, value: Value) {
        self.map.insert(key.to_owned(), value);
    }

    pub(crate) fn find(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns `key`, preceded by the path of its object, for messages.
    fn label(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    pub(crate) fn missing(&self, key: &str) -> FormatError {
        FormatError::MissingKey { file: self.file.clone(), key: self.label(key) }
    }

    pub(crate) fn wrong_type(&self, key: &str, expected: &'static str, found: &Value) -> FormatError {
        let (file, key) = (self.file.clone(), self.label(key));
        FormatError::WrongType { file, key, expected, found: shown(found) }
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, FormatError> {
        let flag =
            |value: &Value| value.as_bool().ok_or_else(|| self.wrong_type(key, "true or false", value));
        self.find(key).map(flag).transpose()
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, FormatError> {
        let text = |value| Value::as_str(value).ok_or_else(|| self.wrong_type(key, "a string", value));
        self.find(key).map(text).transpose()
    }

    /// Returns the token ids under `key`, whose value may be a number or a list of numbers. Returns an empty
    /// list if the key is missing. Ids may be outside the vocabulary. Converters write -1 for "none".
    pub(crate) fn ids(&self, key: &str) -> Result<Vec<i128>, FormatError> {
        let values = match self.find(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        let id = |value: &Value| {
            let id = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
            id.ok_or_else(|| self.wrong_type(key, "a token id or a list of them", value))
        };
        values.iter().filter(|value| !value.is_null()).map(id).collect()
    }

    /// Returns the texts of special tokens by their keys, such as `bos_token`. The value of a key is a text or an
    /// object with the text.
    pub(crate) fn special_tokens(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| match value {
            Value::Object(token) => token.get("content")?.as_str().map(str::to_owned),
            other => other.as_str().map(str::to_owned),
        };
        let tokens = self.map.iter().filter(|(key, _)| key.ends_with("_token"));
        tokens.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect()
    }

    /// Returns the texts of all special tokens, including those under `additional_special_tokens`.
    pub(crate) fn special_texts(&self) -> BTreeSet<String> {
        let more = self.find("additional_special_tokens").and_then(Value::as_array).into_iter().flatten();
        let more = more.filter_map(|value| value.get("content").unwrap_or(value).as_str().map(str::to_owned));
        self.special_tokens().into_values().chain(more).collect()
    }

    /// Returns all fields.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.map.iter()
    }

    /// Returns the name of the file.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Returns the list of strings under `key`.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, FormatError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let texts = value.as_array().and_then(|all| all.iter().map(Value::as_str).collect());
        texts.map(Some).ok_or_else(|| self.wrong_type(key, "a list of strings", value))
    }

    /// Returns the list of numbers under `key`.
    pub(crate) fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, FormatError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        let numbers = value.as_array().and_then(|all| all.iter().map(number).collect());
        numbers.map(Some).ok_or_else(|| self.wrong_type(key, "a list of numbers", value))
    }

    /// Returns the values of all keys, which must be objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = Result<Fields, FormatError>> {
        self.map.keys().filter_map(|key| self.object(key).transpose())
    }

    pub(crate) fn object(&self, key: &str) -> Result<Option<Fields>, FormatError> {
        match self.find(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                let path = format!("{}{key}.", self.path);
                Ok(Some(Fields { file: self.file.clone(), path, map: map.clone() }))
            }
            Some(other) => Err(self.wrong_type(key, "an object", other)),
        }
    }

    /// Returns the whole number under `key`, which may be zero.
    pub(crate) fn find_whole(&self, key: &str) -> Result<Option<u32>, FormatError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.wrong_type(key, "a whole number", value))
    }

    pub(crate) fn find_count(&self, key: &str) -> Result<Option<u32>, ModelError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let number = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
        let number = number.ok_or_else(|| self.wrong_type(key, "a whole number", value))?;
        in_range(&self.in_file(key), number).map(Some)
    }

    pub(super) fn count(&self, key: &str) -> Result<u32, ModelError> {
        Ok(self.find_count(key)?.ok_or_else(|| self.missing(key))?)
    }

    pub(crate) fn find_float(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let number = value.as_f64().ok_or_else(|| self.wrong_type(key, "a number", value))?;
        positive(&self.in_file(key), number as f32).map(Some)
    }

    pub(super) fn float(&self, key: &str) -> Result<f32, ModelError> {
        Ok(self.find_float(key)?.ok_or_else(|| self.missing(key))?)
    }

    /// Returns `key` with the path of its object and the file's name, for [`ModelError::Hyperparameter`].
    pub(crate) fn in_file(&self, key: &str) -> String {
        format!("{} in {CONFIG}", self.label(key))
    }

    /// Rejects `key` if it is present with a value other than those in `off`.
    pub(crate) fn refuse(&self, key: &str, off: &[Value]) -> Result<(), ModelError> {
        match self.find(key).filter(|value| !off.contains(value)) {
            Some(value) => {
                let what = format!("{} = {}", self.in_file(key), shown(value));
                Err(ModelError::Unsupported { what })
            }
            None => Ok(()),
        }
    }
}

/// Formats a value for messages.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", Quoted(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        number_or_truth => number_or_truth.to_string(),
    }
}
