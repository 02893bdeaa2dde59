// Values of operators: f32, one in a word.

alias Word = f32;

// The word of value `i`, and the value in it.
fn word(i: u32) -> u32 { return i; }
fn value(word: Word, i: u32) -> f32 { return word; }
