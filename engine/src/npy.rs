//! Version 1.0 of NumPy's file format, for float32 matrices only. Source: the documentation of
//! `numpy.lib.format`.

/// Encodes a C-ordered little-endian float32 matrix `[rows, columns]` as a `.npy` file.
pub fn encode(values: &[f32], columns: usize) -> Vec<u8> {
    let rows = values.len().checked_div(columns).unwrap_or(0);
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // The total length of magic, version, length field and header must be a multiple of 64 bytes. The header
    // must end with a newline.
    let padding = 63 - (10 + header.len()) % 64;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    let mut file = Vec::with_capacity(10 + header.len() + values.len() * 4);
    file.extend_from_slice(b"\x93NUMPY\x01\x00");
    file.extend_from_slice(&(header.len() as u16).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    for value in values {
        file.extend_from_slice(&value.to_le_bytes());
    }
    file
}

/// Decodes a `.npy` file of version 1.0 that contains a two-dimensional `<f4` array, as [`encode`] writes it.
/// Returns the values and the number of columns, or `None` for any other file.
pub fn decode(file: &[u8]) -> Option<(Vec<f32>, usize)> {
    let rest = file.strip_prefix(b"\x93NUMPY\x01\x00")?;
    let (length, rest) = rest.split_at_checked(2)?;
    let (header, data) = rest.split_at_checked(u16::from_le_bytes([length[0], length[1]]).into())?;
    let header = std::str::from_utf8(header).ok()?;
    if !header.contains("'<f4'") || !header.contains("'fortran_order': False") {
        return None;
    }
    let shape = header.split_once("'shape': (")?.1.split_once(')')?.0;
    let mut extents = shape.split(',').map(|e| e.trim().parse::<usize>());
    let (rows, columns) = (extents.next()?.ok()?, extents.next()?.ok()?);
    let (values, odd) = data.as_chunks::<4>();
    let whole = odd.is_empty() && rows.checked_mul(columns) == Some(values.len());
    whole.then(|| (values.iter().map(|&v| f32::from_le_bytes(v)).collect(), columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_files_decode_to_the_same_values() {
        let values = [1.5, -2.0, 0.0, f32::MIN_POSITIVE, 3.25, 7.0];
        let file = encode(&values, 3);
        let header = usize::from(u16::from_le_bytes([file[8], file[9]]));
        assert_eq!((10 + header) % 64, 0);
        assert_eq!(file[10 + header - 1], b'\n');
        assert_eq!(decode(&file), Some((values.to_vec(), 3)));
        assert_eq!(decode(&file[..file.len() - 1]), None);
        assert_eq!(decode(b"\x93NUMPY\x01\x00\xff"), None);
    }
}
