//! Vulkan layer between the loader and any driver. It forwards all calls. On request it loses a device, makes
//! memory allocations fail, or changes a kernel. It may also report software devices as GPUs.
//!
//! A lost device returns `VK_ERROR_DEVICE_LOST` from every call that may return this code. The device is lost
//! only after all submitted work has ended, because the real driver below the layer still runs this work and
//! uses its memory.
//!
//! Devices are numbered in the order in which the process opens them. A test loads the library that the
//! loader has also loaded, and calls the functions in `control.rs`.
//!
//! Used only by tests. Knows nothing about the tested code.

mod chain;
mod control;
mod device;
mod entries;
mod kernel;
