//! Bad input: each kind with the words that say what is wrong, and its exit code.
