//! Checks that released chat templates render as with `transformers`.

use super::{Checks, GOLDEN};
use std::collections::BTreeMap;

/// Checks all templates with all conversations: one with a system message, one with tools.
pub(super) fn check(checks: &mut Checks<'_>) -> Result<(), String> {
    let templates: BTreeMap<String, BTreeMap<String, Option<String>>> = checks.golden("templates.json")?;
    let file = |name: &str| checks.root.join(GOLDEN).join(name).display().to_string();
    let plain = ["--messages".into(), file("plain-messages.json")];
    let tools =
        ["--messages".into(), file("tools-messages.json"), "--tools".into(), file("tools-tools.json")];
    for (template, digests) in &templates {
        for (name, expected) in digests {
            let conversation = if name == "plain" { &plain[..] } else { &tools };
            check_one(checks, &format!("{template}, {name}"), template, conversation, expected.as_deref())?;
        }
    }
    println!("{} templates", templates.len());
    Ok(())
}

fn check_one(
    checks: &mut Checks<'_>,
    what: &str,
    template: &str,
    conversation: &[String],
    expected: Option<&str>,
) -> Result<(), String> {
    let file = checks.file(&format!("llama.cpp/templates/{template}.jinja")).display().to_string();
    let mut arguments = vec!["template", "--template", &file, "--now", "2025-03-09T08:05:07"];
    arguments.extend(["--bos", "<s>", "--eos", "</s>"]);
    arguments.extend(conversation.iter().map(String::as_str));
    let output = checks.output(&arguments)?;
    let found = output.status.success().then(|| blake3::hash(&output.stdout).to_hex()[..32].to_owned());
    checks.expect(found.as_deref() == expected, || {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("{what}: renders as {found:?} instead of {expected:?} {}", said.trim_end())
    });
    // Exit code 3 refuses the conversation. Another code would be a defect.
    let refused = expected.is_some() || output.status.code() == Some(3);
    checks.expect(refused, || format!("{what}: {} instead of exit code 3", output.status));
    Ok(())
}
