//! Limits of a rendering. Templates come from model files and are untrusted, so every operation pays for its
//! work and its memory.

use crate::error::Limit;
use std::cell::Cell;

/// Reason why a rendering stops.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The template called `raise_exception`.
    Raised(String),
    /// The rendering exceeds a limit.
    Limit(Limit),
    /// An operation is invalid.
    Wrong(String),
}

/// Result of an operation of the interpreter. The error is boxed, because recursive functions return it.
pub(crate) type Evaluated<T> = Result<T, Box<Fault>>;

/// Returns the error of an invalid operation.
pub(crate) fn wrong<T>(what: impl Into<String>) -> Evaluated<T> {
    Err(Box::new(Fault::Wrong(what.into())))
}

/// Maximum amounts of work and memory of a rendering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of steps. A step is one operation of the template, or 64 bytes that an operation reads.
    pub steps: u64,
    /// Maximum total size of all values that the template creates, in bytes.
    pub value_bytes: u64,
    /// Maximum size of the prompt, in bytes.
    pub output_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { steps: 20_000_000, value_bytes: 256 << 20, output_bytes: 64 << 20 }
    }
}

/// Upper bound of [`Limits::value_bytes`]. Sizes of values below it never overflow.
const MAX_VALUE_BYTES: u64 = 1 << 40;

/// Number of bytes that one step pays for.
const BYTES_PER_STEP: usize = 64;

/// Account of the work and the memory that a rendering may still use.
#[derive(Debug)]
pub(crate) struct Meter {
    steps: Cell<u64>,
    bytes: Cell<u64>,
}

impl Meter {
    pub(crate) fn new(limits: &Limits) -> Self {
        let bytes = limits.value_bytes.min(MAX_VALUE_BYTES);
        Meter { steps: Cell::new(limits.steps), bytes: Cell::new(bytes) }
    }

    /// Pays for `count` operations.
    pub(crate) fn steps(&self, count: usize) -> Evaluated<()> {
        pay(&self.steps, count, Limit::Steps)
    }

    /// Pays for reading `bytes` bytes.
    pub(crate) fn read(&self, bytes: usize) -> Evaluated<()> {
        self.steps(1 + bytes / BYTES_PER_STEP)
    }

    /// Pays for creating `bytes` bytes. Callers pay before they allocate.
    pub(crate) fn make(&self, bytes: usize) -> Evaluated<()> {
        pay(&self.bytes, bytes, Limit::ValueBytes)?;
        self.read(bytes)
    }

    /// Pays for creating a list of `items` items.
    pub(crate) fn make_items(&self, items: usize) -> Evaluated<()> {
        self.make(items.saturating_mul(size_of::<crate::value::Value>()))
    }
}

fn pay(left: &Cell<u64>, amount: usize, limit: Limit) -> Evaluated<()> {
    match left.get().checked_sub(amount as u64) {
        Some(rest) => {
            left.set(rest);
            Ok(())
        }
        None => {
            // Stays exhausted, so that no later and smaller operation succeeds.
            left.set(0);
            Err(Box::new(Fault::Limit(limit)))
        }
    }
}

/// Text under construction. Every addition is paid for first.
#[derive(Debug)]
pub(crate) struct Sink<'m> {
    text: String,
    meter: &'m Meter,
    most_bytes: u64,
    /// Bytes for which no step is paid yet. A step pays for several bytes.
    unpaid: usize,
}

impl<'m> Sink<'m> {
    /// Creates the text of a value.
    pub(crate) fn new(meter: &'m Meter) -> Self {
        Sink::output(meter, u64::MAX)
    }

    /// Creates the prompt, with at most `most_bytes` bytes.
    pub(crate) fn output(meter: &'m Meter, most_bytes: u64) -> Self {
        Sink { text: String::new(), meter, most_bytes, unpaid: 0 }
    }

    pub(crate) fn push(&mut self, text: &str) -> Evaluated<()> {
        self.pay(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    fn pay(&mut self, bytes: usize) -> Evaluated<()> {
        if (self.text.len() as u64).saturating_add(bytes as u64) > self.most_bytes {
            return Err(Box::new(Fault::Limit(Limit::OutputBytes)));
        }
        pay(&self.meter.bytes, bytes, Limit::ValueBytes)?;
        self.unpaid = self.unpaid.saturating_add(bytes);
        self.meter.steps(self.unpaid / BYTES_PER_STEP)?;
        self.unpaid %= BYTES_PER_STEP;
        Ok(())
    }

    pub(crate) fn push_char(&mut self, c: char) -> Evaluated<()> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    /// Adds `text` `count` times.
    pub(crate) fn push_repeated(&mut self, text: &str, count: usize) -> Evaluated<()> {
        self.pay(text.len().saturating_mul(count))?;
        (0..if text.is_empty() { 0 } else { count }).for_each(|_| self.text.push_str(text));
        Ok(())
    }

    pub(crate) fn meter(&self) -> &'m Meter {
        self.meter
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}
