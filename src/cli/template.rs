//! Implements `ragtag template`, which renders a conversation with a model's chat template.

use super::args::TemplateArgs;
use super::error::{Error, Result};
use super::files::{file_name, input_name, is_standard, read_input};
use super::output::print;
use crate::files::MAX_JSON_BYTES;
use crate::{Dialogue, Model};
use ragtag_chat::{Conversation, Data, Message, Moment, Object, Template, from_json};
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Variables that have options of their own.
const RESERVED: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

pub(super) fn run(args: &TemplateArgs) -> Result<()> {
    let paths = [Some(&args.messages), args.template.as_ref(), args.tools.as_ref(), args.documents.as_ref()];
    if paths.iter().flatten().filter(|path| is_standard(path)).count() > 1 {
        return Err(Error::Usage("standard input cannot be two inputs at once".into()));
    }
    let mut conversation = conversation(args)?;
    let (template, name) = match &args.template {
        Some(path) => {
            if args.model.path().is_some() {
                open(args, &mut conversation)?;
            }
            let (source, name) = source(path)?;
            (Template::compile(&source).map_err(failed(&name))?, name)
        }
        None => {
            let model = open(args, &mut conversation)?;
            let template = model.chat_template(args.name.as_deref(), conversation.tools.is_some())?;
            (template, model.name().to_owned())
        }
    };
    set_variables(args, &mut conversation)?;
    print(&template.render(&conversation).map_err(failed(&name))?)
}

fn failed(name: &str) -> impl Fn(ragtag_chat::Error) -> Error {
    |cause| crate::Error::Template { name: name.into(), cause }.into()
}

/// Opens the model, and sets the texts of its tokens.
fn open(args: &TemplateArgs, conversation: &mut Conversation) -> Result<Model> {
    let model = match args.model.path() {
        Some(path) => Model::open_metadata(path, None)?,
        None => Model::bundled()?,
    };
    for (name, text) in model.chat_templates()?.tokens {
        conversation.variables.insert(name, text.as_str().into());
    }
    Ok(model)
}

/// Starts a conversation with the chat template in a file, or with the model's template.
pub(super) fn dialogue(model: &Model, template: Option<&Path>) -> Result<Dialogue> {
    let Some(path) = template else { return Ok(Dialogue::new(model)?) };
    let (source, name) = source(path)?;
    Ok(Dialogue::with_template(model, &source, &name)?)
}

/// Reads a chat template. Returns its source, and its name in errors.
pub(super) fn source(path: &Path) -> Result<(String, String)> {
    Ok((read_input(path, MAX_JSON_BYTES)?, file_name(input_name(path))))
}

/// Reads the messages, tools and documents.
fn conversation(args: &TemplateArgs) -> Result<Conversation> {
    let mut conversation = Conversation::new(read_json::<Vec<Message>>(&args.messages)?);
    conversation.tools = args.tools.as_deref().map(read_json::<Vec<Object>>).transpose()?;
    conversation.documents = args.documents.as_deref().map(read_json::<Vec<Object>>).transpose()?;
    conversation.add_generation_prompt = !args.no_generation_prompt;
    conversation.now = args.now.or_else(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Moment::from_epoch(since.as_secs())
    });
    Ok(conversation)
}

/// Sets the variables that options name. They replace those of the model.
fn set_variables(args: &TemplateArgs, conversation: &mut Conversation) -> Result<()> {
    for (name, token) in [("bos_token", &args.bos), ("eos_token", &args.eos)] {
        if let Some(token) = token {
            conversation.variables.insert(name.into(), token.as_str().into());
        }
    }
    for (name, value) in &args.set {
        if RESERVED.contains(&name.as_str()) {
            let options = "--messages, --tools, --documents and --no-generation-prompt";
            return Err(Error::Usage(format!("--set cannot set {name} (use {options})")));
        }
        conversation.variables.insert(name.clone(), value.clone());
    }
    Ok(())
}

/// Reads a list of JSON objects from a file or from standard input.
fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = read_input(path, MAX_JSON_BYTES)?;
    from_json(&text)
        .map_err(|cause| Error::Conversation { path: input_name(path).into(), cause: cause.to_string() })
}

/// Parses `NAME=JSON`.
pub(super) fn assignment(text: &str) -> std::result::Result<(String, Data), String> {
    let (name, json) = text.split_once('=').ok_or("expected NAME=JSON, such as enable_thinking=false")?;
    let mut letters = name.chars();
    let starts = letters.next().is_some_and(|c| c == '_' || c.is_alphabetic());
    if !starts || letters.any(|c| c != '_' && !c.is_alphanumeric()) {
        return Err(format!("{name:?} is not the name of a variable"));
    }
    let value = from_json(json).map_err(|cause| {
        format!("the value of {name} is not JSON: {cause} (a text needs quotes: '{name}=\"…\"')")
    })?;
    Ok((name.to_owned(), value))
}

/// Parses a time such as `2025-03-09T08:05:07`.
pub(super) fn moment(text: &str) -> std::result::Result<Moment, String> {
    Moment::parse(text).ok_or_else(|| "expected a time such as 2025-03-09T08:05:07".to_owned())
}
