//! A layer between Vulkan's loader and any driver. It passes all calls on, and loses a device or refuses
//! memory on request.
//!
//! A lost device returns `VK_ERROR_DEVICE_LOST` wherever Vulkan allows that. Work submitted before the loss
//! ends first, as on hardware: the driver underneath has lost nothing and still uses that work's memory.
//!
//! Devices are numbered in the order in which the process opens them. A test loads the same library as the
//! loader, and calls the functions of `control.rs`.
//!
//! For tests only. Knows nothing about the tested code.

mod chain;
mod control;
mod device;
mod entries;
