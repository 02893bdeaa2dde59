//! Tests of `ragtag template`: prompts byte for byte, where templates come from, and errors with exit codes.

use crate::support::{checkpoint, model_path, put_metadata, ragtag, text};
use ragtag_graph::gguf::Writer;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const MESSAGES: &str = r#"[{"role": "user", "content": " Hé \n", "z": 1, "a": 2}]"#;

/// Folder for the inputs of a command.
struct Inputs(TempDir);

impl Inputs {
    fn new() -> Self {
        let inputs = Inputs(tempfile::tempdir().unwrap());
        inputs.file("messages.json", MESSAGES);
        inputs
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Runs `ragtag template` with the messages. Returns the exit code, standard output and standard error.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let mut command = ragtag();
        command.args(["template", "--messages", "messages.json"]).args(arguments).current_dir(self.0.path());
        let output = command.output().unwrap();
        let decoded = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), decoded(output.stdout), decoded(output.stderr))
    }

    fn prompt(&self, arguments: &[&str]) -> String {
        let (code, prompt, errors) = self.run(arguments);
        assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
        prompt
    }

    fn refused(&self, arguments: &[&str], code: i32, part: &str) {
        let (found, out, errors) = self.run(arguments);
        assert_eq!((found, out.as_str()), (code, ""), "{arguments:?}: {errors}");
        assert!(errors.contains(part), "{arguments:?}: {errors}");
    }
}

#[test]
fn prompts_are_printed_byte_for_byte() {
    let inputs = Inputs::new();
    let all = "{{ bos_token }}|{{ messages[0] }}|{{ tools }}|{{ documents }}|{{ add_generation_prompt }}|{{ x }}|\
               {{ strftime_now('%d %B %Y %H:%M:%S') if x else '' }}{{ eos_token }}\u{1b}[0m\n\n";
    inputs.file("t.jinja", all);
    let from = ["--template", "t.jinja"];
    let message = "{'role': 'user', 'content': ' Hé \\n', 'z': 1, 'a': 2}";
    assert_eq!(inputs.prompt(&from), format!("|{message}|None|None|True||\u{1b}[0m\n"));
    inputs.file("tools.json", r#"[{"name": "f", "b": 1.0}]"#);
    inputs.file("documents.json", r#"[{"text": "t"}]"#);
    let more =
        ["--tools", "tools.json", "--documents", "documents.json", "--no-generation-prompt", "--bos", "<s>"];
    let set = ["--eos", "</s>", "--set", r#"x=[true, "é"]"#, "--now", "2025-03-09T08:05:07"];
    let arguments: Vec<_> = from.iter().chain(&more).chain(&set).copied().collect();
    let expected = format!(
        "<s>|{message}|[{{'name': 'f', 'b': 1.0}}]|[{{'text': 't'}}]|False|[True, 'é']|\
         09 March 2025 08:05:07</s>\u{1b}[0m\n"
    );
    assert_eq!(inputs.prompt(&arguments), expected);
    // Without --now, the year is the current one.
    inputs.file("year.jinja", "{{ strftime_now('%Y') | int > 2024 }}");
    assert_eq!(inputs.prompt(&["--template", "year.jinja"]), "True");
}

#[test]
fn one_input_may_be_standard_input() {
    let inputs = Inputs::new();
    let template = inputs.file("t.jinja", "{{ messages[0].content }}");
    let mut command = ragtag();
    command.args(["template", "--template", text(&template), "--messages", "-"]).write_stdin(MESSAGES);
    assert_eq!(command.output().unwrap().stdout, " Hé \n".as_bytes());
    inputs.refused(&["--template", "-", "--tools", "-"], 2, "standard input cannot be two inputs at once");
}

#[test]
fn a_template_may_reject_the_messages() {
    let inputs = Inputs::new();
    inputs.file("t.jinja", "a{{ raise_exception('no role ' ~ messages[0].role) }}");
    inputs.refused(
        &["--template", "t.jinja"],
        3,
        "ragtag: t.jinja: the chat template rejects the conversation: no role user\n",
    );
}

#[test]
fn errors_name_the_file_and_what_is_wrong() {
    let inputs = Inputs::new();
    inputs.file("t.jinja", "x");
    let from = |file: &'static str| ["--template", file];
    inputs.refused(&from("missing.jinja"), 7, "cannot read missing.jinja");
    for (source, part) in [
        ("\n{% if %}", "t2.jinja: line 2 of the chat template: expected an expression, found %}"),
        ("{{ a.b }}", "t2.jinja: line 1 of the chat template: a is undefined"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "the template nests calls or values too deeply"),
    ] {
        inputs.file("t2.jinja", source);
        inputs.refused(&from("t2.jinja"), 3, part);
    }
    for (name, json, part) in [
        ("tools.json", "{}", "tools.json: invalid type: map, expected a sequence"),
        ("tools.json", "[1]", "expected an object at line 1 column 2 (expected a JSON list of objects)"),
        ("tools.json", "[{]", "tools.json: "),
    ] {
        inputs.file(name, json);
        inputs.refused(&["--template", "t.jinja", "--tools", name], 2, part);
    }
    inputs.file("messages.json", r#"[{"role": "user"}, "hello"]"#);
    inputs.refused(&from("t.jinja"), 2, "messages.json: invalid type: string \"hello\", expected an object");
    for (set, part) in [
        ("x", "expected NAME=JSON"),
        ("x=abc", "the value of x is not JSON"),
        ("1x=1", "is not the name of a variable"),
        ("x y=1", "is not the name of a variable"),
    ] {
        inputs.refused(&["--template", "t.jinja", "--set", set], 2, part);
    }
    inputs.refused(&["--template", "t.jinja", "--now", "yesterday"], 2, "expected a time such as");
    inputs.refused(&["--template", "t.jinja", "--name", "x"], 2, "cannot be used with");
    inputs.file("messages.json", MESSAGES);
    inputs.refused(&["--template", "t.jinja", "--set", "tools=[]"], 2, "--set cannot set tools");
}

/// Writes the header of a model file whose metadata has chat templates.
fn write_model(path: &Path, put: impl Fn(&mut Writer)) {
    let model = ragtag::Model::open(model_path("tales-q8_0")).unwrap();
    let mut writer = Writer::new();
    put_metadata(&mut writer, &model);
    put(&mut writer);
    for tensor in model.graph().weights().tensors() {
        writer.tensor(&tensor.name, tensor.tensor_type, &tensor.shape, tensor.bytes);
    }
    std::fs::write(path, writer.header()).unwrap();
}

#[test]
fn model_files_have_templates_and_tokens() {
    let inputs = Inputs::new();
    write_model(&inputs.0.path().join("m.gguf"), |writer| {
        writer.put("tokenizer.chat_template", "default {{ bos_token }}{{ eos_token }}");
        writer.put("tokenizer.chat_templates", &["tool_use"][..]);
        writer.put("tokenizer.chat_template.tool_use", "tools {{ tools | length }}");
    });
    inputs.file("tools.json", "[{}, {}]");
    assert_eq!(inputs.prompt(&["m.gguf"]), "default <s></s>");
    assert_eq!(inputs.prompt(&["m.gguf", "--bos", "", "--eos", "-"]), "default -");
    assert_eq!(inputs.prompt(&["m.gguf", "--tools", "tools.json"]), "tools 2");
    assert_eq!(inputs.prompt(&["m.gguf", "--tools", "tools.json", "--name", "default"]), "default <s></s>");
    // A template from a file uses the tokens of the model.
    inputs.file("t.jinja", "file {{ bos_token }}");
    assert_eq!(inputs.prompt(&["m.gguf", "--template", "t.jinja"]), "file <s>");
    assert_eq!(inputs.prompt(&["--template", "t.jinja"]), "file ");
    let none = "m.gguf has no chat template called \"x\" (it has default, tool_use; choose one with --name)";
    inputs.refused(&["m.gguf", "--name", "x"], 3, none);
    let none = model_path("tales-q8_0");
    inputs.refused(&[text(&none)], 3, "has no chat template (give one with --template FILE)");
    // The bundled model continues the text of the user, and starts a paragraph with the next one.
    inputs.file(
        "messages.json",
        r#"[{"role": "user", "content": "One day"}, {"role": "assistant", "content": " it rained."}, {"role": "user", "content": "Then"}]"#,
    );
    assert_eq!(inputs.prompt(&[]), "<s>One day it rained.\nThen");
    write_model(&inputs.0.path().join("bad.gguf"), |writer| {
        writer.put("tokenizer.chat_template", "{{ 1");
    });
    inputs.refused(&["bad.gguf"], 3, "bad.gguf: line 1 of the chat template: a tag has no end");
}

#[test]
fn model_directories_have_templates_and_tokens() {
    let inputs = Inputs::new();
    for name in ["config.json", "tokenizer_config.json"] {
        std::fs::copy(checkpoint().join(name), inputs.0.path().join(name)).unwrap();
    }
    inputs.refused(&["."], 3, "has no chat template");
    inputs.file("chat_template.jinja", "{{ messages[0].content | trim }}\n");
    assert_eq!(inputs.prompt(&["."]), "Hé");
    let config = r#"{"bos_token": {"content": "<b>"}, "pad_token": "<p>", "chat_template": "{{ bos_token ~ pad_token }}"}"#;
    inputs.file("tokenizer_config.json", config);
    std::fs::remove_file(inputs.0.path().join("chat_template.jinja")).unwrap();
    assert_eq!(inputs.prompt(&["."]), "<b><p>");
    let model = ragtag::Model::open_metadata(inputs.0.path(), None).unwrap();
    let template = model.chat_template(None, false).unwrap();
    assert_eq!(template.render(&ragtag::chat::Conversation::default()).unwrap(), "");
    assert_eq!(model.chat_templates().unwrap().tokens.len(), 2);
}
