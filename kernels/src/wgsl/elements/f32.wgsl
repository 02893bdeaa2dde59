// Values of operators: f32, one per word.

alias Word = f32;

// Word of value `i`, and the value in it.
fn word(i: u32) -> u32 { return i; }
fn value(word: Word, i: u32) -> f32 { return word; }
