//! Shows an answer on the terminal while it arrives.

use super::error::Result;
use super::output::{offer, shown, terminal_width};
use super::wrap::Wrapper;
use crate::{Piece, ReasoningSplitter};
use std::io::IsTerminal;

/// An answer on the terminal, or on a pipe.
pub(super) struct Answer {
    splitter: Option<ReasoningSplitter>,
    shows_reasoning: bool,
    /// Whether reasoning is dimmed.
    dims: bool,
    /// Wrapper of the text on a terminal.
    wrapper: Option<Wrapper>,
    /// Reasoning so far.
    pub(super) reasoning: String,
    /// Answer so far, without the reasoning.
    pub(super) text: String,
    /// Whether standard output is a closed pipe.
    pub(super) is_closed: bool,
}

impl Answer {
    pub(super) fn new(splitter: ReasoningSplitter, shows_reasoning: bool) -> Self {
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            splitter: Some(splitter),
            shows_reasoning,
            dims: std::io::stdout().is_terminal() && !is_plain,
            wrapper: terminal_width().map(Wrapper::new),
            reasoning: String::new(),
            text: String::new(),
            is_closed: false,
        }
    }

    /// Shows text that has arrived. Returns false if standard output is a closed pipe.
    pub(super) fn push(&mut self, text: &str) -> Result<bool> {
        let pieces = self.splitter.as_mut().map(|splitter| splitter.push(text)).unwrap_or_default();
        pieces.into_iter().try_for_each(|piece| self.piece(piece))?;
        Ok(!self.is_closed)
    }

    /// Shows the rest of the answer.
    pub(super) fn end(&mut self) -> Result<bool> {
        if let Some(piece) = self.splitter.take().and_then(ReasoningSplitter::finish) {
            self.piece(piece)?;
        }
        self.is_closed |= !offer("\n")?;
        Ok(!self.is_closed)
    }

    /// Ends the line of an answer that failed.
    pub(super) fn abandon(&mut self) {
        if !self.text.is_empty() || self.shows_reasoning && !self.reasoning.is_empty() {
            // The failure of the answer matters more than that of the output.
            let _ = offer("\n");
        }
    }

    fn piece(&mut self, piece: Piece) -> Result<()> {
        match piece {
            Piece::Reasoning(text) => {
                self.reasoning.push_str(&text);
                if self.shows_reasoning {
                    self.show(&text, self.dims)?;
                }
            }
            Piece::Answer(text) => {
                if self.text.is_empty() && !self.reasoning.is_empty() && self.shows_reasoning {
                    self.show("\n\n", false)?;
                }
                self.text.push_str(&text);
                self.show(&text, false)?;
            }
        }
        Ok(())
    }

    fn show(&mut self, text: &str, is_dim: bool) -> Result<()> {
        let text = shown(text);
        let text = self.wrapper.as_mut().map_or_else(|| text.clone(), |wrapper| wrapper.push(&text));
        let text = if is_dim { format!("\x1b[2m{text}\x1b[0m") } else { text };
        self.is_closed |= !offer(&text)?;
        Ok(())
    }
}
