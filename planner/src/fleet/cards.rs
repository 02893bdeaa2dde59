//! The library of cards: what makers promise of real devices, each figure with where it is promised, and the share of
//! such promises that this project's kernels reach.
//!
//! The data are `cards.json` beside this file. This module must not know fleets.

use ragtag_hal::AdapterKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A real device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Its name in fleets.
    pub name: String,
    /// Its name in full.
    pub title: String,
    /// What sort of hardware it is.
    pub kind: AdapterKind,
    /// The API that it is used through: which of [`reached`] counts.
    pub through: String,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// Rate of its memory, in units of 10⁹ bytes per second.
    pub bandwidth_gb_per_s: f64,
    /// Rate of f32 arithmetic, in units of 10¹² operations per second.
    pub f32_tflop_per_s: f64,
    /// Rate of dense products of f16 in matrix units, with f32 sums where the maker says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f16_matrix_tflop_per_s: Option<f64>,
    /// Rate of int8 dot products of four, outside matrix units, which kernels use for f16 alone. Where no maker says it: four times
    /// the f32 rate, or twice it where half of the f32 lanes (or of each lane's f32 rate) have no such instruction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8_top_per_s: Option<f64>,
    /// Its bus, if it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<Pcie>,
    /// Where the figures are promised: a key of the library's sources ([`source`]).
    pub source: String,
    /// Fields whose figures are not promised there, but derived (from clocks and units, or from a like card) or assumed.
    #[serde(default)]
    pub assumed: Vec<String>,
}

/// A PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// Its generation: 1 to 6.
    #[schemars(range(min = 1, max = 6))]
    pub generation: u32,
    /// Its lanes: 1, 2, 4, 8 or 16.
    #[schemars(range(min = 1, max = 16))]
    pub lanes: u32,
}

impl Pcie {
    /// What it promises each way, in units of 10⁹ bytes per second; `None` if there is no such link.
    pub fn gb_per_s(self) -> Option<f64> {
        // Transfers per second times the share of the line code: 8b/10b, from generation 3 on 128b/130b, in 6 flits.
        const LANE_GB_PER_S: [f64; 6] = [0.25, 0.5, 0.985, 1.969, 3.938, 7.563];
        let lane = *LANE_GB_PER_S.get(usize::try_from(self.generation.checked_sub(1)?).ok()?)?;
        [1, 2, 4, 8, 16].contains(&self.lanes).then_some(lane * f64::from(self.lanes))
    }
}

/// The shares of a datasheet's figures that kernels reach through an API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reached {
    /// Of the memory's rate.
    pub bandwidth: f64,
    /// Of f32 arithmetic.
    pub f32: f64,
    /// Of f16 products in matrix units, if they are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f16_matrix: Option<f64>,
    /// Of int8 dot products.
    pub int8: f64,
    /// Overhead of one segment's dispatches, in microseconds.
    pub launch_us: f64,
    /// Where these come from.
    pub why: String,
}

/// A page or paper with figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardSource {
    /// Its title.
    pub title: String,
    /// Who published it.
    pub publisher: String,
    /// Where.
    pub url: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Library {
    reached: BTreeMap<String, Reached>,
    sources: BTreeMap<String, CardSource>,
    cards: Vec<Card>,
}

static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    // Part of the program, and read by its tests.
    serde_json::from_str(include_str!("cards.json")).expect("the library of cards is of its form")
});

/// All cards.
pub fn cards() -> &'static [Card] {
    &LIBRARY.cards
}

/// The card of this name.
///
/// # Errors
/// The names that are nearest.
pub fn card(name: &str) -> Result<&'static Card, Vec<&'static str>> {
    cards().iter().find(|card| card.name == name).ok_or_else(|| nearest(name))
}

/// The card that an API means with a name such as `AMD Radeon RX 7900 XTX (RADV NAVI31)`: the one with the same words in its
/// title, makers, brands, sizes of memory and what stands in parentheses apart. Of several that differ in their memory alone,
/// the nearest.
pub fn card_named(name: &str, memory_bytes: u64) -> Option<&'static Card> {
    let memory_gib = memory_bytes as f64 / (1u64 << 30) as f64;
    // Some drivers name all that a device may be, or append what they are.
    let words = name.split('/').map(model_words).find(|words| !words.is_empty())?;
    let gpus = cards().iter().filter(|card| card.kind != AdapterKind::Cpu);
    let same = gpus.filter(|card| title_words(card) == words);
    let away = |card: &Card| (card.memory_gib - memory_gib).abs();
    same.min_by(|a, b| away(a).total_cmp(&away(b)))
}

fn title_words(card: &Card) -> Vec<String> {
    let title = card.title.split(" with ").next().unwrap_or_default();
    let mut words = model_words(title.split(", ").next().unwrap_or_default());
    // The drivers of such cards name the others' form.
    words.retain(|word| word != "sxm");
    words
}

/// The words of a name that tell one model from another: a suffix such as Ti or Laptop is one of them.
fn model_words(name: &str) -> Vec<String> {
    const COMMON: [&str; 13] = [
        "nvidia", "geforce", "tesla", "amd", "ati", "radeon", "instinct", "intel", "graphics", "gpu",
        "series", "hbm3", "hbm3e",
    ];
    let mut depth = 0usize;
    let outside = name.chars().map(|c| {
        depth = if c == '(' { depth + 1 } else { depth };
        let shown = if depth > 0 || !c.is_ascii_alphanumeric() { ' ' } else { c.to_ascii_lowercase() };
        depth = if c == ')' { depth.saturating_sub(1) } else { depth };
        shown
    });
    let plain: String = outside.collect();
    let words: Vec<&str> = plain.split_ascii_whitespace().collect();
    let is_number = |word: &str| word.chars().all(|c| c.is_ascii_digit());
    let is_size = |at: usize| {
        let next = words.get(at + 1).copied();
        words[at].strip_suffix("gb").is_some_and(is_number)
            || (is_number(words[at]) && matches!(next, Some("gb" | "gib")))
    };
    let told = (0..words.len()).filter(|&at| !is_size(at) && !["gb", "gib"].contains(&words[at]));
    told.map(|at| words[at].to_owned()).filter(|word| !COMMON.contains(&word.as_str())).collect()
}

/// What kernels reach, by API.
pub fn reached() -> &'static BTreeMap<String, Reached> {
    &LIBRARY.reached
}

/// The source of this key.
pub fn source(key: &str) -> Option<&'static CardSource> {
    LIBRARY.sources.get(key)
}

/// The names that are most like this one, the likest first.
fn nearest(name: &str) -> Vec<&'static str> {
    const SHOWN: usize = 3;
    // Of a hostile line only so much is compared.
    let name: String = name.chars().take(40).flat_map(char::to_lowercase).collect();
    let likeness =
        |card: &Card| strsim::jaro_winkler(&card.name, &name).max(strsim::sorensen_dice(&card.name, &name));
    let mut cards: Vec<_> = cards().iter().map(|card| (likeness(card), card.name.as_str())).collect();
    cards.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    cards.into_iter().take(SHOWN).map(|(_, name)| name).collect()
}
