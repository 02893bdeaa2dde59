//! Places of the results of micro-batches in host memory. There is one part per credit: whole rows of logits, then the
//! best logits of rows.

use crate::core::ResultRows;
use ragtag_kernels::picks::RECORD_BYTES;
use std::ops::Range;

/// Layout of the host memory for results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResultPlaces {
    /// Bytes of a whole row.
    pub(crate) row_bytes: u64,
    /// Maximum number of logit rows of a micro-batch.
    pub(crate) rows: u32,
    /// Whether the stages find the best logits of each row.
    pub(crate) has_picks: bool,
}

impl ResultPlaces {
    /// Returns the bytes of the part of one credit.
    pub(crate) fn part_bytes(&self) -> u64 {
        u64::from(self.rows).saturating_mul(self.row_bytes.saturating_add(self.picks_bytes()))
    }

    /// Returns the bytes of the best logits of a row.
    fn picks_bytes(&self) -> u64 {
        if self.has_picks { RECORD_BYTES } else { 0 }
    }

    /// Returns the range of bytes of the first `rows` whole rows of the micro-batch that holds `credit`.
    pub(crate) fn whole(&self, credit: u32, rows: u32) -> Range<u64> {
        let start = u64::from(credit) * self.part_bytes();
        start..start + u64::from(rows) * self.row_bytes
    }

    /// Returns the range of bytes of the best logits of some rows of the micro-batch that holds `credit`. The numbers
    /// are those in the list of logit rows.
    pub(crate) fn picks(&self, credit: u32, rows: Range<u32>) -> Range<u64> {
        let start = self.whole(credit, self.rows).end;
        let place = |row: u32| start + u64::from(row) * self.picks_bytes();
        place(rows.start)..place(rows.end)
    }

    /// Returns the ranges of bytes of a micro-batch's results: of the whole rows, and of the best logits of the others.
    pub(crate) fn of(&self, rows: ResultRows) -> [Range<u64>; 2] {
        let ResultRows { credit, whole, all } = rows;
        [self.whole(credit, whole), self.picks(credit, whole..all)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let places = ResultPlaces { row_bytes: 1000, rows: 3, has_picks: true };
        assert_eq!(places.part_bytes(), 3 * 1528);
        assert_eq!(places.whole(1, 2), 4584..6584);
        assert_eq!(places.picks(1, 2..3), 4584 + 3000 + 1056..4584 + 3000 + 1584);
        assert_eq!(places.picks(1, 0..3).end, places.whole(2, 0).start);
        let without = ResultPlaces { has_picks: false, ..places };
        assert_eq!((without.part_bytes(), without.picks(1, 3..3)), (3000, 6000..6000));
    }
}
