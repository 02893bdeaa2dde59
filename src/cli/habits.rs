//! Options of llama.cpp, Ollama and vLLM. Ragtag refuses them and names its own option for the same purpose.

use std::ffi::OsString;

const PLACEMENT: &str =
    "the planner places the layers; --device selects the devices, and --split or --pin places layers by hand";
const CHUNK: &str = "use --chunk for the maximum number of prompt tokens in one micro-batch";
const READS: &str = "leave it out; Ragtag reads model files and never maps them";
const AUTOMATIC: &str = "leave it out; Ragtag decides this itself";
const CHAT: &str = "use ragtag chat, or ragtag run --chat";
const DOWNLOADS: &str = "Ragtag downloads nothing; give a .gguf file or a directory with safetensors";

/// Options of other programs, each with the words that replace it.
const OPTIONS: [(&[&str], &str); 23] = [
    (&["-ngl", "--gpu-layers", "--n-gpu-layers", "--num-gpu"], PLACEMENT),
    (&["-ot"], "use --override-tensor"),
    (&["-cmoe"], "use --cpu-moe"),
    (&["-ncmoe"], "use --n-cpu-moe"),
    (&["-ts", "--tensor-split", "-sm", "--split-mode"], "use --split, for example 0-5=cuda:0,6-13=cpu:0"),
    (&["-tp", "--tensor-parallel-size", "-pp", "--pipeline-parallel-size"], PLACEMENT),
    (&["-mg", "--main-gpu", "-dev"], "use --device, for example --device cuda:0"),
    (&["--list-devices"], "use ragtag devices"),
    (&["--gpu-memory-utilization"], "use --memory, for example --memory cuda:0=12GiB"),
    (&["-b", "--batch-size", "-ub", "--ubatch-size", "--max-num-batched-tokens"], CHUNK),
    (&["-np", "--max-num-seqs"], "use --parallel of ragtag serve, bench or plan"),
    (&["--max-model-len", "--num-ctx"], "use --ctx"),
    (&["-ctk", "--cache-type-k"], "use --kv-keys"),
    (&["-ctv", "--cache-type-v"], "use --kv-values"),
    (&["--kv-cache-dtype"], "use --kv"),
    (&["--kv-cache-memory-bytes"], "use --kv-memory, which counts all devices together"),
    (&["--enable-prefix-caching", "--no-enable-prefix-caching"], "use --prefix-cache on or off"),
    (&["-fa", "--flash-attn", "--jinja"], AUTOMATIC),
    (&["--mmap", "--no-mmap", "--mlock"], READS),
    (&["-cnv", "--conversation", "-i", "--interactive"], CHAT),
    (&["-sys", "--system-prompt"], "use --system with ragtag chat or ragtag run --chat"),
    (&["--chat-template"], "use --template FILE"),
    (&["-hf", "--hf-repo", "-mu", "--model-url"], DOWNLOADS),
];

/// Returns what to say about the first argument that is an option of another program. Arguments after `--` are no
/// options.
pub(super) fn refusal(arguments: &[OsString]) -> Option<String> {
    let words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    words.take_while(|word| *word != "--").find_map(|word| {
        let option = word.split_once('=').map_or(word, |(option, _)| option);
        let (_, instead) = OPTIONS.iter().find(|(options, _)| options.contains(&option))?;
        Some(format!("Ragtag has no option {option}: {instead}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn options_of_other_programs_are_refused_by_name() {
        let said = |words: &[&str]| refusal(&words.iter().map(OsString::from).collect::<Vec<_>>());
        let refused = said(&["ragtag", "run", "-ngl", "99"]).unwrap();
        assert!(
            refused.starts_with("Ragtag has no option -ngl: ") && refused.contains("--device"),
            "{refused}"
        );
        let refused = said(&["ragtag", "run", "--tensor-split=3,1"]).unwrap();
        assert!(refused.starts_with("Ragtag has no option --tensor-split: use --split"), "{refused}");
        assert_eq!(said(&["ragtag", "run", "-n", "9", "--", "-ngl"]), None);
        assert_eq!(said(&["-ngl"]), None, "the name of the program");
    }

    /// Checks that no option of Ragtag is refused, and that the words name options that exist.
    #[test]
    fn refusals_fit_the_options_of_the_commands() {
        let command = super::super::with_all_options(Cli::command());
        let mut own = vec!["--chat".to_owned()];
        for argument in command.get_subcommands().flat_map(|command| command.get_arguments()) {
            own.extend(
                argument
                    .get_long_and_visible_aliases()
                    .unwrap_or_default()
                    .iter()
                    .map(|name| format!("--{name}")),
            );
            own.extend(argument.get_all_aliases().unwrap_or_default().iter().map(|name| format!("--{name}")));
            own.extend(argument.get_short().map(|name| format!("-{name}")));
        }
        for (options, instead) in OPTIONS {
            for option in options {
                assert!(!own.iter().any(|own| own == option), "{option}");
            }
            for word in instead.split([' ', ',', ';']).filter(|word| word.starts_with("--")) {
                assert!(own.iter().any(|own| own == word), "{word}");
            }
        }
    }
}
