//! Pins of a placement: segments, or the experts of blocks, that must be on a device.

use crate::Model;
use crate::cli::error::{Error, Result};
use ragtag_devices::canonical;
use ragtag_graph::Granularity;
use ragtag_planner::split::Span;
use ragtag_planner::{Split, SplitPart};

/// Maximum number of pinned segments. No model has more segments. The limit bounds the time that Ragtag wastes on
/// mistyped ranges.
const MAX_PINS: usize = 1 << 16;
/// Word for the experts of blocks in a pin, after the blocks and a dot.
const EXPERTS: &str = "experts";

/// Parts of a model that must be on a device.
pub(super) enum Pin {
    /// Segments, each on a device.
    Segments(Split),
    /// Experts of blocks.
    Experts { blocks: Blocks, device: String },
}

/// Blocks whose experts a pin places.
#[derive(Debug, PartialEq)]
pub(super) enum Blocks {
    All,
    /// The first blocks, of a model that may have fewer.
    First(u32),
    Span(Span),
}

impl Blocks {
    fn contains(&self, block: u32) -> bool {
        match self {
            Self::All => true,
            Self::First(count) => block < *count,
            Self::Span(span) => (span.first()..=span.last()).contains(&block),
        }
    }
}

impl Pin {
    /// Reads `0-5=cpu:0`, `experts=cpu:0` or `20-31.experts=cpu:0`.
    ///
    /// # Errors
    /// Returns an error that names what is wrong.
    pub(super) fn read(text: &str) -> Result<Self> {
        let of_experts = text.split_once('=').and_then(|(what, device)| {
            let blocks = what.trim().strip_suffix(EXPERTS)?;
            Some((blocks, canonical(device.trim())))
        });
        let Some((blocks, device)) = of_experts else {
            let split = text.parse::<Split>().map_err(Error::Pin)?;
            return Ok(Self::Segments(super::wanted::with_canonical_names(split)));
        };
        let wrong = || Error::Experts {
            why: format!("{text:?} is neither experts=DEVICE nor FIRST-LAST.experts=DEVICE"),
        };
        if device.is_empty() {
            return Err(wrong());
        }
        let Some(blocks) = blocks.strip_suffix('.') else {
            return if blocks.is_empty() {
                Ok(Self::Experts { blocks: Blocks::All, device })
            } else {
                Err(wrong())
            };
        };
        let (first, last) = blocks.split_once('-').unwrap_or((blocks, blocks));
        let span = first.parse().ok().zip(last.parse().ok()).and_then(|(first, last)| Span::new(first, last));
        Ok(Self::Experts { blocks: Blocks::Span(span.ok_or_else(wrong)?), device })
    }

    /// Returns the pin that `--cpu-moe` or `--n-cpu-moe` stands for.
    pub(super) fn of_moe(all: bool, first: Option<u32>) -> Option<Self> {
        let blocks = first.map(Blocks::First).or_else(|| all.then_some(Blocks::All))?;
        Some(Self::Experts { blocks, device: "cpu:0".into() })
    }

    /// Returns the devices that the pin names.
    pub(super) fn devices(&self) -> Vec<&str> {
        match self {
            Self::Segments(split) => split.parts.iter().map(|part| part.device.as_str()).collect(),
            Self::Experts { device, .. } => vec![device],
        }
    }

    /// Returns whether the pin needs segments of half a block.
    pub(super) fn needs_halves(&self) -> bool {
        matches!(self, Self::Experts { .. })
    }

    /// Returns the pinned segments of `model`, each with its device.
    fn segments(&self, model: &Model) -> Vec<(u32, String)> {
        match self {
            Self::Segments(split) => {
                let of_part = |part: &SplitPart| {
                    let device = part.device.clone();
                    (part.span.first()..=part.span.last()).take(MAX_PINS).map(move |it| (it, device.clone()))
                };
                split.parts.iter().flat_map(of_part).collect()
            }
            Self::Experts { blocks, device } => {
                let layers = model.hyperparameters().layers;
                let is_pinned = |block: &u32| has_experts(model, *block) && blocks.contains(*block);
                // The embedding comes first. Each block has an attention half, then a feed-forward half.
                (0..layers).filter(is_pinned).map(|block| (2 * block + 2, device.clone())).collect()
            }
        }
    }
}

fn has_experts(model: &Model, block: u32) -> bool {
    let extras = &model.hyperparameters().extras;
    extras.experts.is_some() && extras.expert_layers.contains(block)
}

/// Returns all pinned segments of `model`, each with its device.
pub(super) fn segments(pins: &[Pin], model: &Model) -> Vec<(u32, String)> {
    pins.iter().flat_map(|pin| pin.segments(model)).take(MAX_PINS).collect()
}

/// Checks the pins of experts against `model`.
///
/// # Errors
/// Fails if a pin names experts that the model lacks, or if the user asked for whole blocks.
pub(super) fn check(pins: &[Pin], model: &Model, granularity: Granularity) -> Result<()> {
    let fail = |why: String| Err(Error::Experts { why });
    for pin in pins.iter().filter(|pin| pin.needs_halves()) {
        if granularity != Granularity::HalfBlock {
            return fail("experts apart from attention need --granularity half, or none".into());
        }
        if model.hyperparameters().extras.experts.is_none() {
            return fail("this model has no experts".into());
        }
        let last = model.hyperparameters().layers - 1;
        match pin {
            Pin::Experts { blocks: Blocks::Span(span), .. } if span.last() > last => {
                return fail(format!("blocks {span}: the last block is {last}"));
            }
            pin if pin.segments(model).is_empty() => return fail("these blocks have no experts".into()),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_name_segments_or_experts() {
        let experts = |text: &str| match Pin::read(text).unwrap() {
            Pin::Experts { blocks: Blocks::Span(span), device } => {
                (Some((span.first(), span.last())), device)
            }
            Pin::Experts { device, .. } => (None, device),
            Pin::Segments(split) => panic!("{split}"),
        };
        assert_eq!(experts("experts=cpu:0"), (None, "cpu:0".into()));
        assert_eq!(experts("20-31.experts=cpu:0"), (Some((20, 31)), "cpu:0".into()));
        assert_eq!(experts("7.experts = cpu:1"), (Some((7, 7)), "cpu:1".into()));
        assert!(matches!(Pin::read("0-5=cpu:0").unwrap(), Pin::Segments(_)));
        for wrong in ["5-3.experts=cpu:0", "x.experts=cpu:0", "3experts=cpu:0", "experts=", ".experts=cpu:0"]
        {
            assert!(Pin::read(wrong).is_err(), "{wrong}");
        }
    }
}
