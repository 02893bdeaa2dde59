//! Runs other programs against `ragtag serve`: the official clients of OpenAI and Anthropic, random requests by the OpenAPI
//! document, and random JSON schemas. `.ci/install-clients` installs them.

use crate::checks::Done;
use crate::real_models;
use std::path::Path;
use std::process::Command;

/// Folder of the clients, relative to the root.
const FOLDER: &str = "target/ci/clients";

/// Runs all clients with the command that the check of released models has built. Skips them where they or the model are
/// missing.
///
/// # Errors
/// Fails if a client disagrees with the server.
pub(crate) fn ci(root: &Path, done: &mut Done) -> Result<(), String> {
    let (model, clients) = (real_models::smollm2(root), root.join(FOLDER));
    if !model.exists() {
        done.skip("clients of the server", "SmolLM2", ".ci/install-models target/real-models smollm2");
        return Ok(());
    }
    if !clients.join("clients.txt").exists() {
        let why = format!(".ci/install-clients {FOLDER}");
        done.skip("clients of the server", "clients from PyPI", &why);
        return Ok(());
    }
    done.cargo(root, &real_models::BUILD, &[])?;
    let ragtag = root.join("target/debug/ragtag").with_extension(std::env::consts::EXE_EXTENSION);
    let seed = std::env::var("RAGTAG_TEST_SEED").unwrap_or_else(|_| "1".into());
    for (script, more) in [("openai_anthropic.py", None), ("contract.py", Some(&seed))] {
        done.timed(&format!("clients of the server: {script}"), || {
            let mut python = Command::new("python3");
            python.arg(root.join("tests/clients").join(script)).args([&ragtag, &model]).args(more);
            let status = python.env("PYTHONPATH", &clients).current_dir(root.join(FOLDER)).status();
            match status.map_err(|e| format!("python3: {e}"))? {
                status if status.success() => Ok(()),
                status => Err(format!("{script} failed ({status}), seed {seed}")),
            }
        })?;
    }
    Ok(())
}
