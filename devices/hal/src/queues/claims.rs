//! Ranges of host regions that a script uses.
//!
//! This module knows nothing about commands.

use crate::error::Result;
use crate::region::{HostRegion, Reservation};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a region that a script reads or writes.
#[derive(Debug)]
pub struct Claim {
    /// Region that contains the bytes.
    pub region: Arc<HostRegion>,
    /// Range of bytes in the region.
    pub range: Range<usize>,
    /// Whether the script writes the bytes.
    pub writes: bool,
}

/// All ranges of host regions that a script uses.
#[derive(Debug, Default)]
pub struct Claims(Vec<Claim>);

impl Claims {
    /// Collects the claims of a script and merges overlapping claims. The steps of a script run in order, so
    /// they cannot conflict with each other.
    pub fn new(mut claims: Vec<Claim>) -> Self {
        claims.sort_by_key(|claim| (Arc::as_ptr(&claim.region) as usize, claim.range.start));
        let mut joined: Vec<Claim> = Vec::new();
        for claim in claims {
            match joined.last_mut() {
                Some(last)
                    if Arc::ptr_eq(&last.region, &claim.region) && claim.range.start < last.range.end =>
                {
                    last.range.end = last.range.end.max(claim.range.end);
                    last.writes |= claim.writes;
                }
                _ => joined.push(claim),
            }
        }
        Self(joined)
    }

    /// Leases all ranges.
    ///
    /// # Errors
    /// Returns an error if another lease conflicts with one of the ranges.
    pub fn reserve(&self) -> Result<Vec<Reservation>> {
        self.0.iter().map(|claim| claim.region.reserve(claim.range.clone(), claim.writes)).collect()
    }

    /// Returns true if any claim is in `region`.
    pub fn uses(&self, region: &Arc<HostRegion>) -> bool {
        self.0.iter().any(|claim| Arc::ptr_eq(&claim.region, region))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_claims_are_merged() {
        let regions = [(), ()].map(|()| Arc::new(HostRegion::new(4096).unwrap()));
        let claim = |region: usize, range: Range<usize>, writes| Claim {
            region: Arc::clone(&regions[region]),
            range,
            writes,
        };
        let claims = vec![
            claim(0, 10..20, true),
            claim(1, 0..100, false),
            claim(0, 0..11, false),
            claim(0, 20..30, false),
            claim(1, 50..60, false),
        ];
        let mut joined: Vec<_> = Claims::new(claims)
            .0
            .into_iter()
            .map(|claim| (Arc::ptr_eq(&claim.region, &regions[1]), claim.range, claim.writes))
            .collect();
        joined.sort_by_key(|(second, range, _)| (*second, range.start));
        assert_eq!(joined, [(false, 0..20, true), (false, 20..30, false), (true, 0..100, false)]);
    }
}
