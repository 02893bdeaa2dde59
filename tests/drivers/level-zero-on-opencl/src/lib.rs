//! Level Zero driver that executes SPIR-V on Intel's OpenCL runtime for CPUs. Level Zero's loader loads it
//! from the path in `ZE_ENABLE_ALT_DRIVERS`.
//!
//! The driver has two devices with the compute and the copy engine of an Arc card. Each engine executes
//! commands on its own thread, and in the wrong order where the caller forgot a barrier. Calls that a real
//! driver may answer with a crash are reported as misuse: stale handles, freed memory, objects destroyed
//! while a command uses them. Environment variables change the devices:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `RAGTAG_FAKE_OPENCL` | path of `libintelocl.so`; by default the file that `OCL_ICD_VENDORS` names |
//! | `ZE_AFFINITY_MASK` | visible devices, as in the real driver |
//! | `RAGTAG_FAKE_PEERS` | if set, devices are peers; if `refused`, opening the memory of a peer fails |
//! | `RAGTAG_FAKE_DMA_BUFS` | if set, files stand for dma-bufs; if `refused`, their import fails |
//! | `RAGTAG_FAKE_GPUS` | if set, devices report discrete GPUs; by default CPUs, the second with the host's memory |
//! | `RAGTAG_FAKE_TILES` | if set, the devices are the two tiles of one card, which the driver lists |
//! | `RAGTAG_FAKE_MATRIX_UNITS` | if set, devices report Intel's matrix units, which are always emulated |
//! | `RAGTAG_FAKE_MEMORY_BYTES` | size of each device's memory |
//! | `RAGTAG_FAKE_ALLOCATION_BYTES` | maximum size of an allocation without relaxed limits |
//! | `RAGTAG_FAKE_LIMIT_BYTES` | size above which allocations fail, although more memory is reported |
//! | `RAGTAG_FAKE_ALLOCATIONS` | number of allocations of each device that succeed |
//! | `RAGTAG_FAKE_LOST_AFTER` | number of submissions after which each device is lost |
//! | `RAGTAG_FAKE_COPY_DELAY_US` | delay of each copy, in microseconds |
//! | `RAGTAG_FAKE_CELSIUS` | temperature of each device, with `ZES_ENABLE_SYSMAN=1` |
//! | `RAGTAG_FAKE_THROTTLE_REASONS` | bits of the reasons for limited clocks, likewise |
//! | `RAGTAG_FAKE_MEMORY_HEALTH` | state of each device's memory, a value of `zes_mem_health_t`, likewise |
//! | `RAGTAG_FAKE_TICKS` | first value of the devices' clocks, which wrap at 32 bits in kernel timestamps |
//! | `RAGTAG_FAKE_LOG` | if set, failed calls are written to standard error |
//!
//! Tests control faults in their own process through exported functions (`faults_lose` and others). Used only
//! by tests. Knows nothing about the backend that calls it.

mod calls;
mod cl;
mod device;
mod engine;
mod event;
mod faults;
mod handles;
mod list;
mod memory;
mod module;
mod queue;
mod spirv;
mod sysman;
mod tables;
mod types;
