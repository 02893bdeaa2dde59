//! Messages of the validation layer.

use ash::vk;
use ragtag_hal::Error;
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, PoisonError};

/// Maximum number of stored messages. A single mistake can cause millions of messages.
const MAX_MESSAGES: usize = 100;

/// Messages of the validation layer since the instance was created.
#[derive(Debug, Default)]
pub(crate) struct Messages(Mutex<Vec<String>>);

impl Messages {
    /// Returns the stored messages in order.
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the first message as an error.
    pub(crate) fn objection(&self) -> Option<Error> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.first().map(|first| Error::invalid(format!("the validation layer objects: {first}")))
    }

    /// Returns the create info for a messenger that stores its messages in `self`. `self` must outlive the
    /// messenger.
    pub(super) fn messenger(&self) -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
        use vk::{DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Type};
        vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(Severity::WARNING | Severity::ERROR)
            .message_type(Type::GENERAL | Type::VALIDATION | Type::PERFORMANCE)
            .pfn_user_callback(Some(heard))
            .user_data(std::ptr::from_ref(self).cast_mut().cast())
    }

    fn add(&self, message: String) {
        tracing::error!(message, "the validation layer objects");
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MAX_MESSAGES {
            all.push(message);
        }
    }
}

/// Callback for each message. It stores only messages of the validation layer.
unsafe extern "system" fn heard(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    kinds: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    messages: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: `messages` is the pointer that `messenger` registered. `data` and its text are valid during
    // this call.
    let (messages, text) = unsafe {
        let text = (*data).p_message;
        let text = if text.is_null() { c"" } else { CStr::from_ptr(text) };
        (&*messages.cast::<Messages>().cast_const(), text.to_string_lossy().into_owned())
    };
    if kinds.contains(vk::DebugUtilsMessageTypeFlagsEXT::GENERAL) {
        tracing::debug!(text, "message of the Vulkan loader");
    } else {
        messages.add(text);
    }
    vk::FALSE
}
