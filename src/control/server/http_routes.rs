//! Routes of the HTTP listener: probes, metrics, the dashboard and its data. None of them changes anything.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, ALLOW, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Semaphore;

use super::dashboard;
use super::handlers::{HttpError, Shared, explain, run_blocking, summaries};
use super::http_access::Access;
use super::unread::Unread;
use crate::control::Switch;
use crate::control::metrics::Format;
use crate::limits::UNREAD_BYTES_MAX;

/// Probes of a supervisor. Their status needs no token.
const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Routes for clients that `access` admits.
pub(super) fn router(switch: Arc<Switch>, access: Access) -> Router {
    let [healthz_path, readyz_path] = PROBES;
    let gate = Gate { access, turn: Semaphore::new(1), unread: Unread::new(UNREAD_BYTES_MAX) };
    summaries()
        .route(healthz_path, get(healthz))
        .route(readyz_path, get(readyz))
        .route("/metrics", get(metrics))
        .route("/v1/explain", get(explain))
        .merge(dashboard::routes(switch.clone()))
        .fallback(unknown_route)
        .layer(from_fn_with_state(Arc::new(gate), admit))
        .with_state(switch)
}

/// Condition on requests, and the right of one of them to be served.
struct Gate {
    access: Access,
    /// One request at a time walks the counters: many of them would keep the control socket waiting.
    turn: Semaphore,
    unread: Unread,
}

/// Rejects requests other than GET and HEAD, and those that the gate does not admit.
async fn admit(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let error = format!("{} is refused: this listener changes nothing", request.method());
        let error = HttpError::new(StatusCode::METHOD_NOT_ALLOWED, error);
        return ([(ALLOW, "GET, HEAD")], error).into_response();
    }
    let admitted = gate.access.check(request.headers());
    if dashboard::is_page(request.uri().path()) && gate.access.has_token() {
        return next.run(request).await;
    }
    if PROBES.contains(&request.uri().path()) && gate.access.has_token() {
        let response = next.run(request).await;
        // Names of ports are for clients with the token.
        return if admitted.is_ok() { response } else { response.status().into_response() };
    }
    if let Err(error) = admitted {
        return ([(WWW_AUTHENTICATE, "Bearer")], error).into_response();
    }
    // Nothing closes the semaphore.
    let _turn = gate.turn.acquire().await;
    gate.unread.bounded(next.run(request).await)
}

async fn metrics(State(switch): Shared, headers: HeaderMap) -> Result<Response, HttpError> {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = Format::accepted(accept);
    let text = run_blocking(move || Ok(switch.metrics(format)))?;
    Ok(([(CONTENT_TYPE, format.content_type())], text).into_response())
}

async fn healthz(State(switch): Shared) -> (StatusCode, String) {
    probe(&switch.unhealthy())
}

async fn readyz(State(switch): Shared) -> (StatusCode, String) {
    let remarks = switch.remarks();
    match (switch.not_ready(), remarks.as_slice()) {
        (problems, []) => probe(&problems),
        // The switch forwards by the last tables.
        (problems, remarks) if problems.is_empty() => {
            (StatusCode::OK, format!("ok\n{}\n", remarks.join("\n")))
        }
        (problems, remarks) => probe(&[&problems, remarks].concat()),
    }
}

/// Responds to a probe with the problems, one line each.
fn probe(problems: &[String]) -> (StatusCode, String) {
    match problems {
        [] => (StatusCode::OK, "ok\n".to_owned()),
        problems => (StatusCode::SERVICE_UNAVAILABLE, problems.join("\n") + "\n"),
    }
}

async fn unknown_route(uri: Uri) -> HttpError {
    let path = uri.path();
    HttpError::new(
        StatusCode::NOT_FOUND,
        format!("there is nothing at {path}: this listener serves / and /metrics, and others"),
    )
}
