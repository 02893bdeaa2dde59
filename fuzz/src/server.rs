//! Answers arbitrary requests with arbitrary texts, as `ragtag serve` does, without a model. The first line of the input
//! is a route, the second one the request as JSON, and the rest the text of the answer.

use ragtag_server::exchange;
use serde_json::Value;

/// Maximum size of a refusal in bytes.
const MAX_REFUSAL: usize = 8 << 10;

/// Returns whether the request is valid.
pub fn run(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let (route, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (request, answer) = rest.split_once('\n').unwrap_or((rest, ""));
    let answered = match exchange(route, request, answer, usize::MAX) {
        Ok(answered) => answered,
        Err(refusal) => {
            assert!(refusal.to_string().len() < MAX_REFUSAL, "{refusal}");
            assert!(refusal["error"]["message"].is_string(), "{refusal}");
            return false;
        }
    };
    let apart = exchange(route, request, answer, 1).expect("the request is valid");
    assert_eq!(answered.whole, apart.whole, "the answer does not depend on how the text arrives");
    check_events(&answered.events);
    check_events(&apart.events);
    true
}

/// Checks that a stream consists of events whose data are JSON.
fn check_events(events: &str) {
    assert!(events.ends_with("\n\n"), "{events}");
    for event in events.trim_end().split("\n\n") {
        let data = event.lines().find_map(|line| line.strip_prefix("data: "));
        let data = data.unwrap_or_else(|| panic!("{event}"));
        assert!(data == "[DONE]" || serde_json::from_str::<Value>(data).is_ok(), "{event}");
        let is_known = |line: &str| line.starts_with("data: ") || line.starts_with("event: ");
        assert!(event.lines().all(is_known), "{event}");
    }
}
