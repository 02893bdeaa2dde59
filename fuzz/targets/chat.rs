//! libFuzzer entry point of `chat`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ragtag_fuzz::chat::run(data);
});
