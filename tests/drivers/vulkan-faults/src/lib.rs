//! Vulkan layer between the loader and any driver. It forwards all calls. On request it loses a device or
//! refuses memory allocations.
//!
//! A lost device returns `VK_ERROR_DEVICE_LOST` from every call that may return this code. Work that was
//! submitted before the loss ends first, because the driver below the layer does not lose the device. The
//! driver still uses the memory of this work.
//!
//! Devices are numbered in the order in which the process opens them. A test loads the same library as the
//! loader, and calls the functions of `control.rs`.
//!
//! Used only by tests. Knows nothing about the tested code.

mod chain;
mod control;
mod device;
mod entries;
