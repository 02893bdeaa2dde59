//! Compares distributions of next tokens: rows of logits in files, with each other and with expected values.

use rayon::prelude::*;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Rows in memory at a time.
const BLOCK_ROWS: usize = 64;

/// Most likely tokens of a position, and the natural logarithms of their probabilities.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Top {
    pub position: usize,
    ids: Vec<usize>,
    logs: Vec<f64>,
}

impl Top {
    /// Returns the KL divergence from these probabilities to those of a row of logits. All other tokens count as one.
    pub(super) fn kl(&self, row: &[f32]) -> f64 {
        let sum = log_sum(row);
        let (mut kl, mut rest, mut other) = (0.0, 1.0, 1.0);
        for (id, expected) in self.ids.iter().zip(&self.logs) {
            let found = f64::from(row[*id]) - sum;
            kl += expected.exp() * (expected - found);
            rest -= expected.exp();
            other -= found.exp();
        }
        // Rounding can take the remainder of a nearly certain token below zero.
        let tiny = 1e-9;
        kl + f64::max(rest, tiny) * (f64::max(rest, tiny) / f64::max(other, tiny)).ln() + 0.0 * other
    }
}

/// Sums over positions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub rows: usize,
    pub kl: f64,
    /// Positions at which both rank the same token first.
    pub equal: usize,
}

impl Sums {
    pub(super) fn mean_kl(&self) -> f64 {
        self.kl / self.rows as f64
    }

    pub(super) fn add(&mut self, other: Sums) {
        *self =
            Sums { rows: self.rows + other.rows, kl: self.kl + other.kl, equal: self.equal + other.equal };
    }
}

/// Returns the logarithm of the sum of the exponentials of a row.
fn log_sum(row: &[f32]) -> f64 {
    let most = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    most + row.iter().map(|x| (f64::from(*x) - most).exp()).sum::<f64>().ln()
}

/// Returns the index of the largest value. A NaN is never the largest.
pub(super) fn best(row: &[f32]) -> usize {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|x| *x == largest).unwrap_or(0)
}

/// Returns the KL divergence from the distribution of logits `p` to that of logits `q`. NaN if one contains NaN.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let most = f64::from(p.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let (mut sum, mut difference) = (0.0, 0.0);
    for (p, q) in p.iter().zip(q) {
        let weight = (f64::from(*p) - most).exp();
        sum += weight;
        difference += weight * f64::from(p - q);
    }
    difference / sum + log_sum(q) - (most + sum.ln())
}

/// Matrix of logits in a `.npy` file of `ragtag logits`.
pub(super) struct Logits {
    file: BufReader<File>,
    columns: usize,
    rows: usize,
}

impl Logits {
    /// Opens a file with `rows` rows.
    pub(super) fn open(path: &Path, rows: usize) -> Result<Logits, String> {
        let error = |e: std::io::Error| format!("{}: {e}", path.display());
        let mut file = File::open(path).map_err(error)?;
        let mut head = [0; 10];
        file.read_exact(&mut head).map_err(error)?;
        let start = 10 + u64::from(u16::from_le_bytes([head[8], head[9]]));
        let values = (file.metadata().map_err(error)?.len().saturating_sub(start) / 4) as usize;
        if rows == 0 || values == 0 || !values.is_multiple_of(rows) {
            return Err(format!("{}: {values} values are not {rows} rows", path.display()));
        }
        file.seek(SeekFrom::Start(start)).map_err(error)?;
        Ok(Logits { file: BufReader::new(file), columns: values / rows, rows })
    }

    /// Returns the next rows, at most [`BLOCK_ROWS`].
    fn block(&mut self) -> Result<Vec<f32>, String> {
        let rows = self.rows.min(BLOCK_ROWS);
        self.rows -= rows;
        let mut bytes = vec![0; rows * self.columns * 4];
        self.file.read_exact(&mut bytes).map_err(|e| e.to_string())?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// Calls `visit` with each position and its row.
    pub(super) fn each(mut self, mut visit: impl FnMut(usize, &[f32])) -> Result<(), String> {
        let mut position = 0;
        while self.rows > 0 {
            for row in self.block()?.chunks_exact(self.columns) {
                visit(position, row);
                position += 1;
            }
        }
        Ok(())
    }

    /// Compares all rows with those of the truth.
    pub(super) fn compare(mut self, mut truth: Logits) -> Result<Sums, String> {
        if (self.rows, self.columns) != (truth.rows, truth.columns) {
            return Err(format!(
                "{} × {} logits instead of {} × {}",
                self.rows, self.columns, truth.rows, truth.columns
            ));
        }
        let mut sums = Sums::default();
        while self.rows > 0 {
            let (p, q) = (truth.block()?, self.block()?);
            let pairs = p.par_chunks_exact(self.columns).zip(q.par_chunks_exact(self.columns));
            let rows =
                pairs.map(|(p, q)| Sums { rows: 1, kl: kl(p, q), equal: usize::from(best(p) == best(q)) });
            rows.collect::<Vec<_>>().into_iter().for_each(|row| sums.add(row));
        }
        Ok(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergences_have_known_values() {
        // Probabilities 1/2, 1/4, 1/4 and 1/4, 1/4, 1/2: the divergence is ln(2) / 4. A constant changes nothing.
        let (p, q) = ([2f32.ln() + 3.0, 3.0, 3.0], [0.0, 0.0, 2f32.ln()]);
        assert!((kl(&p, &q) - 2f64.ln() / 4.0).abs() < 1e-7 && kl(&p, &p).abs() < 1e-7);
        assert!(kl(&p, &[0.0, f32::NAN, 0.0]).is_nan() && kl(&[0.0, f32::NAN, 0.0], &q).is_nan());
        assert_eq!((best(&p), best(&q), best(&[f32::NAN, 1.0])), (0, 2, 1));
        // The last two tokens count as one: probabilities 1/2, 1/2 and 1/4, 3/4.
        let top = Top { position: 0, ids: vec![0], logs: vec![0.5f64.ln()] };
        let expected = 0.5 * 2f64.ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((top.kl(&q) - expected).abs() < 1e-7 && top.kl(&p).abs() < 1e-7);
        assert!(top.kl(&[0.0, f32::NAN, 0.0]).is_nan());
    }

    #[test]
    fn files_are_compared_row_by_row() {
        let path = |name| std::env::temp_dir().join(format!("{name}-{}.npy", std::process::id()));
        let write = |name, values: &[f32]| {
            let bytes = values.iter().flat_map(|x| x.to_le_bytes());
            let head = [b"\x93NUMPY\x01\x00\x02\x00 \n".as_slice(), &bytes.collect::<Vec<_>>()].concat();
            std::fs::write(path(name), head).unwrap();
        };
        write("p", &[1.0, 0.0, 0.0, 1.0]);
        write("q", &[1.0, 0.0, 2.0, 1.0]);
        let open = |name| Logits::open(&path(name), 2).unwrap();
        let sums = open("q").compare(open("p")).unwrap();
        let mut rows = Vec::new();
        open("q").each(|position, row| rows.push((position, row.to_vec()))).unwrap();
        let odd = Logits::open(&path("p"), 3).err();
        ["p", "q"].iter().for_each(|name| std::fs::remove_file(path(name)).unwrap());
        assert_eq!((sums.rows, sums.equal), (2, 1));
        assert!((sums.kl - kl(&[0.0, 1.0], &[2.0, 1.0])).abs() < 1e-12);
        assert_eq!(rows, [(0, vec![1.0, 0.0]), (1, vec![2.0, 1.0])]);
        assert!(odd.unwrap().contains("4 values are not 3 rows"));
    }
}
