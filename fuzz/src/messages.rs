//! Reads arbitrary frames as messages between machines, and writes them again. An end of an edge receives those of an edge.

use super::short;
use ragtag_engine::rewritten_frames;
use ragtag_scheduler::remote::receive_edge;

/// Returns whether all frames are valid. The first byte selects the kind of their messages: `+` and `-` are those that the
/// sender and the receiver of activations receive, and [`rewritten_frames`] names the others.
pub fn run(data: &[u8]) -> bool {
    let Some((kind, bytes)) = data.split_first() else { return false };
    if let b'+' | b'-' = kind {
        return receive_edge(bytes, *kind == b'+').map_or_else(|error| short(&error), |frames| frames > 0);
    }
    match rewritten_frames(*kind, bytes) {
        Ok(written) => {
            let again = rewritten_frames(*kind, &written).expect("written frames can be read");
            assert_eq!(again, written);
            !written.is_empty()
        }
        Err(error) => short(&error),
    }
}
