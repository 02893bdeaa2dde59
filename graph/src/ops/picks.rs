//! The best logits of each row, from which most samplers draw: see [`ragtag_kernels::picks`].

use super::lower::{Call, Lower, Shape, Site};
use ragtag_kernels::Kernel;
use ragtag_kernels::picks::RECORD_WORDS;
use ragtag_kernels::picks::peaks::MAX_PART;

/// Words per record.
const RECORD: u32 = RECORD_WORDS as u32;

/// The best logits of each part of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Peaks;

impl Lower for Peaks {
    fn shape(&self, x: Shape) -> Option<Shape> {
        Some(Shape { width: x.width.div_ceil(MAX_PART).saturating_mul(RECORD), ..x })
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        vec![site.row_call(Kernel::Peaks, &[site.x().width, MAX_PART])]
    }
}

/// The best logits of each row, from those of its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Picks;

impl Lower for Picks {
    fn shape(&self, x: Shape) -> Option<Shape> {
        Some(Shape { width: RECORD, ..x })
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        vec![site.row_call(Kernel::Picks, &[site.x().width / RECORD])]
    }
}
