//! ExpertMatMul: for each assignment, the product of a row of x and the weights of its expert.
//!
//! | binding | |
//! | --- | --- |
//! | 0 | parameters |
//! | 1 | weights: `[n, k]` in the variant's [layout](crate::layout): all experts, or a part of their rows |
//! | 2 | x: f32 `[rows, x slots, pitch]`, or [f16](crate::half_rows) or [int8 activations](crate::quantize) of x slots · k columns |
//! | 3 | route: see [`route`](super::route). A fixed route is not read. |
//! | 4 | y: f32, rows with stride `stride` (in values), read and written |
//!
//! The constants are, in this order:
//!
//! - the row capacity, and the index of the parameter word that holds the row count
//! - n and k
//! - the first row: the row of all experts' rows with which the weights start, a multiple of 16
//! - the rows per expert
//! - the piece: a divisor of the rows per expert
//! - `used`, the number of experts per row
//! - the x slots: 1 if all slots of a row have the same x, or `used`
//! - the first column of y, and the stride of y
//! - 1 if the route is fixed: the expert of each slot has the slot's number, as heads have weights of their own
//! - the distance between the starts of two slots of x, and the column of a slot at which its k values start. All are
//!   multiples of 4.
//! - the gap: values of y between two slots that belong to other products, 0 if an expert has several pieces
//!
//! Weight row i of an expert gives column `first column + slot · gap + (i / piece · used + slot) · piece + i % piece` of
//! y. With a piece of half the rows per expert, all gates of a row precede all its up projections, as
//! [`silu_mul`](crate::silu_mul) reads them. A launch with a part of the experts' rows writes only the columns of this
//! part. Experts may start at any row.
//!
//! Each variant has a fixed order of summation, so the columns of an assignment depend, bit for bit, only on its x and
//! its expert.
//!
//! Variants with f16 activations multiply f16 values on matrix units, to which they decode other weights. Variants with
//! f16 or int8 activations exist only for devices on which they are faster, and for launches with enough rows.

use super::route::{MAX_EXPERTS, MAX_USED};
use crate::abi::{HEADER_BYTES, IMPOSSIBLE, array, product, strided, words};
use crate::blocks::{TensorType, dequantise};
use crate::cases::{Build, Case, ROW_SHAPES, Random, RowShape};
use crate::kernel::{Accuracy, Activations, Kernel, Spec};
use crate::layout::{GROUP_ROWS, Layout, Resident};
use crate::types::each_type;
use crate::{half_rows, matmul, quantize};
use ragtag_hal::{Access, EntryAbi};

/// Number of constants.
pub(crate) const CONSTANTS: usize = 15;

macro_rules! abis {
    ($($name:ident)*) => {
        /// Returns the binary interface for weights of `tensor_type` in `layout`, and for `activations`.
        pub fn abi(tensor_type: TensorType, layout: Layout, activations: Activations) -> &'static EntryAbi {
            match (tensor_type, layout, activations) {
                $((TensorType::$name, Layout::Rows16, Activations::F16) => abi!($name, Rows16, F16),
                (TensorType::$name, Layout::RowMajor, Activations::F16) => abi!($name, RowMajor, F16),
                (TensorType::$name, _, Activations::Int8) => abi!($name, Rows16, Int8),
                (TensorType::$name, Layout::Rows16, _) => abi!($name, Rows16, F32),
                (TensorType::$name, Layout::RowMajor, _) => abi!($name, RowMajor, F32),)*
            }
        }
    };
}

macro_rules! abi {
    ($name:ident, $layout:ident, $activations:ident) => {{
        static ABI: EntryAbi = EntryAbi {
            name: concat!(
                "expert_matmul_",
                stringify!($name),
                "_",
                stringify!($layout),
                "_",
                stringify!($activations)
            ),
            bindings: &[Access::Read, Access::Read, Access::Read, Access::Read, Access::ReadWrite],
            constants: CONSTANTS,
            extents: |constants, out| {
                let types = (TensorType::$name, Layout::$layout, Activations::$activations);
                extents(types, constants, out)
            },
        };
        &ABI
    }};
}
each_type!(abis);

fn extents(
    (tensor_type, layout, activations): (TensorType, Layout, Activations),
    constants: &[u32],
    out: &mut [u64],
) {
    let [rows, _, n, k, first_row, expert_rows, piece, used, x_slots, column, stride, route @ ..]: [u32;
        CONSTANTS] = array(constants);
    let [is_fixed, x_pitch, x_column, y_gap] = route;
    let has_gaps = [is_fixed, x_column, y_gap] != [0; 3] || x_pitch != k;
    let weights = Resident::new(tensor_type, layout, n.into(), k.into()).map_or(IMPOSSIBLE, |r| r.bytes());
    let (most_used, route) = if is_fixed == 0 { (MAX_USED, words(&[rows, used, 2])) } else { (u32::MAX, 0) };
    let is_possible = (1..=most_used).contains(&used)
        && (is_fixed != 0 || bound_experts(n, first_row, expert_rows) <= MAX_EXPERTS)
        && [1, used].contains(&x_slots)
        && x_column.checked_add(k).is_some_and(|end| end <= x_pitch)
        && [x_pitch, x_column].iter().all(|values| values.is_multiple_of(4))
        && expert_rows > 0
        && expert_rows.checked_rem(piece) == Some(0)
        && (y_gap == 0 || piece == expert_rows)
        && first_row.is_multiple_of(GROUP_ROWS as u32);
    let gaps = product(&[used.saturating_sub(1), y_gap]);
    let width = u64::from(column).saturating_add(gaps).saturating_add(product(&[used, expert_rows]));
    let y = match u32::try_from(width) {
        Ok(width) if is_possible => strided(rows, stride, width),
        _ => IMPOSSIBLE,
    };
    // Kernels compute offsets of values in 32 bits.
    let y = if y > words(&[u32::MAX]) { IMPOSSIBLE } else { y };
    let width = x_slots.checked_mul(x_pitch).filter(|_| activations == Activations::F32 || !has_gaps);
    let x = width.map_or(IMPOSSIBLE, |width| activations.rows_extent(rows, width));
    out.copy_from_slice(&[HEADER_BYTES, weights, x, route, y]);
}

/// Returns a grid of the groups of 16 weight rows that an expert may need × assignments.
pub(crate) fn grid(constants: &[u32]) -> [u32; 3] {
    let (rows, expert_rows, used) = (constants[0], constants[5], constants[7]);
    [tiles(expert_rows, GROUP_ROWS as u32), rows.saturating_mul(used), 1]
}

/// Returns the number of tiles of `tile_rows` weight rows that hold all rows of any expert, if the first tile starts with
/// the group of rows in which the expert starts. An expert may start at any row of a group, unless its rows are whole
/// groups.
pub(crate) fn tiles(expert_rows: u32, tile_rows: u32) -> u32 {
    let before = if expert_rows.is_multiple_of(GROUP_ROWS as u32) { 0 } else { GROUP_ROWS as u32 - 1 };
    expert_rows.saturating_add(before).div_ceil(tile_rows)
}

/// Returns a grid of the tiles of `TILE_ROWS` weight rows that an expert may need × the experts with bound rows.
pub(crate) fn tiled_grid<const TILE_ROWS: u32>(constants: &[u32]) -> [u32; 3] {
    let [_, _, n, _, first_row, expert_rows, ..]: [u32; CONSTANTS] = array(constants);
    let experts = bound_experts(n, first_row, expert_rows);
    [tiles(expert_rows, TILE_ROWS), if n > 0 { experts } else { 0 }, 1]
}

/// Returns the number of experts that have bound rows.
fn bound_experts(n: u32, first_row: u32, expert_rows: u32) -> u32 {
    let last_row = first_row.saturating_add(n.saturating_sub(1));
    let expert_of = |row: u32| row / expert_rows.max(1);
    expert_of(last_row) - expert_of(first_row) + 1
}

/// Sizes of a case.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    experts: usize,
    used: usize,
    expert_rows: usize,
    k: usize,
    /// Number of pieces of an expert's rows.
    pieces: usize,
    /// Whether each slot has an x of its own.
    own_x: bool,
    /// Rows of all experts that the launch binds, if it does not bind all.
    part: Option<(usize, usize)>,
    /// Whether the route is fixed.
    is_fixed: bool,
}

pub(crate) struct ExpertMatMul(pub TensorType, pub Activations);

impl Spec for ExpertMatMul {
    fn exists(&self) -> bool {
        match self.1 {
            Activations::F32 => true,
            Activations::Int8 => self.0.has_integer_quants(),
            Activations::F16 => matmul::takes(self.0, Activations::F16),
        }
    }

    fn is_optional(&self) -> bool {
        self.1 != Activations::F32
    }

    fn accuracy(&self) -> Accuracy {
        match self.1 {
            Activations::F16 if self.0.block_values() == 1 => Accuracy::fast(5e-6),
            // Weights are rounded to f16.
            Activations::F16 => Accuracy::fast(6e-4),
            Activations::Int8 => Accuracy::fast(2e-6),
            Activations::F32 => Accuracy::exact(1e-5),
        }
    }

    fn abi(&self, layout: Layout) -> &'static EntryAbi {
        abi(self.0, layout, self.1)
    }

    fn layout(&self, kept: &dyn Fn(TensorType) -> Layout) -> Option<Layout> {
        Some(kept(self.0))
    }

    fn cases(&self, layout: Layout, random: &mut Random) -> Vec<Case> {
        let sizes = |experts, used, expert_rows, k, pieces, own_x, part| Sizes {
            experts,
            used,
            expert_rows,
            k,
            pieces,
            own_x,
            part,
            is_fixed: false,
        };
        let fixed = |experts, expert_rows, k, own_x, part| Sizes {
            is_fixed: true,
            ..sizes(experts, experts, expert_rows, k, 1, own_x, part)
        };
        let all = [
            sizes(2, 1, 16, 256, 1, false, None),
            sizes(8, 2, 48, 512, 1, true, None),
            sizes(5, 3, 22, 256, 2, false, None),
            sizes(4, 2, 40, 768, 2, true, None),
            sizes(3, 2, 16, 256, 1, false, None),
            sizes(6, 4, 50, 1024, 1, true, Some((64, 128))),
        ];
        // Several tiles of rows for each expert, and for one type, more rows than a group finds at a time.
        let many = [
            (140, sizes(3, 2, 80, 256, 2, false, None)),
            (2100, sizes(5, 2, 24, 256, 1, false, Some((64, 56)))),
            (150, sizes(9, 4, 272, 1280, 1, true, Some((512, 1280)))),
            (50, sizes(70, 4, 66, 768, 2, false, None)),
        ];
        let count = match (self.0, self.1) {
            (_, Activations::F16) => 4,
            (TensorType::F32, _) => 2,
            _ => 1,
        };
        let many = many
            .into_iter()
            .take(count)
            .map(|(rows, sizes)| (RowShape { capacity: rows, rows: rows - 7, count_word: 1 }, sizes));
        let fixed = [
            (RowShape { capacity: 5, rows: 4, count_word: 0 }, fixed(3, 22, 256, true, None)),
            (RowShape { capacity: 75, rows: 70, count_word: 1 }, fixed(4, 48, 256, true, Some((64, 128)))),
            (RowShape { capacity: 20, rows: 20, count_word: 0 }, fixed(20, 16, 512, false, None)),
        ];
        let fixed = fixed.into_iter().filter(|_| self.1 == Activations::F32);
        let all = ROW_SHAPES.into_iter().zip(all).chain(many).chain(fixed);
        all.map(|(shape, sizes)| self.case(random, layout, shape, sizes)).collect()
    }

    fn random_case(&self, layout: Layout, random: &mut Random) -> Case {
        let shape = RowShape::random(random, 40);
        let experts = 1 + random.below(8);
        let is_fixed = self.1 == Activations::F32 && random.below(4) == 0;
        let pieces = if is_fixed { 1 } else { 1 + random.below(2) };
        let expert_rows = pieces * (1 + random.below(60));
        let all = experts * expert_rows;
        let first = random.below(all) / 64 * 64;
        // A part ends at a multiple of 64 rows, or with the last expert.
        let most = (all - first).div_ceil(64);
        let rows = ((1 + random.below(most)) * 64).min(all - first);
        let sizes = Sizes {
            experts,
            used: if is_fixed { experts } else { 1 + random.below(experts.min(4)) },
            expert_rows,
            k: (1 + random.below(8)) * 256,
            pieces,
            own_x: random.below(2) == 0,
            part: (random.below(2) == 0).then_some((first, rows)),
            is_fixed,
        };
        self.case(random, layout, shape, sizes)
    }
}

impl ExpertMatMul {
    fn case(&self, random: &mut Random, layout: Layout, shape: RowShape, sizes: Sizes) -> Case {
        let Self(tensor_type, activations) = *self;
        let Sizes { experts, used, expert_rows, pieces, own_x, part, is_fixed, .. } = sizes;
        // Types with short blocks also support odd numbers of blocks.
        let k = if tensor_type.block_values() < 256 { sizes.k / 8 } else { sizes.k };
        let (first_row, n) = part.unwrap_or((0, experts * expert_rows));
        let file = random.blocks(tensor_type, experts * expert_rows * k);
        let mut weights = vec![0.0; experts * expert_rows * k];
        dequantise(tensor_type, &file, &mut weights).expect("rows of k are whole blocks");
        let row_bytes = file.len() / (experts * expert_rows);
        let bound = &file[first_row * row_bytes..][..n * row_bytes];
        let resident = Resident::new(tensor_type, layout, n as u64, k as u64).expect("k is whole blocks");
        let mut packed = vec![0; resident.bytes() as usize];
        resident.pack(0..resident.groups(), bound, &mut packed).expect("sizes are the layout's");

        let x_slots = if own_x { used } else { 1 };
        // Between the slots of a fixed route are values that no sum contains, and columns that no slot writes.
        let [x_pitch, x_column, gap] = if is_fixed { [k + 20, 12, 7] } else { [k, 0, 0] };
        let mut x = random.floats(shape.capacity * x_slots * x_pitch, 2.0);
        for slot in x.chunks_exact_mut(x_pitch) {
            slot[..x_column].fill(f32::NAN);
            slot[x_column + k..].fill(f32::NAN);
        }
        let width = x_slots * x_pitch;
        let (packed_x, x_values): (Vec<Vec<u8>>, Vec<Vec<f64>>) = match activations {
            Activations::F32 => Default::default(),
            Activations::Int8 => {
                let rows = x.chunks_exact(width).map(quantize::reference);
                rows.map(|row| (row.clone(), quantize::values(&row, width).expect("the sums are right")))
                    .unzip()
            }
            Activations::F16 => {
                let rows = x.chunks_exact(width).map(half_rows::reference);
                rows.map(|row| (row.clone(), half_rows::values(&row, width).expect("the padding is zero")))
                    .unzip()
            }
        };
        let x_values = match activations {
            Activations::F32 => x.iter().map(|x| f64::from(*x)).collect(),
            Activations::Int8 | Activations::F16 => x_values.concat(),
        };
        let in_order: Vec<u32> = (0..used as u32).collect();
        let choose = |random: &mut Random| random.shuffled(experts)[..used].to_vec();
        let ids = (0..shape.capacity).flat_map(|_| if is_fixed { in_order.clone() } else { choose(random) });
        let ids: Vec<u32> = ids.collect();
        let route = ids.chunks_exact(used).flat_map(|ids| [ids, &vec![u32::MAX; used]].concat());
        let route: Vec<u32> = route.collect();
        let (column, piece) = (shape.capacity % 3 * 5, expert_rows / pieces);
        let width = column + (used - 1) * gap + used * expert_rows;
        let stride = width + shape.capacity % 2 * 21;
        let mut expected = vec![None; (shape.capacity - 1) * stride + width];
        for (assignment, id) in ids.iter().enumerate().take(shape.rows * used) {
            let (row, slot) = (assignment / used, assignment % used);
            let x = &x_values[(row * x_slots + slot % x_slots) * x_pitch + x_column..][..k];
            for i in 0..expert_rows {
                let weight_row = *id as usize * expert_rows + i;
                if (first_row..first_row + n).contains(&weight_row) {
                    let weights = &weights[weight_row * k..][..k];
                    let dot = weights.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
                    let at = column + slot * gap + (i / piece * used + slot) * piece + i % piece;
                    expected[row * stride + at] = Some(dot);
                }
            }
        }
        let constants =
            [shape.capacity, shape.count_word as usize, n, k, first_row, expert_rows, piece, used];
        let fixed = [usize::from(is_fixed), x_pitch, x_column, gap];
        let constants = [&constants[..], &[x_slots, column, stride], &fixed].concat();
        let label = format!("{}, {sizes:?}", shape.label(k));
        let build = Build::new(Kernel::ExpertMatMul(tensor_type, activations), label, &constants);
        let build = build.words(&shape.header()).bytes(packed);
        let build = match activations {
            Activations::F32 => build.floats(&x),
            Activations::Int8 | Activations::F16 => build.bytes(packed_x.concat()),
        };
        let build = build.words(if is_fixed { &route[..1] } else { &route });
        build.poison(expected.len() * 4).expect_f32(4, expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_hold_an_expert_that_starts_at_any_row() {
        for (expert_rows, tile_rows) in [(16, 16), (17, 16), (22, 16), (48, 64), (50, 64), (66, 64), (1, 16)]
        {
            let most = (0..64u32).map(|expert| {
                let (first, end) = (expert * expert_rows, (expert + 1) * expert_rows);
                (end - first / 16 * 16).div_ceil(tile_rows)
            });
            assert!(most.max() <= Some(tiles(expert_rows, tile_rows)), "{expert_rows} in {tile_rows}");
        }
        assert_eq!(tiles(u32::MAX, 16), u32::MAX.div_ceil(16));
    }

    #[test]
    fn a_launch_needs_whole_pieces_and_space_for_all_slots() {
        let extents = |piece, x_slots, stride, route: [u32; 4]| {
            let mut out = [0; 5];
            let constants = [&[2, 0, 64, 32, 0, 16, piece, 4, x_slots, 8, stride], &route[..]].concat();
            (abi(TensorType::F32, Layout::Rows16, Activations::F32).extents)(&constants, &mut out);
            out
        };
        let y = |piece, x_slots, stride| extents(piece, x_slots, stride, [0, 32, 0, 0])[4];
        assert_eq!(y(8, 1, 72), 2 * 72 * 4);
        assert_eq!(y(16, 4, 100), (100 + 72) * 4);
        for (piece, x_slots, stride) in [(5, 1, 72), (0, 1, 72), (8, 2, 72), (8, 1, 71)] {
            assert_eq!(y(piece, x_slots, stride), IMPOSSIBLE, "{piece} {x_slots} {stride}");
        }
        // At most 2^32 - 1 values.
        assert_eq!(y(16, 1, u32::MAX - 72), (1 << 34) - 4);
        assert_eq!(y(16, 1, u32::MAX - 71), IMPOSSIBLE);
        // Slots of 48 values whose last 32 are used, and three gaps of 5 columns.
        assert_eq!(extents(16, 4, 87, [1, 48, 16, 5])[2..], [2 * 4 * 48 * 4, 0, 2 * 87 * 4]);
        assert_eq!(extents(16, 4, 86, [1, 48, 16, 5])[4], IMPOSSIBLE);
        for route in [[1, 47, 15, 0], [1, 48, 20, 0], [1, 48, u32::MAX - 3, 0], [1, 48, 0, u32::MAX]] {
            assert_eq!(extents(16, 4, 100, route)[4], IMPOSSIBLE, "{route:?}");
        }
    }
}
