//! Checks before each route: keys, and requests that a web page sends. Adds the id of the request, and logs it.

use crate::http::{Server, refused, shape};
use crate::refusal::{Kind, Refusal};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use subtle::{Choice, ConstantTimeEq};

/// Headers with the id of a request, as the clients of OpenAI and Anthropic read it.
const IDS: [HeaderName; 2] = [HeaderName::from_static("x-request-id"), HeaderName::from_static("request-id")];
/// Maximum length of an id that the client gives.
const MAX_ID_BYTES: usize = 64;

pub(crate) async fn guard(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = id(request.headers()).unwrap_or_else(|| format!("req_{:016x}", server.draw()));
    let path = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let method = request.method().clone();
    let mut response = match check(&server, &path, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refused(&refusal, shape(&path)),
    };
    if let Ok(value) = HeaderValue::from_str(&id) {
        for name in IDS {
            response.headers_mut().insert(name, value.clone());
        }
    }
    let status = response.status().as_u16();
    server.metrics.request(&path, status);
    let ms = started.elapsed().as_millis() as u64;
    if status >= 500 {
        tracing::error!(id, %method, path, status, ms, "request");
    } else {
        tracing::info!(id, %method, path, status, ms, "request");
    }
    response
}

/// Returns the id that the client gives, if it is harmless in a log.
fn id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(&IDS[0])?.to_str().ok()?;
    let is_sound = !id.is_empty() && id.len() <= MAX_ID_BYTES && id.bytes().all(|b| b.is_ascii_graphic());
    is_sound.then(|| id.to_owned())
}

fn check(server: &Server, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    if path == "/health" {
        return Ok(());
    }
    if server.is_stopping.load(Ordering::Relaxed) {
        return Err(Refusal::new(Kind::Unavailable, "the server is stopping"));
    }
    let keys = &server.options.keys;
    match keys.is_empty() {
        true => check_page(server, headers),
        // The page asks for the key, and its files contain no data.
        false if crate::page::FILES.contains(&path) => Ok(()),
        false => check_key(keys, headers),
    }
}

fn check_key(keys: &[String], headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let given = bearer.or_else(|| text("x-api-key")).unwrap_or_default().as_bytes();
    // Compares all keys, so that the time tells nothing about them but their lengths.
    let is_known = keys.iter().fold(Choice::from(0), |known, key| known | key.as_bytes().ct_eq(given));
    match bool::from(is_known) {
        true => Ok(()),
        false => {
            let message = "missing or wrong API key (Authorization: Bearer KEY, or x-api-key: KEY)";
            Err(Refusal::new(Kind::Unauthorized, message).code("invalid_api_key"))
        }
    }
}

/// Refuses requests of web pages. Without keys, any page in the user's browser could otherwise use the server: directly,
/// or through a name that it lets point to this machine.
fn check_page(server: &Server, headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    if server.is_local && !is_local(host) {
        return Err(Refusal::new(Kind::Forbidden, "without API keys, only localhost may be the host"));
    }
    let origin = text(header::ORIGIN).map(|origin| origin.split_once("://").map_or(origin, |(_, host)| host));
    match origin.is_some_and(|origin| origin != host) {
        true => {
            Err(Refusal::new(Kind::Forbidden, "without API keys, web pages of other servers are refused"))
        }
        false => Ok(()),
    }
}

/// Returns whether the host of a request is this machine.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_both_headers_and_compared_whole() {
        let keys = ["secret".to_owned(), "other".to_owned()];
        let given = |name: &'static str, value: &'static str| {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            check_key(&keys, &headers).is_ok()
        };
        assert!(given("authorization", "Bearer secret") && given("authorization", "bearer other"));
        assert!(given("x-api-key", "other"));
        for (name, value) in [
            ("authorization", "secret"),
            ("authorization", "Bearer secre"),
            ("authorization", "Bearer secrets"),
            ("authorization", "Bearer "),
            ("x-api-key", ""),
            ("host", "secret"),
        ] {
            assert!(!given(name, value), "{name}: {value}");
        }
    }

    #[test]
    fn local_hosts_are_names_and_addresses_of_loopback() {
        for host in ["localhost", "LocalHost:8080", "127.0.0.1:80", "127.1.2.3", "[::1]:8080"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example:80", "10.0.0.1", "[::2]:80"] {
            assert!(!is_local(host), "{host}");
        }
    }
}
