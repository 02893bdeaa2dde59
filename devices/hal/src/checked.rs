//! Validation, once, above every backend.

use crate::backend::Device;

/// A device whose calls are validated before they reach the backend.
pub struct Checked<D: ?Sized + Device> {
    #[allow(dead_code)]
    inner: Box<D>,
}
