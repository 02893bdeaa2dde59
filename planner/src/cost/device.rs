//! Describes a device for the planner. Its values are measured, reported or assumed. This module knows
//! nothing about plans or backends.

use super::figure::{Figure, FigureSource, is_overhead_us, is_rate};
use super::profile::Profile;
use ragtag_hal::AdapterKind;
use ragtag_kernels::Activations;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Assumed rate at which weights are read from the model's file and packed. A fast NVMe drive and a few cores
/// reach more, a SATA drive reaches a quarter of it.
pub const ASSUMED_FILE_RATE: Figure = Figure::assumed(2e9);

fn assumed_file_rate() -> Figure {
    ASSUMED_FILE_RATE
}

/// The planner's description of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// Device label, for example `cpu:0`.
    pub label: String,
    /// Device memory that stages may use, in bytes. Devices that share memory (such as two CPU devices of one
    /// host) each get a part of it, because the planner checks every device separately.
    pub memory_bytes: u64,
    /// Source of [`DeviceFacts::memory_bytes`].
    pub memory_source: FigureSource,
    /// Rate at which the device reads weights from its memory.
    pub bandwidth_bytes_per_s: Figure,
    /// Rate of matrix products with f32 activations.
    pub exact_flops_per_s: Figure,
    /// Rate of matrix products with int8 activations.
    pub fast_flops_per_s: Figure,
    /// Dispatch overhead of one segment. Half of a transformer block has half of this overhead.
    pub launch_us: Figure,
    /// Overhead of one micro-batch on a stage, independent of the number of segments.
    pub stage_us: Figure,
    /// Extra latency of a stage if its micro-batch is alone in the pipeline: host threads must wake up, and
    /// the device starts from idle. Delays the micro-batch, but keeps no resource busy.
    pub hand_over_us: Figure,
    /// Time of the smallest copy between the device and host memory.
    pub host_latency_us: Figure,
    /// Rate of large copies between the device and host memory.
    pub host_bandwidth_bytes_per_s: Figure,
    /// Rate at which the host reads weights from the model's file in the layouts of the device.
    #[serde(default = "assumed_file_rate")]
    pub file_bytes_per_s: Figure,
    /// Whether matrix products of wide micro-batches use f16 activations and f16 copies of quantized weights.
    /// Such products need more scratch memory.
    pub f16_products: bool,
    /// Maximum sizes of the device's buffers.
    #[serde(default)]
    pub buffers: BufferLimits,
    /// Whether device memory is host memory, as on a CPU or an integrated GPU.
    #[serde(default)]
    pub in_host_memory: bool,
    /// Weights that the device can stream from the memory of another one.
    #[serde(default)]
    pub weight_sharing: WeightSharing,
    /// Times measured with a model's own segments. They take precedence over the rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schemas::profile")]
    pub profile: Option<Arc<Profile>>,
}

/// Use of pages of host memory that several devices of a process share. A device that can copy from the
/// memory of another one streams those weights from there that both store in the same layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WeightSharing {
    /// The device cannot use such pages.
    #[default]
    None,
    /// The memory of the device consists of such pages, as on a CPU.
    Owner,
    /// The device can copy from such pages, but types without blocks have another layout on the owner.
    Blocks,
    /// The device can copy from such pages, and all types have the same layout on the owner.
    All,
}

/// Maximum sizes of a device's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BufferLimits {
    /// Maximum size of an allocation, in bytes.
    pub allocation_bytes: u64,
    /// Maximum size of a buffer binding, in bytes.
    pub binding_bytes: u64,
}

impl Default for BufferLimits {
    /// Returns limits that allow every size.
    fn default() -> Self {
        Self { allocation_bytes: u64::MAX, binding_bytes: u64::MAX }
    }
}

impl DeviceFacts {
    /// Returns a description with assumed rates. Only the rates of CPUs and software devices depend on
    /// `threads`. A CPU is assumed to reach 8 GB/s, 16 GFLOP/s exact and 64 GFLOP/s fast per thread. This is
    /// about the speed of one core in a current server or laptop. The GPU values are typical of a mid-range
    /// card, or of an integrated GPU with two memory channels.
    pub fn assumed(
        label: &str,
        kind: AdapterKind,
        threads: u32,
        memory_bytes: u64,
        memory_source: FigureSource,
    ) -> Self {
        let threads = f64::from(threads.max(1));
        let (bandwidth, exact, fast, launch_us) = match kind {
            AdapterKind::Discrete => (400e9, 8e12, 32e12, 60.0),
            AdapterKind::Integrated => (50e9, 1e12, 2e12, 80.0),
            AdapterKind::Cpu => (8e9 * threads, 16e9 * threads, 64e9 * threads, 30.0),
            // A software GPU API reaches only a fraction of the CPU's own rates.
            AdapterKind::Software => (4e9 * threads, 4e9 * threads, 4e9 * threads, 200.0),
        };
        let (stage_us, host_latency_us) = match kind {
            AdapterKind::Cpu => (10.0, 2.0),
            AdapterKind::Discrete | AdapterKind::Integrated | AdapterKind::Software => (40.0, 15.0),
        };
        Self {
            label: label.into(),
            memory_bytes,
            memory_source,
            bandwidth_bytes_per_s: Figure::assumed(bandwidth),
            exact_flops_per_s: Figure::assumed(exact),
            fast_flops_per_s: Figure::assumed(fast),
            launch_us: Figure::assumed(launch_us),
            stage_us: Figure::assumed(stage_us),
            // Thread wake-up time depends on the host; no value is typical.
            hand_over_us: Figure::assumed(0.0),
            host_latency_us: Figure::assumed(host_latency_us),
            host_bandwidth_bytes_per_s: Figure::assumed(8e9),
            file_bytes_per_s: ASSUMED_FILE_RATE,
            f16_products: false,
            buffers: BufferLimits::default(),
            in_host_memory: kind != AdapterKind::Discrete,
            weight_sharing: WeightSharing::None,
            profile: None,
        }
    }

    /// Returns the name of the first field that has an invalid value. A rate must be finite and at least 1
    /// per second. An overhead must be 0 to 1000 seconds.
    pub fn nonsense(&self) -> Option<&'static str> {
        let rates = [
            ("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s.value),
            ("exact_flops_per_s", self.exact_flops_per_s.value),
            ("fast_flops_per_s", self.fast_flops_per_s.value),
            ("host_bandwidth_bytes_per_s", self.host_bandwidth_bytes_per_s.value),
            ("file_bytes_per_s", self.file_bytes_per_s.value),
        ];
        let overheads = [
            ("launch_us", self.launch_us.value),
            ("stage_us", self.stage_us.value),
            ("hand_over_us", self.hand_over_us.value),
            ("host_latency_us", self.host_latency_us.value),
        ];
        let wrong = rates.into_iter().find(|(_, value)| !is_rate(*value)).map(|(name, _)| name);
        wrong.or_else(|| overheads.into_iter().find(|(_, us)| !is_overhead_us(*us)).map(|(name, _)| name))
    }

    /// Returns the time to copy `bytes` bytes between the device and host memory, in microseconds.
    pub fn host_copy_us(&self, bytes: u64) -> f64 {
        self.host_latency_us.value + bytes as f64 / self.host_bandwidth_bytes_per_s.value * 1e6
    }

    /// Returns the time to read `bytes` bytes of weights from the model's file, in microseconds.
    pub fn file_read_us(&self, bytes: u64) -> f64 {
        bytes as f64 / self.file_bytes_per_s.value * 1e6
    }

    /// Adds a measured profile. Segments of a measured kind use the profile's times. Other segments use rates
    /// that are fitted to the profile.
    pub fn with_profile(mut self, profile: Arc<Profile>) -> Self {
        let figure = |value, source| Figure { value, source };
        if let Some(roofline) = &profile.roofline {
            let fitted = |value| figure(value, FigureSource::Fitted);
            self.bandwidth_bytes_per_s = fitted(roofline.bandwidth_bytes_per_s);
            // The shortest measured time includes the segment's work, so it may far exceed the launch
            // overhead.
            self.launch_us = fitted(roofline.launch_us.min(self.launch_us.value));
            match profile.identity.activations {
                Activations::F32 => self.exact_flops_per_s = fitted(roofline.flops_per_s),
                Activations::Int8 | Activations::F16 => self.fast_flops_per_s = fitted(roofline.flops_per_s),
            }
        }
        let measured = |value| figure(value, FigureSource::Measured);
        self.stage_us = measured(profile.stage_us);
        self.hand_over_us = measured(profile.hand_over_us);
        self.host_latency_us = measured(profile.host_latency_us);
        self.host_bandwidth_bytes_per_s = measured(profile.host_bandwidth_bytes_per_s);
        self.profile = Some(profile);
        self
    }

    /// Returns the latency of the token return if this device runs the last stage. This is the time from the
    /// end of the last stage to the start of the next step of the same sequences on the first stage. It
    /// includes sampling, and copying the results of `rows` rows (`row_bytes` bytes each) to the host.
    pub fn token_return(&self, rows: u32, row_bytes: u64) -> Figure {
        if let Some(profile) = &self.profile {
            let measured = &profile.token_return;
            let value = measured.latency_us + f64::from(rows) * measured.row_us;
            return Figure { value, source: FigureSource::Measured };
        }
        let value = self.host_copy_us(u64::from(rows).saturating_mul(row_bytes));
        let (latency, bandwidth) = (self.host_latency_us.source, self.host_bandwidth_bytes_per_s.source);
        Figure { value, source: latency.weaker(bandwidth) }
    }

    pub(super) fn flops_per_s(&self, activations: Activations) -> Figure {
        match activations {
            Activations::F32 => self.exact_flops_per_s,
            Activations::Int8 | Activations::F16 => self.fast_flops_per_s,
        }
    }
}
