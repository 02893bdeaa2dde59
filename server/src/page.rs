//! The page of the server, and the state and the receipt that it shows.

use crate::http::{Server, Shared, refused, written};
use crate::monitor;
use crate::refusal::{Kind, Refusal, Shape};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

/// Paths of the page's files. They contain no data, so they need no key.
pub(crate) const FILES: [&str; 3] = ["/", "/page.css", "/page.js"];

const HTML: &str = include_str!("page/page.html");
const STYLES: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Content security policy. The page loads only its own files, and no other page may embed it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// Returns the routes of the page.
pub(crate) fn routes() -> Router<Arc<Server>> {
    let file = |kind: &'static str, text: &'static str| get(move || async move { file(kind, text) });
    Router::new()
        .route(FILES[0], file("text/html; charset=utf-8", HTML))
        .route(FILES[1], file("text/css; charset=utf-8", STYLES))
        .route(FILES[2], file("text/javascript; charset=utf-8", SCRIPT))
        .route("/internal/state", get(state))
        .route("/internal/receipt", get(receipt))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

async fn state(State(server): Shared, request: Request) -> Response {
    let since_ms = request.uri().query().and_then(|query| query.strip_prefix("since=")?.parse().ok());
    in_background(move || Ok(monitor::state(&server, since_ms))).await
}

async fn receipt(State(server): Shared) -> Response {
    in_background(move || {
        let latest = server.models.latest();
        match latest.as_ref().and_then(|(_, served)| Some((served.receipt.as_ref()?, &served.engine))) {
            Some((receipt, engine)) => receipt(engine).map_err(Refusal::from),
            None => Err(Refusal::new(Kind::NotFound, "there is no receipt")),
        }
    })
    .await
}

/// Answers with the result of work that may take long: a comparison of times, or the digest of a model.
async fn in_background(
    work: impl FnOnce() -> Result<serde_json::Value, Refusal> + Send + 'static,
) -> Response {
    let failed = |_| Err(Refusal::new(Kind::Internal, "internal error"));
    match tokio::task::spawn_blocking(work).await.unwrap_or_else(failed) {
        Ok(value) => written(StatusCode::OK, &value),
        Err(refusal) => refused(&refusal, Shape::OpenAi),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_all_its_parts_and_loads_only_its_own_files() {
        for part in
            ["models", "tiles", "flow", "timeline", "compared", "chat", "memory", "reasons", "receipt", "key"]
        {
            assert!(HTML.contains(&format!("id=\"{part}\"")), "{part}");
        }
        let ids = SCRIPT.split("at(\"").skip(1).filter_map(|rest| rest.split('"').next());
        for id in ids {
            assert!(HTML.contains(&format!("id=\"{id}\"")), "{id}");
        }
        for text in [HTML, STYLES, SCRIPT] {
            assert!(!text.contains("://") && !text.contains("url(") && !text.contains("@import"));
        }
        let sources =
            HTML.split("src=\"").chain(HTML.split("href=\"")).filter(|rest| !rest.starts_with("<!"));
        assert!(sources.into_iter().all(|rest| rest.starts_with("page.")), "{HTML}");
        // Policies forbid inline code and styles, and texts never become markup.
        for text in ["style=", "onclick", "<style", "innerHTML", "insertAdjacentHTML", "eval("] {
            assert!(!HTML.contains(text) && !SCRIPT.contains(text), "{text}");
        }
    }
}
