//! A layer between Vulkan's loader and any driver, under any program: it passes everything on, loses a device or refuses memory
//! when it is told to, and else does nothing.
//!
//! A lost device answers `VK_ERROR_DEVICE_LOST` wherever Vulkan allows that. What it was given before ends first, as it would
//! have ended on hardware: the driver underneath has not lost anything, and goes on to use what was handed to it.
//!
//! Devices are numbered as the process opens them. A test loads this library as the loader does, which is then the very same
//! one, and calls what is in `control.rs`.
//!
//! This crate is for tests alone and must not know what they test.

mod chain;
mod control;
mod device;
mod entries;
