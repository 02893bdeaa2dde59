//! The command `ragtag`.

fn main() -> std::process::ExitCode {
    silence_device_layer();
    ragtag::cli::main()
}

/// Turns Mesa's device-selection layer for Vulkan off where `XDG_RUNTIME_DIR` is not set: it would look for a Wayland session
/// and print an error for each wgpu device. Ragtag chooses among devices itself. Child processes inherit the setting.
#[expect(clippy::disallowed_methods, reason = "no device thread runs yet")]
fn silence_device_layer() {
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
