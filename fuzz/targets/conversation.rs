//! libFuzzer entry point of `conversation`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ragtag_fuzz::conversation::run(data);
});
