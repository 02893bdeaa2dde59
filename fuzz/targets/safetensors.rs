//! libFuzzer's entry to `safetensors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    ragtag_fuzz::safetensors::run(data);
});
