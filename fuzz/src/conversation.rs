//! Loads arbitrary conversations, as `ragtag chat --load` does: a JSON list of messages. What is loaded is
//! continued, saved and loaded again. The texts of its messages are also split into reasoning and answer.

use super::short;
use ragtag::chat::to_json;
use ragtag::{Dialogue, Model, Piece, ReasoningSplitter};
use std::sync::OnceLock;

/// Template that reads every field that templates of models read.
const TEMPLATE: &str = "{%- for m in messages -%}
<|{{ m.role }}|>{{ m.reasoning_content }}{{ m.content | string | trim }}{{ m.name }}{{ m.tool_call_id }}
{%- for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}
{%- endfor -%}{%- if add_generation_prompt %}<|assistant|>{% endif %}";

/// Returns whether the conversation is valid.
pub fn run(data: &[u8]) -> bool {
    static MODEL: OnceLock<Model> = OnceLock::new();
    let bytes = include_bytes!("../seeds/gguf/llama-q4_0");
    let model = MODEL.get_or_init(|| Model::from_bytes("seed", bytes.to_vec()).expect("the seed is valid"));
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let start = || Dialogue::with_template(model, TEMPLATE, "template").expect("the template is valid");
    let mut dialogue = start();
    dialogue.ask("before");
    if let Err(cause) = dialogue.load(text) {
        assert_eq!(dialogue.messages().len(), 1, "a failed load changes nothing");
        return short(&cause);
    }
    let messages = dialogue.messages().to_vec();
    let saved = to_json(&messages);
    let mut again = start();
    again.load(&saved).expect("a saved conversation can be loaded");
    assert_eq!(to_json(again.messages()), saved);
    for message in &messages {
        let field = |name: &str| match message.get(name) {
            Some(value) => value.as_str().unwrap_or_default().to_owned(),
            None => String::new(),
        };
        let [whole, apart] = [true, false].map(|at_once| split(&field("role"), &field("content"), at_once));
        assert_eq!(whole, apart, "the split does not depend on how the text arrives");
        dialogue.answer(&whole[1], &whole[0]);
    }
    dialogue.ask(text);
    // The seed may lack a tokenizer, and the template's limits may be exceeded.
    if let Err(error) = dialogue.prompt() {
        short(&error);
    }
    dialogue.set_system(text);
    dialogue.reset();
    assert_eq!(dialogue.messages().len(), usize::from(!text.is_empty()));
    true
}

/// Returns the reasoning and the answer in `text`. If `at_once` is false, the text arrives in characters.
fn split(prompt: &str, text: &str, at_once: bool) -> [String; 2] {
    let mut splitter = ReasoningSplitter::after(prompt);
    let mut pieces = Vec::new();
    if at_once {
        pieces.extend(splitter.push(text));
    } else {
        text.chars().for_each(|character| pieces.extend(splitter.push(character.encode_utf8(&mut [0; 4]))));
    }
    pieces.extend(splitter.finish());
    let mut all = [String::new(), String::new()];
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => all[0].push_str(&text),
            Piece::Answer(text) => all[1].push_str(&text),
        }
    }
    all
}
