//! libFuzzer entry point of `tokenizer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ragtag_fuzz::tokenizer::run(data);
});
