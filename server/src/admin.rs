//! Changes of the devices of a running server, for clients with a key.

use crate::http::{Server, Shared, answered};
use crate::job::{Named, Rest, check_rest};
use crate::models::InUse;
use crate::refusal::{Kind, Refusal, Shape};
use axum::extract::{Request, State};
use axum::response::Response;
use ragtag_engine::{DeviceChange, Error};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa::ToSchema;

/// A change of the devices of a loaded model.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DevicesRequest {
    model: Option<String>,
    /// Devices that the model must no longer use.
    #[serde(default)]
    remove: Vec<String>,
    /// Devices that the model may use, from now on or again.
    #[serde(default)]
    add: Vec<String>,
    /// Whether to plan again. Every change does.
    #[serde(default)]
    replan: bool,
    /// Whether to free the memory of all devices. Requests wait until `resume`.
    #[serde(default)]
    suspend: bool,
    /// Whether to load the model again after `suspend`.
    #[serde(default)]
    resume: bool,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Rest,
}

impl Named for DevicesRequest {
    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

impl DevicesRequest {
    fn change(self) -> Result<DeviceChange, Refusal> {
        check_rest(&self.rest, &[])?;
        let asks = self.replan || !self.remove.is_empty() || !self.add.is_empty();
        let suspend = match (self.suspend, self.resume) {
            (true, true) => return Err(Refusal::of("resume", "suspend and resume exclude each other")),
            (false, false) if !asks => {
                let message = "the request changes nothing: set remove, add, replan, suspend or resume";
                return Err(Refusal::new(Kind::Invalid, message));
            }
            (false, false) => None,
            (suspend, _) => Some(suspend),
        };
        let mut change = DeviceChange::default();
        (change.remove, change.add, change.suspend) = (self.remove, self.add, suspend);
        Ok(change)
    }
}

/// Changes the devices of a loaded model. Returns the new plan in short.
fn changed(served: &InUse, name: &str, change: &DeviceChange) -> Result<Value, Refusal> {
    let plan = served.engine.change_devices(change).map_err(|error| match error {
        // The request is at fault, not the server, which goes on.
        Error::NotSelected { .. } | Error::UnknownDevice { .. } | Error::Planner(_) => {
            Refusal::new(Kind::Invalid, error.to_string())
        }
        error => error.into(),
    })?;
    let stages: Vec<_> = plan.all_stages().map(|stage| &stage.device).collect();
    Ok(json!({
        "model": name,
        "is_suspended": served.engine.recovery().is_suspended,
        "split": plan.split().to_string(),
        "devices": stages,
        "context": plan.context,
    }))
}

impl Server {
    async fn change_devices(self: &Arc<Self>, request: Request) -> Result<Value, Refusal> {
        if self.options.keys.is_empty() {
            let message = "devices change only for clients with an API key, and this server has none";
            return Err(Refusal::new(Kind::Forbidden, message));
        }
        let request: DevicesRequest = self.read(request).await?;
        let name = self.models.name(request.model())?.to_owned();
        let served = self.models.loaded(request.model())?;
        let change = request.change()?;
        // Not one of the threads that read requests: this takes as long as loading the model.
        let done = tokio::task::spawn_blocking(move || changed(&served, &name, &change));
        done.await.map_err(|_| Refusal::new(Kind::Internal, "the devices could not be changed"))?
    }
}

#[utoipa::path(
    post, path = "/admin/devices", request_body = DevicesRequest,
    responses((status = 200), (status = 400), (status = 401), (status = 403), (status = 404), (status = 503))
)]
pub(crate) async fn devices(State(server): Shared, request: Request) -> Response {
    answered(server.change_devices(request).await, Shape::OpenAi)
}
