//! Renders conversations for `tests/compare.py`. Standard input has one JSON object per line: the source of
//! a template, messages, and optionally tools, documents, variables and the time. For each line, standard
//! output has one line with the prompt or the error.

use ragtag_chat::{Conversation, Data, Error, Message, Moment, Object, Template};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Message>,
    tools: Option<Vec<Object>>,
    documents: Option<Vec<Object>>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    variables: BTreeMap<String, Data>,
    now: Option<String>,
}

fn render(case: Case) -> ragtag_chat::Result<String> {
    let mut conversation = Conversation::new(case.messages);
    conversation.tools = case.tools;
    conversation.documents = case.documents;
    conversation.add_generation_prompt = case.add_generation_prompt;
    conversation.variables = case.variables;
    conversation.now = case.now.as_deref().and_then(Moment::parse);
    Template::compile(&case.template)?.render(&conversation)
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str::<Case>(&line?).map(render) {
            Ok(Ok(prompt)) => json!({ "prompt": prompt }),
            Ok(Err(Error::Raised { message })) => json!({ "raised": message }),
            Ok(Err(error)) => json!({ "error": error.to_string() }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}
