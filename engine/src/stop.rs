//! Stop strings. A matcher forwards generated text and ends it before the first stop string. The pipeline has one
//! as well, so that it computes nothing after a stop string, however far behind the reader is.

use ragtag_graph::TextStream;
use ragtag_scheduler::StopRule;

/// Matcher that searches a stream of text for stop strings. It holds back text at the end of the stream that
/// may be the start of a stop string.
#[derive(Clone, Debug)]
pub(crate) struct StopMatcher {
    /// Stop strings. An empty one never occurs.
    stops: Vec<String>,
    held: String,
}

/// Result of pushing a piece of text into a matcher.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Matched {
    /// Text that is not part of a stop string.
    Text(String),
    /// A stop string occurs.
    Stop {
        /// The text before it that has not been returned yet.
        text: String,
        /// Its index. If several begin at the same place, that of the first one.
        index: u32,
    },
}

impl StopMatcher {
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    pub(crate) fn push(&mut self, text: &str) -> Matched {
        self.held.push_str(text);
        let stops = (0..).zip(&self.stops).filter(|(_, stop)| !stop.is_empty());
        let found = stops.filter_map(|(index, stop)| Some((self.held.find(stop.as_str())?, index)));
        if let Some((at, index)) = found.min() {
            self.held.truncate(at);
            return Matched::Stop { text: std::mem::take(&mut self.held), index };
        }
        let clear = self.held.len() - self.longest_start();
        Matched::Text(self.held.drain(..clear).collect())
    }

    /// Ends the stream and returns the text that is still held back.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Returns the number of bytes at the end of the held text that may be the start of a stop string.
    fn longest_start(&self) -> usize {
        let longest = |stop: &String| {
            let ends = stop.char_indices().map(|(at, _)| at).rev();
            ends.filter(|&n| self.held.ends_with(&stop[..n])).max().unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

/// Rule that ends a sequence at a stop string.
pub(crate) struct StopStrings {
    pub(crate) text: TextStream,
    pub(crate) stop: StopMatcher,
}

impl StopRule for StopStrings {
    fn matches(&mut self, token: u32) -> bool {
        matches!(self.stop.push(&self.text.push(token)), Matched::Stop { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text, and the index of the stop string that ended it.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<u32>) {
        let mut matcher = StopMatcher::new(stops.iter().map(ToString::to_string).collect());
        let mut out = String::new();
        for piece in pieces {
            match matcher.push(piece) {
                Matched::Text(text) => out.push_str(&text),
                Matched::Stop { text, index } => return (out + &text, Some(index)),
            }
        }
        (out + &matcher.finish(), None)
    }

    #[test]
    fn text_ends_before_a_stop_string_split_over_pieces() {
        assert_eq!(run(&["END"], &["a E", "N", "D b"]), ("a ".into(), Some(0)));
        assert_eq!(run(&["END"], &["a EN", "C", "E b"]), ("a ENCE b".into(), None));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), Some(0)));
        assert_eq!(run(&["\n\n", "ö!"], &["x\n", "y", "ö", "!"]), ("x\ny".into(), Some(1)));
        assert_eq!(run(&["zz", "b"], &["abz", "z"]), ("a".into(), Some(1)));
        assert_eq!(run(&["", "never"], &["nev", "e"]), ("neve".into(), None));
    }

    #[test]
    fn only_possible_starts_of_stop_strings_are_held_back() {
        let mut matcher = StopMatcher::new(vec!["END".into()]);
        assert_eq!(matcher.push("hello"), Matched::Text("hello".into()));
        assert_eq!(matcher.push("x E"), Matched::Text("x ".into()));
        assert_eq!(matcher.push("x"), Matched::Text("Ex".into()));
    }
}
