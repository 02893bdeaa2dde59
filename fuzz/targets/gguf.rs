//! libFuzzer entry point of `gguf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ragtag_fuzz::gguf::run(data);
});
