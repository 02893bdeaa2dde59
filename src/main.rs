//! The `ragtag` command.

fn main() -> std::process::ExitCode {
    silence_device_layer();
    ragtag::cli::main()
}

/// Disables Mesa's device-selection layer for Vulkan if `XDG_RUNTIME_DIR` is unset. Otherwise the layer would
/// print an error for each wgpu device, because it would find no Wayland session. Ragtag does not need the
/// layer. Child processes inherit the setting.
#[expect(clippy::disallowed_methods, reason = "no device thread runs yet")]
fn silence_device_layer() {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
