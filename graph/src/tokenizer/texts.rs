//! Texts of all tokens, in one allocation, and the search for tokens by their texts.

use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Texts of all tokens, by id.
#[derive(Debug, Default)]
pub(super) struct Texts {
    all: String,
    /// End of each text in `all`.
    ends: Vec<u32>,
}

impl Texts {
    /// Copies the texts. An error completes the sentence "The vocabulary …".
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut all = Texts::default();
        for text in texts {
            all.all.push_str(text);
            let end = u32::try_from(all.all.len()).map_err(|_| "has texts of more than 4 GiB")?;
            all.ends.push(end);
        }
        Ok(all)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the text of the token `id`, if there is such a token.
    pub(super) fn get(&self, id: u32) -> Option<&str> {
        let id = id as usize;
        let start = id.checked_sub(1).map_or(0, |before| self.ends.get(before).copied().unwrap_or(0));
        self.all.get(start as usize..*self.ends.get(id)? as usize)
    }
}

/// Ids of some tokens by their texts. A `u32` for each token instead of a copy of its text keeps it small.
#[derive(Clone, Debug)]
pub(super) struct Index {
    texts: Arc<Texts>,
    ids: HashTable<u32>,
    hasher: RandomState,
}

impl Index {
    /// Indexes the tokens `ids`. Of several tokens with the same text, the first one counts. Tokens without a
    /// text do not count.
    pub(super) fn new(texts: Arc<Texts>, ids: impl Iterator<Item = u32>) -> Self {
        let mut index =
            Index { ids: HashTable::with_capacity(texts.len()), texts, hasher: RandomState::new() };
        for id in ids {
            if let Some(text) = index.texts.get(id).filter(|text| !text.is_empty()) {
                let text_of = |id: &u32| index.texts.get(*id).unwrap_or_default();
                let hash_of = |id: &u32| index.hasher.hash_one(text_of(id));
                index
                    .ids
                    .entry(index.hasher.hash_one(text), |other| text_of(other) == text, hash_of)
                    .or_insert(id);
            }
        }
        index
    }

    /// Returns the token with the text `text`.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        let is_same = |id: &u32| self.texts.get(*id) == Some(text);
        self.ids.find(self.hasher.hash_one(text), is_same).copied()
    }
}
