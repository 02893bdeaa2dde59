//! What the planner knows of a device.
//!
//! This module must not know plans, and no backend: a device is its figures.

use super::figure::{Figure, FigureSource, is_overhead_us, is_rate};
use super::profile::Profile;
use ragtag_hal::AdapterKind;
use ragtag_kernels::Activations;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the planner knows of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Its label, as in `cpu:0`.
    pub label: String,
    /// Bytes that a stage may take of its memory. Devices that share a memory (two CPU devices of one host) get shares
    /// of it here: the planner proves each device apart.
    pub memory_bytes: u64,
    /// Where [`DeviceFacts::memory_bytes`] comes from.
    pub memory_source: FigureSource,
    /// Rate at which weights stream from its memory.
    pub bandwidth_bytes_per_s: Figure,
    /// Rate of matrix products with f32 activations.
    pub exact_flops_per_s: Figure,
    /// Rate of matrix products with int8 activations.
    pub fast_flops_per_s: Figure,
    /// Overhead of one segment's dispatches; of half a block's, half of it.
    pub launch_us: Figure,
    /// Overhead of one micro-batch on a stage, however many segments that has.
    pub stage_us: Figure,
    /// Time that a micro-batch which comes alone loses on a stage because threads of the host are woken for it and the device
    /// begins from rest. It delays that micro-batch and occupies nothing.
    pub hand_over_us: Figure,
    /// Time of the smallest copy between the device and host memory.
    pub host_latency_us: Figure,
    /// Rate of large copies between the device and host memory.
    pub host_bandwidth_bytes_per_s: Figure,
    /// Whether products of wide micro-batches take f16 activations, and f16 copies of quantised weights: more scratch.
    pub f16_products: bool,
    /// Its largest buffers.
    #[serde(default)]
    pub buffers: BufferLimits,
    /// Whether its memory is the host's, as that of a processor or of an integrated GPU.
    #[serde(default)]
    pub in_host_memory: bool,
    /// What was measured with a model's own segments; times come from it where it has them.
    #[serde(skip)]
    pub profile: Option<Arc<Profile>>,
}

/// The largest buffers of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferLimits {
    /// Most bytes that the device allocates in one piece.
    pub allocation_bytes: u64,
    /// Most bytes that a kernel binds in one piece.
    pub binding_bytes: u64,
}

impl Default for BufferLimits {
    /// No limits.
    fn default() -> Self {
        Self { allocation_bytes: u64::MAX, binding_bytes: u64::MAX }
    }
}

impl DeviceFacts {
    /// Facts with assumed rates. `threads` counts for CPUs (and software devices) alone, whose rates are per thread:
    /// 8 GB/s and 16 GFLOP/s exact, 64 GFLOP/s fast, as one core of a current server or laptop gives or takes. The
    /// figures for GPUs are those of a middling card, and of a processor's own GPU on two memory channels.
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
            // A GPU API on top of the processor reaches a fraction of what the processor gives when asked directly.
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
            // How soon a host wakes its threads is its own; nothing is typical.
            hand_over_us: Figure::assumed(0.0),
            host_latency_us: Figure::assumed(host_latency_us),
            host_bandwidth_bytes_per_s: Figure::assumed(8e9),
            f16_products: false,
            buffers: BufferLimits::default(),
            in_host_memory: kind != AdapterKind::Discrete,
            profile: None,
        }
    }

    /// The first figure that no device can have, if there is one: a rate is at least 1 a second and finite, an overhead
    /// at least 0 and at most 1000 seconds.
    pub fn nonsense(&self) -> Option<&'static str> {
        let rates = [
            ("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s.value),
            ("exact_flops_per_s", self.exact_flops_per_s.value),
            ("fast_flops_per_s", self.fast_flops_per_s.value),
            ("host_bandwidth_bytes_per_s", self.host_bandwidth_bytes_per_s.value),
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

    /// Time in which `bytes` bytes cross between the device and host memory, in microseconds.
    pub fn host_copy_us(&self, bytes: u64) -> f64 {
        self.host_latency_us.value + bytes as f64 / self.host_bandwidth_bytes_per_s.value * 1e6
    }

    /// The same device with what was measured on it: the profile answers for the kinds of segments that it knows, and the
    /// figures for all others are those that were fitted to it.
    pub fn with_profile(mut self, profile: Arc<Profile>) -> Self {
        let figure = |value, source| Figure { value, source };
        if let Some(roofline) = &profile.roofline {
            let fitted = |value| figure(value, FigureSource::Fitted);
            self.bandwidth_bytes_per_s = fitted(roofline.bandwidth_bytes_per_s);
            // The shortest time of a segment has its work in it: it is no less than a launch, and may be far more.
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

    /// Time from the end of the last stage's work until the next step of the same sequences enters the first stage, if this
    /// device holds the last stage: logits of so many rows, each of so many bytes, go to the host, and tokens are chosen.
    pub fn token_return(&self, rows: u32, logit_row_bytes: u64) -> Figure {
        if let Some(profile) = &self.profile {
            let measured = &profile.token_return;
            let value = measured.latency_us + f64::from(rows) * measured.row_us;
            return Figure { value, source: FigureSource::Measured };
        }
        let value = self.host_copy_us(u64::from(rows).saturating_mul(logit_row_bytes));
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
