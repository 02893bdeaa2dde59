//! The Vulkan loader and a Vulkan instance.

use super::{Facts, Messages};
use crate::config::Validation;
use ash::{ext, vk};
use ragtag_hal::Error;
use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

/// Requested API version. A device may support only an older version.
const VERSION: u32 = vk::API_VERSION_1_3;
/// Name of the validation layer.
const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

/// An instance and its debug messenger.
pub(crate) struct Instance {
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    raw: ash::Instance,
    entry: ash::Entry,
    messages: Arc<Messages>,
}

/// Keeps the drivers loaded until the process ends. The loader unloads them when the last instance is
/// destroyed, and some drivers cannot be reloaded many times. After about twenty reloads of NVIDIA's driver,
/// the loader no longer found a driver.
fn keep_drivers(entry: &ash::Entry) {
    static KEPT: OnceLock<Option<(ash::Entry, ash::Instance)>> = OnceLock::new();
    KEPT.get_or_init(|| {
        // SAFETY: the instance has no layers or extensions. It is never used or destroyed.
        let instance = unsafe { entry.create_instance(&vk::InstanceCreateInfo::default(), None) };
        Some((entry.clone(), instance.ok()?))
    });
}

/// Returns true if the validation layer is installed.
fn has_validation(entry: &ash::Entry) -> bool {
    // SAFETY: the call needs no instance.
    let layers = unsafe { entry.enumerate_instance_layer_properties() };
    layers.is_ok_and(|layers| layers.iter().any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION)))
}

impl Instance {
    /// File name of the Vulkan loader.
    pub(crate) const LIBRARY: &'static str = if cfg!(target_os = "windows") {
        "vulkan-1.dll"
    } else if cfg!(any(target_os = "macos", target_os = "ios")) {
        "libvulkan.dylib"
    } else if cfg!(target_os = "android") {
        "libvulkan.so"
    } else {
        "libvulkan.so.1"
    };

    /// Loads the Vulkan loader and creates an instance. `validation` decides whether the instance uses the
    /// validation layer.
    ///
    /// # Errors
    /// Returns a message that names the missing loader, driver or validation layer.
    pub(crate) fn load(validation: Validation, messages: &Arc<Messages>) -> Result<Self, String> {
        // SAFETY: this is the system's Vulkan loader, whose initialisers are as safe as those of a linked
        // library.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| error.to_string())?;
        // SAFETY: the call needs no instance.
        let version = unsafe { entry.try_enumerate_instance_version() };
        if version.ok().flatten().is_none_or(|version| version < vk::API_VERSION_1_1) {
            return Err("the Vulkan loader supports only Vulkan 1.0; update the loader".into());
        }
        let validation = match validation {
            Validation::Off => false,
            Validation::WhereInstalled => has_validation(&entry),
            Validation::On => true,
        };
        let (layers, extensions) = match validation {
            true => (vec![VALIDATION.as_ptr()], vec![ext::debug_utils::NAME.as_ptr()]),
            false => (vec![], vec![]),
        };
        let application = vk::ApplicationInfo::default().application_name(c"ragtag").api_version(VERSION);
        let mut messenger = messages.messenger();
        let mut info = vk::InstanceCreateInfo::default()
            .application_info(&application)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions);
        if validation {
            info = info.push_next(&mut messenger);
        }
        // SAFETY: the names and structures live until the call returns.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(|code| match code {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => "the loader finds no Vulkan driver".to_string(),
            vk::Result::ERROR_LAYER_NOT_PRESENT => format!("{VALIDATION:?} is not installed"),
            code => format!("vkCreateInstance: {code:?}"),
        })?;
        keep_drivers(&entry);
        let mut instance = Self { messenger: None, raw, entry, messages: Arc::clone(messages) };
        if validation {
            instance.listen(&messages.messenger())?;
        }
        Ok(instance)
    }

    /// Fails if the validation layer has reported a message.
    ///
    /// # Errors
    /// Returns the first message of the validation layer. All later calls return the same message.
    pub(crate) fn unobjected(&self) -> Result<(), Error> {
        let objection = self.messenger.is_some().then(|| self.messages.objection()).flatten();
        objection.map_or(Ok(()), Err)
    }

    fn listen(&mut self, info: &vk::DebugUtilsMessengerCreateInfoEXT<'_>) -> Result<(), String> {
        let functions = ext::debug_utils::Instance::new(&self.entry, &self.raw);
        // SAFETY: the extension is enabled. The object that receives the messages lives as long as the
        // instance.
        let messenger = unsafe { functions.create_debug_utils_messenger(info, None) };
        let messenger = messenger.map_err(|code| format!("vkCreateDebugUtilsMessengerEXT: {code:?}"))?;
        self.messenger = Some((functions, messenger));
        Ok(())
    }

    pub(super) fn raw(&self) -> &ash::Instance {
        &self.raw
    }

    pub(super) fn entry(&self) -> &ash::Entry {
        &self.entry
    }

    /// Returns the physical devices and their properties, in the loader's order.
    ///
    /// # Errors
    /// Returns a message with the loader's result code if the loader cannot list the devices.
    pub(crate) fn physical_devices(&self) -> Result<Vec<Facts>, String> {
        // SAFETY: the instance is alive.
        let devices = unsafe { self.raw.enumerate_physical_devices() };
        let devices = devices.map_err(|code| format!("vkEnumeratePhysicalDevices: {code:?}"))?;
        devices.into_iter().map(|device| Facts::of(self, device)).collect()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: every device keeps the instance alive, so no device is left. The messenger is not used
        // again.
        unsafe {
            if let Some((functions, messenger)) = self.messenger.take() {
                functions.destroy_debug_utils_messenger(messenger, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}
