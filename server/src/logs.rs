//! Log probabilities of tokens in the shapes of OpenAI's API. Pure.

use ragtag_engine::{LogProbabilities, TokenLogProbability, Tokenizer};
use serde_json::{Map, Value, json};

/// Log probability of tokens that cannot follow. JSON has no negative infinity.
const LEAST: f64 = -9999.0;

/// A token with its log probability.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Logged {
    bytes: Vec<u8>,
    /// `None` at the start of a prompt.
    log_probability: Option<f64>,
}

/// Log probabilities at one position of a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Log {
    chosen: Logged,
    top: Vec<Logged>,
}

impl Logged {
    fn new(token: u32, log_probability: Option<f64>, tokenizer: &Tokenizer) -> Self {
        // Control tokens have no bytes in a text, but a name.
        let name = || tokenizer.piece(token).unwrap_or_default().as_bytes().to_vec();
        let bytes = tokenizer.bytes(token).map_or_else(name, |bytes| bytes.into_owned());
        Self { bytes, log_probability: log_probability.map(|value| value.max(LEAST)) }
    }

    fn of(token: TokenLogProbability, tokenizer: &Tokenizer) -> Self {
        Self::new(token.token, Some(token.log_probability), tokenizer)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn json(&self) -> Value {
        json!({ "token": self.text(), "logprob": self.log_probability, "bytes": self.bytes })
    }
}

impl Log {
    pub(crate) fn new(of: &LogProbabilities, tokenizer: &Tokenizer) -> Self {
        let top = of.top.iter().map(|token| Logged::of(*token, tokenizer));
        Self { chosen: Logged::of(of.chosen, tokenizer), top: top.collect() }
    }

    /// Returns the log of the first token of a prompt, which no token precedes.
    pub(crate) fn first(token: u32, tokenizer: &Tokenizer) -> Self {
        Self { chosen: Logged::new(token, None, tokenizer), top: Vec::new() }
    }
}

/// Returns the logs of a chat.
pub(crate) fn chat(logs: &[Log]) -> Value {
    let entry = |log: &Log| {
        let mut entry = log.chosen.json();
        entry["top_logprobs"] = log.top.iter().map(Logged::json).collect();
        entry
    };
    json!({ "content": logs.iter().map(entry).collect::<Vec<_>>(), "refusal": null })
}

/// Returns the logs of a completion whose text before them has `offset` characters. Moves `offset` on.
pub(crate) fn completion(logs: &[Log], offset: &mut usize) -> Value {
    let (mut tokens, mut values, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for log in logs {
        let text = log.chosen.text();
        offsets.push(*offset);
        *offset += text.chars().count();
        // The chosen token comes last, so that its own value counts.
        let all = log.top.iter().chain([&log.chosen]);
        let top: Map<String, Value> = all.map(|token| (token.text(), token.log_probability.into())).collect();
        tops.push(log.chosen.log_probability.map(|_| top));
        values.push(log.chosen.log_probability);
        tokens.push(text);
    }
    json!({ "tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(text: &str, log_probability: Option<f64>) -> Logged {
        Logged { bytes: text.into(), log_probability }
    }

    #[test]
    fn logs_have_the_shapes_of_the_api() {
        let first = Log { chosen: logged("Hé", None), top: Vec::new() };
        let next = Log { chosen: logged("y", Some(-1.5)), top: vec![logged("x", Some(-0.5))] };
        let mut offset = 0;
        assert_eq!(
            completion(&[first, next.clone()], &mut offset),
            json!({
                "tokens": ["Hé", "y"],
                "token_logprobs": [null, -1.5],
                "top_logprobs": [null, { "x": -0.5, "y": -1.5 }],
                "text_offset": [0, 2],
            })
        );
        assert_eq!(offset, 3);
        let top = json!([{ "token": "x", "logprob": -0.5, "bytes": [120] }]);
        let entry = json!({ "token": "y", "logprob": -1.5, "bytes": [121], "top_logprobs": top });
        assert_eq!(chat(&[next]), json!({ "content": [entry], "refusal": null }));
    }
}
