//! Requests about Services, and health checks of load balancers.

pub(super) mod health_checks;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Json;
use axum::routing::get;

use super::handlers::{Body, HttpError, Shared, parse_body, run_blocking};
use crate::control::Switch;
use crate::control::protocol::{Loaded, ServicesPatch, ServicesReport};
use crate::tables::ServiceTable;

/// Routes of Services.
pub(super) fn routes() -> Router<Arc<Switch>> {
    Router::new().route("/v1/services", get(report).put(replace).patch(change))
}

async fn report(State(switch): Shared) -> Result<Json<ServicesReport>, HttpError> {
    run_blocking(move || Ok(Json(switch.services_report())))
}

async fn replace(State(switch): Shared, body: Body) -> Result<Json<Loaded>, HttpError> {
    let body = body?;
    run_blocking(move || Ok(Json(switch.replace_services(&parse_body::<ServiceTable>(&body)?)?)))
}

async fn change(State(switch): Shared, body: Body) -> Result<Json<Loaded>, HttpError> {
    let body = body?;
    run_blocking(move || Ok(Json(switch.patch_services(&parse_body::<ServicesPatch>(&body)?)?)))
}
