//! The card library: datasheet values of real devices with their sources, and the fractions of these values
//! that Ragtag's kernels reach.
//!
//! The data is in `cards.json`. This module knows nothing about fleets.

use ragtag_hal::AdapterKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Datasheet values of a real device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Name that fleets use for the card.
    pub name: String,
    /// Full product name.
    pub title: String,
    /// Kind of hardware.
    pub kind: AdapterKind,
    /// API that runs the card's kernels. It selects the entry in [`reached`].
    pub through: String,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// Memory bandwidth, in units of 10⁹ bytes per second.
    pub bandwidth_gb_per_s: f64,
    /// Rate of f32 arithmetic, in units of 10¹² operations per second.
    pub f32_tflop_per_s: f64,
    /// Rate of dense f16 products in matrix units, in units of 10¹² operations per second. If the
    /// manufacturer lists a separate rate for f32 accumulation, this field holds that rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f16_matrix_tflop_per_s: Option<f64>,
    /// Rate of four-way int8 dot products outside matrix units, in units of 10¹² operations per second.
    /// Kernels use matrix units for f16 only. If the manufacturer gives no rate, it is four times the f32
    /// rate. It is only twice the f32 rate if half of the f32 lanes execute this instruction, or if every
    /// lane executes it at half the f32 rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8_top_per_s: Option<f64>,
    /// PCI Express link of the card, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<Pcie>,
    /// Source of the values: a key for [`source`].
    pub source: String,
    /// Fields whose values do not come from the source. They are assumed, or they are derived from clocks and
    /// unit counts or from a similar card.
    #[serde(default)]
    pub assumed: Vec<String>,
}

/// A PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// Generation: 1 to 6.
    #[schemars(range(min = 1, max = 6))]
    pub generation: u32,
    /// Lanes: 1, 2, 4, 8 or 16.
    #[schemars(range(min = 1, max = 16))]
    pub lanes: u32,
}

impl Pcie {
    /// Returns the peak rate in each direction, in units of 10⁹ bytes per second. Returns `None` for an
    /// invalid generation or lane count.
    pub fn gb_per_s(self) -> Option<f64> {
        // Transfers per second times the efficiency of the line code: 8b/10b in generations 1 and 2,
        // 128b/130b from generation 3, and flits in generation 6.
        const LANE_GB_PER_S: [f64; 6] = [0.25, 0.5, 0.985, 1.969, 3.938, 7.563];
        let lane = *LANE_GB_PER_S.get(usize::try_from(self.generation.checked_sub(1)?).ok()?)?;
        [1, 2, 4, 8, 16].contains(&self.lanes).then_some(lane * f64::from(self.lanes))
    }
}

/// Fractions of datasheet values that kernels reach through one API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reached {
    /// Fraction of the memory bandwidth.
    pub bandwidth: f64,
    /// Fraction of the f32 rate.
    pub f32: f64,
    /// Fraction of the f16 rate of matrix units. Absent if kernels do not use matrix units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f16_matrix: Option<f64>,
    /// Fraction of the rate of int8 dot products.
    pub int8: f64,
    /// Dispatch overhead of one segment, in microseconds.
    pub launch_us: f64,
    /// Source of these values.
    pub why: String,
}

/// A page or paper that lists datasheet values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardSource {
    /// Title of the page or paper.
    pub title: String,
    /// Publisher.
    pub publisher: String,
    /// URL.
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
    // The file is compiled into the program, and tests parse it.
    serde_json::from_str(include_str!("cards.json")).expect("cards.json is valid")
});

/// Returns all cards.
pub fn cards() -> &'static [Card] {
    &LIBRARY.cards
}

/// Returns the card named `name`.
///
/// # Errors
/// Returns the most similar names if there is no card named `name`.
pub fn card(name: &str) -> Result<&'static Card, Vec<&'static str>> {
    cards().iter().find(|card| card.name == name).ok_or_else(|| nearest(name))
}

/// Finds the card for a device name that an API reports, such as `AMD Radeon RX 7900 XTX (RADV NAVI31)`.
/// Compares the words of the name with those of the card's title. Ignores manufacturers, brands, memory sizes
/// and text in parentheses. Among cards that differ only in memory size, returns the nearest in size.
pub fn card_named(name: &str, memory_bytes: u64) -> Option<&'static Card> {
    let memory_gib = memory_bytes as f64 / (1u64 << 30) as f64;
    // Some drivers list several possible names or append a name of their own.
    let words = name.split('/').map(model_words).find(|words| !words.is_empty())?;
    let gpus = cards().iter().filter(|card| card.kind != AdapterKind::Cpu);
    let same = gpus.filter(|card| title_words(card) == words);
    let away = |card: &Card| (card.memory_gib - memory_gib).abs();
    same.min_by(|a, b| away(a).total_cmp(&away(b)))
}

fn title_words(card: &Card) -> Vec<String> {
    let title = card.title.split(" with ").next().unwrap_or_default();
    let mut words = model_words(title.split(", ").next().unwrap_or_default());
    // Drivers name the form factor only for the other variants of these cards.
    words.retain(|word| word != "sxm");
    words
}

/// Returns the words of `name` that identify a model. Suffixes such as Ti or Laptop are part of the model.
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
    let kept = (0..words.len()).filter(|&at| !is_size(at) && !["gb", "gib"].contains(&words[at]));
    kept.map(|at| words[at].to_owned()).filter(|word| !COMMON.contains(&word.as_str())).collect()
}

/// Returns the fractions of datasheet values that kernels reach, indexed by API.
pub fn reached() -> &'static BTreeMap<String, Reached> {
    &LIBRARY.reached
}

/// Returns the source with the key `key`.
pub fn source(key: &str) -> Option<&'static CardSource> {
    LIBRARY.sources.get(key)
}

/// Returns the names of the most similar cards, best first.
fn nearest(name: &str) -> Vec<&'static str> {
    const SHOWN: usize = 3;
    // The name may be very long, so compare only its first 40 characters.
    let name: String = name.chars().take(40).flat_map(char::to_lowercase).collect();
    let similarity =
        |card: &Card| strsim::jaro_winkler(&card.name, &name).max(strsim::sorensen_dice(&card.name, &name));
    let mut cards: Vec<_> = cards().iter().map(|card| (similarity(card), card.name.as_str())).collect();
    cards.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    cards.into_iter().take(SHOWN).map(|(_, name)| name).collect()
}
