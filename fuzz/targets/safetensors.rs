//! libFuzzer entry point of `safetensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ragtag_fuzz::safetensors::run(data);
});
