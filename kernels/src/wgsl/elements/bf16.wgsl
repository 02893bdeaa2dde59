// Values of operators: bf16, two per word.

alias Word = u32;

// Index of the word that holds value `i`, and the value in this word.
fn word(i: u32) -> u32 { return i / 2u; }
fn value(word: Word, i: u32) -> f32 { return bitcast<f32>((word >> (i % 2u * 16u)) << 16u); }
