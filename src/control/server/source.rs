//! Reports of an agent.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::put;

use super::handlers::{Body, HttpError, Shared, parse_body};
use crate::control::Switch;

/// Routes of agents.
pub(super) fn routes() -> Router<Arc<Switch>> {
    Router::new().route("/v1/source", put(report))
}

async fn report(State(switch): Shared, body: Body) -> Result<StatusCode, HttpError> {
    switch.set_source(parse_body(&body?)?);
    Ok(StatusCode::NO_CONTENT)
}
