//! Placements that the user requests, such as `0-5=cpu:0,6-13=cpu:1`. This module knows nothing about costs,
//! memory or segment contents.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// An inclusive range of segments: `0-5`, or `3` for one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "[u32; 2]", into = "[u32; 2]")]
pub struct Span {
    first: u32,
    last: u32,
}

impl Span {
    /// Returns the inclusive range from `first` to `last`, or `None` if `last` is less than `first`.
    pub fn new(first: u32, last: u32) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Returns the first segment.
    pub fn first(self) -> u32 {
        self.first
    }

    /// Returns the last segment, inclusive.
    pub fn last(self) -> u32 {
        self.last
    }

    /// Returns the range as half-open indices.
    pub fn range(self) -> std::ops::Range<usize> {
        self.first as usize..self.last as usize + 1
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl TryFrom<[u32; 2]> for Span {
    type Error = String;

    fn try_from([first, last]: [u32; 2]) -> Result<Self, String> {
        Self::new(first, last)
            .ok_or_else(|| format!("segments [{first}, {last}]: the last comes before the first"))
    }
}

impl From<Span> for [u32; 2] {
    fn from(span: Span) -> Self {
        [span.first, span.last]
    }
}

/// Reason why a list of parts is not a valid placement of a model.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PartitionError {
    /// There are no parts.
    #[error("no segment is placed on any device")]
    Empty,
    /// Some segments are on no device.
    #[error("segments {missing} are on no device (the model's segments are 0-{last_segment})")]
    Hole {
        /// First range of segments without a device.
        missing: Span,
        /// Last segment of the model.
        last_segment: u32,
    },
    /// Some segments are on two devices.
    #[error("segments {twice} are on {first_device} and on {second_device}")]
    Overlap {
        /// First range that is placed twice.
        twice: Span,
        /// Device of the part that comes first.
        first_device: String,
        /// Device of the part that comes second.
        second_device: String,
    },
    /// The parts are not in segment order.
    #[error("segments {later} come before segments {earlier}: parts must be in the order of the segments")]
    Order {
        /// Segments of the part that comes first in the list.
        later: Span,
        /// Segments of the part that comes after it in the list.
        earlier: Span,
    },
    /// A part contains segments beyond the end of the model.
    #[error("segments {span} on {device}: the model's last segment is {last_segment}")]
    Beyond {
        /// Segments of the part.
        span: Span,
        /// Device of the part.
        device: String,
        /// Last segment of the model.
        last_segment: u32,
    },
    /// Two neighbouring parts are on the same device.
    #[error("segments {first} and {second} are both on {device}: write them as one range")]
    Neighbours {
        /// Segments of the first part.
        first: Span,
        /// Segments of the second part.
        second: Span,
        /// Device of both parts.
        device: String,
    },
    /// A part is on an unknown device.
    #[error("there is no device {device} (devices: {known})")]
    UnknownDevice {
        /// Label of the unknown device.
        device: String,
        /// Labels of the known devices.
        known: String,
    },
}

/// Checks that `parts` cover the segments `0 .. segments` exactly once and in order, that all their devices
/// are in `devices`, and that neighbouring parts are on different devices.
///
/// # Errors
/// Returns the first problem found.
pub fn check_partition(
    parts: &[(Span, &str)],
    segments: u32,
    devices: &[&str],
) -> Result<(), PartitionError> {
    let Some(last_segment) = segments.checked_sub(1).filter(|_| !parts.is_empty()) else {
        return Err(PartitionError::Empty);
    };
    for &(span, device) in parts {
        if !devices.contains(&device) {
            return Err(PartitionError::UnknownDevice { device: device.into(), known: devices.join(", ") });
        }
        if span.last > last_segment {
            return Err(PartitionError::Beyond { span, device: device.into(), last_segment });
        }
    }
    for pair in parts.windows(2) {
        if pair[1].0.last < pair[0].0.first {
            return Err(PartitionError::Order { later: pair[0].0, earlier: pair[1].0 });
        }
    }
    let mut next = 0;
    for (at, &(span, device)) in parts.iter().enumerate() {
        if span.first > next {
            return Err(PartitionError::Hole {
                missing: Span { first: next, last: span.first - 1 },
                last_segment,
            });
        }
        if span.first < next {
            let last = span.last.min(next - 1);
            return Err(PartitionError::Overlap {
                twice: Span { first: span.first, last },
                first_device: parts[at - 1].1.into(),
                second_device: device.into(),
            });
        }
        next = span.last + 1;
    }
    if let Some(pair) = parts.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        let (first, second, device) = (pair[0].0, pair[1].0, pair[0].1.into());
        return Err(PartitionError::Neighbours { first, second, device });
    }
    if next <= last_segment {
        return Err(PartitionError::Hole { missing: Span { first: next, last: last_segment }, last_segment });
    }
    Ok(())
}

/// A run of segments on a device, as one part of a [`Split`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitPart {
    /// Segments of the part.
    pub span: Span,
    /// Device label, for example `cpu:0`.
    pub device: String,
    /// Streamed segments of the part, in ascending order. If `None`, the planner chooses them, and only if
    /// the part does not fit with resident weights.
    pub streamed: Option<Vec<u32>>,
    /// Number of arenas that the streamed segments share. If `None`, the fewest, unless the planner chooses
    /// the streamed segments.
    pub arenas: Option<u32>,
    /// Streamed segments whose weights are read from the model's file, in ascending order. If the planner
    /// chooses the streamed segments, it chooses these too.
    pub from_file: Vec<u32>,
}

/// A placement that the user requests. Its parts are in segment order. Parsing checks only the syntax.
/// [`Split::check`] checks the placement against a model and devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The parts, at least one.
    pub parts: Vec<SplitPart>,
    /// Prefill stage. If `None`, the planner may add one if it also chooses the streamed segments.
    pub prefill: Option<SplitPrefill>,
}

/// Prefill stage of a requested placement. It has no text form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitPrefill {
    /// Label of the device.
    pub device: String,
    /// Streamed segments, in ascending order.
    pub streamed: Vec<u32>,
    /// Number of arenas that the streamed segments share. If `None`, the fewest.
    pub arenas: Option<u32>,
    /// Minimum number of tokens of the prompts that the stage computes.
    pub from_tokens: u32,
}

impl Split {
    /// Checks the split against a model with `segments` segments and against the available devices.
    ///
    /// # Errors
    /// Returns the first problem found: missing or overlapping segments, an unknown device, or a segment
    /// beyond the end of the model.
    pub fn check(&self, segments: u32, devices: &[&str]) -> Result<(), PartitionError> {
        let parts: Vec<_> = self.parts.iter().map(|p| (p.span, p.device.as_str())).collect();
        check_partition(&parts, segments, devices)
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.parts.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}={}", part.span, part.device)?;
        }
        Ok(())
    }
}

/// Reason why a string is not a valid split.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SplitError {
    /// A part is empty.
    #[error("an empty part in '{split}' (write, for example, 0-5=cpu:0,6-13=cpu:1)")]
    EmptyPart {
        /// The whole string.
        split: String,
    },
    /// A part does not have the form `FIRST-LAST=DEVICE` or `SEGMENT=DEVICE`.
    #[error("'{part}' is not FIRST-LAST=DEVICE (for example 0-5=cpu:0)")]
    Syntax {
        /// Text of the part.
        part: String,
    },
    /// The last segment of a part comes before its first segment.
    #[error("'{part}': the last segment comes before the first")]
    Reversed {
        /// Text of the part.
        part: String,
    },
}

impl FromStr for Split {
    type Err = SplitError;

    fn from_str(text: &str) -> Result<Self, SplitError> {
        let parts = text.split(',').map(|part| parse_part(part.trim(), text)).collect::<Result<_, _>>()?;
        Ok(Self { parts, prefill: None })
    }
}

fn parse_part(part: &str, split: &str) -> Result<SplitPart, SplitError> {
    if part.is_empty() {
        return Err(SplitError::EmptyPart { split: split.into() });
    }
    let syntax = || SplitError::Syntax { part: part.into() };
    let (span, device) = part.split_once('=').ok_or_else(syntax)?;
    let (span, device) = (span.trim(), device.trim());
    if device.is_empty() || device.contains(char::is_whitespace) || device.contains('=') {
        return Err(syntax());
    }
    let (first, last) = span.split_once('-').unwrap_or((span, span));
    let number = |digits: &str| {
        let digits = digits.trim();
        // `u32::from_str` would accept a plus sign.
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse().ok()).flatten().ok_or_else(syntax)
    };
    let (first, last) = (number(first)?, number(last)?);
    let span = Span::new(first, last).ok_or_else(|| SplitError::Reversed { part: part.into() })?;
    Ok(SplitPart { span, device: device.into(), streamed: None, arenas: None, from_file: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: [&str; 2] = ["cpu:0", "cpu:1"];

    fn check(text: &str) -> Result<(), PartitionError> {
        text.parse::<Split>().expect("parses").check(14, &DEVICES)
    }

    fn span(first: u32, last: u32) -> Span {
        Span::new(first, last).expect("in order")
    }

    #[test]
    fn round_trips() {
        for text in ["0-5=cpu:0,6-13=cpu:1", "0=cpu:0,1-13=cpu:1", "0-13=level-zero:0"] {
            assert_eq!(text.parse::<Split>().expect("parses").to_string(), text);
        }
        assert_eq!(" 0 - 5 = cpu:0 , 6-13=cpu:1 ".parse(), "0-5=cpu:0,6-13=cpu:1".parse::<Split>());
    }

    #[test]
    fn accepts_covers() {
        assert_eq!(check("0-5=cpu:0,6-13=cpu:1"), Ok(()));
        assert_eq!(check("0=cpu:1,1-13=cpu:0"), Ok(()));
        assert_eq!(check("0-13=cpu:1"), Ok(()));
        assert_eq!(check("0-3=cpu:0,4-7=cpu:1,8-13=cpu:0"), Ok(()));
    }

    #[test]
    fn rejects_syntax() {
        let syntax = |part: &str| Err(SplitError::Syntax { part: part.into() });
        for part in [
            "0-5",
            "0-5=",
            "=cpu:0",
            "-5=cpu:0",
            "0-=cpu:0",
            "a-b=cpu:0",
            "+1=cpu:0",
            "0-5=cpu 0",
            "0-5=a=b",
            "1-2-3=a",
            "99999999999=a",
        ] {
            assert_eq!(part.parse::<Split>(), syntax(part), "{part}");
        }
        assert_eq!("5-0=cpu:0".parse::<Split>(), Err(SplitError::Reversed { part: "5-0=cpu:0".into() }));
        for text in ["", ",", "0-5=cpu:0,", "0-5=cpu:0,,6-13=cpu:1"] {
            assert_eq!(text.parse::<Split>(), Err(SplitError::EmptyPart { split: text.into() }), "{text}");
        }
    }

    #[test]
    fn names_the_problem() {
        let hole = |first, last| Err(PartitionError::Hole { missing: span(first, last), last_segment: 13 });
        assert_eq!(check("1-13=cpu:0"), hole(0, 0));
        assert_eq!(check("0-5=cpu:0,8-13=cpu:1"), hole(6, 7));
        assert_eq!(check("0-5=cpu:0,6-11=cpu:1"), hole(12, 13));
        let overlap = PartitionError::Overlap {
            twice: span(4, 5),
            first_device: "cpu:0".into(),
            second_device: "cpu:1".into(),
        };
        assert_eq!(check("0-5=cpu:0,4-13=cpu:1"), Err(overlap));
        let order = PartitionError::Order { later: span(6, 13), earlier: span(0, 5) };
        assert_eq!(check("6-13=cpu:0,0-5=cpu:1"), Err(order));
        let beyond = PartitionError::Beyond { span: span(6, 14), device: "cpu:1".into(), last_segment: 13 };
        assert_eq!(beyond.to_string(), "segments 6-14 on cpu:1: the model's last segment is 13");
        assert_eq!(check("0-5=cpu:0,6-14=cpu:1"), Err(beyond));
        let neighbours =
            PartitionError::Neighbours { first: span(0, 5), second: span(6, 13), device: "cpu:0".into() };
        assert_eq!(check("0-5=cpu:0,6-13=cpu:0"), Err(neighbours));
        let unknown = PartitionError::UnknownDevice { device: "cuda:3".into(), known: "cpu:0, cpu:1".into() };
        assert_eq!(check("0-5=cpu:0,6-13=cuda:3"), Err(unknown));
        assert_eq!(Split { parts: vec![], prefill: None }.check(14, &DEVICES), Err(PartitionError::Empty));
        assert_eq!(check_partition(&[(span(0, 0), "cpu:0")], 0, &DEVICES), Err(PartitionError::Empty));
    }

    #[test]
    fn extreme_segments_do_not_overflow() {
        let text = format!("0-5=cpu:0,6-{}=cpu:1", u32::MAX);
        let split: Split = text.parse().expect("parses");
        assert!(matches!(split.check(14, &DEVICES), Err(PartitionError::Beyond { .. })));
        assert_eq!(split.parts[1].span.range().end, u32::MAX as usize + 1);
        // A model with the largest possible number of segments does not overflow either.
        assert!(split.check(u32::MAX, &DEVICES).is_err());
    }
}
