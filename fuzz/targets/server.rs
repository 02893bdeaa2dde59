//! libFuzzer entry point of `server`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ragtag_fuzz::server::run(data);
});
