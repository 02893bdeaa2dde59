// Values of operators: f32, one per word.

alias Word = f32;

// Index of the word that holds value `i`, and the value in this word.
fn word(i: u32) -> u32 { return i; }
fn value(word: Word, i: u32) -> f32 { return word; }
