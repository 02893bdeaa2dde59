//! libFuzzer entry point of `messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ragtag_fuzz::messages::run(data);
});
