//! Advice against errors. A program words it for its own interface.

use ragtag_planner::Remedy;
use ragtag_scheduler::sim::DrawnText;

/// Remedy that an [`Error`](crate::Error) suggests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice<'a> {
    /// State a type for all matrices of a model without weights ([`Model::open_metadata`](crate::Model::open_metadata)).
    AssumeType,
    /// Give a chat template.
    GiveTemplate,
    /// Choose one of the model's chat templates.
    ChooseTemplate {
        /// Names of the templates.
        known: &'a [String],
    },
    /// Check which drivers and permissions are missing.
    FindDevices,
    /// Select a backend.
    SelectBackend {
        /// Name of the backend.
        backend: &'a str,
    },
    /// Select the CPU, or name a device that emulates a GPU.
    SelectSoftwareDevice {
        /// Label of the device.
        device: &'a str,
    },
    /// Select a device in addition to the selected ones.
    SelectDevice {
        /// Label of the device.
        device: &'a str,
        /// Labels of the selected devices.
        selected: &'a [String],
    },
    /// Select two devices, or divide the CPU into two.
    SelectTwoDevices,
    /// Change the placement or its settings. The list has the changes that may help.
    Replan(&'a [Remedy]),
    /// Check the device's driver, or leave the device out.
    CheckDriver,
    /// Update the device's driver, leave the device out, or run all self-tests.
    UpdateDriver {
        /// Label of the device.
        device: &'a str,
    },
    /// Run all self-tests of the device, or leave the device out.
    TestDevice {
        /// Label of the device.
        device: &'a str,
    },
    /// Probe the link between the two devices again, or leave one of them out.
    ProbeLink,
    /// Probe the links between the devices again, or leave a device out.
    ProbeLinks,
    /// Leave a device out, so that the plan has no prefill stage.
    AvoidPrefillStage,
    /// Plan with int8 activations.
    SelectInt8Activations,
    /// Correct the lengths that a load draws.
    CorrectLengths {
        /// Text that has these lengths.
        of: DrawnText,
    },
    /// Reset the device's driver, leave the device out, or set another limit for computations that do not complete.
    ResetDriver {
        /// Label of the device.
        device: &'a str,
    },
    /// Set another limit for copies and reads that do not complete.
    SetStallTimeout,
}
