//! Selection of rows: of an embedding table, and of the residual stream.

use super::elementwise::{f32_number, row_copy};
use super::lower::{Call, Cost, Lower, Rows, Shape, Site, Work};
use super::weight::Weight;
use crate::stack::Stack;
use ragtag_kernels::params::HEADER_WORDS;
use ragtag_kernels::{ElementType, Kernel, layout};

/// Embedding rows, selected from a table by the token ids of the micro-batch. The operator has no input, unless
/// a [`Lookup`] finds the rows before.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// Name of the embedding tensor.
    pub table: String,
}

impl Lower for Embed {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[], &[0]]
    }

    fn shape(&self, _: Shape) -> Option<Shape> {
        None
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Matrix(Stack::of(&self.table))]
    }

    fn cost(&self, work: &Work<'_>) -> Cost {
        let table = work.weights.tensor(&self.table).expect("a table");
        Cost { read_bytes: work.rows * (table.bytes / table.rows()), ..Cost::default() }
    }

    /// Returns one launch per part of the table. The launch for the first part writes zeros for tokens whose rows
    /// are in other parts. Later launches write only the rows of their own part.
    fn calls(&self, site: &Site) -> Vec<Call> {
        let width = site.output.width;
        if site.inputs[0].is_some() {
            let pitch = layout::pitch_values(width);
            let mut constants = row_copy([ElementType::F32; 2], [site.rows, width], pitch);
            constants[2] = HEADER_WORDS as u32 * pitch;
            let arguments = vec![site.x().argument, site.output.argument];
            return vec![Call { kernel: Kernel::Copy, arguments, constants }];
        }
        let parts = site.weights[0].iter().map(|part| Call {
            kernel: Kernel::Embed(part.tensor_type),
            arguments: vec![site.params, part.argument, site.output.argument],
            constants: vec![site.rows, part.rows, width, part.first_row],
        });
        parts.collect()
    }
}

/// Rows of an embedding table whose length is not a multiple of 32, with unused rows before them. The embedding
/// then has this input. The operator has no input.
#[derive(Clone, Debug, PartialEq)]
pub struct Lookup {
    /// Name of the embedding tensor.
    pub table: String,
}

impl Lookup {
    /// Returns the width of the output for rows of `width` values. It leaves enough space for one unused row per
    /// word of the header of a parameter block, even if there is a single row.
    pub(crate) fn width(width: u32) -> u32 {
        (1 + HEADER_WORDS as u32).saturating_mul(layout::pitch_values(width))
    }
}

impl Lower for Lookup {
    fn inputs(&self) -> &'static [&'static [u8]] {
        &[&[]]
    }

    fn weights(&self) -> Vec<Weight> {
        vec![Weight::Matrix(Stack::of(&self.table))]
    }

    fn reads_parts(&self) -> bool {
        false
    }

    /// Returns the lookup of the words of the parameter block as token ids. The ids follow its header, so the first
    /// rows of the output are unused.
    fn calls(&self, site: &Site) -> Vec<Call> {
        let part = site.weights[0][0];
        let (words, pitch) = (site.rows + HEADER_WORDS as u32, layout::pitch_values(part.columns));
        let arguments = vec![site.params, part.argument, site.output.argument];
        let constants = vec![f32_number(), f32_number(), words, part.rows, pitch];
        vec![Call { kernel: Kernel::GatherRows, arguments, constants }]
    }
}

/// Rows of the input that need logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Gather;

impl Lower for Gather {
    fn shape(&self, x: Shape) -> Option<Shape> {
        Some(Shape { rows: Rows::Logits, ..x })
    }

    fn calls(&self, site: &Site) -> Vec<Call> {
        let mut call = site.row_call(Kernel::Gather, &[site.output.width]);
        (call.constants[0], call.constants[1]) = (site.capacities.rows, site.capacities.logit_rows);
        vec![call]
    }
}
