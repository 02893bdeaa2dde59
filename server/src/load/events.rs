//! Reads the events of a streamed answer. Pure: the caller gives the times.

use serde_json::Value;
use std::time::Duration;

/// Maximum length of a line of a stream in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Times and tokens of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    /// Times from the request to the first text, to the last text and to the end.
    pub(super) first: Option<Duration>,
    pub(super) last: Duration,
    pub(super) end: Duration,
    /// Number of events with text. It is the number of tokens if the server reports none.
    pub(super) events: u64,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) cached_tokens: Option<u64>,
    pub(super) new_tokens: Option<u64>,
}

/// Reader of a stream of events.
#[derive(Debug, Default)]
pub(super) struct Reader {
    line: Vec<u8>,
    answer: Answer,
    has_ended: bool,
}

impl Reader {
    /// Reads bytes that arrived `after` the request.
    ///
    /// # Errors
    /// Returns the reason if the stream reports an error or is no stream of events.
    pub(super) fn read(&mut self, bytes: &[u8], after: Duration) -> Result<(), String> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > MAX_LINE_BYTES {
                return Err("a line of the stream is too long".into());
            }
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.event(&String::from_utf8_lossy(&line), after)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, line: &str, after: Duration) -> Result<(), String> {
        let Some(data) = line.strip_prefix("data:").map(str::trim) else { return Ok(()) };
        if data == "[DONE]" {
            self.has_ended = true;
            return Ok(());
        }
        let event: Value = serde_json::from_str(data).map_err(|cause| format!("invalid event: {cause}"))?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            return Err(message(error));
        }
        let choice = &event["choices"][0];
        self.has_ended |= choice["finish_reason"].is_string();
        let texts = [&choice["text"], &choice["delta"]["content"], &choice["delta"]["reasoning_content"]];
        let has_text = texts.iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty()));
        if has_text || choice["delta"]["tool_calls"].is_array() {
            self.answer.first.get_or_insert(after);
            (self.answer.last, self.answer.events) = (after, self.answer.events + 1);
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            let count = |name: &str| usage[name].as_u64();
            self.answer.prompt_tokens = count("prompt_tokens");
            self.answer.new_tokens = count("completion_tokens");
            self.answer.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        }
        Ok(())
    }

    /// Returns the answer of a stream that has ended `after` the request.
    ///
    /// # Errors
    /// Returns the reason if the stream has ended early.
    pub(super) fn finish(self, after: Duration) -> Result<Answer, String> {
        match self.has_ended {
            true => Ok(Answer { end: after, ..self.answer }),
            false => Err("the stream ended early".into()),
        }
    }
}

/// Returns the message of an error object.
pub(super) fn message(error: &Value) -> String {
    let text = error["message"].as_str().or_else(|| error.as_str());
    text.map_or_else(|| error.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n: waiting\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";

    #[test]
    fn a_stream_may_arrive_in_any_pieces() {
        for size in [1, 7, 1000] {
            let mut reader = Reader::default();
            for (at, bytes) in STREAM.as_bytes().chunks(size).enumerate() {
                reader.read(bytes, Duration::from_millis(at as u64)).unwrap();
            }
            let answer = reader.finish(Duration::from_secs(9)).unwrap();
            assert_eq!((answer.events, answer.prompt_tokens, answer.new_tokens), (2, Some(9), Some(3)));
            assert!(answer.first.unwrap() <= answer.last && answer.end == Duration::from_secs(9));
        }
    }

    #[test]
    fn errors_and_early_ends_are_told() {
        let read = |text: &str| {
            let mut reader = Reader::default();
            reader.read(text.as_bytes(), Duration::ZERO)?;
            reader.finish(Duration::ZERO)
        };
        assert_eq!(read("data: {\"error\":{\"message\":\"busy\"}}\n").unwrap_err(), "busy");
        assert!(read("data: {\n").unwrap_err().contains("invalid event"));
        assert!(read("data: {\"choices\":[{\"text\":\"b\"}]}\n").unwrap_err().contains("ended early"));
        assert!(read(&"x".repeat(MAX_LINE_BYTES + 1)).unwrap_err().contains("too long"));
    }
}
