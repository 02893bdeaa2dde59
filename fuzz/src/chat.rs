//! Renders conversations with arbitrary chat templates. The first line of the input is a JSON list of
//! messages, and the rest is the source of a template.

use super::short;
use ragtag_chat::{Conversation, Error, Limits, Message, Moment, Template, from_json, to_json};

/// Maximum total size of the values of a rendering, and of the prompt. It bounds each allocation.
const MAX_BYTES: u64 = 16 << 20;

/// Returns whether the template renders the messages.
pub fn run(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let (messages, source) = text.split_once('\n').unwrap_or(("[]", text));
    let Ok(messages) = from_json::<Vec<Message>>(messages) else { return false };
    assert_eq!(
        from_json::<Vec<Message>>(&to_json(&messages)).map(|again| to_json(&again)),
        Ok(to_json(&messages))
    );
    let mut limits = Limits::default();
    (limits.steps, limits.value_bytes, limits.output_bytes) = (200_000, MAX_BYTES, MAX_BYTES);
    let template = match Template::compile(source) {
        Ok(template) => template.with_limits(limits),
        Err(error) => return short(&error),
    };
    let mut conversation = Conversation::new(messages);
    conversation.now = Moment::parse("2025-03-09T08:05:07");
    conversation.bos_token = Some("<s>".into());
    let mut rendered = false;
    for add_generation_prompt in [false, true] {
        conversation.add_generation_prompt = add_generation_prompt;
        match template.render(&conversation) {
            Ok(prompt) => {
                assert!(prompt.len() as u64 <= MAX_BYTES);
                assert_eq!(template.render(&conversation), Ok(prompt), "a rendering has no side effects");
                rendered = true;
            }
            // The message is that of the template, unchanged.
            Err(Error::Raised { .. }) => {}
            Err(error) => _ = short(&error),
        }
    }
    rendered
}
