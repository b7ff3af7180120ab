//! The dashboard: one page, its style and its script, and the data that it asks for.
//!
//! The page has nothing of the switch in it. So a client without the token gets it too, and it asks its reader for the
//! token, which it sends in a header with each request for data.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::task::spawn_blocking;

use super::handlers::{HttpError, run_blocking};
use crate::control::Switch;
use crate::control::dashboard::{Dashboard, Report};

/// Paths of the page and its parts.
const PAGE: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("dashboard/index.html")),
    ("/dashboard.css", "text/css; charset=utf-8", include_str!("dashboard/dashboard.css")),
    ("/dashboard.js", "text/javascript; charset=utf-8", include_str!("dashboard/dashboard.js")),
];

/// Policy of the page: no script, style or request but to this listener, no text that becomes HTML, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of the page and of its data.
const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

/// Returns whether the path is one of the page, which has nothing of the switch in it.
pub(super) fn is_page(path: &str) -> bool {
    PAGE.iter().any(|(of_page, ..)| *of_page == path)
}

/// Routes of the page and its data.
pub(super) fn routes(switch: Arc<Switch>) -> Router<Arc<Switch>> {
    let data = Router::new()
        .route("/v1/overview", get(overview))
        .route("/v1/reachability", get(reachability))
        .with_state(Arc::new(Dashboard::new(switch)));
    PAGE.into_iter().fold(data, |router, (path, kind, text)| {
        router.route(path, get(move || async move { (HEADERS, [(CONTENT_TYPE, kind)], text) }))
    })
}

async fn overview(State(dashboard): State<Arc<Dashboard>>) -> Result<Response, HttpError> {
    run_blocking(move || Ok(document(StatusCode::OK, dashboard.overview())))
}

/// Responds with 202 while another thread computes the reachability by the tables in force.
async fn reachability(State(dashboard): State<Arc<Dashboard>>) -> Response {
    match dashboard.reachability(|work| drop(spawn_blocking(work))) {
        Report::Current(bytes) => document(StatusCode::OK, bytes),
        Report::Pending(bytes) => document(StatusCode::ACCEPTED, bytes),
    }
}

fn document(status: StatusCode, json: Bytes) -> Response {
    (status, HEADERS, [(CONTENT_TYPE, "application/json")], json).into_response()
}
