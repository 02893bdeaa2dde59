//! libFuzzer entry point of `plan`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ragtag_fuzz::plan::run(data);
});
