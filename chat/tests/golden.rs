//! Compares prompts with those of the Python library transformers. `compare.py` wrote the expected prompts.

use ragtag_chat::{Conversation, Data, Error, Message, Moment, Object, Template};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Vec<Message>,
    tools: Option<Vec<Object>>,
    documents: Option<Vec<Object>>,
    #[serde(default)]
    variables: BTreeMap<String, Data>,
}

/// Result of one rendering in `expected.json.zst`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Expected {
    Prompt(String),
    /// Message of `raise_exception`.
    Raised(String),
    /// Any other error.
    Error(bool),
}

impl Case {
    /// Returns the conversation without and with the start of the assistant's next message.
    fn conversations(&self) -> [Conversation; 2] {
        [false, true].map(|add_generation_prompt| {
            let mut conversation = Conversation::new(self.messages.clone());
            conversation.tools = self.tools.clone();
            conversation.documents = self.documents.clone();
            conversation.variables = self.variables.clone();
            conversation.add_generation_prompt = add_generation_prompt;
            conversation.bos_token = Some("<s>".into());
            conversation.eos_token = Some("</s>".into());
            conversation.now = Moment::parse("2025-03-09T08:05:07");
            conversation
        })
    }
}

fn check(name: &str, found: ragtag_chat::Result<String>, expected: &Expected) {
    match (expected, found) {
        (Expected::Prompt(expected), Ok(found)) => assert_eq!(&found, expected, "{name}"),
        (Expected::Raised(expected), Err(Error::Raised { message })) => {
            assert_eq!(&message, expected, "{name}");
        }
        (Expected::Error(true), Err(Error::Evaluation { .. })) => {}
        (expected, found) => panic!("{name}: expected {expected:?}, found {found:?}"),
    }
}

#[test]
fn prompts_equal_those_of_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&read("conversations.json")).unwrap();
    let expected: BTreeMap<String, Vec<Expected>> =
        serde_json::from_str(&test_support::unpacked(&folder.join("expected.json.zst"))).unwrap();
    assert!(expected.len() >= 20, "{}", expected.len());
    for (template, expected) in &expected {
        let compiled = Template::compile(&read(&format!("templates/{template}.jinja"))).unwrap();
        let found = cases.iter().flat_map(|case| case.conversations().map(|c| (&case.name, c)));
        let found: Vec<_> = found.collect();
        assert_eq!(found.len(), expected.len(), "{template}");
        for ((case, conversation), expected) in found.into_iter().zip(expected) {
            check(&format!("{template}, {case}"), compiled.render(&conversation), expected);
        }
    }
}
