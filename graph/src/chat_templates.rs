//! Chat templates and special tokens, from the metadata of a GGUF file or from a model directory. This module
//! only reads them. The crate `ragtag-chat` renders them.

use crate::checkpoint::{
    CHAT_TEMPLATE, CHAT_TEMPLATE_JSON, Fields, MAX_CONFIG_BYTES, SPECIAL_TOKENS, TOKENIZER_CONFIG,
};
use crate::error::FormatError;
use crate::gguf::{Array, Metadata};
use crate::json;
use crate::source::{Directory, Source};
use serde_json::Value;
use std::collections::BTreeMap;

/// Name of the template that is used if the caller names none.
const DEFAULT: &str = "default";
/// Name of the template that `transformers` prefers if there are tools.
const TOOL_USE: &str = "tool_use";
/// Maximum number of named templates in a GGUF file.
const MAX_NAMES: usize = 64;

/// Metadata keys of special tokens, and their names in templates.
const TOKENS: [(&str, &str); 4] = [
    ("tokenizer.ggml.bos_token_id", "bos_token"),
    ("tokenizer.ggml.eos_token_id", "eos_token"),
    ("tokenizer.ggml.unknown_token_id", "unk_token"),
    ("tokenizer.ggml.padding_token_id", "pad_token"),
];

/// Sources of a model's chat templates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatTemplates {
    templates: BTreeMap<String, String>,
    /// Texts of special tokens, by their names in templates, such as `bos_token`.
    pub tokens: BTreeMap<String, String>,
}

impl ChatTemplates {
    /// Reads the templates from the metadata of a GGUF file.
    ///
    /// # Errors
    /// Fails if a value has the wrong type.
    pub fn from_metadata(metadata: &Metadata) -> Result<ChatTemplates, FormatError> {
        let mut found = ChatTemplates::default();
        if let Some(source) = metadata.find::<&str>("tokenizer.chat_template")? {
            found.templates.insert(DEFAULT.to_owned(), source.to_owned());
        }
        if let Some(names) = metadata.find::<Array<'_>>("tokenizer.chat_templates")? {
            for name in names.list::<&str>().take(MAX_NAMES) {
                let name = name?;
                if let Some(source) = metadata.find::<&str>(&format!("tokenizer.chat_template.{name}"))? {
                    found.templates.insert(name.to_owned(), source.to_owned());
                }
            }
        }
        for (key, name) in TOKENS {
            let Some(id) = metadata.find::<u32>(key)? else { continue };
            let Some(tokens) = metadata.find::<Array<'_>>("tokenizer.ggml.tokens")? else { continue };
            if let Some(text) = tokens.list::<&str>().nth(id as usize) {
                found.tokens.insert(name.to_owned(), text?.to_owned());
            }
        }
        Ok(found)
    }

    /// Reads the templates from a model directory: from `tokenizer_config.json`, or from a file of their own,
    /// which takes precedence.
    ///
    /// # Errors
    /// Fails if a file is damaged or a value has the wrong type.
    pub fn from_directory(directory: &Directory) -> Result<ChatTemplates, FormatError> {
        let mut found = ChatTemplates::default();
        if let Some(source) = directory.file(SPECIAL_TOKENS) {
            found.tokens = Fields::read(source.as_ref())?.special_tokens();
        }
        if let Some(source) = directory.file(TOKENIZER_CONFIG) {
            let config = Fields::read(source.as_ref())?;
            found.read_templates(&config)?;
            found.tokens.extend(config.special_tokens());
        }
        if let Some(source) = directory.file(CHAT_TEMPLATE_JSON) {
            found.read_templates(&Fields::read(source.as_ref())?)?;
        }
        if let Some(source) = directory.file(CHAT_TEMPLATE) {
            found.templates.insert(DEFAULT.to_owned(), text(source.as_ref())?);
        }
        Ok(found)
    }

    /// Reads the field `chat_template`, which is a template or a list of objects with a name and a template.
    fn read_templates(&mut self, config: &Fields) -> Result<(), FormatError> {
        const KEY: &str = "chat_template";
        match config.find(KEY) {
            None => {}
            Some(Value::Array(named)) => {
                for entry in named {
                    let field = |key: &str| entry.get(key).and_then(Value::as_str);
                    let (Some(name), Some(source)) = (field("name"), field("template")) else {
                        return Err(config.wrong_type(KEY, "objects with a name and a template", entry));
                    };
                    self.templates.insert(name.to_owned(), source.to_owned());
                }
            }
            Some(_) => {
                let source = config.text(KEY)?.map(str::to_owned);
                self.templates.extend(source.map(|source| (DEFAULT.to_owned(), source)));
            }
        }
        Ok(())
    }

    /// Returns the source of the template called `name`. Without a name, returns the template for tools if
    /// there are tools and the model has such a template, and otherwise the default template.
    pub fn find(&self, name: Option<&str>, has_tools: bool) -> Option<&str> {
        let found = match name {
            Some(name) => self.templates.get(name),
            None => {
                let for_tools = self.templates.get(TOOL_USE).filter(|_| has_tools);
                for_tools.or_else(|| self.templates.get(DEFAULT))
            }
        };
        found.map(String::as_str)
    }

    /// Returns the names of all templates, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.keys().map(String::as_str)
    }
}

/// Reads a text file.
fn text(source: &dyn Source) -> Result<String, FormatError> {
    let text = String::from_utf8(json::whole_file(source, MAX_CONFIG_BYTES)?.into_owned());
    text.map_err(|error| FormatError::Invalid {
        file: source.name().to_owned(),
        at: error.utf8_error().valid_up_to() as u64,
        what: "the chat template".to_owned(),
        cause: "it is not UTF-8".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::{ModelFile, Writer};
    use crate::source::MemorySource;
    use std::sync::Arc;

    fn metadata(write: impl Fn(&mut Writer)) -> Metadata {
        let mut writer = Writer::new();
        write(&mut writer);
        let source = Arc::new(MemorySource::new("m.gguf", writer.header()));
        ModelFile::open(vec![source]).unwrap().metadata
    }

    fn directory(files: &[(&str, &str)]) -> Directory {
        let mut directory = Directory::new("d");
        for (name, content) in files {
            directory.insert(*name, Arc::new(MemorySource::new(*name, content.as_bytes().to_vec())));
        }
        directory
    }

    #[test]
    fn gguf_files_have_named_templates_and_tokens() {
        let found = ChatTemplates::from_metadata(&metadata(|w| {
            w.put("tokenizer.chat_template", "plain");
            w.put("tokenizer.chat_templates", &["tool_use", "missing"][..]);
            w.put("tokenizer.chat_template.tool_use", "tools");
            w.put("tokenizer.ggml.tokens", &["<s>", "</s>"][..]);
            w.put("tokenizer.ggml.eos_token_id", 1u32);
            w.put("tokenizer.ggml.bos_token_id", 9u32);
        }))
        .unwrap();
        assert_eq!(found.names().collect::<Vec<_>>(), ["default", "tool_use"]);
        assert_eq!((found.find(None, false), found.find(None, true)), (Some("plain"), Some("tools")));
        assert_eq!(
            (found.find(Some("tool_use"), false), found.find(Some("x"), false)),
            (Some("tools"), None)
        );
        assert_eq!(found.tokens, [("eos_token".to_owned(), "</s>".to_owned())].into());
        let none = ChatTemplates::from_metadata(&metadata(|_| ())).unwrap();
        assert_eq!(none, ChatTemplates::default());
        assert!(ChatTemplates::from_metadata(&metadata(|w| w.put("tokenizer.chat_template", 1u32))).is_err());
    }

    #[test]
    fn directories_have_templates_in_three_places() {
        let config = r#"{"chat_template": "config", "bos_token": "<s>", "eos_token": {"content": "</s>"},
            "pad_token": null, "add_bos_token": true, "unk_token": 1}"#;
        let mut files = vec![("tokenizer_config.json", config)];
        let source = |files: &[(&str, &str)]| {
            let found = ChatTemplates::from_directory(&directory(files)).unwrap();
            found.find(None, true).unwrap().to_owned()
        };
        assert_eq!(source(&files), "config");
        let found = ChatTemplates::from_directory(&directory(&files)).unwrap();
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
        assert_eq!(found.tokens, tokens.map(|(name, text)| (name.to_owned(), text.to_owned())).into());
        let map = ("special_tokens_map.json", r#"{"eos_token": "old", "pad_token": {"content": "<p>"}}"#);
        let found = ChatTemplates::from_directory(&directory(&[files[0], map])).unwrap();
        assert_eq!((found.tokens["eos_token"].as_str(), found.tokens["pad_token"].as_str()), ("</s>", "<p>"));
        files.push(("chat_template.json", r#"{"chat_template": "json"}"#));
        assert_eq!(source(&files), "json");
        files.push(("chat_template.jinja", "jinja\n"));
        assert_eq!(source(&files), "jinja\n");
        let list = r#"{"chat_template": [{"name": "default", "template": "a"},
            {"name": "tool_use", "template": "b"}]}"#;
        assert_eq!(source(&[("tokenizer_config.json", list)]), "b");
        for (name, content, part) in [
            ("tokenizer_config.json", r#"{"chat_template": 1}"#, "chat_template should be a string"),
            ("tokenizer_config.json", r#"{"chat_template": [1]}"#, "a name and a template"),
            ("chat_template.json", "{", "chat_template.json"),
        ] {
            let error =
                ChatTemplates::from_directory(&directory(&[(name, content)])).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let mut broken = Directory::new("d");
        broken.insert("chat_template.jinja", Arc::new(MemorySource::new("t.jinja", vec![b'a', 0xff])));
        let error = ChatTemplates::from_directory(&broken).unwrap_err().to_string();
        assert!(error.contains("t.jinja") && error.contains("not UTF-8"), "{error}");
    }
}
